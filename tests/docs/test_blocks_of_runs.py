"""The blocks of the pages on runs, and on what is done with them, run."""

import pytest

from tests.docs.pages import share
from tests.docs.running import run_page

PRINTED = {"docs/predict.md": "(5, 128)"}  # some of what scripts print, and how many files are there in the end
LEFT = {
    "docs/predict.md": {"answers.csv": 1, "client3/model.onnx": 1},
    "docs/tracking.md": {"runs/*/tensorboard/events.*": 3, "runs/*/diary.txt": 1},  # script and command are one run
    "docs/sweep.md": {"runs/sweeps/*/sweep.png": 1, "runs/searches/*/journal.jsonl": 2},
}


@pytest.mark.long
@pytest.mark.parametrize("page", share("runs"))
def test_every_block_of_the_page_runs(page, tmp_path, monkeypatch):
    printed = run_page(page, tmp_path, monkeypatch)
    assert PRINTED.get(page, "") in printed
    for pattern, count in LEFT.get(page, {}).items():
        assert len(list(tmp_path.glob(pattern))) == count, pattern
