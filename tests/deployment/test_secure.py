"""Secure sums between a server and clients: the record of a simulation, and what a lying or failing party gets."""

import json
from types import SimpleNamespace

import pytest
import torch

from protonorm.core import masking
from protonorm.core.frames import encode_body
from protonorm.core.masking import PLEDGE, Pledge
from protonorm.core.privacy import Gaussian
from protonorm.core.task import Order
from protonorm.core.training import Training
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.engine import Arrived
from protonorm.deployment.keys import key_fingerprint, public_line
from protonorm.deployment.ledger import LEDGER
from protonorm.deployment.messages import Answer, RequestHeader, read_answer_header, read_answer_tensors, write_request
from protonorm.deployment.node import Node
from protonorm.deployment.owner import OwnerPolicy
from protonorm.deployment.secure import Member, collect, context_of, to_tensor
from protonorm.deployment.site import check_noise, open_store
from protonorm.session.build import build
from tests.deployment.federation import Federation, Killed, small, without_states
from tests.deployment.sites import agreement_of, own_sites

IDENTITIES = [masking.identity_from(number + 1) for number in range(3)]
MEMBERS = [key_fingerprint(public_line(identity.public_key())) for identity in IDENTITIES]
CALLS = ("members", "mask")


class Secure(Federation):
    """Federation whose clients sign with keys that the agreement names."""

    def __init__(self, folder, **settings):
        super().__init__(small(**{"combine": "mean"} | settings), folder)
        self.experiment = small(**settings | {"combine": "secure_sum:3"})
        self.simulated, _ = build(self.experiment)
        self.agreement = Agreement.read(agreement_of(self.simulated, ("validation", "test"), members=MEMBERS).write())
        self.task, self.sites = self.agreement.task, own_sites(self.agreement.task, self.population)
        self.line.nodes = {id: self.node(id) for id in range(3)}
        self.line.change = lambda id, header, answer: [answer]
        self.engine = self.new_engine()

    def node(self, id):
        store = open_store(self.folder / "nodes" / str(id), self.agreement)
        return Node(self.agreement, self.sites[id], store, "classes", identity=IDENTITIES[id])


@pytest.mark.parametrize("algorithm", ["protonorm", "lgfedavg"])
def test_the_record_is_that_of_a_simulation(tmp_path, algorithm):
    """Byte for byte, with keys that no simulation has; each round has two calls more."""
    federation = Secure(tmp_path, algorithm=algorithm, rounds=2)
    found = federation.run()
    assert without_states(found) == federation.serial()
    kinds = [kind for _, kind in federation.line.kinds()]
    assert kinds == ["train", *CALLS, "evaluate+train", *CALLS, "evaluate"]
    assert not federation.heard("refused")
    assert not federation.heard("burned")
    steps = [event.sentence for event in federation.heard("delivered") if (event.round, event.client) == (1, 0)]
    assert "was asked to confirm the members" in steps[0]
    assert "was asked for its masked message" in steps[1]


def test_the_server_is_sent_pledges_signatures_and_masked_numbers_alone(tmp_path):
    """No loss, no seconds, and the masked numbers are no numbers that a client could have: the top bits are random."""
    federation, heard = Secure(tmp_path, rounds=1), []
    federation.line.change = lambda id, header, answer: heard.append((header["kind"], answer)) or [answer]
    federation.run()
    for kind, answer in heard:
        header, body = read_answer_header(answer)
        message, _ = read_answer_tensors(body)
        assert header.metrics == {}
        assert header.seconds == 0
        names = {"train": {"pledge"}, "members": {"signature"}, "mask": {"masked"}, "evaluate": set()}
        assert message.keys() == names[kind]
        if kind == "mask":
            assert (message["masked"].abs() > 2**55).float().mean() > 0.9


@pytest.mark.parametrize("kind", ["train", *CALLS])
def test_a_round_in_which_a_member_drops_out_yields_nothing(tmp_path, kind):
    """Client 1's answer of round 2 never comes; the third round has another update, and counts."""
    federation = Secure(tmp_path, rounds=3)
    lost = Arrived(1, failure="the cable was cut")
    federation.line.change = lambda id, header, answer: (
        [lost] if (id, header["round"], header["kind"].removeprefix("evaluate+")) == (1, 2, kind) else [answer]
    )
    if kind == "train":  # without noise all members are waited for
        with pytest.raises(AssertionError, match="waits for ever"):
            federation.run()
        return
    federation.run()
    first, second, third = federation.records()
    assert second["server"] == {"burned": 1.0}
    assert second["lost"].keys() == {"0", "1", "2"}
    assert second["rules"] == first["rules"]
    assert third["lost"] == {}
    assert "client 1 dropped out: the cable was cut" in federation.heard("burned")[0].sentence
    rounds = [each["round"] for each in ledger(tmp_path, 0)["masked"]]
    assert rounds == ([1, 2, 3] if kind == "mask" else [1, 3])


def ledger(folder, id):
    return json.loads((folder / "nodes" / str(id) / LEDGER).read_text())


def test_a_server_killed_after_masked_messages_burns_the_round(tmp_path):
    """It asks for round 1 again; clients have used it, send nothing, and round 2 goes on."""
    federation = Secure(tmp_path, rounds=2)

    def killed(id, header, answer):
        if header["kind"] == "mask":
            raise Killed
        return [answer]

    federation.line.change = killed
    with pytest.raises(Killed):
        federation.run()
    federation.line.change, federation.line.waiting = lambda id, header, answer: [answer], []
    federation.run()
    first, second = federation.records()
    assert first["server"] == {"burned": 1.0}
    assert second["lost"] == {}
    assert "had sent its message before the server was restarted" in federation.heard("burned")[0].sentence


def test_a_repeated_request_has_the_same_bytes_also_after_a_restart(tmp_path):
    federation, heard = Secure(tmp_path, rounds=1), {}

    def twice(id, header, answer):
        request = federation.line.requests[-1][1]
        if header["kind"] in ("train", *CALLS):
            assert federation.line.nodes[id].answer(request) == answer
        if header["kind"] == "mask":
            assert federation.node(id).answer(request) == answer
            heard[id] = request
        return [answer]

    federation.line.change = twice
    federation.run()
    assert heard.keys() == {0, 1, 2}


# ---- a lying server --------------------------------------------------------------------------------------------------


class Liar:
    """Server that speaks with three clients' nodes."""

    def __init__(self, folder, **settings):
        self.federation = Secure(folder, **{"rounds": 3} | settings)
        self.terms, self.nodes = self.federation.agreement, self.federation.line.nodes

    def ask(self, id, kind, message=None, round=1, trained=0, terms=None):
        """Return the tensors of a client's answer, or the sentence in which it declines."""
        fields = {"format": 1, "agreement": (terms or self.terms).digest, "client": id, "round": round, "kind": kind}
        fields |= {"trained": trained}
        request = write_request(RequestHeader.model_validate(fields), encode_body(message or {}))
        header, body = read_answer_header(self.nodes[id].answer(request))
        return header.declined or read_answer_tensors(body)[0]

    def pledges(self, ids=(0, 1, 2), round=1):
        return sorted(Pledge.read(bytes(self.ask(id, "train", round=round)["pledge"].tolist())) for id in ids)

    def signatures(self, pledges, round=1, **change):
        """Return all members' signatures in the order of the pledges, or the sentences in which they decline."""
        signed = {id: self.ask(id, "members", stacked(pledges), round, **change) for id in range(3)}
        if said := [answer for answer in signed.values() if isinstance(answer, str)]:
            return said
        order = [[each.identity for each in pledges].index(masking.identity_of(key.public_key())) for key in IDENTITIES]
        return torch.stack([signed[order.index(place)]["signature"] for place in range(3)])


def stacked(pledges):
    return {"pledges": torch.stack([to_tensor(each.write()) for each in pledges])}


@pytest.fixture
def liar(tmp_path):
    return Liar(tmp_path)


def test_a_server_that_drops_repeats_or_invents_members_gets_no_signature(liar):
    pledges = liar.pledges()
    context, own = context_of(liar.terms, 1, {}, sends=True), pledges[0]
    key = masking.X25519PrivateKey.generate()
    stranger = masking.pledge(masking.identity_from(9), key, context)
    posing = stranger._replace(identity=pledges[2].identity)
    old = masking.pledge(IDENTITIES[2], key, context_of(liar.terms, 2, {}, sends=True))
    who = next(id for id in range(3) if masking.identity_of(IDENTITIES[id].public_key()) == own.identity)
    for members, sentence in (
        (pledges[:2], "must be of 3 members at least, got 2"),
        ([*pledges[:2], pledges[1]], "must be different"),
        ([own, own, own], "must be different"),
        (sorted([*pledges[:2], stranger]), "not one of the agreement"),
        ([*pledges, stranger], "not one of the agreement"),
        ([*pledges[:2], posing], "is not valid"),
        (sorted([each for each in pledges if each.identity != old.identity] + [old]), "is not valid"),
        (pledges[1:], "Its pledge for the secure sum of this round is not there"),
    ):
        if own in members or "pledge" in sentence:
            assert sentence in liar.ask(who, "members", stacked(members)), sentence
    assert "must hold pledges alone, rows of 177 bytes" in liar.ask(who, "members", {"pledges": torch.zeros(3, 5)})
    assert "has confirmed no members of this round" in liar.ask(who, "mask", {"signatures": torch.zeros(3, 96).byte()})


def test_nobody_masks_without_every_signature_and_nobody_masks_twice(liar):
    """After a masked message of round 1 there is no other, whatever the server asks; the next round has another key."""
    pledges = liar.pledges()
    signed = {each: liar.ask(each, "members", stacked(pledges))["signature"] for each in range(3)}
    order = [[each.identity for each in pledges].index(masking.identity_of(key.public_key())) for key in IDENTITIES]
    rows = torch.stack([signed[order.index(place)] for place in range(3)])
    for wrong in (rows[:2], rows[[0, 0, 2]], torch.zeros_like(rows)):
        assert "must have confirmed" in (said := liar.ask(0, "mask", {"signatures": wrong})) or "not valid" in said
    first = liar.ask(0, "mask", {"signatures": rows})["masked"]
    assert torch.equal(liar.ask(0, "mask", {"signatures": rows})["masked"], first)
    assert "has confirmed no members" in liar.ask(0, "mask", {"signatures": rows[[1, 0, 2]]})
    assert liar.ask(0, "train") == {}  # used
    again = Member(IDENTITIES[0], liar.federation.folder / "nodes" / "0" / LEDGER, lambda *_, **__: None)
    assert again.used(liar.terms, 1)
    assert not again.used(liar.terms, 2)


def test_other_members_are_not_confirmed_after_the_first(liar):
    """The server replaces a client's pledge by another one of its own making, which that client had signed anew."""
    pledges = liar.pledges()
    liar.ask(0, "members", stacked(pledges))
    other = masking.pledge(
        IDENTITIES[1], masking.X25519PrivateKey.generate(), context_of(liar.terms, 1, {}, sends=True)
    )
    changed = sorted([each for each in pledges if each.identity != other.identity] + [other])
    assert liar.ask(0, "members", stacked(changed)) == "It has confirmed other members of this round."


def test_an_update_is_never_masked_in_two_rounds(liar, monkeypatch):
    """Of a method that would send the same again, as after a round that was burned."""
    same = {"classes": torch.tensor([0]), "prototypes": torch.ones(1, liar.terms.feature_dim)}
    said = []
    for round in (1, 2):
        pledges = liar.pledges(round=round)
        for node in liar.nodes.values():
            node._member._reply = same
        signed = {each: liar.ask(each, "members", stacked(pledges), round)["signature"] for each in range(3)}
        order = [[each.identity for each in pledges].index(masking.identity_of(key.public_key())) for key in IDENTITIES]
        rows = torch.stack([signed[order.index(place)] for place in range(3)])
        said.append(liar.ask(0, "mask", {"signatures": rows}, round))
    assert "masked" in said[0]
    assert said[1] == "Its update is that of an earlier round, which is never sent again."


def test_a_server_gets_no_sum_in_which_one_member_alone_tells_of_its_samples(tmp_path):
    """AFL sends its statistics once. Two members are made to train in a round that is never summed, and have nothing
    more to send in the next, in which the third is asked as if for the first time.
    """
    liar = Liar(tmp_path, algorithm="afl")
    for id in (1, 2):
        liar.ask(id, "train")
    asked = {id: liar.ask(id, "train", round=2, trained=int(id > 0))["pledge"] for id in range(3)}
    pledges = sorted(Pledge.read(bytes(each.tolist())) for each in asked.values())
    said = liar.signatures(pledges, 2)
    if isinstance(said, torch.Tensor):  # as it was: the sum is what client 0 alone has
        sent = [liar.ask(id, "mask", {"signatures": said}, 2)["masked"] for id in range(3)]
        total = liar.terms.task.layout.sums(sum(sent).numpy()).totals
        raise AssertionError({name: float(value.abs().sum()) for name, value in total.items()})
    assert said == ["A signature of a member of the secure sum is not valid."] * 3


def test_who_comes_late_with_statistics_is_not_summed_with_those_who_have_sent_theirs(tmp_path):
    """With shared noise a round may do without a member. Alone in a later one it would have a share of the noise."""
    liar = Liar(tmp_path, algorithm="afl")
    plain = liar.terms.plain() | {"combine": "secure_sum:2", "noise": {"name": "gaussian", "colluding": 1}}
    terms = Agreement.of(plain)
    training = Training(protect=Gaussian(colluding=1))
    for id, node in liar.nodes.items():
        node._site.training, node._agreement, node._task = training, terms, terms.task
        node._site.task = terms.task
    liar.terms = terms

    def played(round, trained):
        orders = [Order(id, round, done) for id, done in trained.items()]

        def ask(kind, orders, message):
            found = {}
            for order in orders:
                fields = {"format": 1, "agreement": terms.digest, "client": order.id, "round": round, "kind": kind}
                header = RequestHeader.model_validate(fields | {"trained": trained[order.id]})
                content = liar.nodes[order.id].answer(write_request(header, encode_body(message)))
                answer, body = read_answer_header(content)
                assert not answer.declined, answer.declined
                found[order.id] = Answer(answer, *read_answer_tensors(body))
            return found

        return collect(terms, orders, ask("train", orders, {}), {}, ask)

    first, second = played(1, {0: 0, 1: 0}), played(2, {0: 1, 1: 1, 2: 0})
    assert [first.keys(), second.keys()] == [{0, 1}] * 2
    total = sum(each["masked"] for each in second.values()).numpy()
    assert total[:-1].tolist() == [0] * (len(total) - 2) + [2]  # the weights of two members, and no statistics
    assert ledger(tmp_path, 0)["releases"][0]["round"] == 1
    assert not (tmp_path / "nodes" / "2" / LEDGER).exists()


def test_members_that_were_published_different_messages_have_no_sum(liar):
    """Known as model inconsistency: a server that chooses what the others train from learns the rest of a sum."""
    published = {"classes": torch.tensor([0]), "prototypes": torch.ones(1, liar.terms.feature_dim)}
    asked = [liar.ask(id, "train", published if id else {})["pledge"] for id in range(3)]
    pledges = sorted(Pledge.read(bytes(each.tolist())) for each in asked)
    assert liar.signatures(pledges) == ["A signature of a member of the secure sum is not valid."] * 3


def test_a_round_is_masked_under_the_terms_of_its_pledge(liar):
    """Other confirmed terms may have other noise, of which each member relies on the others' shares."""
    amended = liar.terms.amended({"rounds": 9}, 1)
    owner = SimpleNamespace(confirmed_terms=lambda: [liar.terms, amended], check=lambda terms: None)
    for node in liar.nodes.values():
        node._owner = owner
    pledges = liar.pledges()
    rows = liar.signatures(pledges)
    sentence = "Its pledge for the secure sum of this round is not there."
    assert liar.signatures(pledges, terms=amended) == [sentence] * 3
    assert liar.ask(0, "mask", {"signatures": rows}, terms=amended) == "It has confirmed no members of this round."
    assert "masked" in liar.ask(0, "mask", {"signatures": rows})


# ---- terms -----------------------------------------------------------------------------------------------------------

TERMS = {"algorithm": "protonorm", "classes": ["a", "b"], "feature_dim": 4, "rounds": 2, "seed": 0}
SHARED = {"name": "gaussian", "bounds": "message", "colluding": 1}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"members": MEMBERS[:2]}, "must have 3 to 256 clients in a round, got 2"),
        ({"members": [MEMBERS[0]] * 3}, "twice"),
        ({"members": ["north", "south", "east"]}, "members"),
        ({"members": MEMBERS, "combine": "mean"}, "must be left out unless combine=secure_sum, got mean"),
        ({"members": MEMBERS, "noise": {"name": "gaussian"}}, "of which each member adds a share"),
        ({"members": MEMBERS, "algorithm": "fedtgp"}, "trains on the messages one by one"),
    ],
    ids=str,
)
def test_terms_that_do_not_fit_are_refused(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        Agreement.of(TERMS | {"combine": "secure_sum"} | change)


def test_terms_name_the_members_and_the_noise_and_old_terms_keep_their_digest():
    terms = Agreement.of(TERMS | {"combine": "secure_sum", "members": MEMBERS, "noise": SHARED})
    assert Agreement.read(terms.write()) == terms
    assert all(member in dict(terms.lines())["members"] for member in MEMBERS)
    assert (terms.least_answers, terms.task.noise_length) == (3, 1.0)
    assert not {"members", "noise"} & Agreement.of(TERMS).plain().keys()
    check_noise(terms, Training(protect=Gaussian(bounds="message", colluding=1)))
    for wrong in (Training(), Training(protect=Gaussian(bounds="message"))):
        with pytest.raises(ValueError, match="protect must be as agreed on for a secure sum"):
            check_noise(terms, wrong)
    with pytest.raises(ValueError, match="protect must be as agreed on"):
        check_noise(Agreement.of(TERMS), Training(protect=Gaussian(bounds="message", colluding=1)))


def test_an_owner_may_demand_a_number_of_members():
    policy = OwnerPolicy.checked({"members": 4}, "policy")
    with pytest.raises(ValueError, match="allows combine=secure_sum:4 or more members, got secure_sum:3"):
        policy.check(Agreement.of(TERMS | {"combine": "secure_sum", "members": MEMBERS}))
    five = [*MEMBERS, *(member[:-2] + "AA" for member in MEMBERS[:2])]
    with pytest.raises(ValueError, match="got secure_sum:3"):  # three of the five are enough for a sum
        policy.check(Agreement.of(TERMS | {"combine": "secure_sum:3", "members": five}))
    policy.check(Agreement.of(TERMS | {"combine": "secure_sum:4", "members": five}))
    policy.check(Agreement.of(TERMS))
    with pytest.raises(ValueError, match="combined by secure_sum:3, got trust"):
        OwnerPolicy.checked({"combine": ["secure_sum"]}, "policy").check(Agreement.of(TERMS))


def test_pledges_have_the_size_of_the_wire():
    assert PLEDGE == 177
