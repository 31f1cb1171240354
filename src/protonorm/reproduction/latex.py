"""Tables in LaTeX, with the rules of the package booktabs, as UTF-8. Nothing here needs torch."""

from __future__ import annotations

import re
from collections.abc import Sequence

from protonorm.core.text import visible
from protonorm.reproduction.tables import Table, TableEntry

SPECIAL = {  # signs that mean something to LaTeX, or that its old fonts lack
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": "$|$",
    "<": "$<$",
    ">": "$>$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "[": "{[}",  # at the beginning of a row it would belong to the end of the row before, and so would *
    "*": "{*}",
    "–": "--",
    "—": "---",
    "…": r"\dots{}",
    "\N{NO-BREAK SPACE}": "~",
}
MATHS = {
    "−": "-", "±": r"\pm", "×": r"\times", "·": r"\cdot", "÷": r"\div", "√": r"\surd", "∞": r"\infty", "∂": r"\partial",
    "∇": r"\nabla", "∑": r"\sum", "∏": r"\prod", "∈": r"\in", "≈": r"\approx", "≠": r"\ne", "≤": r"\le", "≥": r"\ge",
    "→": r"\to", "←": r"\gets", "‖": r"\|",
    **{sign: f"^{digit}" for digit, sign in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
    **{sign: f"_{digit}" for digit, sign in enumerate("₀₁₂₃₄₅₆₇₈₉")},
}  # fmt: skip
GREEK = {  # those that look like Latin letters have no name in LaTeX, and stay as they are
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "varepsilon", "ζ": "zeta", "η": "eta", "θ": "theta",
    "ι": "iota", "κ": "kappa", "λ": "lambda", "μ": "mu", "µ": "mu", "ν": "nu", "ξ": "xi", "π": "pi", "ρ": "rho",
    "σ": "sigma", "ς": "varsigma", "τ": "tau", "υ": "upsilon", "φ": "phi", "χ": "chi", "ψ": "psi", "ω": "omega",
    "Γ": "Gamma", "Δ": "Delta", "Θ": "Theta", "Λ": "Lambda", "Ξ": "Xi", "Π": "Pi", "Σ": "Sigma", "Υ": "Upsilon",
    "Φ": "Phi", "Ψ": "Psi", "Ω": "Omega",
}  # fmt: skip
SIGNS = (
    SPECIAL
    | {sign: f"${name}$" for sign, name in MATHS.items()}
    | {letter: f"$\\{name}$" for letter, name in GREEK.items()}
)
NOT_IN_LABELS = re.compile(r"[^\w.-]+")


def escape(text: str) -> str:
    """Write text so that LaTeX prints it; letters of any language stay as they are, in UTF-8."""
    return "".join(SIGNS.get(sign, sign) for sign in visible(text))


def latex(table: Table, label: str, comments: Sequence[str]) -> str:
    """Write a table as an environment to paste; it needs the package booktabs, and LaTeX of 2018 or later for UTF-8."""
    lines = [
        *(f"% {visible(' '.join(comment.split()))}" for comment in comments),  # a line break would end the comment
        "% needs \\usepackage{booktabs}",
        "\\begin{table*}[t]",
        "  \\centering\\small",
        f"  \\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        "    \\toprule",
        *_headings(table),
        "    " + _row([escape(table.corner), *map(escape, table.columns)]),
        "    \\midrule",
        *(line for row, entries in table.rows for line in _lines(row, entries)),
        "    \\bottomrule",
        "  \\end{tabular}",
        f"  \\caption{{{escape(table.title)}. {escape(table.explanation)}}}",
        f"  \\label{{table:{NOT_IN_LABELS.sub('-', label)}}}",
        "\\end{table*}",
        "",
    ]
    return "\n".join(lines)


def _headings(table: Table) -> list[str]:
    if not table.groups:
        return []
    above, rules, first = [""], [], 2
    for name, count in table.headings:
        above.append(f"\\multicolumn{{{count}}}{{c}}{{{escape(name)}}}")
        rules.append(f"\\cmidrule(lr){{{first}-{first + count - 1}}}")
        first += count
    return ["    " + _row(above), "    " + " ".join(rules)]


def _lines(row: str, entries: Sequence[TableEntry]) -> list[str]:
    lines = ["    " + _row([escape(row), *map(_ours, entries)])]
    for label, texts in (("best*", [one.best for one in entries]), ("printed", [one.below for one in entries])):
        if any(texts):
            below = [f"{{\\scriptsize {escape(text)}}}" if text else "" for text in texts]
            lines.append("    " + _row([f"{{\\scriptsize \\quad {escape(label)}}}", *below]))
    return lines if len(lines) == 1 else [*lines[:-1], lines[-1] + "[2pt]"]


def _ours(entry: TableEntry) -> str:
    return f"\\textbf{{{escape(entry.text)}}}" if entry.bold else escape(entry.text)


def _row(parts: Sequence[str]) -> str:
    return f"{' & '.join(parts)} \\\\"
