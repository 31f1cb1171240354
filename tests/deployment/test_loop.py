"""The deployed round loop: it records what a simulation records, and may be killed anywhere."""

import json

import pytest

import protonorm.runs.writer
import protonorm.tensors
from protonorm.runs import layout
from protonorm.runs.archive import other_files, own_files
from protonorm.runs.run import read_run
from protonorm.runs.writer import DeferredWriter, RunWriter
from tests.contract.playing import same
from tests.deployment.federation import Federation, Killed, small, without_states
from tests.support import methods, run_folder


@pytest.mark.parametrize("algorithm", methods())
def test_every_method_gives_the_serial_engine_s_bits(tmp_path, algorithm):
    """The record and the server's files are equal byte for byte; clients' states, on their own disks, by tensor."""
    federation = Federation(small(algorithm=algorithm, rounds=2), tmp_path)
    found = federation.run()
    assert without_states(found) == federation.serial()
    with RunWriter(run_folder(federation.experiment, tmp_path), federation.experiment.key) as writer:
        for id, node in federation.line.nodes.items():
            assert same(node._store.load(id, 2), writer.store.load(id, 2))
    assert not federation.heard("refused")


def test_an_owner_s_measures_steps_and_optimiser_give_the_serial_engine_s_bits(tmp_path):
    kept = {"optimiser": "adam", "optimiser_state": "kept", "local_steps": 3, "metrics": "ranking"}
    federation = Federation(small(rounds=3, **kept), tmp_path)
    found = federation.run()
    assert without_states(found) == federation.serial()
    assert 0 < read_run(found).rounds[-1].rules["logits"].auroc <= 1
    assert not federation.heard("refused")


def test_evaluating_a_round_and_training_the_next_travel_in_one_message(tmp_path):
    """Three rounds are four requests to each client; the last one only evaluates."""
    federation = Federation(small(), tmp_path)
    federation.run()
    expected = [(1, "train"), (2, "evaluate+train"), (3, "evaluate+train"), (3, "evaluate")]
    assert federation.line.kinds() == expected
    assert len(federation.line.sent) == 3 * 4


@pytest.mark.parametrize("every", [2, 5])
def test_rounds_that_are_not_evaluated_are_recorded_all_the_same(tmp_path, every):
    """Of five rounds the second, the fourth and the last are evaluated, or the last alone."""
    federation = Federation(small(rounds=5, evaluate_every=every), tmp_path)
    found = federation.run()
    due = {2: [2, 4], 5: []}[every]
    expected = [(number, "evaluate+train" if number - 1 in due else "train") for number in range(1, 6)]
    assert federation.line.kinds() == [*expected, (5, "evaluate")]
    assert without_states(found) == federation.serial()


def test_the_best_round_is_kept_beside_the_last_as_in_a_simulation(tmp_path):
    """With so large a step the first rounds are the best, and clients are told of it."""
    federation = Federation(small(rounds=6, lr=2.0, algorithm="local"), tmp_path)
    found = federation.run()
    chosen = read_run(found).chosen
    assert chosen.by == "validation"
    assert chosen.record.round < 6
    assert (found / layout.CHOSEN).exists()
    assert without_states(found) == federation.serial()
    assert federation.line.sent[-1]["chosen"] == chosen.record.round


class Steps:
    """Kill the server at its n-th step: before or after a write or a call, or in the middle of a line."""

    def __init__(self, patch, federation):
        self.left, self.line, self.memory = -1, federation.line, {}
        self._push, self._pull = federation.line.push, federation.line.pull
        patch.setattr(federation.line, "push", lambda requests: self.around(self._push, requests))
        patch.setattr(federation.line, "pull", lambda seconds: self.around(self._pull, seconds))
        self._append = protonorm.runs.writer.append
        patch.setattr(protonorm.runs.writer, "append", self.append)
        for module in (protonorm.runs.writer, protonorm.tensors):
            patch.setattr(module, "replace", lambda *words, to=module.replace: self.around(to, *words))
        for id, node in federation.line.nodes.items():
            patch.setattr(node, "answer", lambda content, id=id, to=node.answer: self.remember(id, content, to))

    def step(self):
        self.left -= 1
        if self.left == 0:
            raise Killed

    def around(self, function, *words):
        self.step()
        found = function(*words)
        self.step()
        return found

    def append(self, path, content):
        self.step()
        self.left -= 1
        if self.left == 0:
            self._append(path, content[: len(content) // 2])
            raise Killed
        self._append(path, content)
        self.step()

    def remember(self, id, content, to):
        """Cache clients' replies by request: what they do is no step of the server's."""
        if (id, content) not in self.memory:
            left, self.left = self.left, -1
            self.memory[id, content] = to(content)
            self.left = left
        return self.memory[id, content]


@pytest.mark.parametrize(
    "settings", [{"algorithm": "fedproto"}, {"algorithm": "local", "lr": 2.0, "rounds": 4}], ids=str
)
def test_a_server_killed_at_any_step_goes_on_with_the_same_numbers(tmp_path, monkeypatch, settings):
    """Whatever was its last step, the next process finishes the record of an unbroken run, and nothing else is there.

    What somebody reads meanwhile is whole: all committed rounds, or all but the last one.
    """
    federation = Federation(small(**settings), tmp_path)
    expected, steps, number = federation.serial(), Steps(monkeypatch, federation), 0
    while True:
        number += 1
        steps.left, federation.line.waiting, federation.place = number, [], tmp_path / f"server {number}"
        try:
            federation.run()
            break
        except Killed:
            steps.left, federation.line.waiting = -1, []  # what was under way is lost with it
        if (federation.place / layout.INFO).exists():
            found = read_run(federation.place)
            assert layout.committed(federation.place) - len(found.rounds) in (0, 1)
        assert without_states(federation.run()) == expected
    assert without_states(federation.place) == expected
    assert number > 60  # steps there are


def test_a_server_killed_again_and_again_ends_as_an_unbroken_one(tmp_path, monkeypatch):
    """It gets a few steps further each time, as those who kill it are less and less quick."""
    federation = Federation(small(algorithm="fedproto"), tmp_path)
    expected, steps = federation.serial(), Steps(monkeypatch, federation)
    for number in range(1, 200):
        steps.left, federation.line.waiting = 10 + number // 2, []
        try:
            federation.run()
            break
        except Killed:
            continue
    assert 3 < number < 199
    assert without_states(federation.place) == expected


def test_clients_are_asked_the_same_again_after_a_kill(tmp_path):
    """The server dies while clients train in round 2; the next one's requests are equal, so that a client that has
    answered already need not train again."""
    federation = Federation(small(algorithm="fedproto"), tmp_path)
    kill_in_round(federation, 2)
    asked = federation.line.requests[-1]
    federation.line.requests.clear()
    assert without_states(federation.run()) == federation.serial()
    assert asked in federation.line.requests


def test_a_round_that_waits_for_its_evaluation_is_committed_and_not_on_record_yet(tmp_path):
    """While round 3 trains, round 2 is committed; whoever reads the folder finds round 1 and no damage."""
    federation = Federation(small(), tmp_path)
    kill_in_round(federation, 3)
    assert layout.committed(federation.place) == 2
    assert json.loads((federation.place / layout.PENDING).read_text())["round"] == 2
    found = read_run(federation.place)
    assert [record.round for record in found.rounds] == [1]
    assert not found.finished
    federation.run()
    assert not (federation.place / layout.PENDING).exists()
    assert read_run(federation.place).finished


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text.replace(b'"all"', b"[0, 1]"), "changed after it was written"),
        (lambda text: None, "1 lines for 2 committed rounds"),
    ],
    ids=["changed", "missing"],
)
def test_a_damaged_folder_is_refused(tmp_path, damage, said):
    federation = Federation(small(), tmp_path)
    kill_in_round(federation, 3)
    place = federation.place / layout.PENDING
    changed = damage(place.read_bytes())
    if changed is None:
        place.unlink()
    else:
        place.write_bytes(changed)
    with pytest.raises(ValueError, match=said):
        federation.run()


def test_what_waits_must_be_the_last_committed_round(tmp_path):
    """What was known of round 1 is put in the place of what is known of round 2."""
    federation = Federation(small(), tmp_path)
    kill_in_round(federation, 2)
    place = federation.place / layout.PENDING
    before = place.read_bytes()
    kill_in_round(federation, 3)
    place.write_bytes(before)
    with pytest.raises(ValueError, match="it is of round 1, and round 2 waits for its evaluation"):
        federation.run()


def test_nothing_stays_that_was_left_by_a_kill(tmp_path):
    """Round 2 is on record and round 3 not committed: what was known of round 2 is not needed any more."""
    federation = Federation(small(), tmp_path)
    federation.run(2)
    assert (federation.place / layout.PENDING).exists()
    with DeferredWriter(federation.place, federation.experiment.key) as writer:
        assert writer.resume().round == 2
        assert writer.pending is None
        assert not (federation.place / layout.PENDING).exists()
    (federation.place / f".{layout.PENDING}.0123456789abcdef").write_text("half of it")
    assert without_states(federation.run()) == federation.serial()


def test_the_first_round_after_a_start_waits_for_those_who_are_on_their_way(tmp_path):
    """Two of three are enough; the third comes after 10 seconds, and is away again in round 2, where nobody waits."""
    federation = Federation(small(rounds=2, quorum=0.6, deadline=600.0), tmp_path)
    line = federation.line
    line.away, away = {1: "it is not connected"}, {1: "it is not connected"}
    line.plans = [(10.0, line.away.clear)]
    line.change = lambda id, header, answer: (
        line.away.update(away if (id, header["round"]) == (1, 1) else {}) or [answer]
    )
    federation.run()
    assert [list(record["lost"]) for record in federation.records()] == [[], ["1"]]
    assert line.now == 10.0


def kill_in_round(federation, number):
    """Kill the server when a client gets its request in a round."""

    def change(id, header, answer):
        if header["round"] == number:
            raise Killed
        return [answer]

    federation.line.change = change
    with pytest.raises(Killed):
        federation.run()
    federation.line.change, federation.line.waiting = None, []


def test_what_waits_for_an_evaluation_is_removed_with_the_run(tmp_path):
    federation = Federation(small(), tmp_path)
    kill_in_round(federation, 3)
    ours = list(own_files(federation.place))
    assert federation.place / layout.PENDING in ours
    assert not other_files(federation.place, ours)
