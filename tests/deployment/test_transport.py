"""Requests and answers over Flower, with a carrier that loses, delays and forgets: nobody is lost who comes back."""

from flwr.proto.node_pb2 import NodeInfo

from protonorm.deployment.engine import Arrived
from protonorm.deployment.flower.transport import GRACE, LOOK, Delivered, FlowerTransport


class FakeCarrier:
    """Nodes 10 and 11 belong to clients 0 and 1; time passes while nothing comes."""

    def __init__(self):
        self.here = {10, 11}
        self.sent = []  # id, node, content
        self.back = {}  # id -> Delivered
        self.taken_back = []
        self.dropped = set()  # ids that were fetched and did not arrive
        self.now = 0.0
        self.refuses = set()

    def nodes(self):
        return [NodeInfo(node_id=node) for node in self.here]

    def push(self, contents):
        ids = {}
        for node, content in contents.items():
            if node not in self.refuses:
                ids[node] = f"m{len(self.sent)}"
                self.sent.append((ids[node], node, content))
        return ids

    def withdraw(self, ids):
        self.taken_back += list(ids)

    def pull(self, ids):
        return {id: self.back.pop(id) for id in ids if id in self.back}

    def lost(self, id):
        return id in self.dropped

    def wait(self, seconds):
        assert seconds > 0
        self.now += seconds


def start():
    carrier = FakeCarrier()
    known = lambda nodes: {one.node_id - 10: one.node_id for one in nodes}  # noqa: E731
    return carrier, FlowerTransport(carrier, known, clock=lambda: carrier.now)


def test_requests_go_out_and_answers_come_back_by_the_message_they_are_for():
    carrier, transport = start()
    assert transport.push({0: b"a", 1: b"b"}) == {}
    assert carrier.sent == [("m0", 10, b"a"), ("m1", 11, b"b")]
    carrier.back = {"m1": Delivered(b"B")}
    assert transport.pull(5.0) == [Arrived(1, b"B")]
    carrier.back = {"m0": Delivered(b"A")}
    assert transport.pull(5.0) == [Arrived(0, b"A")]
    assert carrier.now == 0.0


def test_nothing_that_comes_takes_as_long_as_was_said():
    carrier, transport = start()
    transport.push({0: b"a"})
    assert transport.pull(7.3) == []
    assert abs(carrier.now - 7.3) < 1e-9


def test_who_is_not_there_or_whose_request_is_not_taken_is_told_at_once():
    carrier, transport = start()
    carrier.here, carrier.refuses = {10}, {10}
    assert transport.push({0: b"a", 1: b"b"}) == {0: "Flower did not take the request", 1: "it is not connected"}
    assert transport.present() == {0}


def test_who_went_away_and_comes_back_is_asked_again():
    carrier, transport = start()
    transport.push({0: b"a"})
    carrier.here, carrier.back = set(), {"m0": Delivered(away=True)}
    assert transport.pull(2.0) == []
    carrier.here = {10}
    assert transport.pull(2.0) == []
    assert carrier.sent == [("m0", 10, b"a"), ("m1", 10, b"a")]
    carrier.back = {"m1": Delivered(b"A")}
    assert transport.pull(1.0) == [Arrived(0, b"A")]


def test_who_came_back_as_another_node_is_asked_again():
    """A server that was started again gives nodes new numbers."""
    carrier, transport = start()
    transport._known = lambda nodes: {0: max(one.node_id for one in nodes)}
    carrier.here = {10}
    transport.push({0: b"a"})
    carrier.here = {11}
    transport.pull(1.0)
    assert carrier.sent == [("m0", 10, b"a"), ("m1", 11, b"a")]


def test_who_stays_away_is_lost_after_a_while_and_not_before():
    carrier, transport = start()
    transport.push({0: b"a"})
    carrier.here, carrier.back = set(), {"m0": Delivered(away=True)}
    found = transport.pull(1000.0)
    assert found == [Arrived(0, failure="it went away and did not come back")]
    assert GRACE <= carrier.now <= GRACE + 3 * LOOK
    assert transport.pull(1.0) == []


def test_a_request_that_got_lost_is_sent_again_and_no_other_is():
    carrier, transport = start()
    transport.push({0: b"a", 1: b"b"})
    transport.pull(1.0)
    assert len(carrier.sent) == 2
    carrier.dropped = {"m0"}
    transport.pull(1.0)
    assert carrier.sent[2:] == [("m2", 10, b"a")]
    assert carrier.taken_back == ["m0"]
    transport.pull(1.0)
    assert len(carrier.sent) == 3


def test_a_new_request_takes_the_place_of_the_last_and_leaves_others_alone():
    carrier, transport = start()
    transport.push({0: b"a", 1: b"b"})
    transport.push({0: b"c"})
    assert carrier.taken_back == ["m0"]
    carrier.back = {"m1": Delivered(b"B"), "m2": Delivered(b"C")}
    assert sorted(transport.pull(1.0)) == [Arrived(0, b"C"), Arrived(1, b"B")]


def test_a_late_answer_still_arrives_so_that_it_can_be_refused():
    carrier, transport = start()
    transport.push({0: b"a"})
    transport.push({0: b"b"})
    carrier.back = {"m0": Delivered(b"late")}
    assert transport.pull(1.0) == [Arrived(0, b"late")]
    carrier.back = {"m0": Delivered(b"again")}
    assert transport.pull(1.0) == []


def test_an_app_that_fails_is_told():
    carrier, transport = start()
    transport.push({0: b"a"})
    carrier.back = {"m0": Delivered(failure="its app failed")}
    assert transport.pull(1.0) == [Arrived(0, failure="its app failed")]


def test_at_the_end_what_was_not_fetched_is_taken_back():
    carrier, transport = start()
    transport.push({0: b"a", 1: b"b"})
    transport.close()
    assert carrier.taken_back == ["m0", "m1"]
