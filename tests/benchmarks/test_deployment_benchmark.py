"""What the benchmark of deployments makes of events, and its table. Nothing is timed, and no process is started."""

from benchmarks import deployment
from benchmarks.deployment import FLOWER, OURS, SAME_LOOP


def events(start, whole, first, last, training):
    """Make two rounds of two clients: the first takes long, the second begins at a time and has answers at others."""
    yield 0.0, "round", 1, {}
    yield 99.0, "answered", 1, {"seconds": 50.0}
    yield 99.5, "committed", 1, {}
    yield start, "round", 2, {"clients": 2.0}
    yield start + first, "answered", 2, {"seconds": training, "bytes": 10.0}
    yield start + last, "answered", 2, {"seconds": training / 2}
    yield start + whole, "committed", 2, {"seconds": whole}
    yield start + whole + 5, "answered", 2, {"seconds": 0.0}  # of the evaluation at the end


def test_a_round_is_training_the_server_and_the_rest():
    """A round of 4 s: the slower client trained for 1 s, the last answer came after 3.5 s, so 2.5 s are the rest."""
    found = deployment.summary(list(events(100.0, 4.0, 3.0, 3.5, 1.0)), 2)
    assert found == {"round": 4.0, "training": 1.0, "server": 0.5, "overhead": 2.5}


def test_ways_are_compared_with_flower_s_own_loop():
    ways = {name: deployment.summary(list(events(100.0, whole, 1.0, whole - 0.5, 0.5)), 2) for name, whole in WHOLE}
    rows = deployment.table({"ways": ways})
    assert [row[0] for row in rows[1:]] == [OURS, SAME_LOOP, FLOWER]
    assert rows[1][1:] == ["2", "0.5", "0.5", "1", "12.5 %"]  # 2 - 0.5 - 0.5 = 1 of 9 - 1 = 8 seconds
    assert rows[3][-1] == "100 %"


WHOLE = ((OURS, 2.0), (SAME_LOOP, 5.0), (FLOWER, 9.0))
