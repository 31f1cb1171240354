"""The agreement: one text for all parties, one digest, and sentences for whoever does not fit."""

import hashlib
import json
import re

import pytest
from pydantic import ValidationError

from protonorm.algorithms import ALGORITHMS
from protonorm.deployment.agreement import LARGEST_FILE, Agreement, Bundle
from protonorm.deployment.messages import AnswerHeader, RequestHeader
from protonorm.deployment.settings import ClientSettings, FederationSettings, differing
from protonorm.deployment.status import Status
from protonorm.runs.schema import RunInfo
from protonorm.session.build import build
from tests.deployment.sites import agreement_of
from tests.support import spiral

TERMS = {"algorithm": "fedproto", "classes": ["cat", "dog", "fox"], "feature_dim": 16, "rounds": 5, "seed": 7}


def agreed(**change):
    return Agreement.of(TERMS | change)


def changed(agreement, **change):
    """Write an agreement with other terms, as somebody with an editor would."""
    return json.dumps(agreement.plain() | change).encode()


def test_it_is_read_as_it_was_written():
    made = agreed()
    found = Agreement.read(made.write())
    assert found == made
    assert found.digest == made.digest
    assert len(made.write().splitlines()) > 10  # for people


def test_the_digest_is_that_of_the_canonical_json():
    """Names sorted, no spaces, ASCII: anybody can compute it with a JSON library and SHA-256."""
    made = agreed(classes=["Käse", "dog"])
    plain = json.loads(made.write())
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    assert made.digest == hashlib.sha256(text.encode("ascii")).hexdigest()
    assert int(made.fingerprint.replace(" ", "")) == int(made.digest, 16) % 10**24
    assert [len(group) for group in made.fingerprint.split()] == [4] * 6


@pytest.mark.parametrize(
    "change",
    [
        {"classes": ["dog", "cat", "fox"]},
        {"feature_dim": 17},
        {"rounds": 6},
        {"seed": 8},
        {"algorithm": {"name": "fedproto", "lam": 0.5}},
        {"algorithm": "local"},
        {"evaluated": ["validation", "test"]},
        {"evaluate_every": 2},
        {"server_lr": 0.02},
    ],
    ids=str,
)
def test_other_terms_are_another_agreement_and_the_difference_is_named(change):
    one, two = agreed(), agreed(**change)
    assert one.digest != two.digest
    assert next(iter(change)) in " ".join(differing(two.plain(), one.plain()))
    assert not differing(one.plain(), agreed().plain())


def test_lists_differ_by_what_came_and_went_and_certificates_are_not_written_out():
    long = [f"SHA256:{'a' * 42}{one}" for one in range(9)]
    (said,) = differing({"members": long[1:]}, {"members": long[:8]})
    assert said == f"members (with {long[8]}, without {long[0]})"
    assert differing({"members": long[:2]}, {"members": long[1::-1]})[0].startswith("members ([")
    assert differing({"authority": "-----BEGIN A"}, {"authority": "-----BEGIN B"}) == ["authority (another one)"]


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_method_s_task_comes_back(name):
    """The task that is made of the terms says the same, and lets both sides say the same, as the one written down."""
    task, _ = build(spiral(algorithm=name))
    terms = agreement_of(task)
    found = Agreement.read(terms.write()).task
    assert found.algorithm == task.algorithm
    assert found.schema == task.schema
    ours, theirs = found.describe(), task.describe()
    if task.shared_network is None:
        theirs["input"] = None  # each client's own business
    assert ours == theirs


def test_what_the_method_is_not_told_takes_its_usual_value():
    assert agreed(algorithm="protonorm").algorithm["gamma"] == 100.0
    assert Agreement.of(TERMS | {"algorithm": "protonorm"}, dataset="cifar100").algorithm["gamma"] == 200.0
    assert agreed(algorithm={"name": "protonorm", "gamma": 3}).algorithm["gamma"] == 3.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"algorithm": "fedprot"}, "did you mean 'fedproto'"),
        ({"algorithm": {"name": "fedproto", "lam": -1}}, "lam must "),
        ({"algorithm": {"name": "fedproto", "lamda": 1}}, "no setting 'algorithm.lamda'"),
        ({"algorithm": {"name": "mine.py:Mine"}}, "Unknown algorithm"),
        ({"algorithm": 3}, "algorithm must be the name of a method"),
        ({"algorithm": "fedavg"}, "fedavg needs a network that all clients share"),
        ({"classes": ["cat"]}, "classes"),
        ({"classes": ["cat", "cat"]}, "names 'cat' twice"),
        ({"classes": ["cat", ""]}, "number 2 of the list"),
        ({"feature_dim": 0}, "feature_dim must "),
        ({"feature_dim": "16"}, "feature_dim must "),
        ({"rounds": 0}, "rounds must "),
        ({"rounds": 2.5}, "rounds must "),
        ({"shared_network": "mine.py:net"}, "Nobody else has the network"),
        ({"colour": 1}, "no setting 'colour'"),
        ({"evaluated": ["train"]}, "evaluated"),
    ],
    ids=str,
)
def test_bad_terms_are_refused_in_a_sentence(change, said, tmp_path, monkeypatch):
    """Also code in a file that lies here: an agreement comes from others, and nothing of it is run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("raise SystemExit('this was run')")
    with pytest.raises(ValueError, match=re.escape(said)):
        agreed(**change)
    if isinstance(change.get("algorithm"), dict) or "algorithm" not in change:
        with pytest.raises(ValueError, match=re.escape(said)):
            Agreement.read(changed(agreed(), **change))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b"[1]", "holds a list"),
        (b'{"rounds": NaN}', "NaN is not a number"),
        (b'{"rounds": 1, "rounds": 2}', "stands twice"),
        (b" " * (LARGEST_FILE + 1), "at most are expected"),
        (b"{}", "needs the setting format"),
        (changed(agreed(), format=2), "format must "),
        (changed(agreed(), algorithm={"name": "fedproto"}), "algorithm.lam"),
    ],
    ids=range(10),
)
def test_what_is_no_agreement_is_refused(content, said):
    with pytest.raises(ValueError, match=re.escape(said)) as refused:
        Agreement.read(content)
    assert len(str(refused.value)) < 500


def test_a_client_s_classes_are_found_by_name():
    """A client need not have all, nor have them in this order: dog is number 1, cat number 0."""
    assert agreed().class_numbers(["dog", "cat"]).tolist() == [1, 0]
    with pytest.raises(ValueError, match="a class that the agreement does not have: wolf. It has 3: cat, dog, fox."):
        agreed().class_numbers(["dog", "wolf"])


def test_all_terms_are_shown():
    shown = dict(agreed().lines())
    assert shown["algorithm"] == "fedproto"
    assert "lam=" in shown["its settings"]
    assert shown["classes"] == "3: cat, dog, fox"
    assert shown["rounds"] == "5"
    assert shown["SHA-256"] == agreed().digest


@pytest.mark.parametrize("method", ["fednh", "fedavg"])
def test_a_method_that_shares_a_network_needs_one(method):
    """FedNH takes its first scale from the network: without one it is refused in the same sentence as any other."""
    with pytest.raises(ValueError, match=f"{method} needs a network that all clients share: give shared_network"):
        Agreement.of(TERMS | {"algorithm": method})


FEDAVG = {"algorithm": "fedavg", "shared_network": "plain"}


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("16x16x3", {"shape": [16, 16, 3], "type": "uint8"}),
        (20, {"shape": [20], "type": "float32"}),
        ({"shape": [16, 16, 1], "type": "uint8"}, {"shape": [16, 16, 1], "type": "uint8"}),
    ],
)
def test_an_input_may_be_given_in_short(given, plain):
    found = agreed(**FEDAVG | {"shared_network": "mlp" if given == 20 else "plain"}, input=given)
    assert found.plain()["input"] == plain | {"vocabulary": None}
    assert Agreement.read(found.write()) == found


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("16,16,3", "as in input=32x32x3"),
        ([16, 16, 3], "as in input=32x32x3"),
        ("3x16x16", "input must have the channels last, as in input=16x16x3, got 3x16x16."),
        ({"shape": [3, 16, 16], "type": "image"}, "input.type must be 'uint8', 'float32' or 'int64', got 'image'."),
        ({"shape": [0], "type": "uint8"}, "input.shape must "),
        ({"size": 3}, "input needs the setting input.shape."),
        (None, "as in input=32x32x3"),
    ],
    ids=str,
)
def test_mistakes_of_an_input_are_a_sentence_each(given, said):
    with pytest.raises(ValueError, match=re.escape(said)) as refused:
        agreed(**FEDAVG, input=given)
    assert "pydantic" not in str(refused.value)
    if isinstance(given, dict):
        with pytest.raises(ValueError, match=re.escape(said)):
            Agreement.read(changed(agreed(**FEDAVG, input="16x16x3"), input=given))


@pytest.mark.parametrize(
    "cls", [Agreement, Bundle, RequestHeader, AnswerHeader, FederationSettings, ClientSettings, Status, RunInfo]
)
def test_true_is_no_number_of_a_format(cls):
    """Python takes True for 1, and so does a Literal[1] of pydantic."""
    with pytest.raises(ValidationError) as refused:
        cls.model_validate({"format": True})
    assert ("format",) in [one["loc"] for one in refused.value.errors()]
