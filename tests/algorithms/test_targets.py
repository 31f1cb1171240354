import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

import protonorm as pn
from protonorm.algorithms.parts.common_inputs import read_targets
from protonorm.algorithms.protonorm import ProtoNorm
from protonorm.algorithms.targets import FixedTargets
from protonorm.geometry.alignment import equally_spread
from protonorm.geometry.losses import batch_alignment_loss, cosines
from tests.algorithms.tasks import federation, first_batch_loss, server, task_of
from tests.support import build, pictures, run, spiral

EYE = torch.eye(2)


def given(**settings):
    """A method whose data set has been heard of."""
    return FixedTargets(**settings).adapted("spiral", ["mlp"])


def test_spread_targets_are_a_simplex_where_there_is_room():
    """K = 4 unit vectors in d = 5 dimensions, any two at cosine −1/(K − 1) = −1/3, whose sum is 0."""
    found = equally_spread(4, 5, seed=3)
    torch.testing.assert_close(found @ found.T, torch.eye(4) * 4 / 3 - 1 / 3)
    torch.testing.assert_close(found.sum(0), torch.zeros(5), atol=1e-6, rtol=0)
    assert torch.equal(found, equally_spread(4, 5, seed=3))
    assert not torch.equal(found, equally_spread(4, 5, seed=4))


@pytest.mark.parametrize(("classes", "energy"), [(2, 2.01815), (10, 2.68073)])
def test_spread_targets_are_those_that_alignfed_descends_to(classes, energy):
    """The mean over i of log Σ_j exp(2 t_i·t_j), j = i included, is log(e² + (K − 1)e^(−2/(K − 1))) for a simplex."""
    found = equally_spread(classes, 16, seed=0).double()
    assert (2 * found @ found.T).logsumexp(1).mean().item() == pytest.approx(energy, abs=1e-5)


def test_drawing_targets_leaves_the_random_numbers_alone():
    before = torch.get_rng_state()
    equally_spread(3, 2, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_cosine_softmax_by_hand():
    """K = 2, orthonormal targets, z = t_1 + t_2 of any length: both cosines equal, loss log 2 whatever s.

    z ∝ t_1, s = 2: logits 2 and 0, loss log(1 + e⁻²). A zero feature has cosine 0 with everything: log 2.
    """
    both = 100 * cosines(torch.tensor([[7.0, 7.0]]), EYE)
    assert cross_entropy(both, torch.tensor([1])).item() == pytest.approx(math.log(2))
    one = 2 * cosines(torch.tensor([[5.0, 0.0]]), 3 * EYE)
    assert cross_entropy(one, torch.tensor([0])).item() == pytest.approx(math.log1p(math.exp(-2)))
    assert cosines(torch.zeros(1, 2), EYE).tolist() == [[0.0, 0.0]]
    sharp = 100 * cosines(torch.tensor([[0.3, 0.0]]), EYE)  # FedTSP's scale
    assert cross_entropy(sharp, torch.tensor([0])).item() < 1e-40


def test_the_loss_of_a_feature_on_its_target_is_that_of_a_simplex():
    """ẑ = t_y, K = 4, s = 3: the true logit is 3, the others −3/3: log(1 + 3·e^(−3·4/3)) = log(1 + 3e⁻⁴)."""
    targets = equally_spread(4, 5, seed=0)
    found = cross_entropy(3 * cosines(targets[1:2], targets), torch.tensor([1]))
    assert found.item() == pytest.approx(math.log1p(3 * math.exp(-4)), rel=1e-4)


def test_the_cosine_softmax_has_no_gradient_along_the_feature():
    z = torch.tensor([[1.0, 3.0, -2.0]], requires_grad=True)
    cross_entropy(16 * cosines(z, equally_spread(4, 3, seed=0)), torch.tensor([0])).backward()
    assert float((z.detach() * z.grad).sum()) == pytest.approx(0.0, abs=1e-5)
    assert float(z.grad.norm()) > 0.1


@pytest.mark.parametrize(("classes", "expected"), [(2, 0.31326), (10, 0.06265)])
def test_the_loss_over_the_batch(classes, expected):
    """z = t = (e1, e2), y = (0, 1): each column of cosines is (1, 0) in some order, so that each of the two classes
    gives log(1 + e⁻¹) = 0.31326. Absent classes add 0 but count: of ten classes 2/10 of it remains."""
    points = torch.eye(classes)[:2]
    found = batch_alignment_loss(points, torch.tensor([0, 1]), torch.eye(classes))
    assert found.item() == pytest.approx(expected, abs=1e-5)


def test_one_sample_has_nobody_to_be_chosen_from():
    assert batch_alignment_loss(torch.tensor([[3.0, 1.0]]), torch.tensor([1]), EYE).item() == 0.0


def test_a_class_is_averaged_over_its_samples_before_the_classes_are():
    """y = (0, 0, 1) at e1, e1, e2: class 0 gives −log(e/(2e + 1)), the mean of two equal ones, class 1 the
    −log(e/(e + 2)) of its own; halved."""
    e = math.e
    found = batch_alignment_loss(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0, 1]), EYE)
    assert found.item() == pytest.approx((math.log((2 * e + 1) / e) + math.log((e + 2) / e)) / 2)


def targets_of(seed=0):
    return equally_spread(6, 2, seed)  # the spiral has six classes, and d = 2


def test_the_clients_loss_is_cross_entropy_and_lam_times_the_softmax():
    loss, ce, z, y = first_batch_loss(given(lam=2.5, scale=3.0), {})
    wanted = ce + 2.5 * float(cross_entropy(3.0 * cosines(z, targets_of()), y))
    assert loss == pytest.approx(wanted, rel=1e-5)


def test_the_balanced_softmax_expects_the_clients_own_classes():
    """Equal logits and n = (3, 1) give ¾ and ¼, log n being added; a class that is absent counts as one sample."""
    counts = torch.tensor([3.0, 1.0])
    assert torch.softmax(counts.log(), 0).tolist() == pytest.approx([0.75, 0.25])
    loss, ce, z, y = first_batch_loss(given(balanced=True), {})
    prior = torch.bincount(y, minlength=6).clamp(min=1).log()
    wanted = ce + float(cross_entropy(16.0 * cosines(z, targets_of()) + prior, y))
    assert loss == pytest.approx(wanted, rel=1e-5)
    assert float(prior.max()) > 0.5  # so that it matters


def test_the_squared_error_is_that_of_protonorm_with_these_prototypes():
    message = {"classes": torch.arange(6), "prototypes": targets_of()}
    fixed = first_batch_loss(given(loss="squared", lam=0.7), {})[0]
    assert fixed == first_batch_loss(ProtoNorm(lam=0.7, gamma=10.0), message)[0]  # γ of the spiral


def test_the_loss_over_the_batch_is_used():
    loss, ce, z, y = first_batch_loss(given(loss="batch", lam=6.0), {})
    assert loss == pytest.approx(ce + 6 * float(batch_alignment_loss(z, y, targets_of())), rel=1e-5)


def test_the_weight_falls_geometrically_towards_its_end():
    """λ = 8 → 2 in R = 4 rounds: 8·(¼)^(r/4) with r = 0, 1, 2, 3 rounds before: 8, 8/√2, 4, 4/√2."""
    population = federation(given(lam=8.0, lam_end=2.0), rounds=4).population
    found = [given(lam=8.0, lam_end=2.0).weight(population.site(0).client(round)) for round in (1, 2, 3, 4)]
    assert found == pytest.approx([8.0, 8 / math.sqrt(2), 4.0, 4 / math.sqrt(2)])
    assert given(lam=8.0).weight(population.site(0).client(3)) == 8.0
    assert given(lam_end=2.0).depends_on_rounds
    assert not given().depends_on_rounds


def test_a_probe_does_not_move_the_features():
    """λ = 0: only the head learns; with a head of its own the features do too."""
    for head, moves in (("probe", False), ("own", True)):
        one = federation(given(lam=0.0, head=head), lr=0.1)
        client, state, message = one.started()
        after = one.method.local_update(client, state, message).state
        names = [name for name in state if name.startswith("model.features.")]
        assert any(not torch.equal(after[name], state[name]) for name in names) is moves
        assert not torch.equal(after["model.head.weight"], state["model.head.weight"])


def test_everybody_has_the_same_targets_and_keeps_them():
    one = federation(given(seed=5))
    for id in (0, 3):
        client, state, message = one.started(id)
        after = one.method.local_update(client, state, message)
        assert torch.equal(after.state["prototypes"], targets_of(5))
        assert (message, after.message) == ({}, {})


def test_shared_heads_are_averaged_by_numbers_of_samples():
    """3 samples at 0 and 1 at 4: (3·0 + 1·4)/4 = 1."""
    replies = [
        {"head.weight": torch.full((2, 2), value), "num_examples": torch.tensor(count)}
        for value, count in ((0.0, 3), (4.0, 1))
    ]
    step = given(head="shared").aggregate(server(), {}, iter(replies))
    assert step.message["head.weight"].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert set(step.message) == set(step.state) == {"head.weight"}


def test_a_client_takes_the_shared_head_and_says_its_own():
    """K·d numbers each way: six classes, d = 2, no bias."""
    one = federation(given(head="shared"), lr=1e-30)
    client, state, said = one.started(1)
    step = one.method.local_update(client, state, said)
    torch.testing.assert_close(step.state["model.head.weight"], said["head.weight"])
    assert step.message["head.weight"].shape == (6, 2)
    assert int(step.message["num_examples"]) == len(client.train)
    assert one.method.rules == ("nearest-local", "received", "logits", "joint")


def test_the_record_of_a_shared_head_has_it_as_received(tmp_path):
    last = run(spiral(algorithm=given(loss="batch", head="shared", lam=20.0, lam_end=2.0)), out=tmp_path).history[-1]
    assert set(last.rules) == {"nearest-local", "received", "logits", "joint"}
    assert last.floats.up == last.floats.down == 6 * 12


# ---- targets from a file --------------------------------------------------------------------------------------------


def written(path, rows):
    np.save(path, np.asarray(rows))
    return str(path)


def test_rows_of_a_file_become_unit_vectors(tmp_path):
    file = written(tmp_path / "two.npy", [[3.0, 4.0], [0.0, -2.0]])
    assert read_targets(file, 2, 2).tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0.0, -1.0]]


def test_rows_of_any_length_have_a_direction(tmp_path):
    """Squares of 1e200 are infinite, those of 1e-320 zero; and ordinary rows are what they are without any care."""
    file = written(tmp_path / "two.npy", [[3e200, 4e200], [3e-20, -4e-20], [0.0, 1e-320], [1.7e308, -1.7e308]])
    half = math.sqrt(0.5)
    wanted = torch.tensor([[0.6, 0.8], [0.6, -0.8], [0.0, 1.0], [half, -half]])
    torch.testing.assert_close(read_targets(file, 4, 2), wanted)
    rows = np.random.default_rng(0).normal(size=(50, 7)) * 10.0 ** np.arange(-5, 45)[:, None]
    plain = torch.from_numpy(rows / np.sqrt(np.square(rows).sum(1, keepdims=True))).float()
    torch.testing.assert_close(read_targets(written(tmp_path / "many.npy", rows), 50, 7), plain, rtol=1e-7, atol=0)
    assert torch.equal(
        read_targets(written(tmp_path / "usual.npy", rows[5:]), 45, 7), normalize(torch.from_numpy(rows[5:])).float()
    )


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([[1.0, 0.0]], r"its shape is \(1, 2\); expected a .npy file of 2 rows, the classes, of 2 numbers"),
        ([[1, 0], [0, 1]], "it holds int64"),
        ([[1.0, 0.0], [0.0, 0.0]], "a row is zero or not finite"),
        ([[1.0, 0.0], [math.nan, 1.0]], "a row is zero or not finite"),
        ([["a", "b"], ["c", "d"]], "it holds <U1"),
    ],
)
def test_what_is_no_matrix_of_targets_is_refused_with_a_sentence(tmp_path, rows, sentence):
    with pytest.raises(ValueError, match=sentence):
        read_targets(written(tmp_path / "bad.npy", rows), 2, 2)


def test_other_files_are_refused_with_a_sentence(tmp_path):
    (tmp_path / "text.npy").write_text("not an array")
    np.savez(tmp_path / "many.npz", a=np.eye(2))
    np.save(tmp_path / "objects.npy", np.array([[{}, 1], [2, 3]], dtype=object), allow_pickle=True)
    for name in ("text.npy", "many.npz", "objects.npy"):
        with pytest.raises(ValueError, match=f"{name} cannot be used as targets"):
            read_targets(str(tmp_path / name), 2, 2)
    with pytest.raises(ValueError, match="There is no file of targets"):
        spiral(algorithm={"name": "targets", "targets": str(tmp_path / "none.npy")})


def test_a_run_with_targets_from_a_file_is_known_by_its_content(tmp_path):
    """Other rows are another run; a client that was exported does without the file."""
    file = written(tmp_path / "t.npy", np.random.default_rng(0).normal(size=(6, 2)))
    first = spiral(algorithm={"name": "targets", "targets": file})
    result = run(first, out=tmp_path / "runs")
    assert torch.equal(result.clients[0].state["prototypes"], read_targets(file, 6, 2))
    exported = result.clients[0].save(tmp_path / "one")
    written(tmp_path / "t.npy", np.random.default_rng(1).normal(size=(6, 2)))
    assert spiral(algorithm={"name": "targets", "targets": file}).key != first.key
    with pytest.raises(ValueError, match="not the file of targets that the run began with"):
        read_targets(file, 6, 2, first.algorithm.sha256)
    (tmp_path / "t.npy").unlink()
    assert pn.load_client(exported).predict(np.zeros((2, 2), np.float32)).shape == (2,)


def test_a_file_that_does_not_fit_is_refused_before_anything_begins(tmp_path):
    file = written(tmp_path / "t.npy", np.ones((6, 3)))
    with pytest.raises(ValueError, match=r"its shape is \(6, 3\); expected a .npy file of 6 rows"):
        build(spiral(algorithm={"name": "targets", "targets": file}))


def test_a_file_that_has_changed_since_the_run_began_is_refused(tmp_path):
    file = written(tmp_path / "t.npy", np.eye(6)[:, :2] + 1)
    experiment = spiral(algorithm={"name": "targets", "targets": file})
    task, population = build(experiment)
    client = population.site(0).fresh_client()
    written(tmp_path / "t.npy", np.eye(6)[:, :2] + 2)
    with pytest.raises(ValueError, match="not the file of targets that the run began with"):
        task.algorithm.init_client(client)
    with pytest.raises(ValueError, match="not the file of targets that the run began with"):
        build(experiment)


def test_the_headline_is_a_rule_that_the_loss_trains():
    """Compared over the batch, classes are told apart by the head alone, which may be shared."""
    found = {(loss, head): given(loss=loss, head=head).headline for loss in ("cosine", "squared", "batch") for head in
             ("own", "shared", "probe")}  # fmt: skip
    assert [found["batch", head] for head in ("own", "shared", "probe")] == ["logits", "received", "logits"]
    assert {rule for (loss, _), rule in found.items() if loss != "batch"} == {"nearest-local"}


@pytest.mark.parametrize(("dataset", "gamma"), [("cifar100", 200.0), ("spiral", 10.0), ("elsewhere", 100.0)])
def test_the_squared_error_has_the_gamma_of_the_data_set(dataset, gamma):
    assert FixedTargets(loss="squared").adapted(dataset, []).gamma == gamma
    assert FixedTargets(loss="squared", gamma=3.0).adapted(dataset, []).gamma == 3.0
    assert FixedTargets().adapted(dataset, []).gamma is None


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"gamma": 3.0}, "gamma must be left out with loss=cosine; it is for loss=squared"),
        ({"loss": "squared", "scale": 3.0}, "scale must be left out with loss=squared"),
        ({"loss": "batch", "balanced": True}, "balanced must be left out with loss=batch"),
        ({"targets": "t.npy", "seed": 1}, "seed must be left out, got 1: the targets are given"),
        ({"targets": "blocks", "seed": 1}, "seed must be left out, got 1: the targets are given"),
        ({"targets": "blocks", "sha256": "00"}, "sha256 must be left out"),
        ({"sha256": "00"}, "sha256 must be left out"),
        ({"lam": 0.0, "lam_end": 1.0}, "lam_end must be left out"),
    ],
)
def test_a_setting_that_nothing_uses_is_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        FixedTargets(**settings)


def test_blocks_are_held_by_every_client_and_need_room():
    """Six classes in six dimensions have one coordinate each; in two they have none of their own."""
    _, state, _ = federation(given(targets="blocks"), feature_dim=6).started()
    assert torch.equal(state["prototypes"], torch.eye(6))
    with pytest.raises(ValueError, match="6 classes do not have coordinates of their own: feature_dim is 2"):
        federation(given(targets="blocks"))


def test_nothing_is_said_and_nothing_may_be(tmp_path):
    schema = task_of(FixedTargets()).schema
    schema.check_down({})
    with pytest.raises(ValueError, match="nobody expects"):
        schema.check_up({"prototypes": EYE}, "It")


def test_different_networks_on_pictures(tmp_path):
    settings = {"dataset": pictures([0, 1, 2] * 24, 3), "models": "light", "feature_dim": 4}
    last = run(spiral(algorithm=FixedTargets(), **settings, clients=4, rounds=2), out=tmp_path).history[-1]
    assert last.rules["nearest-local"] is not None
    assert last.bytes.up == last.bytes.down == 0
