"""The benchmarks of sweeps and searches run on tiny sizes and give what their tables need. Nothing here is timed."""

import json

import pytest
from benchmarks import sweep, tune

from tests.search.grids import SPIRAL


@pytest.mark.long
def test_ways_of_a_sweep_take_turns_and_agree():
    ways = {name: sweep.WAYS[name] for name in ("one after the other, serial", "side by side")}
    found = sweep.measure(turns=1, words=[*SPIRAL, "fedproto", "lr=0.05,0.1"], ways=ways)
    assert found["equal bytes"]
    assert found["seconds"].keys() == ways.keys()
    assert found["side by side against 1 worker"] > 0
    head, *rows = sweep.table(found)
    assert {len(row) for row in rows} == {len(head)}
    json.dumps(found, allow_nan=False)


def test_ratios_of_a_sweep_are_within_a_turn():
    """6/4, 9/3 and 10/5: the middle one is 2."""
    seconds = {"one after the other, 1 worker": [6.0, 9.0, 10.0], "side by side": [4.0, 3.0, 5.0]}
    rows = sweep.table({"sweep": sweep.WORDS, "seconds": seconds, "equal bytes": False})
    assert rows[0][0] == "12 runs (BYTES DIFFER)"
    assert [row[1:] for row in rows[1:]] == [["9.0", "1.00×"], ["4.0", "2.00×"]]


def test_a_grid_and_a_search_are_compared():
    pytest.importorskip("optuna")
    found = tune.measure(words=[*SPIRAL, "lr=0.0001"], points=3, fresh=1, engine="serial")
    assert found["grid"]["rounds"] == 6
    assert found["search"]["rounds"] == 3
    assert list(map(float, sorted(found["grid"]["all"], key=float))) == [10, 100, 1000]
    best = max(found["grid"]["all"].values())
    assert found["grid"]["validation"] == best
    assert found["points behind in validation"] == pytest.approx(
        100 * (best - found["search"]["validation"]), abs=0.006
    )
    head, *rows = tune.table(found)
    assert {len(row) for row in rows} == {len(head)}
    json.dumps(found, allow_nan=False)
