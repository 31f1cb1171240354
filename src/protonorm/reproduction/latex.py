"""Tables in LaTeX, with the rules of the package booktabs. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence

from protonorm.reproduction.table import Entry, Table

SIGNS = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"$|$",
    "<": r"$<$",
    ">": r"$>$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "√": r"$\surd$",
    "Σ": r"$\Sigma$",
    "≈": r"$\approx$",
    "≤": r"$\le$",
    "…": r"\dots{}",
    "₂": r"$_2$",
    "é": r"\'e",
    **{
        letter: f"$\\{name}$"
        for letter, name in {
            "α": "alpha", "β": "beta", "γ": "gamma", "ε": "varepsilon", "η": "eta", "θ": "theta", "λ": "lambda",
            "μ": "mu", "ρ": "rho", "τ": "tau", "φ": "phi",
        }.items()
    },
}  # fmt: skip


def escape(text: str) -> str:
    """Write text so that LaTeX prints it; a sign that nobody has given a name is refused."""
    unknown = sorted({sign for sign in text if not sign.isascii() and sign not in SIGNS})
    if unknown:
        raise ValueError(f"{' '.join(unknown)} in {text!r} has no LaTeX name; add it to latex.SIGNS.")
    return "".join(SIGNS.get(sign, sign) for sign in text)


def latex(table: Table, label: str, comments: Sequence[str]) -> str:
    """Write one table as an environment to paste; it needs \\usepackage{booktabs} only."""
    lines = [
        *(f"% {' '.join(comment.split())}" for comment in comments),  # a line break would end the comment
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
        f"  \\label{{table:{label}}}",
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


def _lines(row: str, entries: Sequence[Entry]) -> list[str]:
    lines = ["    " + _row([escape(row), *map(_ours, entries)])]
    if any(entry.below for entry in entries):
        below = [f"{{\\scriptsize {escape(entry.below)}}}" if entry.below else "" for entry in entries]
        lines.append("    " + _row(["{\\scriptsize \\quad printed}", *below]) + "[2pt]")
    return lines


def _ours(entry: Entry) -> str:
    return f"\\textbf{{{escape(entry.text)}}}" if entry.bold else escape(entry.text)


def _row(parts: Sequence[str]) -> str:
    return f"{' & '.join(parts)} \\\\"
