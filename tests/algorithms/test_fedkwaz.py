import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy, kl_div, mse_loss, one_hot

import protonorm as pn
from protonorm.algorithms import fedkwaz
from protonorm.algorithms.fedkwaz import WIDTHS, FedKWAZ, cells_of, mix, shifts
from protonorm.core.types import InputSpec
from protonorm.tensors import snapshot
from tests.algorithms.tasks import federation, normalising, normalising_client, server, task_of
from tests.contract.playing import same


@pytest.mark.parametrize(
    ("side", "cells", "first", "last"), [(32, 16, -2, 1), (32, 4, -4, 3), (32, 64, -1, 0), (28, 16, -2, 0)]
)
def test_cells_are_shifted_by_up_to_a_quarter(side, cells, first, last):
    """From ⌊−h/4⌋ to ⌊h/4⌋ − 1, h = ⌊H/√G⌋: 8, 16, 4 and 7; a cell smaller than four positions stays."""
    found = shifts(side // math.isqrt(cells), (1000,))
    assert sorted(set(found.tolist())) == list(range(first, last + 1))
    assert not shifts(3, (1000,)).any()


def test_grids_are_the_papers_and_smaller_on_small_inputs():
    shapes = {(1, 32, 32): [4, 16, 64], (1, 28, 28): [4, 16, 49], (3, 16, 16): [4, 16], (1, 3, 3): [1]}
    for shape, wanted in (shapes | {(512,): [4, 16, 64], (2,): [1]}).items():
        assert cells_of(torch.zeros(2, *shape)) == wanted


def test_each_pixel_is_mixed_with_the_share_of_the_first_cell_that_covers_it():
    """With the same draws, in loops: cells row by row, then λ, then the partners; what no cell covers is unchanged."""
    x = torch.randn(3, 2, 9, 8)
    torch.manual_seed(5)
    found = mix(x, 0.5, 4)
    torch.manual_seed(5)
    down, right = torch.randint(-1, 1, (2, 2)), torch.randint(-1, 1, (2, 2))  # h = w = 4
    shares = torch.distributions.Beta(0.5, 0.5).sample((4,))
    partner = torch.randperm(3)
    wanted, uncovered = x.clone(), 0
    for i in range(9):
        for j in range(8):
            for cell, (r, c) in enumerate((r, c) for r in range(2) for c in range(2)):
                top, left = 4 * r + down[r, c], 4 * c + right[r, c]
                if top <= i < top + 4 and left <= j < left + 4:
                    wanted[:, :, i, j] = shares[cell] * x[:, :, i, j] + (1 - shares[cell]) * x[partner, :, i, j]
                    break
            else:
                uncovered += 1
    assert uncovered >= 8  # at least the last row
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("shape", [(1, 1, 8, 8), (1, 6)])
def test_a_batch_of_one_has_nothing_to_mix_with(shape):
    x = torch.randn(shape)
    torch.testing.assert_close(mix(x, 0.1, 16), x)


def test_tokens_are_refused():
    task = task_of(FedKWAZ(), input=InputSpec(shape=(5,), type="int64", vocabulary=7))
    with pytest.raises(ValueError, match="pictures or vectors, got tokens"):
        FedKWAZ().check_network(normalising(), task)


def test_the_divergence_by_hand():
    """p = (½, ½), and q = (¾, ¼), the softmax of (4 ln 3, 0)/4: 16·(¾ ln 1.5 + ¼ ln ½) and 16·(½ ln ⅔ + ½ ln 2)."""
    o, teacher = torch.zeros(1, 2), torch.tensor([[4 * math.log(3), 0.0]])
    assert float(FedKWAZ().divergence(teacher, o)) == pytest.approx(2.09299, abs=1e-5)
    assert float(FedKWAZ().divergence(o, teacher)) == pytest.approx(2.30146, abs=1e-5)


def kl(teacher, o):
    """T² times the mean KL of softmaxes at T = 4, by torch."""
    return 16 * kl_div((o / 4).log_softmax(1), (teacher / 4).softmax(1), reduction="batchmean")


def test_the_second_stage_is_one_step_on_the_sum_of_both_losses(monkeypatch):
    """Clean outputs teach and learn in both directions; on mixed inputs only the student learns.

    Mixing is replaced by a multiplication with α, which differs between the three purposes."""
    monkeypatch.setattr(fedkwaz, "mix", lambda x, alpha, cells: alpha * x)
    method = FedKWAZ(global_stage=False, alone="none", clip=1e9)
    one = federation(method, batch_size=4096, lr=0.1)
    client, state, _ = one.started()
    client = replace(client, round=1)
    state |= {"mixing": torch.tensor([[0.5, 4.0], [0.7, 4.0], [0.9, 4.0]])}
    step = method.local_update(client, state, {})
    model, proxy = client.load(state), method.second(client, state, {})
    x, y = client.train.batch(torch.arange(len(client.train)))
    z, z_p = model.features(x), proxy.features(x)
    o, o_p = model.head(z), proxy.head(z_p)
    labels = cross_entropy(o, y) + cross_entropy(o_p, y)
    mutual = mse_loss(z, z_p) + mse_loss(z_p, z) + kl(o_p, o) + kl(o, o_p)
    mixed = mse_loss(model.features(0.5 * x), proxy.features(0.5 * x).detach())
    mixed += mse_loss(proxy.features(0.5 * x), model.features(0.5 * x).detach())
    mixed += kl(proxy(0.7 * x).detach(), model(0.7 * x)) + kl(model(0.9 * x).detach(), proxy(0.9 * x))
    loss = labels + mutual + mixed
    model.zero_grad(), proxy.zero_grad()
    loss.backward()
    assert step.metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    with torch.no_grad():
        for weight in (*model.parameters(), *proxy.parameters()):
            weight -= 0.1 * weight.grad
    wanted = snapshot("model", model) | snapshot("proxy", proxy)
    torch.testing.assert_close({name: step.state[name] for name in wanted}, wanted)


def guiding(classes, seed=0):
    random = torch.Generator().manual_seed(seed)
    sizes = {"d": 2, "K": 6}
    means = {name: torch.randn(len(classes), sizes[width], generator=random) for name, width in WIDTHS.items()}
    return {"classes": torch.tensor(classes, dtype=torch.int64)} | means


@pytest.mark.parametrize("classes", [list(range(6)), [0, 2], []])
def test_the_first_stage_follows_the_means_of_the_other_kind(classes):
    """CE(o, y) + H(softmax L'_y, o) + mean (z − P'_y)², of samples whose class is known, and mirrored."""
    one = federation(FedKWAZ(), batch_size=4096, lr=1e-12)
    client, state, _ = one.started()
    message = guiding(classes)
    first = one.method.local_update(client, state, message).metrics["stage 1.loss"]
    model, proxy = client.load(state), one.method.second(client, state, message)
    x, y = client.train.batch(torch.arange(len(client.train)))
    known, total = torch.isin(y, message["classes"]).float(), 0.0
    row = {label: position for position, label in enumerate(classes)}
    at = torch.tensor([row.get(int(label), 0) for label in y])
    for network, other in ((model, "proxy_"), (proxy, "")):
        z = network.features(x)
        o = network.head(z)
        total += float(cross_entropy(o, y).detach())
        if classes:
            target = message[f"{other}logits"][at].softmax(1)
            total += float((known * cross_entropy(o, target, reduction="none")).mean().detach())
            total += float((known * (z - message[f"{other}prototypes"][at]).square().mean(1)).mean().detach())
    assert first == pytest.approx(total, rel=1e-5)


def test_means_are_those_of_clean_outputs_met_in_training():
    """Of one batch of everything, before the step: the means of the first networks; two numbers of a class are one."""
    one = federation(FedKWAZ(global_stage=True), batch_size=4096, lr=1e-12)
    client, state, _ = one.started()
    said = one.method.local_update(client, state, {}).message
    model = client.load(state)
    x, y = client.train.batch(torch.arange(len(client.train)))
    shares = one_hot(y, 6).float() / y.bincount(minlength=6)[y].unsqueeze(1)
    means = (shares.T @ model(x))[said["classes"]]
    assert said["classes"].tolist() == sorted(set(y.tolist()))
    torch.testing.assert_close(said["logits"], means)
    assert said["proxy_prototypes"].shape == (len(said["classes"]), 2)


def test_without_a_global_stage_nothing_is_sent_and_the_first_round_is_the_same():
    """Before the first aggregate stage I is cross-entropy alone, as in LML with a pass on labels."""
    steps = []
    for method in (FedKWAZ(), FedKWAZ(global_stage=False), FedKWAZ(global_stage=False, alone="none")):
        one = federation(method)
        client, state, message = one.started()
        torch.manual_seed(0)
        steps.append(method.local_update(client, state, message))
    on, off, none = steps
    assert same(on.state, off.state)
    assert not same(on.state, none.state)
    assert (off.message, none.message) == ({}, {})
    assert not task_of(FedKWAZ(global_stage=False)).schema.up
    assert none.metrics["stage 1.loss"] == 0


def test_means_of_clients_are_averaged_alike_and_missing_classes_kept():
    """Class 1 of both clients: (1 + 3)/2 = 2; class 0 of one: 1; class 2 of nobody: what it was."""

    def said(value, classes):
        widths = {"d": 2, "K": 3}
        rows = {name: torch.full((len(classes), widths[width]), value) for name, width in WIDTHS.items()}
        return {"classes": torch.tensor(classes)} | rows

    step = FedKWAZ().aggregate(server(), said(9.0, [1, 2]), iter([said(1.0, [0, 1]), said(3.0, [1])]))
    assert step.message["classes"].tolist() == [0, 1, 2]
    for name in WIDTHS:
        assert step.message[name][:, 0].tolist() == [1.0, 2.0, 9.0], name


@pytest.mark.parametrize(("power", "alpha", "cells"), [(1, 1.0, 16), (-1, 0.1, 1)])
def test_inputs_are_mixed_where_the_networks_differ_most(monkeypatch, power, alpha, cells):
    """Features are linear: what is α·G times as large differs most; the choice is in every `period` rounds."""
    monkeypatch.setattr(fedkwaz, "mix", lambda x, alpha, cells: (alpha * cells) ** power * x)
    monkeypatch.setattr(fedkwaz, "cells_of", lambda x: [1, 16])

    def linear(shape, feature_dim, num_classes):
        return pn.SplitModel(torch.nn.Linear(2, feature_dim, bias=False), torch.nn.Linear(feature_dim, num_classes))

    one = federation(FedKWAZ(period=2), models=linear, feature_dim=2, auxiliary=linear, lr=1e-12)
    _, state, _ = one.started()
    chosen = [one.method.local_update(one.population.site(0).client(round), state, {}) for round in (1, 2)]
    torch.testing.assert_close(chosen[0].state["mixing"], torch.tensor([[0.1, 16.0]] * 3))
    torch.testing.assert_close(chosen[1].state["mixing"][0], torch.tensor([alpha, float(cells)]))


@pytest.mark.parametrize(("alone", "stages"), [("none", 1), ("labels", 2)])
def test_a_step_of_each_network_is_bounded_in_each_stage(alone, stages):
    """Gradients are far above 0.001: one step of a stage moves each network by η·0.001."""
    one = federation(FedKWAZ(global_stage=False, alone=alone, clip=1e-3), batch_size=4096, lr=1.0)
    client, state, _ = one.started()
    step = one.method.local_update(client, state, {})
    for name, network in (("model", client.model), ("proxy", client.auxiliary)):
        keys = [f"{name}.{key}" for key, _ in network.named_parameters()]
        moved = math.sqrt(sum(float((step.state[key] - state[key]).double().square().sum()) for key in keys))
        assert moved <= stages * 1.01e-3
        assert moved > (stages - 0.5) * 1e-3 or stages > 1  # two steps may lead back


def test_each_network_imitates_where_the_other_says_most_that_is_new(monkeypatch):
    """Scores are ±x: the proxy's are largest where x is smallest, the model's where it is largest; none trains."""
    modes = []

    def scaled(x, alpha, cells):
        modes.append((model.training, proxy.training))
        return alpha * cells * x

    monkeypatch.setattr(fedkwaz, "mix", scaled)
    monkeypatch.setattr(fedkwaz, "cells_of", lambda x: [1, 16])
    monkeypatch.setattr(FedKWAZ, "divergence", lambda self, teacher, logits: teacher.sum())
    model, proxy = (pn.SplitModel(torch.nn.Identity(), torch.nn.Linear(2, 2, bias=False)) for _ in range(2))
    for network, sign in ((model, 1.0), (proxy, -1.0)):
        network.train().head.weight.data = sign * torch.eye(2)
    pairs = FedKWAZ().choose(normalising_client(), model, proxy)
    torch.testing.assert_close(pairs[1:], torch.tensor([[0.1, 1.0], [1.0, 16.0]]))
    assert not any(map(any, modes))
