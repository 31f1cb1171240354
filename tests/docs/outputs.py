"""What pages say that commands and scripts print, against what these print now.

A block of kind `text` is what the block above it prints, the nearest one that is run, unless a comment `from` says what
else it is. A line with nothing but … stands for lines that are left out. White space does not count: how wide a table
is depends on its numbers. Words must be equal. Numbers may differ a little, as another processor has other last bits:
those that are counted by settings, such as seeds, may not.
"""

import difflib
import re
from typing import NamedTuple

LEFT_OUT = "…"
NUMBER = re.compile(r"(?<![\w.])([+−-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?!\w)")
POINTS = 3.0  # what an accuracy, printed in per cent with two decimals, may differ by, or half of the ± in its line
GAIN = 5.0  # likewise a number with a sign: a gain, or an end of its interval
SPREAD = 5.0  # likewise of what follows ±, or half of it
SHARE = 0.05  # likewise of numbers up to 1, and of others that are not in per cent a twentieth
PER_CENT, CASES, ROUNDS = 10, 3, 3  # likewise of whole per cents, of clients that gain or lose, of a chosen round
SIGNS = "+−"  # of gains; other numbers below zero have -
COUNTED = ({"gain", "lose", "equal"}, "in")  # words before a number of cases
MEASURED = ("Round", "round")  # words before the number of a round that was chosen


def differences(printed, made):
    """Return the difference of an output and the one on the page; empty if it is the same."""
    if matches(printed, made):
        return ""
    lines = [[line.rstrip() for line in text.strip().splitlines()] for text in (printed, made)]
    return "\n".join(difflib.unified_diff(*lines, "on the page", "printed now", lineterm=""))


def matches(printed, made):
    """Return whether an output is the one on the page, with lines left out where that says so."""
    first, *others = [_words(part) for part in _parts(printed)]
    words = _words(made)
    if not others:
        return len(first) == len(words) and _equal(first, words)
    *between, last = others
    if len(words) < len(first) + len(last) or not _equal(first, words[: len(first)]):
        return False
    end = len(words) - len(last)
    at = len(first)
    for part in between:  # as soon as it comes: what is behind it has the most room then
        at = next((n + len(part) for n in range(at, end - len(part) + 1) if _equal(part, words[n : n + len(part)])), -1)
        if at < 0:
            return False
    return _equal(last, words[end:])


def _parts(text):
    """Split a text where lines are left out."""
    return re.split(rf"^\s*{LEFT_OUT}\s*$", text, flags=re.MULTILINE)


class Word(NamedTuple):
    """A word, and how much the numbers of its line differ between seeds: where they do, they do between processors."""

    text: str
    spread: float


def _words(text):
    found = []
    for line in re.sub(r"─+", "─", text).splitlines():
        spread = max(map(float, re.findall(r"± (\d+\.\d+)", line)), default=0.0)
        found += [Word(word, spread) for word in line.split()]
    return found


def _equal(printed, made):
    """Compare words, each with those around it."""
    texts = [word.text for word in printed]
    return all(
        one.text == other.text or _close(one, other.text, texts[max(n - 2, 0) : n], texts[n + 1 : n + 2])
        for n, (one, other) in enumerate(zip(printed, made, strict=True))
    )


def _close(one, other, before, after):
    """Return whether two words differ in nothing but a number, by a little."""
    pieces, others = NUMBER.split(one.text), NUMBER.split(other)
    if len(pieces) != len(others) or pieces[::2] != others[::2]:
        return False
    return all(
        first == second or _allowed(first, second, one.spread, before, after)
        for first, second in zip(pieces[1::2], others[1::2], strict=True)
    )


def _allowed(first, second, spread, before, after):
    """Return whether two numbers differ by no more than they may."""
    a, b = (float(text.replace("−", "-")) for text in (first, second))
    size = max(abs(a), abs(b))
    decimals = {len(text.partition(".")[2]) for text in (first, second)}
    if decimals == {0}:
        most = _of_whole_numbers(before, after)
    elif first[0] in SIGNS and second[0] in SIGNS:
        most = max(GAIN, spread / 2)
    elif size <= 1:
        most = SHARE
    elif len(decimals) > 1:
        most = 0
    elif decimals != {2}:
        most = SHARE * size
    else:
        most = max(SPREAD, size / 2) if before[-1:] == ["±"] else max(POINTS, spread / 2)
    return abs(a - b) <= most


def _of_whole_numbers(before, after):
    if after[:1] and after[0].startswith("%"):
        return PER_CENT
    if before[-1:] == [COUNTED[1]] and before[0] in COUNTED[0]:
        return CASES
    return ROUNDS if before[-1:] and before[-1] in MEASURED else 0


def refreshed(printed, made):
    """Return the text for the page: what is printed now, with as many lines before and behind … as before."""
    lines = [line.rstrip() for line in made.strip("\n").splitlines()]
    first, *others = [part.strip("\n").splitlines() for part in _parts(printed)]
    if not others:
        return "\n".join(lines) + "\n"
    *between, last = others
    kept, at = lines[: len(first)], len(first)
    for part in between:  # begins with the first line that has its first word
        head = part[0].split()[0]
        at = next((n for n, line in enumerate(lines[at:], at) if line.split()[:1] == [head]), at)
        kept += [LEFT_OUT, *lines[at : at + len(part)]]
        at += len(part)
    return "\n".join([*kept, LEFT_OUT, *(lines[-len(last) :] if last else [])]) + "\n"
