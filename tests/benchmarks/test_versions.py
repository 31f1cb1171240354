"""The script that compares two checkouts. Nothing here is timed."""

from pathlib import Path

import pytest
from benchmarks import versions

CHECKOUT = Path(__file__).parents[2]
HERE = [str(CHECKOUT), str(CHECKOUT)]


def test_seconds_are_read_from_older_and_newer_records(tmp_path):
    """A line has had `round` from the first format on; the second one adds a checksum."""
    path = tmp_path / "timings.jsonl"
    path.write_text('{"round": 3.5}\n{"round": 1.25, "checksum": "00"}\n')
    assert versions.round_seconds(path) == [3.5, 1.25]


def test_the_ratio_is_the_median_of_turns_and_neither_is_always_first(monkeypatch, capsys):
    """A takes 2, 3 and 8 seconds where B takes 1, 2 and 2: ratios 2, 1.5 and 4, whose median is 2."""
    seconds = {"a": iter([2.0, 3.0, 8.0]), "b": iter([1.0, 2.0, 2.0])}
    asked = []

    def typical(checkout, words):
        side = "a" if "lr=0.1" in words else "b"
        asked.append(side)
        return next(seconds[side])

    monkeypatch.setattr(versions, "typical", typical)
    monkeypatch.setattr(versions, "like_others", lambda _: [])
    versions.main([*HERE, "--turns", "3", "--only-a", "lr=0.1"])
    assert asked == ["a", "b", "b", "a", "a", "b"]
    assert capsys.readouterr().out.splitlines()[-1] == "median A/B: 2.000"


@pytest.mark.long
def test_a_checkout_with_validation_is_told_to_train_on_all(tmp_path, monkeypatch):
    """The older one is made up: it has an Experiment without that setting."""
    older = tmp_path / "older"
    (older / "src" / "protonorm").mkdir(parents=True)
    (older / "src" / "protonorm" / "__init__.py").write_text("class Experiment:\n    model_fields = {'rounds': 1}\n")
    assert versions.like_others(CHECKOUT) == ["validation=0"]
    assert versions.like_others(older) == []
    asked = {}
    monkeypatch.setattr(versions, "typical", lambda checkout, words: asked.setdefault(checkout, words) and 1.0)
    versions.main([str(older), str(CHECKOUT), "--turns", "1", "--only-a", "lr=0.1"])
    assert [word for word in asked[older] if word in ("validation=0", "lr=0.1")] == ["lr=0.1"]
    assert [word for word in asked[CHECKOUT] if word in ("validation=0", "lr=0.1")] == ["validation=0"]


def test_the_experiment_is_that_of_the_options(tmp_path, monkeypatch):
    monkeypatch.setenv("PROTONORM_DATA", str(tmp_path))
    options = versions.parse([*HERE, "--family", "paper", "--samples", "600", "--clients", "4", "lr=0.02"])
    words = versions.settings(options)
    assert words[0] == "dataset=fashion"  # CIFAR-100 is not prepared here
    assert {"dataset.samples=600", "models=paper", "clients=4", "rounds=4", "lr=0.02"} <= set(words)
    (tmp_path / "cifar100.npz").touch()
    assert versions.settings(options)[0] == "dataset=cifar100"
    assert versions.settings(versions.parse([*HERE, "--dataset", "cifar10"]))[0] == "dataset=cifar10"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([str(CHECKOUT), "nowhere"], "nowhere is not a checkout"),
        ([*HERE, "--rounds", "1"], "at least 2 rounds"),
        ([*HERE, "--turns", "0"], "at least 1 turn"),
    ],
)
def test_what_cannot_be_measured_is_refused(capsys, words, said):
    with pytest.raises(SystemExit) as end:
        versions.parse(words)
    assert end.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.long
def test_a_checkout_runs_with_its_own_code(monkeypatch):
    """The seconds come from the record of a real run, with the folder of the checkout first on Python's path."""
    ran = []
    real = versions.subprocess.run

    def run(command, **options):
        ran.append(options["env"]["PYTHONPATH"])
        return real(command, **options)

    monkeypatch.setattr(versions.subprocess, "run", run)
    words = ["dataset=spiral", "dataset.points=60", "partition=iid", "clients=2", "rounds=2", "algorithm=local"]
    assert versions.typical(CHECKOUT, words) > 0
    assert ran == [str(CHECKOUT / "src")]
    with pytest.raises(SystemExit, match="did you mean 'rounds'"):
        versions.typical(CHECKOUT, ["roundz=1"])


def test_finished_comparisons_take_turns(monkeypatch, capsys):
    """Two comparisons of each are not counted; then B takes half of what A takes."""
    asked = []

    def seconds(checkout, out):
        asked.append(out.name)
        return 2.0 if out.name == "a" else 1.0

    monkeypatch.setattr(versions, "compared_seconds", seconds)
    versions.main([*HERE, "--compare", "--turns", "2"])
    assert asked == ["a", "a", "b", "b", "a", "b", "b", "a"]
    assert capsys.readouterr().out.splitlines()[-1] == "median A/B: 2.000"
