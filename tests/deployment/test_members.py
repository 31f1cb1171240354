"""Clients that join, leave, are set aside and confirm other terms while the rounds go on."""

import numpy as np
import pytest

from protonorm import tensors
from protonorm.core.training import Training
from protonorm.deployment.engine import Arrived
from protonorm.deployment.federation import Membership, run_federation
from protonorm.deployment.site import make_site
from protonorm.runs.layout import committed, stamp
from protonorm.runs.run import read_whole
from protonorm.session.build import build
from tests.deployment.federation import Killed, Line
from tests.deployment.sites import LABELS, NAMES, agreement_of, make_nodes, simulated, write_clients
from tests.deployment.test_run_federation import Organisations
from tests.deployment.test_secure import Secure
from tests.support import pictures


class Register:
    """A register whose members change before some rounds."""

    def __init__(self, parties, members=(0, 1, 2), **seats):
        self.parties, self.members, self.terms, self.seats = parties, list(members), [parties.agreement], seats
        self.plans, self.confirmed, self.missed = {}, {}, {}  # plans: what happens when a round is looked up
        self.names, self.looked = list(NAMES), []

    def membership(self):
        done = parties_done(self.parties)
        self.looked.append(done + 1)
        if done + 1 in self.plans:
            self.plans.pop(done + 1)()
        usual = {"confirmed": self.confirmed, "missed": self.missed, "deadline": 100.0, "quorum": 1.0, "patience": 2}
        return Membership(self.names, sorted(self.members), self.terms, **usual | self.seats)

    def change(self, id, **fields):
        for name, value in fields.items():
            getattr(self, name)[id] = value


class Owner:
    """An owner who confirms other terms, or does not."""

    def __init__(self, terms):
        self.terms, self.willing, self.offered = [terms], True, []

    def check(self, terms):
        """Allow all terms that were confirmed."""

    def confirmed_terms(self):
        return self.terms

    def offer(self, terms):
        self.offered.append(terms.digest)
        if self.willing and terms.digest not in [one.digest for one in self.terms]:
            terms.refuse_unless_it_follows(self.terms[-1])
            self.terms.append(terms)
        return self.willing


def parties_done(parties):
    return committed(parties.folder / "federation" / "run")


def heard(parties, what):
    return [event for event in parties.told if event.what == what]


def asked(parties, kind="train"):
    """Whom the server asked to train, by round."""
    found = {}
    for header in parties.line.sent:
        if kind in header["kind"]:
            found.setdefault(header["round"], set()).add(header["client"])
    return found


def test_a_client_joins_and_one_is_removed_between_rounds(tmp_path):
    """Two begin; the third joins in round 3, and the first is removed before round 4. The record can be read whole."""
    parties = Organisations(tmp_path, rounds=5)
    register = Register(parties, members=(0, 1))
    register.names = list(NAMES[:2])
    register.plans = {
        3: lambda: (register.names.append(NAMES[2]), register.members.append(2)),
        4: lambda: register.members.remove(0),
    }
    run = parties.run(clients=register)
    assert asked(parties) == {1: {0, 1}, 2: {0, 1}, 3: {0, 1, 2}, 4: {1, 2}, 5: {1, 2}}
    assert [one.cohort for one in run.rounds] == ["all", "all", "all", [1, 2], [1, 2]]
    assert [one.evaluated for one in run.rounds] == ["all"] * 5
    counted = [(~np.isnan(run.by_client(one, "logits"))).tolist() for one in run.rounds]
    assert counted == [[True, True, False], [True] * 3, [False, True, True], [False, True, True], [False, True, True]]
    assert read_whole(run.folder).info.client_names == list(NAMES)
    assert [event.round for event in heard(parties, "members")] == [3, 4]
    done = [event.sentence.partition(": ")[2] for event in heard(parties, "committed")]
    assert done == [f"{number} of {number} clients took part." for number in (2, 2, 3, 2, 2)]
    best = run.chosen.record.round
    kept = {one["client"]: one["round"] for one in parties.line.sent if one["kind"] == "keep"}
    assert kept == {1: best, 2: best if best >= 3 else 5}


def test_terms_are_amended_and_who_does_not_confirm_is_not_asked(tmp_path):
    """Rounds 2 become 4 from round 3 on. The second owner confirms before round 4 alone, and its state is kept."""
    parties = Organisations(tmp_path, rounds=2)
    register, owners = Register(parties, quorum=0.6), {}
    for id, node in parties.line.nodes.items():
        node._owner = owners[id] = Owner(parties.agreement)
    new = parties.agreement.amended({"rounds": 4, "algorithm": {"lam": 0.5}}, 3)
    owners[1].willing = False
    register.plans = {2: lambda: register.terms.append(new), 4: lambda: setattr(owners[1], "willing", True)}
    run = parties.run(clients=register)
    assert asked(parties) == {1: {0, 1, 2}, 2: {0, 1, 2}, 3: {0, 2}, 4: {0, 1, 2}}
    evaluated = [event.sentence.partition(":")[0] for event in heard(parties, "evaluated")]
    assert evaluated == [
        f"Round {round}, evaluated by {by} of 3 clients" for round, by in ((1, 3), (2, 2), (3, 3), (4, 3))
    ]
    members = [event.sentence.endswith("these are not asked: kyoto.") for event in heard(parties, "members")]
    assert members == [True, False]
    assert register.confirmed == dict.fromkeys(range(3), new.digest)
    by_round = {header["round"]: header["agreement"] for header in parties.line.sent if "train" in header["kind"]}
    assert [by_round[round] == new.digest for round in (1, 2, 3, 4)] == [False, False, True, True]
    last = next(
        one for one in parties.line.sent if (one["client"], one["kind"], one["round"]) == (1, "evaluate+train", 4)
    )
    assert last["trained"] == 2  # its state of round 2
    assert (len(run.rounds), run.info.experiment.rounds, run.info.key) == (4, 4, parties.agreement.digest)
    assert run.info.experiment.algorithm.settings["lam"] == 0.5
    assert run.finished
    assert read_whole(run.folder).rounds == run.rounds


def test_the_quorum_is_of_the_members_also_of_those_that_have_not_confirmed(tmp_path):
    """Two of three must answer; one owner does not confirm. The other two are waited for, unless one leaves."""
    parties = Organisations(tmp_path, rounds=4)
    register, owners, slow = Register(parties, quorum=0.5), {}, []
    for id, node in parties.line.nodes.items():
        node._owner = owners[id] = Owner(parties.agreement)
    owners[1].willing = False
    new = parties.agreement.amended({"algorithm": {"lam": 0.5}}, 3)
    register.plans = {2: lambda: register.terms.append(new)}

    def change(id, header, answer):
        if id == 2 and header["round"] == 3 and "train" in header["kind"] and not slow:
            slow.append(answer)
            return []
        if id == 2 and header["round"] == 4 and "train" in header["kind"]:
            register.members.remove(2)
            parties.line.away[2] = "it is not connected"
            return [Arrived(2, failure="its key was revoked", gone=True)]
        return [answer]

    parties.line.change = change
    parties.line.plans = [(70.0, lambda: parties.line.waiting.append(Arrived(2, slow[0])))]
    run = parties.run(clients=register, clock=lambda: parties.line.now)
    assert [event.numbers["needed"] for event in heard(parties, "round")] == [2] * 4
    assert [list(one.lost) for one in run.rounds] == [[], [], [], ["2"]]
    assert 70 <= parties.line.now < 170


def test_terms_are_offered_again_while_a_round_misses_its_quorum(tmp_path):
    """Two of three have confirmed, and one of them goes. The third owner confirms meanwhile: its client takes part."""
    parties = Organisations(tmp_path, rounds=3)
    register, owners = Register(parties, quorum=0.5), {}
    for id, node in parties.line.nodes.items():
        node._owner = owners[id] = Owner(parties.agreement)
    owners[1].willing = False
    new = parties.agreement.amended({"algorithm": {"lam": 0.5}}, 3)
    register.plans = {2: lambda: register.terms.append(new)}

    def change(id, header, answer):
        if id == 2 and header["round"] == 3 and "train" in header["kind"]:
            parties.line.away[2] = "it is not connected"
            return [Arrived(2, failure="it went away")]
        return [answer]

    parties.line.change = change
    parties.line.plans = [(30.0, lambda: setattr(owners[1], "willing", True))]
    run = parties.run(clients=register, clock=lambda: parties.line.now)
    assert run.rounds[2].lost == {"2": "it is not connected"}
    assert [event.round for event in heard(parties, "round")] == [1, 2, 3, 3]
    assert parties.line.now < 400


def test_amended_rounds_wait_until_the_quorum_has_confirmed(tmp_path):
    """All must answer; the second owner confirms fifty seconds after the terms have changed."""
    parties = Organisations(tmp_path, rounds=2)
    register, owners = Register(parties), {}
    for id, node in parties.line.nodes.items():
        node._owner = owners[id] = Owner(parties.agreement)
    owners[1].willing = False
    register.plans = {2: lambda: register.terms.append(parties.agreement.amended({"rounds": 3}, 3))}
    parties.line.plans = [(50.0, lambda: setattr(owners[1], "willing", True))]
    parties.run(clients=register, clock=lambda: parties.line.now)
    assert asked(parties)[3] == {0, 1, 2}
    waits = [event.sentence for event in heard(parties, "waiting")]
    assert waits == [
        "Round 3 waits: 2 of 3 members have confirmed its terms, 3 must; missing: kyoto. Their owners do it by "
        "`protonorm deploy accept` while their clients run."
    ]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_secure_sum_waits_until_all_of_its_members_have_confirmed(tmp_path, restarted):
    """A quorum of half of the members is not enough for it. The owners confirm 0, 20 and 50 seconds after the change.

    Also a server that is started again meanwhile offers the terms to those who have not confirmed them.
    """
    federation = Secure(tmp_path, rounds=2)
    register, owners = Register(federation, quorum=0.5), {}
    for id, node in federation.line.nodes.items():
        node._owner = owners[id] = Owner(federation.agreement)
        owners[id].willing = id == 0
    new = federation.agreement.amended({"rounds": 3}, 3)
    register.plans = {2: lambda: register.terms.append(new)}

    def run():
        folder, clock = tmp_path / "federation" / "run", lambda: federation.line.now
        return run_federation(
            federation.agreement, federation.line, folder, clients=register, notify=federation.told.append, clock=clock
        )

    def end():
        raise Killed

    federation.line.plans = [
        (time, lambda id=id: setattr(owners[id], "willing", True)) for time, id in ((20, 1), (50, 2))
    ]
    if restarted:
        federation.line.plans.insert(1, (30.0, end))
        with pytest.raises(Killed):
            run()
    record = run()
    assert [one.cohort for one in record.rounds] == ["all"] * 3
    assert record.rounds[2].lost == {}
    waits = [event.sentence for event in federation.heard("waiting")]
    assert [wait.partition(";")[0] for wait in dict.fromkeys(waits)] == [
        f"Round 3 waits: {number} of 3 members have confirmed its terms, 3 must" for number in (1, 2)
    ]
    assert 50 <= federation.line.now < 100


def test_a_secure_sum_of_too_few_members_waits_and_says_so(tmp_path):
    """One of three has left: the server waits until there are others, and does not begin a round that cannot end."""
    federation = Secure(tmp_path, rounds=2)
    register = Register(federation, members=(0, 1), quorum=0.5)
    federation.line.plans = [(50.0, lambda: register.members.append(2))]
    run_federation(
        federation.agreement,
        federation.line,
        tmp_path / "federation" / "run",
        clients=register,
        notify=federation.told.append,
        clock=lambda: federation.line.now,
    )
    (wait,) = federation.heard("waiting")
    assert wait.sentence == (
        "Round 1 waits: 2 of 2 members have confirmed its terms, 3 must: the secure sum needs 3 members, and the "
        "federation has 2."
    )


def test_a_finished_federation_goes_on_by_amended_terms(tmp_path):
    """The rounds after it are those of a federation that had them from the beginning."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    whole, parts = Organisations(tmp_path / "one", rounds=3), Organisations(tmp_path / "two", rounds=2)
    for node in parts.line.nodes.values():
        node._owner = Owner(parts.agreement)
    register = Register(parts)
    parts.run(clients=register)
    register.terms.append(parts.agreement.amended({"rounds": 3}, 3))
    found, expected = parts.run(clients=register), whole.run()
    assert [one.model_dump(exclude={"arrays"}) for one in found.rounds] == [
        one.model_dump(exclude={"arrays"}) for one in expected.rounds
    ]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"classes": ["a", "b", "c"]}, "classes cannot be amended"),
        ({"algorithm": {"name": "fedproto"}}, "algorithm.name cannot be amended|lam|settings"),
        ({"rounds": 3}, "nothing to amend"),
        ({"seed": 3}, "seed cannot be amended"),
    ],
)
def test_what_would_be_another_federation_is_no_amendment(tmp_path, change, problem):
    terms = Organisations(tmp_path).agreement
    with pytest.raises(ValueError, match=problem):
        terms.amended(change, 2)


def test_a_client_that_is_late_again_and_again_is_set_aside_and_taken_back(tmp_path):
    """It does not answer in rounds 1 and 2; in round 3 the others do not wait; its late answer lets it count again."""
    parties = Organisations(tmp_path, rounds=5)
    register, held = Register(parties, quorum=0.5), []

    def change(id, header, answer):
        if id == 1 and header["round"] <= 3 and "train" in header["kind"]:
            held.append(answer)
            return []
        if id == 0 and header["round"] == 4 and held:
            return [Arrived(1, held.pop(), current=False), answer]
        return [answer]

    parties.line.change = change
    parties.run(clients=register, clock=lambda: parties.line.now)
    begun = {event.round: event for event in heard(parties, "round")}
    assert [event.client for event in heard(parties, "aside")] == [1]
    assert [(event.round, event.client) for event in heard(parties, "late")] == [(1, 1), (2, 1)]  # then it is set aside
    assert heard(parties, "late")[1].sentence == "Round 2: client kyoto is late: the round ended before it answered."
    assert "after 2 rounds" in heard(parties, "aside")[0].sentence
    assert [event.round for event in heard(parties, "back")] == [4]
    assert [begun[round].numbers["needed"] for round in (1, 3, 5)] == [2, 1, 2]
    assert parties.line.now == 60.0 + 30.0  # the first call is patient; then the grace period; then nobody waits
    assert register.missed == {1: 0}


def test_who_was_set_aside_is_so_after_a_restart(tmp_path):
    parties = Organisations(tmp_path, rounds=3)
    register = Register(parties, quorum=0.5)
    register.missed = {1: 2}
    parties.line.change = lambda id, _, answer: [] if id == 1 else [answer]
    parties.run(clients=register)
    assert [event.numbers["needed"] for event in heard(parties, "round")] == [1] * 3
    assert parties.line.now <= 60.0 + 60.0  # the first call, and the last message


def test_a_replayed_answer_is_lost_at_once(tmp_path):
    """The second client sends its answer of round 1 as that of round 2: nobody waits for more."""
    parties = Organisations(tmp_path, rounds=2)
    held = []

    def change(id, header, answer):
        if id == 1 and header["kind"] == "train":
            held.append(answer)
        return [Arrived(id, held[0] if id == 1 and header["kind"] == "evaluate+train" else answer, current=True)]

    parties.line.change = change
    run = parties.run(quorum=0.5)
    assert parties.line.now == 0.0
    assert list(run.rounds[1].lost) == ["1"]
    assert "The answer of client kyoto is refused:" in heard(parties, "refused")[0].sentence


def test_a_client_whose_key_is_revoked_in_a_round_does_not_hold_it(tmp_path):
    """All three must answer; the second is cut off while it works, and the two others are enough."""
    parties = Organisations(tmp_path, rounds=3)
    register = Register(parties)

    def change(id, header, answer):
        if id == 1 and header["round"] == 2 and "train" in header["kind"]:
            register.members.remove(1)
            parties.line.away[1] = "it is not connected"
            return [Arrived(1, failure="its key was revoked", gone=True)]
        return [answer]

    parties.line.change = change
    run = parties.run(clients=register)
    assert parties.line.now < 60.0
    assert list(run.rounds[1].lost) == ["1"]
    assert asked(parties)[3] == {0, 2}


def test_a_server_killed_when_a_client_has_joined_goes_on(tmp_path):
    """It is killed while round 3 begins, after the roster has grown; the record is that of a server that was not."""
    records = []
    for place in ("whole", "killed"):
        (tmp_path / place).mkdir()
        parties = Organisations(tmp_path / place, rounds=3)
        register = Register(parties, members=(0, 1))
        register.names = list(NAMES[:2])

        def grow(register=register):
            register.names, register.members = list(NAMES), [0, 1, 2]

        register.plans = {3: grow}
        if place == "killed":

            def change(id, header, answer, parties=parties):
                if header["round"] == 3 and id == 2:
                    parties.line.change = None
                    raise Killed
                return [answer]

            parties.line.change = change
            with pytest.raises(Killed):
                parties.run(clients=register)
            parties.line.waiting.clear()
        records.append(parties.run(clients=register))
    one, two = records
    assert one.rounds == two.rounds
    assert one.info.experiment == two.info.experiment


def test_private_beginnings_differ_and_reproducible_ones_do_not(tmp_path):
    """With secrets the first prototypes of two equal clients differ; `reproducible` gives those of the simulation."""
    parties = Organisations(tmp_path)
    shared = parties.agreement.model_copy(update={"reproducible": True})
    data, weights = f"npz:{parties.data}/{NAMES[0]}.npz", {}
    for name, terms, secret in (
        ("none", parties.agreement, ""),
        ("one", parties.agreement, "1"),
        ("again", parties.agreement, "1"),
        ("two", parties.agreement, "2"),
        ("shared", shared, "2"),
    ):
        client = make_site(terms, 0, data, "plain", secret=secret).fresh_client()
        weights[name] = next(client.model.parameters()).detach().numpy().copy()
    assert np.array_equal(weights["one"], weights["again"])
    assert np.array_equal(weights["none"], weights["shared"])
    for left, right in (("none", "one"), ("one", "two"), ("two", "shared")):
        assert not np.isclose(weights[left], weights[right]).any()


TRUNK = """
from torch import nn

def wide():
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten())
"""


class Analysts:
    """Three clients with a frozen trunk, whose method is finished after two rounds."""

    def __init__(self, data, folder, **settings):
        self.data, self.folder, frozen = data, folder, "frozen:trunks.py:wide"
        choir = {"name": "choir", "public": False}
        task, _ = build(simulated(data, models=frozen, algorithm=choir, **{"rounds": 9} | settings))
        self.agreement = agreement_of(task, ("test", "validation"))
        self.line = Line({})
        self.start(*NAMES)

    def start(self, *names):
        """Start clients, anew after they have ended: they read their files and their states."""
        places = [(NAMES.index(name), f"npz:{self.data}/{name}.npz") for name in names]
        frozen, training = "frozen:trunks.py:wide", Training(validation=0)
        sites = [make_site(self.agreement, id, place, frozen, training) for id, place in places]
        self.line.nodes |= make_nodes(self.agreement, sites, self.folder / "nodes")

    def run(self, names, **options):
        usual = {"clients": names, "clock": lambda: self.line.now} | options
        return run_federation(self.agreement, self.line, self.folder / "run", **usual)

    def sums(self, round):
        path = self.folder / "run" / "server.safetensors"
        return tensors.load(path, stamp(self.agreement.root, "server", round))


@pytest.fixture
def analysts(tmp_path, monkeypatch):
    (tmp_path / "trunks.py").write_text(TRUNK)
    monkeypatch.chdir(tmp_path)
    return Analysts(write_clients(tmp_path / "organisations"), tmp_path / "first")


def test_a_finished_method_goes_on_for_who_joined_and_for_added_samples(analysts, tmp_path):
    """Two finish; the third joins, and the first has more samples. The sums are those of a new run with everything."""
    parties = analysts
    assert len(parties.run(NAMES[:2]).rounds) == 2
    assert len(parties.run(NAMES).rounds) == 2  # nobody asked for more
    more = pictures([*LABELS[0], 2, 2, 1], 3, side=16)
    classes = np.array(more.classes)
    np.savez(parties.data / f"{NAMES[0]}.npz", images=more.inputs, labels=more.labels, classes=classes)
    parties.start(NAMES[0])
    run = parties.run(NAMES, update=True)
    assert [one.round for one in run.rounds] == [1, 2, 3, 4]
    assert run.finished
    assert run.rounds[2].bytes.up > 0
    assert run.rounds[3].bytes.up == 0
    fresh = Analysts(parties.data, tmp_path / "second")
    assert len(fresh.run(NAMES).rounds) == 2
    first, second = parties.sums(4), fresh.sums(2)
    assert first.keys() == second.keys()
    for name, value in second.items():
        if name.startswith("state"):
            np.testing.assert_allclose(first[name], value, rtol=1e-5, atol=1e-4)
    assert any(name.startswith("state") for name in second)
    assert len(parties.run(NAMES).rounds) == 4  # and is finished again


def test_an_update_beyond_the_agreed_rounds_is_refused(analysts, tmp_path):
    parties = Analysts(analysts.data, tmp_path / "short", rounds=2)
    parties.run(NAMES)
    with pytest.raises(ValueError, match="All 2 rounds of the agreement are done; `deploy amend rounds=…`"):
        parties.run(NAMES, update=True)
