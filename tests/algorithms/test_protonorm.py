import math

import pytest
import torch
from pydantic import TypeAdapter

import protonorm as pn
from protonorm.algorithms.parts.prototypes import class_means
from protonorm.geometry.sphere.energy import Schedule
from protonorm.session.build import build
from tests.algorithms.tasks import all_classes, federation, first_batch_loss, server, task_of
from tests.algorithms.tasks import vectors as reply
from tests.support import contents, run, run_folder, spiral


def test_two_classes_become_antipodal():
    """Means (1, 0) and (0.8, 0.6): in the plane two points on the circle end opposite each other, distance 2."""
    step = pn.ProtoNorm(alignment="auto").aggregate(server(), {}, iter([reply([0, 1], [[1, 0], [0.8, 0.6]])]))
    prototypes = step.message["prototypes"]
    assert torch.dist(prototypes[0], prototypes[1]) == pytest.approx(2.0)
    assert prototypes.norm(dim=1).tolist() == pytest.approx([1.0, 1.0])


def test_the_average_is_unweighted_whatever_clients_hold():
    """Two clients send (2, 0) and (0, 4) for one class: their midpoint (1, 2) is published by PA off."""
    replies = [reply([1], [[2.0, 0.0]]), reply([1], [[0.0, 4.0]])]
    step = pn.ProtoNorm(alignment="none").aggregate(server(), {}, iter(replies))
    assert step.message["classes"].tolist() == [1]
    assert step.message["prototypes"].tolist() == [[1.0, 2.0]]


def test_normalise_only_brings_to_unit_length():
    step = pn.ProtoNorm(alignment="normalise").aggregate(server(), {}, iter([reply([0, 2], [[3, 4], [0, 2]])]))
    torch.testing.assert_close(step.message["prototypes"], torch.tensor([[0.6, 0.8], [0.0, 1.0]]))


def test_a_class_that_nobody_sent_is_kept_and_aligned_with_the_others():
    method = pn.ProtoNorm(alignment="exact")
    first = method.aggregate(server(), {}, iter([reply([0, 1, 2], [[1, 0], [0, 1], [-1, -1]])]))
    second = method.aggregate(server(2), first.state, iter([reply([0, 1], [[1, 0.1], [0.2, 1]])]))
    assert second.message["classes"].tolist() == [0, 1, 2]
    apart = torch.pdist(second.message["prototypes"])
    assert apart.tolist() == pytest.approx([3**0.5] * 3, rel=1e-5)  # three points on the circle


def test_the_loss_is_cross_entropy_plus_lambda_times_mean_squared_distance_to_gamma_c():
    """R = Σ‖z − γc‖²/(B·d), the mean of all B·d squared differences (Eqs. 4, 15 as coded)."""
    loss, ce, z, _ = first_batch_loss(pn.ProtoNorm(lam=3.0, gamma=4.0), all_classes())
    assert loss == pytest.approx(ce + 3.0 * float(((z - 4.0 * 0.5) ** 2).mean()), rel=1e-5)


def test_without_upscaling_the_target_is_the_unit_prototype():
    loss, ce, z, _ = first_batch_loss(pn.ProtoNorm(lam=3.0, gamma=4.0, upscaling=False), all_classes())
    assert loss == pytest.approx(ce + 3.0 * float(((z - 0.5) ** 2).mean()), rel=1e-5)


def test_a_class_without_prototype_adds_nothing_but_stays_in_the_mean():
    message = {"classes": torch.tensor([2]), "prototypes": torch.ones(1, 2)}
    loss, ce, z, y = first_batch_loss(pn.ProtoNorm(lam=1.0, gamma=2.0), message)
    known = y == 2
    expected = float(((z[known] - 2.0) ** 2).sum()) / z.numel()
    assert loss == pytest.approx(ce + expected, rel=1e-5)


def test_without_any_prototype_the_loss_is_cross_entropy():
    loss, ce, *_ = first_batch_loss(pn.ProtoNorm(), {})
    assert loss == pytest.approx(ce, rel=1e-6)


def test_the_printed_regulariser_sums_distances_of_class_means():
    loss, ce, z, y = first_batch_loss(pn.ProtoNorm(lam=1.0, gamma=2.0, distance="classes"), all_classes())
    expected = sum(float((z[y == k].mean(0) - 1.0).norm()) for k in y.unique())
    assert loss == pytest.approx(ce + expected, rel=1e-5)


def test_stale_prototypes_are_those_of_the_weights_before_training():
    one = federation(pn.ProtoNorm(measured="before"))
    client, state, _ = one.started()
    before = class_means(client, client.load(state))
    said = one.method.local_update(client, state, {}).message
    assert torch.equal(said["prototypes"], before["prototypes"])
    fresh = pn.ProtoNorm(gamma=10).local_update(client, state, {}).message
    assert not torch.equal(fresh["prototypes"], before["prototypes"])


def test_initial_prototypes_if_asked_for():
    assert pn.ProtoNorm().init_server(server(0)).message == {}
    said = pn.ProtoNorm(initial="random", alignment="exact").init_server(server(0)).message
    assert torch.pdist(said["prototypes"]).tolist() == pytest.approx([3**0.5] * 3, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "gamma"),
    [("cifar10", 100), ("cifar100", 200), ("flowers102", 200), ("tinyimagenet", 400), ("anything else", 100)],
)
def test_gamma_of_the_paper(name, gamma):
    assert pn.ProtoNorm().adapted(name, ["resnet8"]).gamma == gamma
    assert pn.ProtoNorm(gamma=7).adapted(name, ["resnet8"]).gamma == 7


def test_a_gamma_that_nobody_chose_is_refused_and_not_taken_for_one():
    """Without upscaling γ is not used, and need not be known."""
    client, state, _ = federation(pn.Local()).started()
    with pytest.raises(ValueError, match=r"ProtoNorm has no gamma: give one, or let adapted\(dataset, networks\)"):
        pn.ProtoNorm().local_update(client, state, all_classes())
    pn.ProtoNorm(upscaling=False).local_update(client, state, all_classes())


def test_the_schedule_of_algorithm_1_is_one_setting_with_settings_of_its_own():
    assert pn.ProtoNorm().schedule == Schedule()
    read = TypeAdapter(pn.ProtoNorm).validate_python({"schedule": {"epsilon": 1e-4, "steps": 7}})
    assert read == pn.ProtoNorm(schedule=Schedule(epsilon=1e-4, steps=7))
    assert hash(read) == hash(pn.ProtoNorm(schedule=Schedule(epsilon=1e-4, steps=7)))


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"schedule": {"epsilom": 1e-4}}, "schedule.epsilom"),
        ({"schedule": {"epsilon": 0}}, "schedule.epsilon"),
        ({"schedule": {"stop": "never"}}, "schedule.stop"),
        ({"schedule": {"steps": True}}, "schedule.steps"),
        ({"schedule": 3}, "schedule"),
        ({"epsilon": 1e-4}, "epsilon"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(settings, place):
    with pytest.raises(ValueError, match="1 validation error") as caught:
        TypeAdapter(pn.ProtoNorm).validate_python(settings)
    assert ".".join(map(str, caught.value.errors()[0]["loc"])) == place


def test_the_schedule_reaches_algorithm_1():
    """One update from 0 and 90 degrees, by hand: F_1 = (1, −1)/2, so c_1 + η F_1 = (1.1, −0.1) for η = 0.2."""
    method = pn.ProtoNorm(schedule=Schedule(steps=1, eta=0.2))
    step = method.aggregate(server(), {}, iter([reply([0, 1], [[1, 0], [0, 1]])]))
    expected = torch.tensor([[1.1, -0.1], [-0.1, 1.1]]) / (1.1**2 + 0.1**2) ** 0.5
    torch.testing.assert_close(step.message["prototypes"], expected)
    assert step.metrics["alignment.steps"] == 1


def test_by_default_algorithm_1_goes_on_until_changes_are_below_1e_minus_5():
    """The same as with ε given, and longer than with the ten times laxer one."""
    rows = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)).tolist()
    steps = []
    for schedule in (Schedule(), Schedule(epsilon=1e-5), Schedule(epsilon=1e-4)):
        said = iter([reply(list(range(12)), rows)])
        step = pn.ProtoNorm(schedule=schedule).aggregate(server(classes=12, width=4), {}, said)
        steps.append(step.metrics["alignment.steps"])
    assert steps[0] == steps[1] > steps[2]


def test_what_clients_may_say():
    """K = 3, d = 2: at most three different classes from 0 to 2, and two finite numbers for each."""
    schema = task_of(pn.ProtoNorm()).schema
    for fine in (reply([2, 0], [[1, 2], [3, 4]]), {"classes": torch.zeros(0).long(), "prototypes": torch.zeros(0, 2)}):
        schema.check_up(fine, "It")


WRONG = [
    (reply([3], [[1, 2]]), "holds classes from 3 to 3; expected whole numbers from 0 to 2"),
    (reply([-1], [[1, 2]]), "holds classes from -1 to -1"),
    (reply([1, 1], [[1, 2], [1, 2]]), "holds classes with a number that occurs more than once"),
    (reply([0, 1], [[1, 2]]), r"holds prototypes of shape \(1, 2\); expected \(K_i, d\) with K_i at most 3"),
    (reply([0], [[1, 2, 3]]), r"holds prototypes of shape \(1, 3\)"),
    (reply([0], [[1, torch.nan]]), "holds prototypes with numbers that are not finite"),
    (reply([0], [[torch.inf, 1]]), "holds prototypes with numbers that are not finite"),
    (reply([0], [[1, 2]]) | {"counts": torch.tensor([1])}, "holds counts, which is not expected"),
    (reply([0], [[1, 2]]) | {"classes": torch.tensor([0.0])}, "holds classes as torch.float32"),
    (reply([0], [[1, 2]]) | {"classes": torch.tensor([True])}, "holds classes as torch.bool"),
    (reply([0], [[1, 2]]) | {"classes": torch.tensor([[0]])}, r"holds classes as torch.int64 of shape \(1, 1\)"),
    (reply([0], [[1, 2]]) | {"prototypes": torch.tensor([[1, 2]])}, "holds prototypes as torch.int64"),
    (reply([0], [[1, 2]]) | {"prototypes": torch.ones(1, 2).double()}, "holds prototypes as torch.float64"),
    ({"classes": torch.tensor([0])}, "lacks prototypes"),
    ({}, "lacks classes, prototypes"),
]


@pytest.mark.parametrize(("wrong", "sentence"), WRONG)
def test_what_clients_may_not_say_is_refused_with_a_sentence(wrong, sentence):
    with pytest.raises(ValueError, match=f"The reply of client 4 {sentence}"):
        task_of(pn.ProtoNorm()).schema.check_up(wrong, "The reply of client 4")


def test_the_server_says_nothing_before_round_1_or_all_classes_from_the_beginning():
    quiet, random = task_of(pn.ProtoNorm()).schema, task_of(pn.ProtoNorm(initial="random")).schema
    some, whole = reply([1], [[0, 1]]), reply([0, 1, 2], [[0, 1], [1, 0], [0, -1]])
    for message in ({}, some, whole):
        quiet.check_down(message)
    random.check_down(whole)
    for message in ({}, some):
        with pytest.raises(ValueError, match="The server's message"):
            random.check_down(message)
    for wrong, _ in WRONG[:-1]:
        with pytest.raises(ValueError, match="The server's message"):
            quiet.check_down(wrong)


def test_numbers_of_a_round_by_hand():
    """K_i·d up and K'·d down: 2·2 and 3·2."""
    schema = task_of(pn.ProtoNorm()).schema
    assert schema.numbers(schema.up, {"K_i": 2}) == 4
    assert schema.numbers(schema.down, {"K'": 3}) == 6


# ---- γ from the features' own scale ---------------------------------------------------------------------------------


def test_a_measured_gamma_by_hand():
    """Prototypes of lengths 5, 1 and 6, 4 on average; d = 2, λ = ½: 2λγ·4/d = 10 gives γ = 10·2/(2·½·4) = 5.

    All count alike: the clients' means are 3 and 6, 4.5 on average, and the averages (3, 4) and (0, −2.5) have 3.75.
    """
    method = pn.ProtoNorm(gamma="auto", lam=0.5)
    replies = [reply([0, 1], [[3, 4], [0, 1]]), reply([1], [[0, -6]])]
    step = method.aggregate(server(), {}, iter(replies))
    assert float(step.message["gamma"]) == float(step.state["gamma"]) == step.metrics["gamma"] == pytest.approx(5.0)
    fixed = pn.ProtoNorm(gamma=7.0, lam=0.5).aggregate(server(), {}, iter(replies))
    assert torch.equal(step.message["prototypes"], fixed.message["prototypes"])
    assert step.metrics == {**fixed.metrics, "gamma": step.metrics["gamma"]}
    assert step.figures.keys() == fixed.figures.keys() == {"alignment.distances"}


def test_prototypes_without_length_are_taken_for_a_thousandth():
    """Of a ReLU that is silent everywhere: 10·2/(2·0.001)."""
    step = pn.ProtoNorm(gamma="auto").aggregate(server(), {}, iter([reply([0, 1], [[0, 0], [0, 0]])]))
    assert float(step.message["gamma"]) == pytest.approx(10_000)


def test_gamma_is_measured_once():
    """In the second round prototypes are ten times as long, as they have been pulled; γ stays."""
    method = pn.ProtoNorm(gamma="auto")
    first = method.aggregate(server(), {}, iter([reply([0, 1], [[3, 4], [0, 5]])]))
    second = method.aggregate(server(2), first.state, iter([reply([0, 1], [[30, 40], [0, 50]])]))
    assert second.message["gamma"] == first.message["gamma"] == pytest.approx(10 * 2 / (2 * 5))
    assert second.metrics["gamma"] == first.metrics["gamma"]


def test_if_nobody_answers_later_what_was_said_stays():
    method = pn.ProtoNorm(gamma="auto")
    first = method.aggregate(server(), {}, iter([reply([0, 1], [[3, 4], [0, 5]])]))
    silent = method.aggregate(server(2), first.state, iter([]))
    assert silent.message["gamma"] == silent.state["gamma"] == first.message["gamma"]
    torch.testing.assert_close(silent.message["prototypes"], first.message["prototypes"], atol=1e-3, rtol=0)


def test_if_nobody_answers_nothing_is_said_and_the_next_round_measures():
    method = pn.ProtoNorm(gamma="auto")
    nothing = method.aggregate(server(), {}, iter([]))
    assert (nothing.state, nothing.message) == ({}, {})
    later = method.aggregate(server(2), nothing.state, iter([reply([0], [[0, 2]])]))
    assert float(later.message["gamma"]) == pytest.approx(10 * 2 / (2 * 2))


def test_features_are_pulled_to_the_measured_gamma():
    message = all_classes() | {"gamma": torch.tensor(4.0)}
    loss, ce, z, _ = first_batch_loss(pn.ProtoNorm(lam=3.0, gamma="auto"), message)
    assert loss == pytest.approx(ce + 3.0 * float(((z - 4.0 * 0.5) ** 2).mean()), rel=1e-5)
    alone, ce, *_ = first_batch_loss(pn.ProtoNorm(lam=3.0, gamma="auto"), {})
    assert alone == pytest.approx(ce, rel=1e-5)


def test_a_measured_gamma_is_one_number_more():
    """K_i·d up and K'·d + 1 down; it has to be finite, and comes with prototypes alone."""
    schema = task_of(pn.ProtoNorm(gamma="auto")).schema
    assert schema.numbers(schema.up, {"K_i": 2}) == 4
    assert schema.numbers(schema.down, {"K'": 3}) == 7
    schema.check_down({})
    schema.check_down(reply([1], [[0, 1]]) | {"gamma": torch.tensor(3.0)})
    for wrong in (reply([1], [[0, 1]]), reply([1], [[0, 1]]) | {"gamma": torch.tensor(torch.nan)}):
        with pytest.raises(ValueError, match="The server's message"):
            schema.check_down(wrong)


@pytest.mark.parametrize(
    "setting",
    [
        {"lam": 0.0},
        {"upscaling": False},
        {"distance": "classes"},
        {"alignment": "none"},
        {"initial": "random"},
        {"measured": "before"},
    ],
)
def test_what_cannot_be_measured_is_refused_with_a_sentence(setting):
    with pytest.raises(ValueError, match=f"gamma must be a number with {next(iter(setting))}=.*, got auto"):
        pn.ProtoNorm(gamma="auto", **setting)
    with pytest.raises(ValueError, match="gamma"):
        spiral(algorithm={"name": "protonorm", "gamma": "automatic"})


def test_a_run_with_a_measured_gamma_tells_it(tmp_path):
    """d = 2, λ = 1: γ = 10/(mean length), on all engines the same bits."""
    experiment = spiral(algorithm={"name": "protonorm", "gamma": "auto"}, rounds=3)
    serial, apart = (run(experiment, tmp_path / one, engine=one) for one in ("serial", "processes"))
    gammas = [record.server["gamma"] for record in serial.history]
    assert gammas[0] == gammas[1] == gammas[2] > 0
    assert [record.server for record in apart.history] == [record.server for record in serial.history]
    assert serial.history[1].floats.down == 6 * (6 * 2 + 1)
    assert experiment.changed["algorithm.gamma"] == "auto"


def test_a_measured_gamma_survives_a_run_that_is_stopped(tmp_path):
    """Stopped after the first round and after the second: one γ, and the same bytes as without."""
    experiment = spiral(algorithm={"name": "protonorm", "gamma": "auto"}, participation=0.7)
    run(experiment, tmp_path / "whole")

    def stop(_):
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(experiment, tmp_path / "broken", watch=stop)
    resumed = run(experiment, tmp_path / "broken")
    assert len({record.server["gamma"] for record in resumed.history}) == 1
    assert contents(run_folder(experiment, tmp_path / "broken")) == contents(run_folder(experiment, tmp_path / "whole"))


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"alignment": "exact", "width": 3}, "No closed form is known for 6 prototypes in 3 dimensions"),
        ({"alignment": "paper", "width": 1}, "Only two prototypes can be apart in one dimension, not 6"),
        ({"alignment": "auto", "width": 3}, None),
        ({"alignment": "exact", "width": 2}, None),
        ({"alignment": "none", "width": 1}, None),
    ],
)
def test_what_cannot_be_aligned_is_refused_before_anybody_trains(settings, wanted):
    experiment = spiral(
        algorithm={"name": "protonorm", "alignment": settings["alignment"]}, feature_dim=settings["width"]
    )
    if wanted is None:
        build(experiment)
        return
    with pytest.raises(ValueError, match=wanted):
        build(experiment)


def test_an_energy_beyond_all_numbers_is_no_metric():
    """Of s = 2000 and points that are nearer than 1."""
    points = [[math.cos(angle), math.sin(angle)] for angle in range(10)]
    method = pn.ProtoNorm(alignment="descent", s=2000.0)
    step = method.aggregate(server(classes=10), {}, iter([reply(list(range(10)), points)]))
    assert step.metrics.keys() == {"alignment.steps"}
    assert torch.isfinite(step.message["prototypes"]).all()
