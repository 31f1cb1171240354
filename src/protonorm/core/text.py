"""Formatting of text for users: escaping of untrusted names, and numbers, lists and tables.

Untrusted names are escaped, so that terminals, spreadsheets, Markdown and LaTeX do not interpret them.
"""

import csv
import io
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

SHOWN = 80  # characters of a value in a message
FORMULA = ("=", "+", "-", "@")  # characters that begin a formula in a spreadsheet
HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # Unicode categories of invisible and direction-changing characters
MARKUP = re.compile(r"([\\`*_{}\[\]<>#&$~|!])")  # special characters of Markdown
NUMBER = re.compile(r"[-−]?\d[\d,]*(\.\d+)?([eE][-+]?\d+)?|-")  # a number, or a dash for a missing value

SPECIAL = {  # special characters of LaTeX, or missing in its older fonts
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "|": "$|$", "<": "$<$", ">": "$>$", "–": "--", "—": "---", "…": r"\dots{}", "\N{NO-BREAK SPACE}": "~",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "[": "{[}", "*": "{*}",  # at the start of a row they would be parsed as arguments of the preceding \\
}  # fmt: skip
MATHS = {
    "−": "-", "±": r"\pm", "×": r"\times", "·": r"\cdot", "÷": r"\div", "√": r"\surd", "∞": r"\infty", "∂": r"\partial",
    "∇": r"\nabla", "∑": r"\sum", "∏": r"\prod", "∈": r"\in", "≈": r"\approx", "≠": r"\ne", "≤": r"\le", "≥": r"\ge",
    "→": r"\to", "←": r"\gets", "‖": r"\|",
    **{sign: f"^{digit}" for digit, sign in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
    **{sign: f"_{digit}" for digit, sign in enumerate("₀₁₂₃₄₅₆₇₈₉")},
}  # fmt: skip
GREEK = {  # letters that look like Latin letters have no LaTeX command and are unchanged
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "varepsilon", "ζ": "zeta", "η": "eta", "θ": "theta",
    "ι": "iota", "κ": "kappa", "λ": "lambda", "μ": "mu", "µ": "mu", "ν": "nu", "ξ": "xi", "π": "pi", "ρ": "rho",
    "σ": "sigma", "ς": "varsigma", "τ": "tau", "υ": "upsilon", "φ": "phi", "χ": "chi", "ψ": "psi", "ω": "omega",
    "Γ": "Gamma", "Δ": "Delta", "Θ": "Theta", "Λ": "Lambda", "Ξ": "Xi", "Π": "Pi", "Σ": "Sigma", "Υ": "Upsilon",
    "Φ": "Phi", "Ψ": "Psi", "Ω": "Omega",
}  # fmt: skip
LATEX = SPECIAL | {sign: f"${name}$" for sign, name in MATHS.items()}
LATEX |= {letter: f"$\\{name}$" for letter, name in GREEK.items()}
MOST = 30  # largest number of rows shown of a table in a notebook
NOT_IN_LABELS = re.compile(r"[^\w.-]+")


def visible(text: str) -> str:
    """Return a text as a single line in which invisible characters, such as line breaks, are escaped."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        sign.encode("unicode_escape", "surrogatepass").decode() if unicodedata.category(sign) in HIDDEN else sign
        for sign in text
    )


def shortened(text: str, most: int = SHOWN) -> str:
    """Format a text for a message: in a single line, truncated if it is long."""
    line = visible(text[: most + 1])
    return line if len(line) <= most else f"{line[: most - 1]}…"


def csv_lines(lines: Iterable[Sequence[Any]]) -> str:
    """Format rows as CSV; a leading apostrophe keeps spreadsheets from reading texts as formulas."""

    def cell(value: Any) -> Any:
        if not isinstance(value, str) or NUMBER.fullmatch(value):
            return value
        return f"'{line}" if (line := visible(value)).startswith(FORMULA) else line

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(cell, line) for line in lines)
    return text.getvalue()


def markdown_text(text: str) -> str:
    """Escape text for Markdown, in a single line."""
    return MARKUP.sub(r"\\\1", visible(text))


def latex_text(text: str) -> str:
    """Escape text for LaTeX; letters of any language are unchanged, in UTF-8."""
    return "".join(LATEX.get(sign, sign) for sign in visible(text))


def markdown_lines(columns: Sequence[str], head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Format a Markdown table of escaped texts; each column is aligned to the left (l) or right (r)."""
    rule = ["---:" if alignment == "r" else "---" for alignment in columns]
    return [f"| {' | '.join(line)} |" for line in (head, rule, *rows)]


def latex_float(
    comments: Iterable[str],
    columns: str,
    head: Iterable[str],
    rows: Iterable[str],
    caption: str,
    label: str,
    notes: Iterable[str],
    *,
    wide: bool = False,
    size: str = "footnotesize",
) -> str:
    """Format a LaTeX table with notes below; it needs booktabs, and LaTeX of 2018 or later for UTF-8.

    `columns`, `head` and `rows` are LaTeX, the rest is plain text. A wide table spans both columns of a page.
    """
    name = "table*" if wide else "table"
    lines = [
        *(f"% {visible(' '.join(comment.split()))}" for comment in comments),  # a line break would end a comment
        f"\\begin{{{name}}}[t]",
        f"  \\centering\\{size}\\setlength{{\\tabcolsep}}{{{2 if size == 'scriptsize' else 3}pt}}",
        f"  \\caption{{{latex_text(caption)}}}",
        f"  \\label{{table:{NOT_IN_LABELS.sub('-', label)}}}",
        f"  \\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
        *(f"    {line}" for line in ("\\toprule", *head, "\\midrule", *rows, "\\bottomrule")),
        "  \\end{tabular}",
        "  \\par\\smallskip\\begin{minipage}{\\linewidth}\\scriptsize\\raggedright",
        *(f"    {latex_text(note)}" for note in notes),
        "  \\end{minipage}",
        f"\\end{{{name}}}",
    ]
    return "\n".join(lines) + "\n"


def first_words(text: str, most: int) -> str:
    """Return the first words of a text, with an ellipsis if there are more."""
    words = visible(text).split()
    return " ".join(words[:most]) + ("…" if len(words) > most else "")


def listed(words: Sequence[str], most: int | None = None) -> str:
    """Join words with commas and a final `and`; more than `most` words are abbreviated to the first and a count."""
    if most is not None and len(words) > most:
        words = [*words[: most - 1], f"{len(words) - most + 1} more"]
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def counted(number: int, word: str, plural: str = "") -> str:
    """Format a count with its noun: 1 run, 2 runs."""
    return f"{number} {word}" if number == 1 else f"{number} {plural or word + 's'}"


def size_text(count: float) -> str:
    """Format a number of bytes in the largest fitting unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:.3g} TB"


def duration(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def digits(value: float) -> float:
    """Round to six significant digits: enough for every table, and short in a file."""
    return float(f"{float(value):.6g}")


def html_table(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]], note: str = "") -> str:
    """Format an HTML table with right-aligned numbers; long tables show the first rows and the total."""
    cells = "".join(f"<th>{_html_text(name)}</th>" for name in head)
    lines = [f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in rows[:MOST]]
    more = f"The first {MOST} of {len(rows)} rows. " if len(rows) > MOST else ""
    below = f"<p>{_html_text(more + note)}</p>" if more or note else ""
    caption = f"<caption>{_html_text(title)}</caption>"
    return f"<table>{caption}<thead><tr>{cells}</tr></thead><tbody>{''.join(lines)}</tbody></table>{below}"


def percent(value: float | None) -> str:
    """Format a fraction as a percentage; a dash for a missing value."""
    return "–" if value is None or math.isnan(value) else f"{100 * value:.2f}"


def _html_cell(value: Any) -> str:
    """Format a table cell; texts that begin like a number are right-aligned."""
    text = _html_text(value)
    right = text[:1].isdigit() or text[:1] in ("–", "−", "+")
    return f'<td style="text-align: {"right" if right else "left"}">{text}</td>'


def _html_text(value: Any) -> str:
    return escape(visible("–" if value is None else str(value)))
