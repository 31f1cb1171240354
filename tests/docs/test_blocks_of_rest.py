"""The blocks of all pages run that no other file of tests runs."""

import pytest

from tests.docs.pages import share
from tests.docs.running import run_page


@pytest.mark.long
@pytest.mark.parametrize("page", share("rest"))
def test_every_block_of_the_page_runs(page, tmp_path, monkeypatch):
    run_page(page, tmp_path, monkeypatch)
