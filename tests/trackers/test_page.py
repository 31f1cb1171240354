"""What the page about tracking prints, works as printed."""

import sys

import pytest

from tests.test_docs import blocks, call


def test_every_command_and_script_of_the_page_runs(tmp_path):
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    for kind, title, text in blocks("docs/tracking.md"):
        if title:
            (tmp_path / title).write_text(text)
        elif kind == "bash":
            for line in text.splitlines():
                call([*line.split(), "--engine", "serial"], tmp_path)  # quicker: no time to start workers
        elif kind == "python":
            (tmp_path / "script.py").write_text(text)
            call([sys.executable, "script.py"], tmp_path)
    assert len(list((tmp_path / "runs").glob("*/tensorboard/events.*"))) == 3
    assert len(list((tmp_path / "runs").glob("*/diary.txt"))) == 1  # the script and the command are one run
