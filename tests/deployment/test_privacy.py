"""A deployed client that claims privacy: one draw of noise a round, a record of what was spent, and a ceiling."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from protonorm.core.frames import encode_body
from protonorm.core.privacy import Gaussian
from protonorm.core.training import Training, Unchanged
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.audit import Trail
from protonorm.deployment.ledger import LEDGER, Ledger, Release, count_unprotected
from protonorm.deployment.messages import RequestHeader, read_answer_header, read_answer_tensors, write_request
from protonorm.deployment.node import Node
from protonorm.deployment.settings import ClientSettings
from protonorm.deployment.site import make_site, open_store
from tests.deployment.test_node import AGREEMENT, answered, node_of, request
from tests.support import pictures

CLASSES = np.array(AGREEMENT.classes)
TERMS = Agreement.of(
    {"algorithm": {"name": "choir", "public": False}, "classes": AGREEMENT.classes, "feature_dim": 4, "rounds": 5}
    | {"seed": 0, "input": {"shape": [4], "type": "float32"}, "trunks": ["frozen:identity"]}
)


@pytest.fixture
def data(tmp_path):
    data = pictures([0, 1, 2] * 8, 3, side=16)
    np.savez(tmp_path / "own.npz", images=data.inputs, labels=data.labels, classes=np.array(data.classes))
    return f"npz:{tmp_path}/own.npz"


def node(data, tmp_path, **protect):
    step = Gaussian(**{"bounds": "message", "noise": 10.0} | protect)
    site = make_site(AGREEMENT, 2, data, "plain", Training(batch_size=4, protect=step))
    return node_of(site, tmp_path, "off")


def test_a_repeated_request_has_the_same_bytes_and_another_of_the_round_has_no_answer(data, tmp_path):
    """Also after a restart: a server that asks with other words would otherwise average the noise away."""
    first = node(data, tmp_path).answer(request())
    assert node(data, tmp_path).answer(request()) == first
    header, message, _ = answered(node(data, tmp_path), chosen=0, kind="evaluate+train", parts=["test"])
    assert "has sent its message of round 1 or a later one" in header.declined
    assert not message
    (tmp_path / "states" / AGREEMENT.digest[:16] / "answer.bin").unlink()
    assert "draws no other" in answered(node(data, tmp_path))[0].declined


def test_amended_terms_give_no_second_draw_of_a_round_and_no_new_budget(data, tmp_path):
    """Of σ = 10 and ε = 0.5 one message is allowed, also if other terms, a restart and a later round follow."""
    amended = AGREEMENT.amended({"rounds": 9}, 1)
    owner = SimpleNamespace(confirmed_terms=lambda: [AGREEMENT, amended], check=lambda terms: None)

    def asked(**change):
        site = make_site(AGREEMENT, 2, data, "plain", Training(batch_size=4, protect=step))
        return answered(node_of(site, tmp_path, "off", owner=owner), **change)[0].declined

    step = Gaussian(bounds="message", noise=10.0, epsilon=8.0)
    assert not asked()
    assert "round 1 or a later one, and draws no other" in asked(agreement=amended.digest)
    step = Gaussian(bounds="message", noise=10.0, epsilon=0.5)
    assert "its owner allows 0.5" in asked(agreement=amended.digest, round=2, trained=1)


def test_what_is_told_are_all_rows_and_no_loss(data, tmp_path):
    header, message, counts = answered(node(data, tmp_path))
    assert message["classes"].tolist() == [0, 1, 2]
    assert (header.metrics, header.seconds, counts) == ({}, 0.0, {})


def test_the_client_stops_at_the_ceiling_and_says_so(data, tmp_path):
    """Two rounds of σ = 10 are ρ = 0.01, ε = 0.546; one round is ε = 0.375."""
    own = node(data, tmp_path, epsilon=0.5)
    assert not answered(own)[0].declined
    assert "its owner allows 0.5" in answered(own, round=2, trained=1)[0].declined
    kept = json.loads((tmp_path / "states" / LEDGER).read_text())
    assert kept["releases"] == [{"agreement": AGREEMENT.digest, "round": 1, "loss": 0.005}]


def test_every_release_counts_for_the_ceiling():
    """Rounds of σ = 10 are ρ = 0.005 each: ε of two is 0.546, of three 0.69."""
    step = Gaussian(bounds="message", noise=10.0, epsilon=0.6)
    releases = [Release(agreement="one", round=round, loss=0.005) for round in (1, 2, 3)]
    Ledger(releases=releases[:1]).check(releases[1], step)
    with pytest.raises(ValueError, match=r"its owner allows 0\.6"):
        Ledger(releases=releases[:2]).check(releases[2], step)


def test_the_owner_is_told_once_what_can_be_done_at_the_ceiling(data, tmp_path):
    told = []
    site = make_site(AGREEMENT, 2, data, "plain", Training(protect=Gaussian(bounds="message", noise=10.0, epsilon=0.5)))
    own = node_of(site, tmp_path, "off", on_error=told.append)
    answered(own)
    assert [bool(answered(own, round=round, trained=1)[0].declined) for round in (2, 3)] == [True, True]
    (sentence,) = told
    assert "its owner allows 0.5. To allow more, raise protect.epsilon in policy.yaml" in sentence
    assert "protonorm deploy leave" in sentence


def test_nothing_is_trained_for_a_message_that_must_not_be_sent(data, tmp_path, monkeypatch):
    own = node(data, tmp_path, epsilon=0.5)
    answered(own)
    monkeypatch.setattr("protonorm.deployment.node.train_step", lambda *_: pytest.fail("it was trained"))
    assert "its owner allows 0.5" in answered(own, round=2, trained=1)[0].declined


def test_after_a_release_an_earlier_round_of_the_agreement_has_none():
    """A server that lost rounds would otherwise get a second draw of the same message."""
    ledger = Ledger(releases=[Release(agreement="one", round=2, loss=0.1)])
    for agreement, round in (("one", 3), ("two", 1)):
        ledger.check(Release(agreement=agreement, round=round, loss=0.1), Unchanged())
    with pytest.raises(ValueError, match="has sent its message of round 1 or a later one"):
        ledger.check(Release(agreement="one", round=1, loss=0.1), Unchanged())


def test_messages_under_other_agreements_count_too(data, tmp_path):
    (tmp_path / "states").mkdir()
    other = {"agreement": "f" * 64, "round": 3, "loss": 100.0}
    (tmp_path / "states" / LEDGER).write_text(json.dumps({"format": 1, "releases": [other]}))
    assert "its owner allows 8" in answered(node(data, tmp_path))[0].declined


def test_nothing_is_sent_with_a_damaged_record(data, tmp_path):
    (tmp_path / "states").mkdir()
    (tmp_path / "states" / LEDGER).write_text("{")
    declined = answered(node(data, tmp_path))[0].declined
    assert declined == "Its record of what was sent is damaged, and nothing more is sent."


def test_counts_of_right_answers_are_not_told_with_a_claim_of_privacy():
    with pytest.raises(ValueError, match="evaluation must be off with noise.*--evaluation off"):
        ClientSettings.of({"name": "clinic", "protect": "gaussian", "allowed": "accuracy"})


def test_data_that_are_scaled_by_their_own_samples_are_refused_with_a_claim_for_single_samples(vectors):
    given = {"name": "clinic", "protect": "gaussian"}
    for data in (vectors, vectors["path"]):
        path = vectors["path"]
        scaled = {"name": "array", "path": path} if isinstance(data, dict) else f"array:{path}"
        with pytest.raises(ValueError, match="data must not be scaled by its own samples with a claim of privacy"):
            ClientSettings.of(given | {"data": scaled})
    assert ClientSettings.of(given | {"data": vectors})
    assert ClientSettings.of(given | {"data": f"array:{path}", "protect": {"name": "gaussian", "bounds": "message"}})


def test_one_sample_less_in_the_folder_is_one_less_in_training_and_moves_no_other(tmp_path):
    """Brute force over every sample of several folders; the first by hash is that which would always train."""
    for seed in range(6):
        x = np.random.default_rng(seed).normal(size=(14, 4)).astype(np.float32)
        found = []
        for left in (None, *range(14)):
            kept = [i for i in range(14) if i != left]
            np.savez(path := tmp_path / "own.npz", features=x[kept], labels=np.arange(14)[kept] % 3, classes=CLASSES)
            data = {"name": "array", "path": str(path), "standardise": False}
            training = Training(split="content", train=0.6, validation=0.3, protect=Gaussian())
            part = make_site(TERMS, 2, data, "frozen:identity", training).client(1).train
            found.append({tuple(row) for row in part.inputs[part.index].tolist()})
        whole, *less = found
        assert max(len(whole ^ part) for part in less) == 1, (seed, [len(whole ^ part) for part in less])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"protect": "gaussian", "split": "random"}, "split must be content with a claim of privacy for single"),
        ({"protect": "minimum_count", "allowed": "classes"}, "allowed must be off or accuracy with protect=minimum"),
    ],
)
def test_what_would_tell_of_samples_by_another_way_is_refused(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        ClientSettings.of({"name": "clinic"} | change)


# ---- methods that release second moments once -----------------------------------------------------------------------


@pytest.fixture
def vectors(tmp_path):
    x = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
    np.savez(tmp_path / "vectors.npz", features=x, labels=np.arange(24) % 3, classes=np.array(AGREEMENT.classes))
    return {"name": "array", "path": f"{tmp_path}/vectors.npz", "standardise": False}


def once(vectors, tmp_path, lines, **options):
    """Node of a client of Choir, whose audit trail is a list."""
    terms = TERMS
    site = make_site(terms, 2, vectors, "frozen:identity", Training(protect=Gaussian(epsilon=1.0)))
    record = lambda event, **details: lines.append((event, details))  # noqa: E731
    return terms, Node(terms, site, open_store(tmp_path / "states", terms), "off", record=record, **options)


def ask(terms, node, published=None, **change):
    usual = {"format": 1, "agreement": terms.digest, "client": 2, "round": 1, "kind": "train", "trained": 0}
    header = RequestHeader.model_validate(usual | change)
    answer, body = read_answer_header(node.answer(write_request(header, encode_body(published or {}))))
    return answer, *read_answer_tensors(body)


def test_second_moments_are_charged_once_and_the_trail_has_their_loss(vectors, tmp_path):
    lines = []
    terms, node = once(vectors, tmp_path, lines)
    about, first, _ = ask(terms, node)
    assert {name.partition(".")[0] for name in first} == {"gram", "moments", "noise"}
    assert (about.metrics, about.seconds) == ({}, 0.0)
    again = ask(terms, once(vectors, tmp_path, lines)[1])[1]
    assert all(torch.equal(again[name], value) for name, value in first.items())
    _, later, _ = ask(terms, once(vectors, tmp_path, lines)[1], first, round=2, trained=1)
    assert later == {}
    ((event, details),) = lines
    assert (event, details["round"], details["ceiling"]) == ("released", 1, 1.0)
    assert details["epsilon"] == pytest.approx(1.0)


def test_a_client_that_begins_anew_is_charged_again_and_stops(vectors, tmp_path):
    """Its first release is the whole budget; what it lost cannot be released again."""
    lines = []
    terms, node = once(vectors, tmp_path, lines, begin_anew=True)
    _, first, _ = ask(terms, node)
    for file in (tmp_path / "states").rglob("*.safetensors"):
        file.unlink()
    for file in (tmp_path / "states").rglob("answer.bin"):
        file.unlink()
    about = ask(terms, once(vectors, tmp_path, lines, begin_anew=True)[1], first, round=2, trained=1)[0]
    assert "its owner allows 1" in about.declined
    assert len(lines) == 1


# ---- messages that were sent without noise before -------------------------------------------------------------------


def test_messages_before_the_noise_are_counted_by_the_audit_trail(tmp_path):
    """Rounds 1 to 3 without noise, one of them sent twice, and round 4 with noise; evaluation is no message."""
    trail = Trail(tmp_path)
    trail.write("confirmed", agreement="a" * 64)
    for round, kind, digest in ((1, "train", "1"), (2, "train", "2"), (2, "train", "2"), (3, "evaluate+train", "3")):
        trail.write("received", round=round, kind=kind)
        trail.write("sent", round=round, kind=kind, digest=digest)
    trail.write("declined", round=4, kind="train", digest="x")
    trail.write("released", round=4, loss=0.1)
    trail.write("sent", round=4, kind="train", digest="4")
    trail.write("sent", round=4, kind="keep", digest="5")
    assert count_unprotected(trail.path) == 3
    assert count_unprotected(trail.path, once=True) == 1  # second moments are sent in the first round alone
    assert count_unprotected(tmp_path / "none") == 0


def test_of_a_secure_sum_the_masked_message_counts_and_not_the_pledge(tmp_path):
    trail = Trail(tmp_path)
    for round in (1, 2):
        for kind in ("train", "members", "mask"):
            trail.write("received", round=round, kind=kind)
            if kind == "mask" and round == 2:
                trail.write("released", round=round, loss=0.1)
            trail.write("sent", round=round, kind=kind, digest=f"{round} {kind}")
    assert count_unprotected(trail.path) == 1


def test_a_release_names_the_messages_that_its_loss_does_not_cover(vectors, tmp_path):
    lines = []
    terms, node = once(vectors, tmp_path, lines, unprotected=110)
    ask(terms, node)
    assert lines[0][1]["unprotected"] == 110
