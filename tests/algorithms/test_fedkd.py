import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import protonorm as pn
from protonorm.algorithms.fml import FedKD
from protonorm.core import Client, Reply, Samples
from protonorm.federation.client import first_state
from protonorm.federation.server import Servers
from protonorm.geometry.factors import compress, decompress
from protonorm.runs.states import Checkpoint
from protonorm.session.build import build
from protonorm.tensors import strip_prefix
from tests.algorithms.tasks import OneNetwork, federation, task_of
from tests.algorithms.tasks import server as any_server
from tests.support import pictures, run

LN2, LN3 = math.log(2), math.log(3)


def server(round=1, rounds=10):
    return any_server(round, rounds=rounds)


def example(**settings):
    """One sample of class 1: the mentor says p = (¼, ¾) of z = (1, 2), the student p_s = (½, ½) of W z_s = (0, 4)."""
    rows = ([[1.0, 2.0]], [[0.0, 4.0]], [[0.0, LN3]], [[0.0, 0.0]])
    given = [torch.tensor(row, dtype=torch.float64, requires_grad=True) for row in rows]
    return FedKD(**settings).losses(*given, torch.tensor([1])), given


@pytest.mark.parametrize(("reduction", "parts"), [("mean", 2), ("batchmean", 1)])
@pytest.mark.parametrize("detach", [False, True])
def test_both_losses_by_hand(reduction, parts, detach):
    """CE = ln 4/3 and ln 2, so that S = 3 ln 2 − ln 3; MSE = (1² + 2²)/2 = 2.5.

    KL(p_s‖p) = ½ ln 4/3 and KL(p‖p_s) = ¾ ln 3 − ln 2, divided by parts = B·K or B.
    """
    (mentor, student), _ = example(reduction=reduction, detach=detach)
    total = 3 * LN2 - LN3
    assert mentor.item() == pytest.approx(2 * LN2 - LN3 + ((LN2 - LN3 / 2) / parts + 2.5) / total)
    assert student.item() == pytest.approx(LN2 + ((0.75 * LN3 - LN2) / parts + 2.5) / total)


def test_features_are_pulled_together_from_both_sides():
    """∂[2·MSE/S]/∂z = 2·(2/d)(z − Wz_s)/S = 2(1, −2)/S, the opposite for Wz_s; detached teachers leave half of it."""
    total = 3 * LN2 - LN3
    for detach, factor in ((False, 2.0), (True, 1.0)):
        (mentor, student), (z, z_s, *_) = example(detach=detach)
        (mentor + student).backward()
        assert z.grad[0].tolist() == pytest.approx([factor / total, -2 * factor / total])
        assert z_s.grad[0].tolist() == pytest.approx([-factor / total, 2 * factor / total])


def test_detached_answers_get_the_gradients_of_their_own_losses():
    """Mentor: p − (0, 1) + (p − p_s)/S = (¼, −¼)(1 − 1/S); student: (½, −½) + (p_s − p)/S = (½, −½)(1 + 1/(2S))."""
    total = 3 * LN2 - LN3
    (mentor, student), (_, _, o, o_s) = example(reduction="batchmean", detach=True)
    (mentor + student).backward()
    assert o.grad[0].tolist() == pytest.approx([(1 - 1 / total) / 4, (1 / total - 1) / 4])
    assert o_s.grad[0].tolist() == pytest.approx([(1 + 0.5 / total) / 2, -(1 + 0.5 / total) / 2])


def test_two_that_make_no_errors_still_give_numbers():
    """Both cross-entropies are zero, and so is S: the floor stands in, (0 + 2.5)/10⁻⁶ each."""
    sure = torch.tensor([[-100.0, 100.0]], requires_grad=True)
    z, z_s = torch.tensor([[1.0, 2.0]], requires_grad=True), torch.tensor([[0.0, 4.0]])
    mentor, student = FedKD().losses(z, z_s, sure, sure, torch.tensor([1]))
    (mentor + student).backward()
    assert mentor.item() == student.item() == pytest.approx(2.5e6)
    assert bool(z.grad.isfinite().all() and sure.grad.isfinite().all())


def test_the_energy_rises_evenly_to_its_end():
    """0.95 + r/R·0.03: before the first of 3 rounds 0.95, then 0.96, 0.97, 0.98."""
    assert [FedKD().energy(round, 3) for round in range(4)] == pytest.approx([0.95, 0.96, 0.97, 0.98])
    assert FedKD(t_start=0.5, t_end=1.0).energy(5, 5) == 1.0
    assert FedKD().energy(0, 0) == 0.95  # a run of no rounds


def student(*singular):
    matrix = torch.zeros(8, 8)
    matrix.diagonal()[: len(singular)] = torch.tensor(singular)
    return {"student.w": matrix}


def test_students_are_rebuilt_averaged_and_compressed():
    """Diagonals (8, 0) and (0, 6, 0) have the mean (4, 3), squares 16 and 9: rank 1 keeps 0.64, rank 2 all of it.

    With E = 0.6 one singular value, 4, is published in 8 + 1 + 8 numbers for 64; the server remembers both."""
    replies = [compress(student(8.0), 0.6), compress(student(0.0, 6.0), 0.6)]
    step = FedKD(t_start=0.6, t_end=0.6).aggregate(server(), student(1.0), iter(replies))
    assert step.state["student.w"].diagonal()[:3].tolist() == pytest.approx([4.0, 3.0, 0.0])
    assert step.message["student.w.s"].tolist() == pytest.approx([4.0])
    assert step.metrics == {"energy": pytest.approx(0.6), "ratio": pytest.approx(17 / 64)}
    torch.testing.assert_close(decompress(step.message, step.state)["student.w"], student(4.0)["student.w"])
    step = FedKD(t_start=0.7, t_end=0.7).aggregate(server(), student(1.0), iter(replies))
    assert step.message["student.w.s"].tolist() == pytest.approx([4.0, 3.0])


def test_updates_are_added_to_the_student_that_everybody_has():
    """8 + (4 + 0)/2 = 10 and 0 + (0 + 6)/2 = 3: published as they are, so that everybody has them exactly."""
    method = FedKD(t_start=0.6, t_end=0.6, compressed="updates")
    replies = [compress(student(4.0), 0.6), compress(student(0.0, 6.0), 0.6)]
    step = method.aggregate(server(), student(8.0), iter(replies))
    torch.testing.assert_close(step.message["student.w"], student(10.0, 3.0)["student.w"])
    assert step.metrics["ratio"] == 1.0


def test_the_round_decides_how_much_is_kept():
    """Squares 64 and 36: E = 0.6 in round 1 of 2 needs one singular value, E = 0.7 in round 2 both."""
    method = FedKD(t_start=0.5, t_end=0.7)
    kept = [
        len(method.aggregate(server(round, 2), student(1.0), iter([student(8.0, 6.0)])).message["student.w.s"])
        for round in (1, 2)
    ]
    assert kept == [1, 2]


def test_the_servers_energy_is_that_of_the_round_it_concludes():
    """0.5 + r/R·0.4: in round 1 of 10 it is 0.54, in round 10 0.9."""
    task = task_of(FedKD(t_start=0.5, t_end=0.9), shared_network=OneNetwork(square))
    whole = {"student.features.w": torch.eye(8), "student.features.b": torch.ones(8)}
    energies = []
    for round in (0, 9):
        servers = Servers(task, Checkpoint(round, whole, whole, [round]))
        servers.add(Reply(0, whole, {}, 0.0))
        energies.append(servers.conclude().metrics["energy"])
    assert energies == pytest.approx([0.54, 0.9])


@pytest.mark.parametrize(("round", "kept"), [(1, 1), (2, 2)])
def test_the_round_decides_how_much_a_client_keeps(round, kept):
    """As above: of singular values 8 and 6, E = 0.6 in round 1 of 2 needs the first, E = 0.7 in round 2 both."""
    method, x = FedKD(t_start=0.5, t_end=0.7), torch.zeros(2, 8)
    own, small = (pn.SplitModel(nn.Linear(8, 8, bias=False), nn.Linear(8, 2)) for _ in range(2))
    samples = Samples(x, torch.tensor([0, 1]), torch.arange(2))
    client = Client(0, round, 2, own, small, samples, samples, samples, num_classes=2, feature_dim=8, lr=1e-12)
    message = {f"student.{name}": value for name, value in small.state_dict().items()}
    message |= {"student.features.weight": student(8.0, 6.0)["student.w"]}
    said = method.local_update(client, method.init_client(client), message).message
    assert said["student.features.weight.s"].tolist() == pytest.approx([8.0, 6.0][:kept])


def square():
    """Features with one matrix w (8, 8) and a vector b, and a head without parameters."""
    features = nn.Module()
    features.w, features.b = nn.Parameter(torch.zeros(8, 8)), nn.Parameter(torch.zeros(8))
    return pn.SplitModel(features, nn.Identity())


def said(*singular, energy=1.0, **changes):
    """What a side says of such a network whose matrix has these singular values."""
    matrix = student(*singular)["student.w"]
    whole = {"student.features.w": matrix, "student.features.b": torch.ones(8)}
    return compress(whole, energy) | {f"student.features.{name}": value for name, value in changes.items()}


def schema_of(method):
    return task_of(method, shared_network=OneNetwork(square)).schema


@pytest.mark.parametrize("rank", [1, 2, 3, 8])
def test_matrices_travel_whole_or_in_factors(rank):
    """Rank q costs 17q numbers in place of 64: three are fewer, four would not be, and none of rank 8 is sent."""
    message = said(*[1.0] * rank)
    assert ("student.features.w.s" in message) is (rank <= 3)
    for schema in (schema_of(FedKD()), schema_of(FedKD(compressed="updates"))):
        schema.check_up(message, "It")
    schema_of(FedKD()).check_down(message)
    assert schema_of(FedKD()).bounds == {"q(student.features.w)": 3}


def test_the_usual_form_is_the_whole_one():
    """64 + 8 numbers each way, before anything is saved."""
    schema = schema_of(FedKD())
    assert schema.numbers(schema.up, {}) == schema.numbers(schema.down, {}) == 72


def test_updates_travel_in_factors_one_way_alone():
    schema = schema_of(FedKD(compressed="updates"))
    schema.check_down(said(*[1.0] * 8))
    with pytest.raises(ValueError, match="The server's message lacks student.features.w"):
        schema.check_down(said(1.0))


FACTORS = {"w.u": torch.ones(8, 4), "w.s": torch.ones(4), "w.v": torch.ones(4, 8)}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (said(*[1.0] * 8) | {"student.features.w": torch.ones(8, 9)}, r"w of shape \(8, 9\); expected \(8, 8\)"),
        (said(1.0, w=torch.ones(8, 8)), "holds student.features.w.s, .*, which is not expected"),
        (said(1.0, **FACTORS), r"w.u of shape \(8, 4\); expected .* with q\(student.features.w\) at most 3"),
        (said(1.0, **{"w.u": torch.ones(9, 1)}), r"w.u of shape \(9, 1\)"),
        (said(1.0, **{"w.v": torch.ones(2, 8)}), r"w.v of shape \(2, 8\)"),
        (said(1.0, **{"w.s": torch.ones(2)}), r"w.s of shape \(2,\)"),
        (said(1.0, **{"w.s": torch.tensor([torch.nan])}), "w.s with numbers that are not finite"),
        ({"student.features.b": torch.ones(8)}, "lacks student.features.w"),
        (said(1.0, b=torch.ones(7)), r"b of shape \(7,\)"),
    ],
)
def test_what_is_not_a_student_is_refused_from_both_sides_with_a_sentence(wrong, sentence):
    schema = schema_of(FedKD())
    with pytest.raises(ValueError, match=sentence):
        schema.check_up(wrong, "It")
    with pytest.raises(ValueError, match=sentence):
        schema.check_down(wrong)


def test_mentor_student_and_projection_are_trained_and_only_the_student_is_said():
    method = FedKD(t_start=0.5, t_end=0.5)
    client, state, message = federation(method).started(1)
    assert state["projection.weight"].shape == (2, 2)
    step = method.local_update(client, state, message)
    assert all(not torch.equal(step.state[name], state[name]) for name in ("model.head.weight", "projection.weight"))
    names = names_of(client)
    after, before = decompress(step.message, names), decompress(message, names)
    assert all(not torch.equal(after[name], before[name]) for name in names)
    assert any(name.endswith(".u") for name in step.message)
    assert all(name.startswith("student.") for name in step.message)


def test_what_training_changed_is_said_if_asked_for():
    """With all of the energy, received + said of `updates` is what `weights` says; the first message is whole."""
    weights, updates = FedKD(t_start=1.0, t_end=1.0), FedKD(t_start=1.0, t_end=1.0, compressed="updates")
    client, state, message = federation(updates).started(1)
    names = names_of(client)
    assert set(message) == set(names)
    torch.manual_seed(0)
    changed = decompress(updates.local_update(client, state, message).message, names)
    torch.manual_seed(0)
    trained = decompress(weights.local_update(client, state, message).message, names)
    assert all(torch.allclose(message[name] + changed[name], trained[name], atol=1e-6) for name in names)


def names_of(client):
    return [f"student.{name}" for name in client.auxiliary.state_dict()]


def test_the_reported_loss_is_the_sum_of_both_at_the_received_student():
    """One step on one batch of everything with lr → 0: the mean loss is the loss at the start."""
    method = FedKD()
    client, state, message = federation(method, batch_size=4096, lr=1e-12).started(1)
    loss = method.local_update(client, state, message).metrics["loss"]
    x, y = client.train.batch(torch.arange(len(client.train)))
    with torch.no_grad():
        client.auxiliary.load_state_dict(strip_prefix(decompress(message, names_of(client)), "student"))
        z, z_s = client.load(state).features(x), client.auxiliary.features(x)
        projected = z_s @ state["projection.weight"].T
        both = method.losses(z, projected, client.model.head(z), client.auxiliary.head(z_s), y)
    assert loss == pytest.approx(float(sum(both)), rel=1e-5)


def test_clients_begin_with_projections_of_their_own():
    task, population = federation(FedKD())
    one, two = (first_state(task, population.site(id))["projection.weight"] for id in (0, 1))
    assert not torch.equal(one, two)


@pytest.mark.parametrize("energy", [0.3, 1.0])
def test_any_network_learns_with_a_student_in_factors(tmp_path, energy):
    """Raw, the student's floats travel whole; at a third of the energy it needs less than half of them."""
    data = pictures([0, 1, 2] * 20, 3)
    experiment = pn.Experiment(
        algorithm=FedKD(t_start=energy, t_end=energy),
        dataset=data,
        models="light",
        clients=4,
        feature_dim=8,
        rounds=2,
        partition="iid",
    )
    whole = sum(value.numel() for value in build(experiment)[0].template.state_dict().values() if value.ndim)
    first, second = run(experiment, out=tmp_path).history
    ratios = [sent / (4 * 4 * whole) for sent in (second.bytes.up, second.bytes.down)]
    assert ratios == [1.0, 1.0] if energy == 1.0 else max(ratios) < 0.5
    assert first.server["ratio"] == pytest.approx(ratios[1], rel=1e-5)


def test_settings_outside_their_range_are_refused():
    for wrong in ({"t_start": 0}, {"t_end": 1.01}, {"reduction": "sum"}, {"floor": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            pn.Experiment.of({"algorithm": {"name": "fedkd", **wrong}})


def test_the_average_student_answers_beside_the_own_model():
    """`shared` is the student that the server's factors give back, and no longer the one that the client trained."""
    method = FedKD(t_start=0.5, t_end=0.5)
    client, state, message = federation(method).started(1)
    step = method.local_update(client, state, message)
    x, _ = client.test.batch(torch.arange(3))
    client.load(step.state).eval()
    with torch.no_grad():
        found = method.scores(client, step.state, message, x)
        client.auxiliary.load_state_dict(strip_prefix(decompress(message, names_of(client)), "student"))
        torch.testing.assert_close(found["shared"], client.auxiliary.eval()(x))
        torch.testing.assert_close(found["logits"], client.model(x))
    assert method.rules == ("logits", "shared", "joint")
    assert method.scores(replace(client, auxiliary=None), state, message, x).keys() == {"logits"}
