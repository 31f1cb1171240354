"""Text that comes from outside in LaTeX: shown as it is, whatever characters it has. Nothing here needs torch."""

from __future__ import annotations

import re

from protonorm.core.text import visible

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


def comment(text: str) -> str:
    """Write text as one comment: a line break would end it."""
    return f"% {visible(' '.join(text.split()))}"


def label(name: str) -> str:
    """Write the label of a table, without signs that mean something."""
    return f"\\label{{table:{NOT_IN_LABELS.sub('-', name)}}}"
