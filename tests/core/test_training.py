"""Optimisers, the learning rate over the rounds, smoothed labels, bounded gradients and changed pictures."""

import math
import re

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, chisquare
from torch import nn
from torch.nn.functional import cross_entropy

import protonorm as pn
from protonorm.algorithms import ALGORITHMS
from protonorm.algorithms.parts.prototypes import class_means
from protonorm.core import seeded
from protonorm.core.node import make_optimiser
from protonorm.core.samples import augmentation, augmented
from protonorm.core.training import LrSchedule
from protonorm.session.build import build
from tests.contract.playing import outcome, same
from tests.support import FROZEN, contents, pictures, run, run_folder, site, spiral

# --- the learning rate over the rounds


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        # Eight rounds, no warm-up, so T = 8.
        (LrSchedule(), [1, 1, 1, 1, 1, 1, 1, 1]),
        # (1 + cos(πt/8))/2 for t = 0 … 7; t = 4 is a quarter turn.
        (LrSchedule("cosine"), [1, 0.9619398, 0.8535534, 0.6913417, 0.5, 0.3086583, 0.1464466, 0.0380602]),
        # Halved after every three rounds.
        (LrSchedule("step", decay=0.5, every=3), [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25]),
        # 0.9 more each round.
        (LrSchedule("exponential", decay=0.9, every=1), [0.9**t for t in range(8)]),
        # A quarter after every two rounds, a half after every one.
        (LrSchedule("exponential", decay=0.25, every=2), [1, 0.5, 0.25, 0.125, 2**-4, 2**-5, 2**-6, 2**-7]),
        # Warm-up of three rounds: 1/4, 2/4, 3/4, and then from the beginning of the course, T = 5.
        (LrSchedule("constant", warmup=3), [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]),
        (LrSchedule("step", warmup=3, decay=0.1, every=2), [0.25, 0.5, 0.75, 1, 1, 0.1, 0.1, 0.01]),
        # f = 0.2: 0.2 + 0.8·(1 + cos(πt/4))/2 for t = 0 … 3 after four rounds of warm-up: cos = 1, √½, 0, −√½.
        (
            LrSchedule("cosine", warmup=4, floor=0.2),
            [0.2, 0.4, 0.6, 0.8, 1, 0.2 + 0.4 * (1 + math.sqrt(0.5)), 0.6, 0.2 + 0.4 * (1 - math.sqrt(0.5))],
        ),
    ],
)
def test_schedules_by_hand(schedule, expected):
    assert [schedule.factor(round, 8) for round in range(1, 9)] == pytest.approx(expected, abs=1e-7)
    assert schedule.factor(0, 8) == schedule.factor(1, 8)


def test_cosine_is_torchs():
    """Torch's annealing starts at t = 0 too, and takes T_max = R."""
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    torchs = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=7, eta_min=0.1)
    for round in range(1, 8):
        assert LrSchedule("cosine", floor=0.1).factor(round, 7) == pytest.approx(torchs.get_last_lr()[0])
        optimiser.step()
        torchs.step()


def test_only_cosine_depends_on_how_many_rounds_there_will_be():
    names = ("constant", "step", "exponential", "cosine")
    schedules = [LrSchedule(name, warmup=2) for name in names]
    assert [one.depends_on_rounds for one in schedules] == [False, False, False, True]
    for one in schedules:
        agree = all(one.factor(round, 10) == one.factor(round, 20) for round in range(1, 11))
        assert agree is not one.depends_on_rounds
    assert [pn.Experiment(algorithm="local", lr_schedule=name).depends_on_rounds for name in names][2:] == [False, True]


def test_more_warm_up_than_rounds_never_reaches_the_course():
    assert [LrSchedule("cosine", warmup=9).factor(round, 4) for round in range(1, 5)] == [0.1, 0.2, 0.3, 0.4]


def test_a_client_trains_with_the_rate_of_its_round():
    """Client 1 takes the second of two rates, 0.2; round 5 is the first of the second half: a factor of ½."""
    settings = {"lr": [0.1, 0.2], "rounds": 8, "lr_schedule": {"name": "step", "every": 4}}
    assert [site(1, **settings).client(round).lr for round in (0, 1, 4, 5, 8)] == [0.2, 0.2, 0.2, 0.1, 0.1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("cosin", "lr_schedule.name must be 'constant', 'cosine', 'step' or 'exponential', got 'cosin'."),
        (
            {"every": 3},
            "lr_schedule.every must be left out, got 3: constant does not use it, only step and exponential.",
        ),
        ({"name": "cosine", "decay": 0.1}, "lr_schedule.decay must be left out, got 0.1: cosine does not use it"),
        (
            {"name": "step", "floor": 0.1},
            "lr_schedule.floor must be left out, got 0.1: step does not use it, only cosine.",
        ),
        ({"name": "step", "decay": 0}, "lr_schedule.decay must be greater than 0, got 0."),
        ({"warm": 3}, "lr_schedule has no setting 'lr_schedule.warm'; did you mean 'warmup'?"),
        (3, "lr_schedule"),
    ],
)
def test_schedules_that_are_refused(given, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        spiral(lr_schedule=given)


# --- optimisers


def plain_training(client, optimiser, loss):
    """Write the loop down: every full batch, one step."""
    client.model.train()
    for x, y in client.batches():
        optimiser.zero_grad()
        loss(x, y).backward()
        optimiser.step()
    return {name: value.clone() for name, value in client.model.state_dict().items()}


def weights_after(client, train):
    """Begin with the client's first weights, draw from its stream, and give what training made of them."""
    client.load({f"model.{name}": value for name, value in site().fresh_client().model.state_dict().items()})
    with seeded(0, 1, 0):
        return train()


def fitted(client, **options):
    client.fit(lambda x, y: client.cross_entropy(client.model(x), y), client.model, **options)
    return {name: value.clone() for name, value in client.model.state_dict().items()}


TORCHS = {
    "sgd": lambda weights: torch.optim.SGD(weights, 0.05, weight_decay=0.1, fused=True),
    "adam": lambda weights: torch.optim.Adam(weights, 0.05, weight_decay=0.1),
    "adamw": lambda weights: torch.optim.AdamW(weights, 0.05, weight_decay=0.1),
}


@pytest.mark.parametrize("name", TORCHS)
def test_training_is_torchs_own(name):
    """SGD bit for bit with torch's cross-entropy; the others up to rounding, for torch has several forms of them."""
    client = site(0, optimiser=name, lr=0.05, weight_decay=0.1, epochs=3).client(1)
    ours = weights_after(client, lambda: fitted(client))
    usual = TORCHS[name](list(client.model.parameters()))
    theirs = weights_after(
        client, lambda: plain_training(client, usual, lambda x, y: cross_entropy(client.model(x), y))
    )
    room = {"rtol": 0, "atol": 0} if name == "sgd" else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(ours, theirs, **room)


def test_adams_first_step_by_hand():
    """m̂ = g and v̂ = g² after one step, so that a weight moves by lr·g/(|g| + 1e-8): by lr against the gradient's sign.

    AdamW with decay 0.5 first takes lr·0.5 of the weight itself; Adam adds 0.5·w to the gradient instead.
    """
    gradient, start, lr = torch.tensor([3.0, -0.002, 40.0]), torch.tensor([1.0, 2.0, -100.0]), 0.1
    moved = {}
    for name, decay in (("adam", 0.0), ("adamw", 0.5), ("adam", 0.5)):
        weight = nn.Parameter(start.clone())
        weight.grad = gradient.clone()
        make_optimiser(name, [weight], lr, 0.0, decay).step()
        moved[name, decay] = weight.detach()
    torch.testing.assert_close(moved["adam", 0.0], start - lr * gradient.sign(), rtol=0, atol=1e-5)
    torch.testing.assert_close(moved["adamw", 0.5], start * (1 - lr * 0.5) - lr * gradient.sign(), rtol=0, atol=1e-5)
    with_decay = gradient + 0.5 * start  # 3.5, 0.998, −10: the last one turns around
    torch.testing.assert_close(moved["adam", 0.5], start - lr * with_decay.sign(), rtol=0, atol=1e-5)


def test_an_optimiser_forgets_between_rounds():
    """Two fits of one batch: each moves every weight that has a gradient by exactly lr, as only a first step does."""
    client = site(0, optimiser="adam", lr=0.01, batch_size=1000).client(1)
    first = weights_after(client, lambda: fitted(client))
    second = fitted(client)
    apart = torch.cat([(second[name] - first[name]).flatten() for name in first]).abs()
    clear = apart[apart > 1e-6]
    assert len(clear) > 100
    torch.testing.assert_close(clear, torch.full_like(clear, 0.01), rtol=1e-2, atol=0)


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
def test_momentum_is_for_sgd(optimiser):
    with pytest.raises(ValueError, match=f"momentum must be 0 with {optimiser}, got 0.9"):
        spiral(momentum=0.9, optimiser=optimiser)


# --- labels and gradients


def test_smoothed_labels():
    """Of two classes with logits 0 and log 3, p = ¼ and ¾. With ε = 0.2 the first label is (0.9, 0.1):

    −0.9 log ¼ − 0.1 log ¾ = 1.276434; without smoothing −log ¼ = 1.386294.
    """
    client, logits, label = site().client(1), torch.tensor([[0.0, math.log(3)]]), torch.tensor([0])
    smoothed = site(label_smoothing=0.2).client(1).cross_entropy(logits, label)
    assert float(smoothed) == pytest.approx(1.276434, abs=1e-6)
    assert float(smoothed) == pytest.approx(float(cross_entropy(logits, label, label_smoothing=0.2)), abs=1e-7)
    assert float(client.cross_entropy(logits, label)) == pytest.approx(1.386294, abs=1e-6)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in FROZEN])
def test_every_algorithm_smooths_its_labels(name):
    """Of those that train: at the start, with one batch and almost no step, smoothing changes nothing but the loss."""

    def loss(smoothing):
        task, population = build(spiral(algorithm=name, label_smoothing=smoothing, lr=1e-12, batch_size=4096, rounds=1))
        return outcome_loss(task, population)

    plain, smoothed = loss(0.0), loss(0.3)
    assert math.isfinite(smoothed)
    assert abs(plain - smoothed) > 1e-4


def outcome_loss(task, population):
    client = population.site(0).fresh_client()
    with seeded(0, 0, -1):
        message = task.algorithm.init_server(task.server(0)).message
    with seeded(0, 1, 0):
        return task.algorithm.local_update(client, task.algorithm.init_client(client), message).metrics["loss"]


@pytest.mark.parametrize(("own", "expected"), [(None, 0.5), (10.0, 0.5), (0.1, 0.1 * math.sqrt(2))])
def test_clip_bounds_all_gradients_together(own, expected):
    """Two modules and a step of 1·gradient. A method's own bound comes first, for each module: 0.1 each is √2·0.1."""
    client = site(0, lr=1.0, batch_size=1000, clip=0.5).client(1)
    other = nn.Linear(2, 6)
    modules = (client.model, other)
    before = [weight.detach().clone() for module in modules for weight in module.parameters()]

    def loss(x, y):
        return 1e3 * (cross_entropy(client.model(x), y) + cross_entropy(other(x), y))

    client.fit(loss, *modules, clip=own)
    after = [weight.detach() for module in modules for weight in module.parameters()]
    moved = torch.cat([(new - old).flatten() for new, old in zip(after, before, strict=True)])
    assert float(moved.norm()) == pytest.approx(expected, rel=1e-3)


# --- pictures

NUMBERED = torch.arange(1, 1 + 16 * 24 * 3).reshape(1, 16, 24, 3).float()  # no pixel is black, and no two are alike


def many(count, moved):
    torch.manual_seed(0)
    return augmented(NUMBERED.repeat(count, 1, 1, 1), moved=moved)


def test_a_picture_is_mirrored_as_a_whole_or_not_at_all():
    found = many(400, moved=False)
    kept = (found == NUMBERED).flatten(1).all(1)
    mirrored = (found == NUMBERED.flip(2)).flatten(1).all(1)  # all rows and channels of (B, H, W, C), along W
    assert bool((kept ^ mirrored).all())
    assert binomtest(int(mirrored.sum()), 400, 0.5).pvalue > 1e-4


def moved_by(picture, down, right):
    """Move a picture (H, W, C), pixel by pixel; what comes in is black."""
    height, width, _ = picture.shape
    result = torch.zeros_like(picture)
    for row in range(max(0, down), min(height, height + down)):
        for column in range(max(0, right), min(width, width + right)):
            result[row, column] = picture[row - down, column - right]
    return result


def read_moves(found):
    """Read off the pixel in the middle, which is never black, where it was, and off its neighbour, what is mirrored."""
    middle, beside = (found[:, 8, 12 + step, 0].long() - 1 for step in (0, 1))
    row, column = middle // (24 * 3), middle // 3 % 24
    mirrored = beside < middle
    return 8 - row, 12 - torch.where(mirrored, 23 - column, column), mirrored


def test_a_picture_moves_as_a_whole_and_what_comes_in_is_black():
    found = many(60, moved=True)
    for one, down, right, mirrored in zip(found, *(value.tolist() for value in read_moves(found)), strict=True):
        assert torch.equal(one, moved_by(NUMBERED[0].flip(1) if mirrored else NUMBERED[0], down, right))


def test_a_picture_moves_by_up_to_an_eighth_of_its_side():
    """16×24: by up to 2 rows and 3 columns, mirrored or not: 5·7·2 cases, each as likely.

    One test of all cases together, which right code fails for one seed in 10,000.
    """
    down, right, mirrored = read_moves(many(10_000, moved=True))
    counts = torch.bincount((down + 2) * 14 + (right + 3) * 2 + mirrored, minlength=70)
    assert len(counts) == 70
    assert chisquare(counts.numpy()).pvalue > 1e-4


def test_bytes_stay_bytes_and_small_pictures_stay_in_place():
    stored = torch.arange(2 * 7 * 7, dtype=torch.uint8).reshape(2, 7, 7, 1)
    found = augmented(stored, moved=True)  # 7 // 8 = 0
    assert found.dtype == torch.uint8
    assert found.flatten(1).sort().values.tolist() == stored.flatten(1).sort().values.tolist()


def tiny(**settings):
    usual = {"algorithm": "fedproto", "models": "light", "clients": 3, "partition": "iid", "rounds": 2, "batch_size": 8}
    return pn.Experiment(dataset=pictures(np.arange(120) % 3, 3), **usual | settings)


def test_only_training_batches_are_changed():
    """The same stream gives the same order, and other pictures; what is measured is what is stored."""
    clients = [build(tiny(augment=augment))[1].site(0).fresh_client() for augment in ("none", "crop+flip")]
    batches = []
    for client in clients:
        with seeded(0, 1, 0):
            batches.append(next(iter(client.batches())))
    (plain, labels), (changed, again) = batches
    assert torch.equal(labels, again)
    assert changed.shape == plain.shape
    assert changed.is_contiguous(memory_format=torch.channels_last)
    assert not torch.equal(changed, plain)
    for one, other in zip(*(client.train.sweep() for client in clients), strict=True):
        assert torch.equal(one[0], other[0])
    means = [class_means(client, client.model)["prototypes"] for client in clients]
    assert torch.equal(*means)


def test_without_augmentation_nothing_is_drawn():
    """One permutation for each epoch, and no more: the stream stands where it always stood."""
    client = build(tiny())[1].site(0).client(1)
    with seeded(0, 1, 0):
        list(client.batches())
        after = torch.rand(1)
    with seeded(0, 1, 0):
        torch.randperm(len(client.train))
        assert torch.equal(torch.rand(1), after)


@pytest.mark.parametrize("augment", ["flip", "crop+flip"])
def test_vectors_are_not_augmented(augment, tmp_path):
    with pytest.raises(ValueError, match=r"augment must be none for samples of shape \(2,\)"):
        run(spiral(augment=augment), out=tmp_path)


def test_an_unknown_augmentation():
    with pytest.raises(ValueError, match="augment must be one of none, flip, crop"):
        augmentation("turn")


# --- all of them in runs

ALL = {
    "optimiser": "adamw",
    "weight_decay": 0.1,
    "lr_schedule": {"name": "cosine", "warmup": 1},
    "label_smoothing": 0.1,
    "clip": 0.5,
    "augment": "crop+flip",
}


def test_serial_and_processes_give_the_same_bytes(tmp_path):
    one, other = tmp_path / "serial", tmp_path / "processes"
    run(tiny(**ALL), one)
    run(tiny(**ALL), other, engine="processes", workers=2)
    assert contents(run_folder(tiny(**ALL), one)) == contents(run_folder(tiny(**ALL), other))


def test_a_run_that_was_stopped_after_every_round_goes_on_to_the_same_bytes(tmp_path):
    """Neither moments of an optimiser nor the place in a schedule are lost: moments are new in every round anyway."""

    def stop(round):
        raise KeyboardInterrupt

    experiment = tiny(**ALL | {"rounds": 3})
    run(experiment, tmp_path / "whole")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(experiment, tmp_path / "broken", watch=stop)
    run(experiment, tmp_path / "broken")
    assert contents(run_folder(experiment, tmp_path / "broken")) == contents(run_folder(experiment, tmp_path / "whole"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"optimiser": "adam"}),
        ({"optimiser": "adam", "weight_decay": 0.1}, {"optimiser": "adamw", "weight_decay": 0.1}),
        ({}, {"lr_schedule": "cosine"}),
        ({"lr_schedule": "cosine"}, {"lr_schedule": {"name": "cosine", "floor": 0.5}}),
        ({}, {"lr_schedule": {"name": "step", "every": 1}}),
        ({"lr_schedule": {"name": "step", "every": 1}}, {"lr_schedule": {"name": "step", "every": 1, "decay": 0.1}}),
        ({}, {"lr_schedule": "exponential"}),
        ({}, {"lr_schedule": {"warmup": 1}}),
        ({}, {"label_smoothing": 0.1}),
        ({}, {"clip": 0.01}),
        ({}, {"augment": "flip"}),
        ({"augment": "flip"}, {"augment": "crop+flip"}),
    ],
    ids=str,
)
def test_every_setting_changes_what_is_learnt(before, after):
    one, other = tiny(**before), tiny(**after)
    assert one.key != other.key
    assert not same(outcome(*build(one)), outcome(*build(other)))
    assert same(outcome(*build(other)), outcome(*build(other)))


def test_the_record_names_what_was_changed():
    assert tiny(**ALL).changed.items() >= {
        ("optimiser", "adamw"),
        ("lr_schedule", "cosine"),
        ("lr_schedule.warmup", 1),
        ("label_smoothing", 0.1),
        ("clip", 0.5),
        ("augment", "crop+flip"),
    }
    assert not {"optimiser", "lr_schedule", "label_smoothing", "clip", "augment"} & tiny().changed.keys()
