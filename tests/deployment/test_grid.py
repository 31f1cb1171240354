"""Requests and answers over Flower's grid, which loses, delays and forgets: nobody is lost who comes back."""

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from protonorm.deployment.engine import Arrived
from protonorm.deployment.flower import transport as transport_module
from protonorm.deployment.flower.transport import GRACE, LOOK, GridTransport, unwrap, wrap, wrap_unable

GONE, CRASHED = 5, 8  # Flower's codes: the node is unavailable, its app crashed


class FakeGrid:
    """Nodes 10 and 11 belong to clients 0 and 1; time passes while nothing comes."""

    def __init__(self):
        self.here = {10, 11}
        self.sent = []  # id, node, content
        self.back = {}  # id -> message
        self.now = 0.0
        self.refuses = set()

    def get_node_ids(self):
        return self.here

    def push_messages(self, messages):
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            ids.append("" if node in self.refuses else f"m{len(self.sent)}")
            if ids[-1]:
                self.sent.append((ids[-1], node, unwrap(message)))
        return ids

    def pull_messages(self, ids):
        return [self.back.pop(id) for id in ids if id in self.back]

    def sleep(self, seconds):
        assert seconds > 0
        self.now += seconds


def answer(content):
    return Message(wrap(content), 1, "train")


def failed(code):
    return Message(Error(code, "why"), reply_to=Message(RecordDict(), 1, "train"))


@pytest.fixture
def grid(monkeypatch):
    made = FakeGrid()
    for name, value in (("task_id", 3), ("run_id", 5), ("node_id", 1)):
        monkeypatch.setattr(TaskIdentity, f"_{name}", value)
    monkeypatch.setattr(transport_module.time, "sleep", made.sleep)
    return made


@pytest.fixture
def transport(grid):
    return GridTransport(grid, lambda nodes: {node - 10: node for node in nodes}, clock=lambda: grid.now)


def test_requests_go_out_and_answers_come_back_by_the_message_they_are_for(grid, transport):
    assert transport.push({0: b"a", 1: b"b"}) == {}
    assert grid.sent == [("m0", 10, b"a"), ("m1", 11, b"b")]
    grid.back = {"m1": answer(b"B")}
    assert transport.pull(5.0) == [Arrived(1, b"B")]
    grid.back = {"m0": answer(b"A")}
    assert transport.pull(5.0) == [Arrived(0, b"A")]
    assert grid.now == 0.0


def test_nothing_that_comes_takes_as_long_as_was_said(grid, transport):
    transport.push({0: b"a"})
    assert transport.pull(7.3) == []
    assert abs(grid.now - 7.3) < 1e-9


def test_who_is_not_there_or_whose_request_is_not_taken_is_told_at_once(grid, transport):
    grid.here, grid.refuses = {10}, {10}
    assert transport.push({0: b"a", 1: b"b"}) == {0: "Flower did not take the request", 1: "it is not connected"}


def test_who_went_away_and_comes_back_is_asked_again(grid, transport):
    transport.push({0: b"a"})
    grid.here, grid.back = set(), {"m0": failed(GONE)}
    assert transport.pull(2.0) == []
    grid.here = {10}
    assert transport.pull(2.0) == []
    assert grid.sent == [("m0", 10, b"a"), ("m1", 10, b"a")]
    grid.back = {"m1": answer(b"A")}
    assert transport.pull(1.0) == [Arrived(0, b"A")]


def test_who_came_back_as_another_node_is_asked_again(grid, transport):
    """A server that was started again gives nodes new numbers."""
    transport._identify = lambda nodes: {0: max(nodes)}
    grid.here = {10}
    transport.push({0: b"a"})
    grid.here = {11}
    transport.pull(1.0)
    assert grid.sent == [("m0", 10, b"a"), ("m1", 11, b"a")]


def test_who_stays_away_is_lost_after_a_while_and_not_before(grid, transport):
    transport.push({0: b"a"})
    grid.here, grid.back = set(), {"m0": failed(GONE)}
    found = transport.pull(1000.0)
    assert found == [Arrived(0, failure="it went away and did not come back")]
    assert GRACE <= grid.now <= GRACE + 3 * LOOK
    assert transport.pull(1.0) == []


def test_a_new_request_takes_the_place_of_the_last_and_leaves_others_alone(grid, transport):
    transport.push({0: b"a", 1: b"b"})
    transport.push({0: b"c"})
    grid.back = {"m1": answer(b"B"), "m2": answer(b"C")}
    assert sorted(transport.pull(1.0)) == [Arrived(0, b"C"), Arrived(1, b"B")]


def test_a_late_answer_still_arrives_so_that_it_can_be_refused(grid, transport):
    transport.push({0: b"a"})
    transport.push({0: b"b"})
    grid.back = {"m0": answer(b"late")}
    assert transport.pull(1.0) == [Arrived(0, b"late")]
    grid.back = {"m0": answer(b"again")}
    assert transport.pull(1.0) == []


def test_an_app_that_fails_is_told(grid, transport):
    transport.push({0: b"a"})
    grid.back = {"m0": failed(CRASHED)}
    assert transport.pull(1.0) == [Arrived(0, failure="its app failed (why)")]


def test_a_client_that_cannot_work_says_why_and_a_simulated_one_is_reported(grid):
    reported = []
    carrier = GridTransport(
        grid,
        lambda nodes: {node - 10: node for node in nodes},
        clock=lambda: grid.now,
        on_unable=lambda *said: reported.append(said),
    )
    carrier.push({0: b"a", 1: b"b"})
    real, simulated = (wrap_unable("no data", simulated=value) for value in (False, True))
    grid.back = {"m0": Message(real, 1, "train"), "m1": Message(simulated, 1, "train")}
    assert carrier.pull(1.0) == [Arrived(0, failure="no data"), Arrived(1, failure="no data")]
    assert reported == [(1, "no data")]


OTHER = {"other": ConfigRecord({"frame": b"x"})}, {"protonorm": ConfigRecord({"frame": "text"})}


@pytest.mark.parametrize("content", OTHER, ids=["another record", "no bytes"])
def test_an_answer_that_holds_something_else_arrives_empty(grid, transport, content):
    transport.push({0: b"a"})
    grid.back = {"m0": Message(RecordDict(content), 1, "train")}
    assert transport.pull(1.0) == [Arrived(0, b"")]


def test_at_the_end_nothing_is_pending(grid, transport):
    transport.push({0: b"a", 1: b"b"})
    transport.close()
    grid.here = set()
    assert transport.pull(2 * GRACE) == []
