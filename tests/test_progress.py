import io
from contextlib import closing

import pytest
from rich.console import Console

from protonorm import progress
from protonorm.data.clients import read_clients
from protonorm.data.tree import Wish
from protonorm.progress import speaking, steps
from tests.data.test_own import draw


@pytest.fixture
def told(monkeypatch):
    """Give what is told on an error stream, and a clock that the test moves."""

    class Scene:
        now = 100.0
        terminal = False
        stream = io.StringIO()

        @property
        def text(self):
            return self.stream.getvalue()

    scene = Scene()
    scene.stream = io.StringIO()

    def console(**options):
        return Console(file=scene.stream, force_terminal=scene.terminal, width=80)

    monkeypatch.setattr(progress, "Console", console)
    monkeypatch.setattr(progress.time, "monotonic", lambda: scene.now)
    return scene


def work(scene, items, seconds):
    for item in steps(items, "Reading"):
        scene.now += seconds
        yield item


def test_python_is_not_talked_to(told):
    assert list(work(told, [1, 2, 3], 60)) == [1, 2, 3]
    assert told.text == ""


def test_asked_to_be_quiet_nothing_is_said(told):
    with speaking(), speaking(wanted=False):
        list(work(told, [1, 2, 3], 60))
    assert told.text == ""


def test_quick_work_is_not_told_of(told):
    with speaking():
        assert list(work(told, range(15), 0.1)) == list(range(15))
        told.terminal = True
        list(work(told, range(15), 0.1))
    assert told.text == ""


def test_without_a_terminal_a_line_comes_every_ten_seconds(told):
    """Four seconds each: after 12 and 24 of 28 seconds, 3 and 6 of 7 are done, and 16 and 4 seconds are left."""
    with speaking():
        list(work(told, range(7), 4))
    assert told.text.splitlines() == ["Reading: 3/7, 0:16 left", "Reading: 6/7, 0:04 left"]


def test_in_a_terminal_a_bar_shows_itself_and_ends_full(told):
    told.terminal = True
    with speaking():
        list(work(told, range(5), 1))
    assert "Reading" in told.text
    assert "5/5" in told.text


def test_a_bar_is_taken_away_when_the_work_fails(told):
    told.terminal = True
    with speaking(), closing(steps(range(5), "Reading")) as items:
        for item in items:
            told.now += 3
            if item == 2:
                break
    assert told.text.endswith("\x1b[?25h")  # the cursor is back


def test_reading_pictures_of_clients_tells_of_itself(told, tmp_path, monkeypatch):
    for client in ("a", "b"):
        for kind in ("cat", "dog"):
            draw(tmp_path / client / kind / "1.png")
    ticks = iter(range(0, 10_000, 15))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(ticks)))
    with speaking():
        arrays = read_clients(tmp_path, Wish(None, None))
    assert len(arrays.labels) == 4
    assert "Looking at pictures: 1/4" in told.text
    assert "Reading pictures: 3/4" in told.text
