"""Every block is run, is a file, or says why it is neither; and what it names is there."""

import re

import pytest

from tests.docs import commands
from tests.docs.pages import NOTES, ROOT, RUN, blocks, pages, parsed, prose

ALL = [block for page in pages() for block in blocks(page)]


def ids(block):
    return block.place


@pytest.mark.parametrize("block", [block for block in ALL if block.kind == "sh"], ids=ids)
def test_what_is_not_run_says_why_and_names_what_there_is(block):
    assert len(block.note("not run")) == 1, f"{block.place} is of kind sh and has no comment <!-- not run: REASON -->"
    for line in commands.lines(block.text):
        words = commands.words(line)
        commands.check_words(words)
        for file in commands.files(words):
            assert (ROOT / file).is_file() or f"--output-file {file}" in block.text, f"{block.place}: no file {file}"


def test_few_blocks_are_not_run():
    """A fifth at most, not counting outputs."""
    kinds = [block.kind for block in ALL if block.kind in (*RUN, "sh") or block.title]
    assert kinds.count("sh") <= 0.2 * len(kinds)


@pytest.mark.parametrize(
    "block", [block for block in ALL if block.kind not in (*RUN, "sh") and not block.title], ids=ids
)
def test_what_is_neither_run_nor_a_file_is_an_output_or_says_what_it_is(block):
    """An output is that of the nearest block above that is run (`outputs.py` compares)."""
    assert block.kind, f"{block.place} has no kind; text is one"
    above = [one for one in blocks(block.page) if one.line < block.line and one.kind in RUN and not one.title]
    is_output = block.kind == "text" and above and not above[-1].note("test")
    assert block.note("from") or is_output, f"{block.place}: <!-- from: SOURCE --> is missing"


@pytest.mark.parametrize("block", [block for block in ALL if block.notes], ids=ids)
def test_comments_are_where_they_count(block):
    if block.title:
        allowed = {"before", "files"}
    else:
        allowed = {"test", "before", "files"} if block.kind in RUN else {"not run" if block.kind == "sh" else "from"}
    assert {kind for kind, _ in block.notes} <= allowed


@pytest.mark.parametrize("page", pages())
def test_no_command_hides_in_an_indented_block(page):
    assert not re.search(r"^(?: {4,}|\t)(?:protonorm|python|pip|make|import|from) ", prose(page), re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("<!-- tests: rounds=1 -->\n```bash\nls\n```\n", "unknown comment 'tests'"),
        ("<!-- test: rounds=1 -->\n\nWords.\n\n```bash\nls\n```\n", "stands above no block"),
        ("Words.\n<!-- test: rounds=1 -->\n", "stands above no block"),
        ("<!-- test:\nrounds=1 -->\n", "one line"),
        ("<!-- rounds -->\n\ntable\n", "what a tool writes"),
        ("```bash\nls\n", "has no end"),
    ],
)
def test_a_comment_that_means_nothing_is_refused(page, said):
    with pytest.raises(AssertionError, match=said):
        parsed(page, "page.md")


def test_all_comments_are_explained_to_those_who_write_pages():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert [kind for kind in NOTES if f"`<!-- {kind}: " not in page] == []
