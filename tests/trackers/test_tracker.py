import pytest

from protonorm.config.methods import read_comparison
from protonorm.runs.run import read_run
from protonorm.trackers.tracker import choose, recorded_rounds
from tests.support import contents, experiments_of, run, run_folder, spiral


class Notebook:
    """Note what a tracker is told."""

    def __init__(self, stop=None):
        self.told = []
        self.stop = stop

    def begin(self, run):
        self.told.append(("begin", len(run.rounds), run.info.key))

    def __call__(self, round):
        self.told.append((round.number, round.record, round.seconds))
        if round.number == self.stop:
            raise KeyboardInterrupt

    def end(self, run):
        self.told.append(("end", len(run.rounds), run.failure))


def numbers(notebook):
    return [entry[0] for entry in notebook.told]


def test_a_tracker_is_told_of_every_round_between_begin_and_end(tmp_path):
    experiment, notebook = spiral(rounds=2), Notebook()
    result = run(experiment, out=tmp_path, tracker=notebook)
    assert notebook.told[0] == ("begin", 0, experiment.key)
    assert [record for _, record, _ in notebook.told[1:3]] == result.history
    assert notebook.told[3:] == [("end", 2, None)]


def test_interrupted_and_resumed_a_tracker_is_told_of_all_rounds_again(tmp_path):
    experiment, first, second = spiral(), Notebook(stop=2), Notebook()
    with pytest.raises(KeyboardInterrupt):
        run(experiment, out=tmp_path, tracker=first)
    assert first.told[-1] == ("end", 2, None)
    run(experiment, out=tmp_path, tracker=second)
    assert second.told[0][:2] == ("begin", 2)
    assert numbers(second) == ["begin", 1, 2, 3, "end"]
    assert second.told[1][1] == first.told[1][1]


def test_a_finished_run_is_told_from_its_record(tmp_path):
    experiment, notebook = spiral(rounds=2), Notebook()
    result, seen = run(experiment, out=tmp_path), []
    run(experiment, out=tmp_path, tracker=notebook, watch=seen.append)
    assert numbers(notebook) == ["begin", 1, 2, "end"]
    assert [entry[1] for entry in notebook.told[1:3]] == result.history
    assert all(entry[2]["round"] > 0 for entry in notebook.told[1:3])
    assert seen == []


def test_a_run_that_diverged_is_told_with_its_reason(tmp_path):
    notebook = Notebook()
    with pytest.raises(Exception, match="kept in"):
        run(spiral(algorithm={"name": "protonorm", "gamma": 1e18}), out=tmp_path, tracker=notebook)
    assert notebook.told[-1][2].round == 2


def test_a_function_is_a_tracker_too(tmp_path):
    seen = []
    run(spiral(rounds=2), out=tmp_path, tracker=seen.append)
    run(spiral(rounds=2), out=tmp_path, tracker=seen.append)
    assert [round.number for round in seen] == [1, 2, 1, 2]


def test_a_tracker_changes_neither_key_nor_record(tmp_path):
    experiment = spiral(rounds=2)
    run(experiment, out=tmp_path / "a")
    run(experiment, out=tmp_path / "b", tracker=Notebook())
    one, two = (contents(run_folder(experiment, tmp_path / place)) for place in "ab")
    assert one == two


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("tensorbord", "did you mean 'tensorboard'"),
        ("nowhere.py:Mine", "no Python file"),
        (3, "is not a tracker"),
        (Notebook, "is not a tracker"),
        (type("Half", (), {"__call__": print, "begin": print})(), "is not a tracker"),
    ],
)
def test_what_is_no_tracker_is_refused_before_anything_begins(tmp_path, value, said):
    with pytest.raises(ValueError, match=said):
        run(spiral(), out=tmp_path / "runs", tracker=value)
    assert not (tmp_path / "runs").exists()


def test_a_tracker_comes_from_a_users_own_file_by_class_or_function(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "seen = []\ndef tell(round): seen.append(round)\n"
        "class Mine:\n    def begin(self, run): pass\n"
        "    def __call__(self, round): pass\n    def end(self, run): pass\n"
    )
    assert type(choose(f"{path}:Mine")).__name__ == "Mine"
    choose(f"{path}:tell")("a round")
    with pytest.raises(ValueError, match="did you mean 'Mine'"):
        choose(f"{path}:Min")
    assert choose(None) is None


def test_a_comparison_takes_its_tracker_out_of_the_settings(tmp_path):
    words = ["fedproto", "dataset=spiral", "rounds=2"]
    (tmp_path / "more.yaml").write_text("tracker: tensorboard\n")
    tracked = [*words, str(tmp_path / "more.yaml")]
    assert read_comparison(words).tracker is None
    assert read_comparison(tracked).tracker == "tensorboard"
    assert experiments_of(tracked)["fedproto"][0].key == experiments_of(words)["fedproto"][0].key


def test_times_that_are_lost_do_not_stop_a_tracker(tmp_path):
    experiment, notebook = spiral(rounds=2), Notebook()
    run(experiment, out=tmp_path)
    folder = run_folder(experiment, tmp_path)
    first, _ = (folder / "timings.jsonl").read_bytes().splitlines(True)
    (folder / "timings.jsonl").write_bytes(first + b"torn\n")
    timed, untimed = recorded_rounds(read_run(folder))
    assert timed.seconds["round"] > 0
    assert untimed.seconds == {}
    run(experiment, out=tmp_path, tracker=notebook)
    assert numbers(notebook) == ["begin", 1, 2, "end"]
