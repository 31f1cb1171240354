"""How the runs were made, as the page tells it."""

import pytest

from protonorm.report.page.commands import origins
from protonorm.runs.run import read_run
from protonorm.runs.schema import Provenance
from protonorm.runs.writer import RunWriter
from tests.report.pages import page, record, words

MADE = Provenance(
    done=0,
    command="protonorm run <b>x</b>",
    commit="0123abcd",
    dirty=True,
    versions={"python": "3.11", "torch": "2"},
    platform="Linux",
    cpu="Some CPU",
    cores=2,
    threads=1,
    engine="serial",
    device="cpu",
)


@pytest.fixture
def run(tmp_path):
    """Make a run of three rounds that was begun, and went on, as its record says."""

    def make(name, *changes, **settings):
        folder = record(tmp_path / name, **settings)
        with RunWriter(folder, name) as writer:
            for change in changes:
                writer.start(MADE.model_copy(update=change))
        return read_run(folder)

    return make


def test_equal_runs_share_an_entry_and_others_have_their_own(run):
    runs = [run("a", {}), run("b", {}, seed=1), run("c", {"commit": None, "dirty": None, "cores": 1}, seed=2)]
    first, second = origins({"protonorm": runs})
    assert (first["runs"], second["runs"]) == (["a", "b"], ["c"])
    (facts,) = map(dict, first["starts"])
    assert facts == {
        "command": "protonorm run <b>x</b>",
        "commit": "0123abcd, with changes that were not committed",
        "versions": "python 3.11, torch 2",
        "processor": "Some CPU, 2 cores",
        "threads": "1 in each process",
        "engine": "serial",
        "device": "cpu",
        "platform": "Linux",
    }
    (other,) = map(dict, second["starts"])
    assert (other["commit"], other["processor"]) == ("no repository", "Some CPU, 1 core")


def test_a_run_that_went_on_tells_of_each_start_that_led_to_rounds(run):
    """Killed in its first round, begun again, gone on after two rounds; the start after all three led to none."""
    starts = [{"command": "one"}, {"command": "two"}, {"done": 2, "command": "three"}, {"done": 3, "command": "four"}]
    (found,) = origins({"protonorm": [run("a", *starts)]})
    told = [(facts["from round"], facts["command"]) for facts in map(dict, found["starts"])]
    assert told == [("1", "two"), ("3", "three")]
    (early,) = origins({"protonorm": [run("b", {}, done=0)]})
    assert len(early["starts"]) == 1


def test_the_page_shows_it_as_text_and_does_without_it(run, tmp_path):
    text = page([run("a", {"dirty": False})], tmp_path)
    assert "&lt;b&gt;x&lt;/b&gt;" in text
    assert "<b>x</b>" not in text
    read = words(text)
    assert "How the runs were made command protonorm run <b>x</b> commit 0123abcd, nothing changed since" in read
    assert "Some CPU, 2 cores" in read
    assert "How the runs were made command" not in words(page([run("b")], tmp_path))
