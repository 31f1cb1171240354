"""The Markdown pages of the repository, their fenced blocks, and the comments above these that readers do not see.

A comment stands on one line, above a block or above another comment:

test: WORDS       run the block smaller: each key=value, or --option value, takes the place of a printed one, or is
                  added; in Python OLD -> NEW
before: COMMAND   a command that is run first, such as one that makes the run which the block speaks of
files: FORM NAME  a file or folder that the block expects (`materials.py` has the forms)
not run: REASON   of a block of kind sh: why no test can run it
from: SOURCE      of a block that is neither run nor an output which `tools/docs_outputs.py` checks: what it is
"""

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOTES = ("test", "before", "files", "not run", "from")
RUN = ("bash", "python")  # kinds of blocks that are run
FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<kind>\w*)(?: (?P<rest>.*))?$")
TITLE = re.compile(r'title="([^"]+)"')
COMMENT = re.compile(r"<!-- (?:(?P<kind>[a-z ]+): (?P<text>\S.*)|(?P<mark>\w+)) -->")
CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
FOLDERS = (".github", "benchmarks", "docs", "examples", "experiments", "src", "tests", "tools")  # others are not ours


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: str
    line: int  # of its fence
    kind: str
    title: str | None
    text: str
    notes: tuple[tuple[str, str], ...] = ()

    @property
    def place(self):
        return f"{self.page}:{self.line}"

    def note(self, kind):
        return [text for name, text in self.notes if name == kind]


def pages():
    """Name all pages, also those that are new."""
    found = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


SHARES = {  # of the pages that take long; each has a file of tests, so that they are run side by side
    "algorithms": ("docs/algorithms/",),
    "data": ("docs/data.md", "docs/models.md"),
    "howto": ("docs/howto.md",),
    "start": ("README.md", "docs/tutorial.md"),
    "runs": ("docs/predict.md", "docs/reproduce.md", "docs/results.md", "docs/sweep.md", "docs/tracking.md"),
}


def share(name):
    """Name the pages of a share; those of none are the rest."""
    if name in SHARES:
        return [page for page in pages() if page.startswith(SHARES[name])]
    return [page for page in pages() if not page.startswith(tuple(itertools.chain(*SHARES.values())))]


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page):
    return parsed(read(page), page)[0]


def prose(page):
    """Return a page's text without its blocks and comments, line by line as it is printed."""
    return parsed(read(page), page)[1]


def inline_code(page):
    return [" ".join(match[2].split()) for match in CODE.finditer(prose(page))]


def parsed(text, page):
    """Take a page apart into its blocks and its prose; refuse comments that mean nothing."""
    found, notes, rest, marks = [], [], [], []
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        if fence := FENCE.match(line):
            inside = _inside(lines, fence, f"{page}:{number}")
            title = TITLE.search(fence["rest"] or "")
            found.append(Block(page, number, fence["kind"], title and title[1], inside, tuple(notes)))
            rest += [""] * (inside.count("\n") + 2)
            notes = []
        elif "<!--" in CODE.sub("", line):
            comment = COMMENT.fullmatch(line.strip())
            assert comment, f"{page}:{number}: a comment has one line and no neighbours"
            rest.append("")
            if comment["mark"]:
                marks.append(comment["mark"])
            else:
                assert comment["kind"] in NOTES, f"{page}:{number}: unknown comment {comment['kind']!r}, not of {NOTES}"
                notes.append((comment["kind"], comment["text"]))
        else:
            assert not (notes and line.strip()), f"{page}:{number}: a comment stands above no block: {notes}"
            rest.append(line)
    assert not notes, f"{page}: a comment stands above no block: {notes}"
    assert set(marks[1::2]) <= {"end"}, f"{page}: <!-- NAME --> … <!-- end --> hold what a tool writes; found {marks}"
    assert len(marks) % 2 == 0, f"{page}: <!-- NAME --> … <!-- end --> hold what a tool writes; found {marks}"
    return found, "\n".join(rest)


def _inside(lines, fence, place):
    """Read on to the end of a block."""
    text = ""
    for _, line in lines:
        if line.strip() == fence["ticks"]:
            return text
        text += line.removeprefix(fence["indent"]) + "\n"
    raise AssertionError(f"{place}: a block has no end")
