"""Outputs on the pages are what is printed; first that the comparison itself notices what is out of date."""

import re

import pytest
from tools import docs_outputs

from tests.docs import commands, outputs
from tests.docs.pages import blocks, parsed, share
from tests.docs.running import Reader, run_page

TABLE = """
 method     rule        accuracy  best*  gain on local           lose  verdict
 ─────────────────────────────────────────────────────────────────────────────
 protonorm  global  73.56 ± 5.67  73.56  +21.46 [+9.51, +33.43]  17 %  better
 majority   -              60.21  60.21

protonorm against local: over 3 seeds clients gain in 21 of 30 cases; key spiral-seed0-1e33db8.
Round 18 is reported: 0.912 of 4034 samples.
"""


def changed(old, new):
    assert TABLE.count(old) == 1
    return TABLE.replace(old, new)


@pytest.mark.parametrize("page", share("start"))
def test_every_block_of_the_page_runs_and_prints_what_stands_there(page, tmp_path, monkeypatch):
    run_page(page, tmp_path, monkeypatch)


def test_the_first_pages_show_outputs():
    shown = [block for page in share("start") for block in blocks(page) if block.kind == "text" and not block.notes]
    assert {block.page for block in shown} == {"README.md", "docs/tutorial.md"}
    assert all(len(block.text.splitlines()) > 4 for block in shown)


def test_white_space_does_not_count():
    """A number with a digit more makes a column wider, and the caption below it is wrapped elsewhere."""
    wider = TABLE.replace("──", "───").replace("  global", "      global").replace("over 3 seeds", "over 3\nseeds")
    assert outputs.differences(TABLE, wider) == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("73.56 ±", "73.6 ±"),  # another number of decimals
        ("73.56 ±", "76.57 ±"),  # by 3.01 points
        ("± 5.67", "± 11.35"),  # 5.68, more than 5 and more than half of it
        ("[+9.51,", "[+14.52,"),  # by 5.01
        ("[+9.51,", "[−9.51,"),
        ("17 %", "28 %"),
        ("in 21 of", "in 25 of"),
        ("of 30 cases", "of 31 cases"),
        ("over 3 seeds", "over 4 seeds"),
        ("better", "not distinguishable"),
        ("majority", "minority"),
        ("Round 18", "Round 22"),
        ("0.912", "0.970"),  # by 0.058
        ("4034", "4035"),
        ("1e33db8", "1e33db9"),
        ("lose  verdict", "verdict"),
        ("reported:", "reported"),
        ("majority   -", "local -  50.21\n majority -"),
    ],
)
def test_what_is_out_of_date_is_noticed(old, new):
    assert outputs.differences(TABLE, changed(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("73.56 ±", "76.55 ±"),
        ("± 5.67", "± 10.66"),
        ("60.21  60.21", "62.00  59.00"),
        ("+33.43]", "+38.42]"),
        ("17 %", "27 %"),
        ("in 21 of", "in 24 of"),
        ("Round 18", "Round 15"),
        ("0.912", "0.961"),
    ],
)
def test_last_bits_of_another_processor_are_not(old, new):
    assert outputs.differences(TABLE, changed(old, new)) == ""


@pytest.mark.parametrize(("now", "same"), [("44.99", True), ("45.01", False)])
def test_what_differs_much_between_seeds_may_differ_more(now, same):
    """By half of ± in its line: from 33.00 by 12."""
    assert (outputs.differences("a 33.00 ± 24.00 33.00\n", f"a 33.00 ± 24.00 {now}\n") == "") is same


@pytest.mark.parametrize(
    ("printed", "same"),
    [
        ("a b\n…\ne f", True),
        ("a b\nc d\ne f\n…", True),
        ("…\ne f", True),
        ("…\nc d\n…", True),
        ("a\n…\nc\n…\nf", True),
        ("a b\nc d\n…\nc d\ne f", False),  # nothing may stand for two
        ("a b\n…\nd f", False),
        ("…\nd c\n…", False),
        ("b\n…", False),
        ("a b … e f", False),  # within a line it is a sign like others
    ],
)
def test_lines_may_be_left_out(printed, same):
    assert (outputs.differences(printed, "a b\nc d\ne f\n") == "") is same


def test_a_difference_is_shown_line_by_line():
    found = outputs.differences("a b\nc 1.00\n", "a b\nc 9.00\n").splitlines()
    assert found[-2:] == ["-c 1.00", "+c 9.00"]


def test_outputs_are_written_into_the_page_and_nothing_else_is():
    """Lines around … are as many as before; a block in the middle begins where its first word comes again."""
    page = "Words.\n\n```bash\nls\n```\n\n```text\nold 1\n…\nmid 1\n…\nend 1\n```\n\nMore.\n\n```text\n```\n"
    first, second = (block for block in parsed(page, "page.md")[0] if block.kind == "text")
    made = {first: "new 2 \nthat\nmid 2\nthis\nend 2\n", second: "\nall of it\n"}
    wanted = page.replace("old 1", "new 2").replace("mid 1", "mid 2").replace("end 1", "end 2")
    assert docs_outputs.written(page, made) == wanted.replace("```text\n```", "```text\nall of it\n```")


@pytest.mark.parametrize(("printed", "same"), [("one 2", True), ("one 3", False), ("two 2", False)])
def test_a_page_with_another_output_is_refused(printed, same, tmp_path, monkeypatch):
    text = f"```python\nprint('one 2')\n```\n\nWords.\n\n```text\n{printed}\n```\n"
    reader = Reader("page.md", tmp_path, monkeypatch)
    if same:
        reader.read(parsed(text, "page.md")[0])
        return
    with pytest.raises(AssertionError, match=r"page.md:7 is out of date(.|\n)*\+one 2"):
        reader.read(parsed(text, "page.md")[0])


def test_the_output_of_a_block_that_is_run_smaller_is_refused(tmp_path, monkeypatch):
    text = "<!-- test: 2 -> 3 -->\n```python\nprint(2)\n```\n\n```text\n3\n```\n"
    with pytest.raises(AssertionError, match="run smaller"):
        Reader("page.md", tmp_path, monkeypatch).read(parsed(text, "page.md")[0])


def test_what_make_runs_is_the_main_job():
    """ProtoNorm against Duet and Local, different networks, pictures that travel with the package, five seeds."""
    words = commands.recipe("run")
    assert words[:5] == ["protonorm", "compare", "protonorm", "duet", "local"]
    assert {"dataset=fashion", "models=light", "seeds=5"} <= set(words)
    assert not re.search(r"solo|--json|--csv", " ".join(words))
