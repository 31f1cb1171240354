"""The blocks of the pages on algorithms run."""

import pytest

from tests.docs.pages import share
from tests.docs.running import run_page


@pytest.mark.long
@pytest.mark.parametrize("page", share("algorithms"))
def test_every_block_of_the_page_runs(page, tmp_path, monkeypatch):
    run_page(page, tmp_path, monkeypatch)
