"""Names that come from outside, as plain text: never a command to a terminal, a spreadsheet or a typesetter."""

from __future__ import annotations

import unicodedata

FORMULA = ("=", "+", "-", "@")  # what a spreadsheet takes for the beginning of a formula
HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # Unicode categories of what cannot be seen, or turns lines around


def visible(text: str) -> str:
    """Write what cannot be seen, such as escape sequences and line breaks, as visible escapes: one line of text."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(sign) if unicodedata.category(sign) in HIDDEN else sign for sign in text)


def spreadsheet(text: str) -> str:
    """Write a name so that no spreadsheet takes it for a formula: with an apostrophe before it, if it could be one."""
    shown = visible(text)
    return f"'{shown}" if shown.startswith(FORMULA) else shown


def _escape(sign: str) -> str:
    return sign.encode("unicode_escape", "surrogatepass").decode("ascii")
