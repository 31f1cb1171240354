"""A client whose message is far from the others' does little harm and is named, in a real federation."""

from protonorm.core.robust import Standing
from protonorm.deployment.events import Event
from protonorm.deployment.federation import report_standings
from protonorm.deployment.messages import Answer, read_answer_header, read_answer_tensors, write_answer
from protonorm.deployment.status import StatusWriter
from tests.deployment.sites import NAMES
from tests.deployment.test_run_federation import Organisations


class Liar:
    """Node that sends its prototypes negated, with a length inside the guard's bounds."""

    def __init__(self, node):
        self._node = node

    def answer(self, content):
        header, body = read_answer_header(self._node.answer(content), 2**24)
        message, counts = read_answer_tensors(body)
        lie = {name: -1e3 * value if value.is_floating_point() else value for name, value in message.items()}
        return write_answer(Answer(header, lie, counts))


def test_a_liar_is_named_in_each_round_and_the_others_are_not(tmp_path):
    parties = Organisations(tmp_path, combine="median", rounds=2)
    parties.line.nodes[2] = Liar(parties.line.nodes[2])
    parties.run()
    events = [event for event in parties.told if event.what in ("compared", "suspect")]
    assert [(event.round, event.client) for event in events] == [(r, id) for r in (1, 2) for id in range(3)]
    assert [event.what for event in events] == ["compared", "compared", "suspect"] * 2
    assert f"the message of client {NAMES[2]} was compared: its numbers are" in events[2].sentence
    assert events[2].numbers["length"] > 100


def test_two_clients_that_differ_are_not_named():
    told = []
    report_standings(told.append, ["a", "b"], 1, {0: Standing(float("inf"), -1.0), 1: Standing(0.0, -1.0)})
    assert [event.what for event in told] == ["compared"] * 2
    assert told[0].numbers == {"length": 1e6, "cosine": -1.0, "usual": 0.0}


def test_the_status_has_each_clients_standing_and_counts_alarms(folder):
    writer = StatusWriter(folder)
    writer.open()
    writer(Event("compared", "fine", 1, 0, numbers={"length": 1.1, "cosine": 0.9}))
    for _ in range(2):
        writer(Event("suspect", "its numbers are large", 1, 1, numbers={"length": 50.0, "cosine": 0.9}))
    one, two = writer.status.clients[:2]
    assert (one.length, one.cosine, one.suspect, one.said) == (1.1, 0.9, 0, "")
    assert (two.length, two.suspect, two.said) == (50.0, 2, "its numbers are large")
