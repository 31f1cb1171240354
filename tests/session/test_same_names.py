"""Two files of the user's own with one name, in different folders: each does what it says, and tables show both."""

import sys

import pytest

import protonorm as pn
from protonorm.analysis.breakdown import client_rows
from protonorm.core.own_code import load_own, reference, resolve
from protonorm.core.own_failures import PREFIX
from tests.support import run, spiral

NET = """
from torch import nn

import protonorm as pn

WIDTH = {width}


def small(shape, feature_dim, num_classes):
    features = nn.Sequential(nn.Linear(shape[0], WIDTH), nn.ReLU(), nn.Linear(WIDTH, feature_dim))
    return pn.SplitModel(features, nn.Linear(feature_dim, num_classes))


class Mine(pn.Local):
    width = WIDTH
"""


@pytest.fixture
def places(tmp_path):
    """The places of two files net.py, whose networks have 3 and 5 hidden units, and of a third equal to the first."""
    for folder, width in (("a", 3), ("b", 5), ("c", 3)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "net.py").write_text(NET.format(width=width))
    yield [str(tmp_path / folder / "net.py") for folder in "abc"]
    _forget()


def _forget():
    for name in [name for name in sys.modules if name.startswith(f"{PREFIX}net")]:
        del sys.modules[name]


def test_each_client_has_the_network_of_its_own_file(places, tmp_path):
    networks = [f"{place}:small" for place in places[:2]]
    found = run(spiral(models=networks, clients=2, rounds=1, algorithm="local"), out=tmp_path / "runs")
    assert [one.client.model.features[0].out_features for one in found.clients] == [3, 5]
    assert [row["network"] for row in client_rows(found.run)] == ["net.py:small no. 1", "net.py:small no. 2"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_another_process_finds_each_whichever_comes_first(places, order):
    told = {
        place: [reference(load_own(f"{places[place]}:{name}", "thing")) for name in ("small", "Mine")]
        for place in (0, 1)
    }
    assert [[one["file"] for one in told[place]] for place in (0, 1)] == [[place] * 2 for place in places[:2]]
    _forget()
    for place in order:
        small, mine = map(resolve, told[place])
        assert small((2,), 4, 3).features[0].out_features == mine.width == (3, 5)[place]


def test_a_module_of_that_name_that_is_another_file_is_not_taken(places, monkeypatch):
    """A process may have another net.py on its path; what was told is the file."""
    from pathlib import Path

    monkeypatch.syspath_prepend(Path(places[1]).parent)
    try:
        found = resolve({"module": "net", "name": "small", "file": places[0], "text": ""})
    finally:
        sys.modules.pop("net", None)
    assert found((2,), 4, 3).features[0].out_features == 3


def test_keys_tell_them_apart_by_what_they_say(places):
    keys = [pn.Experiment(dataset="spiral", models=f"{place}:small").key for place in places]
    methods = [pn.Experiment(dataset="spiral", algorithm=f"{place}:Mine").key for place in places]
    for first, other, same in (keys, methods):
        assert first != other
        assert first == same


def test_methods_of_one_name_are_told_apart_in_a_comparison(places, tmp_path):
    methods = [f"{place}:Mine" for place in places[:2]]
    found = pn.compare(*methods, dataset={"name": "spiral", "points": 20}, clients=2, rounds=0, out=tmp_path / "runs")
    assert list(found.found) == [*methods, "local"]
    assert len({one[0].experiment.key for one in found.results.values()}) == 3
