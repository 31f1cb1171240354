"""README and docs stay within their limits of words, and a page for newcomers has no long sentence."""

import pytest
from tools import words


def test_readme_and_docs_have_no_more_words_than_allowed():
    assert {name: count for name, count in words.totals(words.pages()).items() if count > words.LIMITS[name]} == {}


@pytest.mark.parametrize("page", words.SHORT_SENTENCES)
def test_newcomers_read_short_sentences(page):
    assert words.long_sentences(words.pages()[page]) == []


def test_prose_is_counted_without_code_tables_comments_and_targets():
    page = "# A title\n\n```sh\nnot this\n```\n<!-- nor this -->\n| nor | this |\n\nSee [the page](there.md) — twice.\n"
    assert words.count(page) == 6  # A title, See the page, twice


def test_a_sentence_ends_with_its_stop_its_item_or_its_paragraph():
    assert words.long_sentences("one two three. four five six\n- seven eight\n\nnine ten eleven twelve", 3) == [
        "nine ten eleven twelve"
    ]
