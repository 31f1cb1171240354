"""Count the words of prose in the README and the docs, and list sentences that are too long.

Prose is a Markdown page without code blocks, tables, HTML comments and link targets. `python -m tools.words`
prints a line for each page and exits with 1 if a limit is exceeded; tests/docs/test_words.py holds the same limits.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIMITS = {"README.md": 700, "docs": 35_000}
SHORT_SENTENCES = (
    "README.md",
    "docs/tutorial.md",
    "docs/index.md",
)  # pages in which a sentence has at most LONGEST words
LONGEST = 45
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    """Return a page without code blocks, tables, comments, images and link targets."""
    text = re.sub(r"<!--.*?-->", "", FENCE.sub("", text), flags=re.DOTALL)
    text = re.sub(r"^ *\|.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def count(text: str) -> int:
    """Count the words of prose of a page: runs of characters with at least one letter or digit."""
    return sum(bool(re.search(r"\w", word)) for word in prose(text).split())


def long_sentences(text: str, longest: int = LONGEST) -> list[str]:
    """List the sentences of prose with more than `longest` words; headings, items and paragraphs end a sentence."""
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*#]|\d+\.) )", prose(text))
    sentences = [part for block in blocks for part in re.split(r"(?<=[.!?:;])\s+", " ".join(block.split()))]
    return [sentence for sentence in sentences if len(sentence.split()) > longest]


def pages() -> dict[str, str]:
    """Return the text of README and of all pages of the docs by path."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def totals(texts: dict[str, str]) -> dict[str, int]:
    """Return the words of the README and of all docs together."""
    counts = {path: count(text) for path, text in texts.items()}
    return {"README.md": counts.pop("README.md"), "docs": sum(counts.values())}


def main() -> int:
    """Print the words of every page, the totals and sentences that are too long."""
    texts = pages()
    for path, text in texts.items():
        print(f"{count(text):6} {path}")
    broken = [
        f"{path}: {words} words, at most {LIMITS[path]}"
        for path, words in totals(texts).items()
        if words > LIMITS[path]
    ]
    for path in SHORT_SENTENCES:
        broken += [f"{path}: more than {LONGEST} words: {sentence}" for sentence in long_sentences(texts[path])]
    print(*(f"{words:6} {path}, all" for path, words in totals(texts).items()), *broken, sep="\n")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
