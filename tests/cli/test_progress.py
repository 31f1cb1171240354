"""What is shown of long work: bars in a terminal, a line now and then elsewhere, nothing to a program."""

import io
from contextlib import closing

import pytest
from rich.console import Console

from protonorm.cli import progress
from protonorm.cli.progress import Display, RoundDisplay, note, write_time
from protonorm.core.progress import listening, report, steps
from protonorm.data.own.encoding import Options
from protonorm.data.own.folders import read_clients
from protonorm.federation.rounds import Round
from protonorm.runs.schema import Accuracy, ArrayRef, RoundRecord, Traffic
from tests.data.test_own import draw


@pytest.fixture
def told(monkeypatch):
    """Return what is printed on an error stream, and a clock that the test moves."""

    class Scene:
        now = 100.0
        terminal = False
        stream = io.StringIO()

        @property
        def text(self):
            return self.stream.getvalue()

    scene = Scene()
    scene.stream = io.StringIO()

    def console(*, stderr, **options):
        assert stderr  # the answer stream is for answers
        return Console(file=scene.stream, force_terminal=scene.terminal, width=80, **options)

    monkeypatch.setattr(progress, "Console", console)
    monkeypatch.setattr(progress.time, "monotonic", lambda: scene.now)
    return scene


def work(scene, items, seconds, what="Reading"):
    for item in steps(items, what):
        scene.now += seconds
        yield item


def test_a_listener_hears_how_far_work_is():
    heard = []
    with listening(lambda *told: heard.append(told)):
        assert list(steps("ab", "Reading")) == ["a", "b"]
        with listening(None):
            report("Writing", 1, 2)
    report("Writing", 2, 2)
    assert heard == [("Reading", 0, 2), ("Reading", 1, 2), ("Reading", 2, 2)]


def test_work_inside_rounds_is_shown_by_the_display_of_the_rounds(told):
    """A terminal can have one live display; what an engine tells of a round is a bar beside that of the rounds."""
    told.terminal = True
    with Display(), RoundDisplay("a-run", 5, "nearest-global") as rounds:
        for answered in range(4):
            report("Training on 2 actors, clients that have answered", answered, 4)
            told.now += 3
        assert "Training on 2 actors, clients that have answered" in told.text
        assert [task.description for task in rounds._live.tasks] == ["Training on 2 actors, clients that have answered"]


def test_python_is_not_talked_to(told):
    assert list(work(told, [1, 2, 3], 60)) == [1, 2, 3]
    assert told.text == ""


def test_asked_to_be_quiet_nothing_is_said(told):
    with Display(), Display(quiet=True):
        list(work(told, [1, 2, 3], 60))
    assert told.text == ""


@pytest.mark.parametrize("terminal", [False, True])
def test_quick_work_is_not_told_of(told, terminal):
    told.terminal = terminal
    with Display():
        assert list(work(told, range(15), 0.1)) == list(range(15))
    assert told.text == ""


def test_without_a_terminal_a_line_comes_every_ten_seconds(told):
    """Four seconds each: after 12 and 24 of 28 seconds, 3 and 6 of 7 are done, and 16 and 4 seconds are left."""
    with Display():
        list(work(told, range(7), 4))
    assert told.text.splitlines() == ["Reading: 3/7, 0:16 left", "Reading: 6/7, 0:04 left"]


def test_what_was_done_before_the_first_report_is_no_part_of_the_time_left(told):
    """Four rounds are done when the first is heard of; two more take 12 seconds, so that the last four take 24."""
    with Display():
        for done in (4, 5, 6):
            report("2 runs, rounds", done, 10)
            told.now += 6
    assert told.text.splitlines() == ["2 runs, rounds: 6/10, 0:24 left"]


def test_work_that_begins_again_is_told_of_anew(told):
    """The second time is as quick as the first, and its time left is not that of both together."""
    with Display():
        list(work(told, range(5), 0.3))
        told.now += 1000
        list(work(told, range(5), 0.3))
    assert told.text == ""


def test_work_without_a_known_end_is_told_of(told):
    """Told of at 0, 5, 10 and 15 seconds: a line comes ten seconds after the first."""
    with Display():
        for done in range(4):
            report("Fetching", done, 0)
            told.now += 5
    assert told.text.splitlines() == ["Fetching: 2"]


def test_in_a_terminal_a_bar_shows_itself_and_ends_full(told):
    told.terminal = True
    with Display():
        list(work(told, range(5), 1))
    assert "Reading" in told.text
    assert "5/5" in told.text


def test_a_bar_that_is_full_leaves_the_terminal_to_others(told):
    """The cursor comes back when the work ends, not when the command does: a run shows bars of its own after it."""
    told.terminal = True
    with Display():
        list(work(told, range(5), 1))
        assert told.text.endswith("\x1b[?25h")
        before = len(told.text)
        list(work(told, range(5), 1, "Writing"))
        assert "Reading" not in told.text[before:]


def test_a_bar_is_taken_away_when_the_work_fails(told):
    told.terminal = True
    with Display(), closing(steps(range(5), "Reading")) as items:
        for item in items:
            told.now += 3
            if item == 2:
                break
    assert told.text.endswith("\x1b[?25h")  # the cursor is back


@pytest.mark.parametrize("terminal", [False, True])
def test_brackets_are_text_and_not_markup(told, terminal):
    told.terminal = terminal
    with progress.Display() as display:
        display.show("[red]mine[/red]", 1, 2, "[bold]", now=True)
        display.say("[green]done :smile:")
    for text in ("[red]mine[/red]", "[bold]", "[green]done :smile:"):
        assert text in told.text


def a_round(number, rules, **metrics):
    none = Traffic(up=0, down=0)
    record = RoundRecord(
        round=number, cohort="all", evaluated="all", metrics=metrics, rules=rules, validation={}, unseen=None,
        bytes=none, floats=none, server={}, prototypes=None, arrays=ArrayRef(start=0, size=1),
    )  # fmt: skip
    return Round(record, {"round": 30.0})


def accuracy(pooled):
    return Accuracy(pooled=pooled, mean=0.5, worst=0.1, p10=0.2)


def test_the_first_and_the_last_round_are_always_told_of(told):
    """Of the lines of four rounds, those of the first and the last come whenever they do."""
    with RoundDisplay("mine", 4, "nearest-global") as display:
        for number in (1, 2, 3, 4):
            display(a_round(number, {"nearest-global": accuracy(0.25), "logits": accuracy(0.5)}, loss=1.5))
            told.now += 1
    assert told.text.splitlines() == [
        "mine: 1/4, nearest-global 25.00 %",
        "mine: 4/4, nearest-global 25.00 %, 0:00 left",
    ]


def test_the_start_is_no_part_of_the_time_left(told):
    """The first round holds the start, 20 seconds; two that take 2 seconds leave 2 × 97 = 194 seconds, or 3:14."""
    with RoundDisplay("mine", 100, "nearest-global") as display:
        for number, seconds in ((1, 22.0), (2, 2.0), (3, 2.0)):
            display(a_round(number, {})._replace(seconds={"round": seconds}))
            told.now += 11
    assert told.text.splitlines() == ["mine: 1/100", "mine: 2/100, 3:16 left", "mine: 3/100, 3:14 left"]


def test_of_a_long_first_round_the_start_is_a_small_part(told):
    with RoundDisplay("mine", 3, "nearest-global") as display:
        display(a_round(1, {})._replace(seconds={"round": 900.0}))
    assert told.text.splitlines() == ["mine: 1/3, 30:00 left"]


def test_a_minute_may_be_the_start_of_workers_on_a_busy_machine(told):
    with RoundDisplay("mine", 20, "nearest-global") as display:
        display(a_round(1, {})._replace(seconds={"round": 75.0}))
    assert told.text.splitlines() == ["mine: 1/20"]


def test_the_rounds_of_a_quiet_run_are_not_told_of(told):
    with RoundDisplay("mine", 1, "nearest-global", quiet=True) as display:
        display(a_round(1, {}))
    assert told.text == ""


@pytest.mark.parametrize(
    ("rules", "metrics", "said"),
    [
        ({"nearest-global": accuracy(0.25), "logits": accuracy(0.5)}, {"loss": 2.0}, "nearest-global 25.00 %"),
        ({"nearest-global": None, "logits": accuracy(0.5)}, {"loss": 2.0}, "logits 50.00 %"),  # no prototypes yet
        ({}, {"loss": 2.0}, "loss 2"),  # nobody was evaluated
        ({}, {}, ""),  # and the method reports no loss
    ],
)
def test_a_round_in_a_few_words(rules, metrics, said):
    assert note(a_round(1, rules, **metrics).record, "nearest-global") == said


def test_times():
    assert [write_time(seconds) for seconds in (0, 59.6, 61, 3723)] == ["0:00", "1:00", "1:01", "1:02:03"]


def test_reading_pictures_of_clients_tells_of_itself(told, tmp_path, monkeypatch):
    for client in ("a", "b"):
        for kind in ("cat", "dog"):
            draw(tmp_path / client / kind / "1.png")
    ticks = iter(range(0, 10_000, 15))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(ticks)))
    with Display():
        arrays = read_clients(tmp_path, Options())
    assert len(arrays.labels) == 4
    assert "Reading picture headers: 1/4" in told.text
    assert "Reading pictures: 3/4" in told.text
