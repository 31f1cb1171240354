"""A client's own side: what its owner allows, what it keeps, and what it does when that is lost."""

import numpy as np
import pytest
import torch

from protonorm.core import Counts
from protonorm.core.training import Training
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.federation import run_federation
from protonorm.deployment.guard import Guard, check_scale
from protonorm.deployment.messages import RequestHeader, read_answer_header, read_answer_tensors, write_request
from protonorm.deployment.node import LastAnswer, Node, request_key, totals
from protonorm.deployment.site import make_site, open_store
from protonorm.errors import Failed
from protonorm.federation.evaluation import Tally
from protonorm.report.page import write_page
from protonorm.runs.run import read_whole
from tests.deployment.federation import Line
from tests.support import pictures

CLASSES = ["class 0", "class 1", "class 2"]
AGREEMENT = Agreement.of(
    {"algorithm": "protonorm", "classes": CLASSES, "feature_dim": 8, "rounds": 5, "seed": 0}
    | {"evaluated": ["validation", "test"]}
)


@pytest.fixture
def site(tmp_path):
    data = pictures([0, 1, 2] * 8, 3, side=16)
    np.savez(tmp_path / "own.npz", images=data.inputs, labels=data.labels, classes=np.array(data.classes))
    return make_site(AGREEMENT, 2, f"npz:{tmp_path}/own.npz", "plain", Training(validation=0.1, batch_size=4))


def node_of(site, folder, allowed="classes", **options):
    return Node(AGREEMENT, site, open_store(folder / "states", AGREEMENT), allowed, **options)


def request(**change):
    usual = {"format": 1, "agreement": AGREEMENT.digest, "client": 2, "round": 1, "kind": "train", "trained": 0}
    return write_request(RequestHeader.model_validate(usual | change), b"")


def answered(node, **change):
    header, body = read_answer_header(node.answer(request(**change)))
    return header, *read_answer_tensors(body)


def test_one_class_is_enough_at_a_site(tmp_path):
    """Others have the other classes; it says one prototype, and knows of three classes."""
    (tmp_path / "own.csv").write_text("x,y,label\n" + "\n".join(f"{x},{x % 3},class 1" for x in range(20)) + "\n")
    site = make_site(AGREEMENT, 2, f"table:{tmp_path}/own.csv")
    assert site.facts().train.tolist() == [[0, 13, 0]]
    header, message, _ = answered(node_of(site, tmp_path))
    assert not header.declined
    assert message["classes"].tolist() == [1]


@pytest.mark.parametrize("kind", ["evaluate", "evaluate+train"])
def test_an_owner_may_allow_accuracy_alone(tmp_path, site, kind):
    """Its totals are the sums of what another owner lets be counted by class, and nothing else is told."""
    whole, told = node_of(site, tmp_path / "one"), node_of(site, tmp_path / "two", "accuracy")
    parts = {"parts": ["validation", "test"]}
    for node in (whole, told):
        answered(node)
    round = 1 if kind == "evaluate" else 2
    _, _, by_class = answered(whole, kind=kind, round=round, trained=1, **parts)
    _, _, alone = answered(told, kind=kind, round=round, trained=1, **parts)
    rules = ("nearest-local", "logits", "joint")  # nothing was published yet
    assert alone.keys() == {
        f"{part}.{name}" for part in parts["parts"] for name in ("support", *(f"correct.{rule}" for rule in rules))
    }
    for name, value in alone.items():
        assert (value.dtype, value.shape) == (torch.int64, ())
        assert value == by_class[name].sum()
    guard = Guard(AGREEMENT)
    guard.expect(round, kind, [2], parts["parts"])
    assert guard.admit(2, told.answer(request(kind=kind, round=round, trained=1, **parts))).counts


def test_counts_of_a_part_that_was_not_asked_for_stay_at_home(tmp_path, site):
    node = node_of(site, tmp_path)
    answered(node)
    counts = answered(node, kind="evaluate+train", round=2, trained=1, parts=["test"])[2]
    assert {name.partition(".")[0] for name in counts} == {"test"}


def test_totals_leave_out_all_but_samples_and_right_answers():
    counts = {"test.support": torch.tensor([2, 3]), "test.unseen": torch.tensor(1)}
    counts |= {f"test.{name}.nearest-global": torch.tensor([1, 2]) for name in ("correct", "predicted", "nll", "bins")}
    assert {name: int(value) for name, value in totals(counts).items()} == {
        "test.support": 5,
        "test.correct.nearest-global": 3,
    }


def test_totals_count_among_clients_and_not_among_classes():
    """Client 0 by class: 1 of 2 and 2 of 2 right. Client 1 in total: 1 of 6. Balanced accuracy is client 0's, ¾."""
    tally = Tally("test", ("logits",), 2, 2)
    first = {"support": [2, 2], "correct.logits": [1, 2], "predicted.logits": [1, 3], "unseen": 1}
    second = {"support": 6, "correct.logits": 1}
    for id, found in enumerate((first, second)):
        counts = Counts(id, {f"test.{name}": torch.tensor(value) for name, value in found.items()})
        tally.check(counts)
        tally.add(counts)
    found, arrays = tally.accuracies()["logits"], tally.arrays()
    assert (found.pooled, found.balanced) == (0.4, 0.75)
    assert found.mean == pytest.approx((3 / 4 + 1 / 6) / 2, abs=1e-6)
    assert arrays["test.support.clients"].tolist() == [4, 6]
    assert arrays["test.support.classes"].tolist() == [2, 2]
    assert arrays["test.correct.classes.logits"].tolist() == [1, 2]
    assert np.isnan(arrays["test.balanced.clients.logits"]).tolist() == [False, True]
    assert tally.unseen() == 0.25  # of the samples of which that is known


def test_totals_before_a_rule_was_there_are_wrong_and_have_no_recall():
    tally = Tally("test", ("nearest-global",), 2, 2)
    tally.add(Counts(0, {"test.support": torch.tensor(4)}))
    tally.add(
        Counts(
            1,
            {
                "test.support": torch.tensor([1, 1]),
                "test.unseen": torch.tensor(0),
                "test.correct.nearest-global": torch.tensor([1, 0]),
                "test.predicted.nearest-global": torch.tensor([2, 0]),
            },
        )
    )
    assert tally.accuracies()["nearest-global"].pooled == pytest.approx(1 / 6, abs=1e-6)
    assert tally.accuracies()["nearest-global"].balanced == 0.5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"test.correct.logits": 7}, "more right answers than samples"),
        ({"test.correct.logits": -1}, "no test.correct.logits that is a whole number"),
        ({"test.support": 6.0}, "no test.support that is a whole number"),
        ({"test.correct.logits": [1, 0]}, "no test.correct.logits that is a whole number"),
        ({"test.unseen": 0}, "test.unseen beside totals"),
        ({"test.predicted.logits": 6}, "test.predicted.logits beside totals"),
    ],
    ids=str,
)
def test_totals_are_looked_at(change, said):
    found = {"test.support": 6, "test.correct.logits": 1} | change
    with pytest.raises(ValueError, match=said):
        Tally("test", ("logits",), 1, 2).check(Counts(0, {name: torch.tensor(one) for name, one in found.items()}))


def test_a_repeated_request_costs_nothing_also_in_another_process(tmp_path, site, monkeypatch):
    first = node_of(site, tmp_path).answer(request())
    monkeypatch.setattr(Node, "_train_and_evaluate", lambda *_: pytest.fail("it trains again"))
    assert node_of(site, tmp_path).answer(request()) == first
    with pytest.raises(pytest.fail.Exception):
        node_of(site, tmp_path)._train_and_evaluate(None)


def test_another_request_another_permission_or_a_lost_state_is_computed(tmp_path, site):
    """The cached answer tells counts by class: with another permission it would tell what is not allowed any more."""
    asked = {"kind": "evaluate", "trained": 1, "parts": ["test"]}
    node = node_of(site, tmp_path)
    answered(node)
    assert answered(node, **asked)[2]["test.support"].shape == (3,)
    assert answered(node_of(site, tmp_path, "accuracy"), **asked)[2]["test.support"].shape == ()
    assert answered(node_of(site, tmp_path, "off"), **asked)[2] == {}
    answered(node)
    (state,) = node._store.folder.glob("2.1.safetensors")
    state.unlink()
    answered(node_of(site, tmp_path))
    assert state.is_file()


def test_a_damaged_answer_is_computed_again(tmp_path):
    last, key = LastAnswer(tmp_path), request_key("off", b"request")
    assert last.find(key) is None
    last.keep(key, b"answer")
    assert last.find(key) == b"answer"
    assert last.find(request_key("classes", b"request")) is None
    content = last.path.read_bytes()
    for damage in (content[:-1], content[:20], content[:-1] + b"x", b""):
        last.path.write_bytes(damage)
        assert last.find(key) is None


def test_a_disk_that_is_full_keeps_no_answer_and_loses_none(tmp_path, site, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("protonorm.deployment.node.replace", full)
    assert not answered(node_of(site, tmp_path))[0].declined


def test_a_lost_state_is_told_and_its_owner_may_begin_anew(tmp_path, site):
    """Nothing is counted then: what would be counted is not what was trained."""
    told = []
    found, message, _ = answered(node_of(site, tmp_path, on_error=told.append), round=4, trained=3)
    assert found.declined == "Its state after round 3 is lost or damaged; its owner may begin anew (--begin-anew)."
    assert not message
    assert "2.3.safetensors is missing" in told[0]
    anew = node_of(site, tmp_path, begin_anew=True)
    found, message, counts = answered(anew, kind="evaluate+train", round=4, trained=3, parts=["test"])
    assert (found.declined, counts) == ("", {})
    assert torch.equal(message["classes"], torch.arange(3))
    assert "lost" in answered(anew, kind="evaluate", round=3, trained=3, parts=["test"])[0].declined
    assert answered(anew, kind="evaluate", round=4, trained=4, parts=["test"])[2]


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (PermissionError(13, "Permission denied", "/home/owner/data"), "cannot be read or written: Permission denied."),
        (RuntimeError("/home/owner/net.py went wrong"), "It met an error of its own (RuntimeError)."),
        (Failed("/home/owner/net.py must return a Step"), "It met an error of its own (Failed)."),
    ],
    ids=str,
)
def test_nothing_of_the_machine_is_told_to_the_server(tmp_path, site, monkeypatch, raised, said):
    def fail(*_):
        raise raised

    told = []
    monkeypatch.setattr("protonorm.deployment.node.train_step", fail)
    declined = answered(node_of(site, tmp_path, on_error=told.append))[0].declined
    assert declined.endswith(said)
    assert "owner/" not in declined
    assert "/home/owner" in told[0]


def test_a_client_that_diverges_keeps_its_learning_rate_to_itself(tmp_path, site):
    """Its own log names it, and so does what a simulation says."""
    told = []
    site.training = site.training.model_copy(update={"lr": 7e37})
    declined = answered(node_of(site, tmp_path, on_error=told.append))[0].declined
    assert declined == "Its training left the finite numbers in round 1."
    assert "7e+37" in told[0]
    assert "lower --lr" in told[0]


def test_a_message_that_the_server_would_refuse_is_not_sent_and_its_owner_hears_of_it(tmp_path, site, monkeypatch):
    """Otherwise a client with finite, but absurd numbers is refused in every round, and only the server knows."""
    monkeypatch.setattr("protonorm.deployment.node.check_scale", lambda reply: check_scale(reply, 1e-9))
    told = []
    node = node_of(site, tmp_path, on_error=told.append)
    said = "Its message of round 1 is not sent: the numbers of prototypes are larger than training can make them."
    assert answered(node)[0].declined == said
    assert told[0].startswith(said)
    assert "lower --lr" in told[0]
    assert rounds_kept(node) == []


def rounds_kept(node):
    return sorted(round for _, round, _ in node._store.files())


def test_states_of_answers_that_did_not_count_are_dropped(tmp_path, site):
    """A client that is late in every round, from the first or from the third on, and a server that lost its rounds."""
    late = node_of(site, tmp_path / "late")
    for round in (1, 2, 3):
        assert not answered(late, round=round, trained=0)[0].declined
    assert rounds_kept(late) == [3]
    node = node_of(site, tmp_path / "node")
    for round, trained in ((1, 0), (2, 1), (3, 2), (4, 2)):
        answered(node, round=round, trained=trained, chosen=1 if trained else 0)
    assert rounds_kept(node) == [1, 2, 4]
    answered(node, kind="evaluate", round=5, trained=2, parts=["test"])
    assert rounds_kept(node) == [1, 2, 4]  # the round may not be committed yet
    answered(node, round=2, trained=1)
    assert rounds_kept(node) == [1, 2, 4]
    assert not answered(node, round=5, trained=4)[0].declined


def test_a_state_that_did_not_count_is_not_taken_for_that_of_the_best_round(tmp_path, site):
    """The answer of round 2 was late, 3 was missed, and 2 is the best round: then the client had its state of 1."""
    node = node_of(site, tmp_path)
    for round, trained, chosen in ((1, 0, 0), (2, 1, 0), (4, 1, 2), (5, 4, 2)):
        assert not answered(node, round=round, trained=trained, chosen=chosen)[0].declined
    assert rounds_kept(node) == [1, 4, 5]


def test_being_evaluated_loses_no_state(tmp_path, site):
    """A server that is killed after round 2 was evaluated, and before it was committed, asks for round 2 again."""
    node = node_of(site, tmp_path)
    answered(node)
    one = answered(node, round=2, trained=1)[1]
    answered(node, kind="evaluate", round=2, trained=2, parts=["test"])
    assert torch.equal(answered(node, round=2, trained=1)[1]["prototypes"], one["prototypes"])


@pytest.mark.parametrize("allowed", ["accuracy", "off"])
def test_a_record_of_totals_alone_or_of_nothing_becomes_a_page(tmp_path, site, allowed):
    site.id = site.first = 0
    line = Line({0: node_of(site, tmp_path, allowed)})
    run_federation(AGREEMENT, line, tmp_path / "run", clients=["north"], clock=lambda: line.now)
    record = read_whole(tmp_path / "run")
    last = record.rounds[-1]
    assert (len(record.rounds), last.evaluated) == (5, "all" if allowed == "accuracy" else "nobody")
    assert bool(last.rules.get("nearest-global")) is (allowed == "accuracy")
    assert write_page([record], tmp_path / "page.html").stat().st_size > 10_000


def test_an_owner_who_trains_in_another_way_gets_another_answer(tmp_path, site):
    """The server asks again what it refused; with another learning rate the client does not repeat itself."""
    _, first, _ = answered(node_of(site, tmp_path))
    site.training = site.training.model_copy(update={"lr": 0.5})
    _, second, _ = answered(node_of(site, tmp_path))
    assert not torch.equal(first["prototypes"], second["prototypes"])
