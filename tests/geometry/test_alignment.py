import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protonorm.geometry.alignment import METHODS, NUDGE, Schedule, align, separate
from protonorm.geometry.prototypes import distances
from tests.geometry.arrangements import drawn, on_sphere, rotation

SOME = drawn(3, 2)
PAGE = Path(__file__).parents[2] / "docs" / "alignment.md"


def test_auto_takes_the_closed_form_where_there_is_one():
    sizes = [(1, 1), (2, 1), (4, 3), (9, 2), (5, 3), (7, 5)]
    assert [align(drawn(*size)).method for size in sizes] == ["exact"] * 4 + ["descent"] * 2


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_tensors_come_back_as_they_came(method, dtype):
    vectors = drawn(4, 3).to(dtype).requires_grad_()
    before = vectors.detach().clone()
    aligned = align(vectors, method, trace=True)
    assert torch.equal(vectors, before)
    for result in (aligned.prototypes, aligned.distances):
        assert result.dtype == dtype
        assert not result.requires_grad
    assert isinstance(aligned.energy, float)
    assert isinstance(aligned.min_distance, float)
    assert isinstance(aligned.steps, int)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_arrays_come_back_as_they_came(method, dtype):
    vectors = drawn(4, 3).numpy().astype(dtype)
    before = vectors.copy()
    aligned = align(vectors, method)
    assert isinstance(aligned.prototypes, np.ndarray)
    assert aligned.prototypes.dtype == dtype
    assert np.array_equal(vectors, before)
    assert aligned.distances is None


@pytest.mark.parametrize("method", METHODS)
def test_views_and_read_only_arrays_are_welcome(method):
    wide = drawn(6, 10)
    expected = align(wide[::2, 1:4].contiguous(), method).prototypes
    assert torch.equal(align(wide[::2, 1:4], method).prototypes, expected)
    fixed = wide[::2, 1:4].numpy()
    fixed.flags.writeable = False
    assert np.array_equal(align(fixed, method).prototypes, expected.numpy())


@pytest.mark.parametrize("method", METHODS)
def test_the_same_again_and_no_touch_of_the_random_state(method):
    vectors = torch.cat((drawn(4, 3), torch.zeros(2, 3, dtype=torch.float64)))
    torch.manual_seed(3)
    np.random.seed(3)
    expected = torch.rand(1).item(), np.random.rand()
    torch.manual_seed(3)
    np.random.seed(3)
    if method == "exact":
        vectors = vectors[2:]
    first, second = align(vectors, method), align(vectors, method)
    assert torch.equal(first.prototypes, second.prototypes)
    assert (torch.rand(1).item(), np.random.rand()) == expected


@pytest.mark.parametrize("method", METHODS)
def test_a_single_prototype_is_normalised(method):
    aligned = align(torch.tensor([[3.0, 4.0]]), method, trace=True)
    assert aligned.prototypes.tolist() == [[pytest.approx(0.6), pytest.approx(0.8)]]
    assert (aligned.steps, aligned.energy, aligned.min_distance, aligned.residual) == (0, 0.0, 2.0, 0.0)
    assert aligned.distances.shape == (1, 3)
    zero = align(torch.zeros(1, 4), method).prototypes
    assert zero.norm().item() == pytest.approx(1.0)
    assert torch.equal(zero, align(torch.zeros(1, 4), method).prototypes)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [(6, 6), (6, 2)])
def test_every_method_separates_equal_and_zero_prototypes(method, size):
    vectors = drawn(*size)
    vectors[1] = 7 * vectors[0]
    vectors[4] = vectors[0]
    vectors[3] = vectors[5] = 0
    assert align(vectors, method).min_distance > 0.5
    assert align(torch.ones(size), method).min_distance > 0.5
    assert align(torch.zeros(size), method).min_distance > 0.5


def test_only_what_coincides_is_moved():
    points = on_sphere(6, 4)
    assert torch.equal(separate(points), points)
    near = points.clone()
    near[3] = near[2] + 1e-9 * drawn(1, 4)
    assert torch.equal(separate(near), near)
    equal = points.clone()
    equal[3], equal[5] = equal[2], 0.0
    apart = separate(equal)
    assert torch.equal(apart[[0, 1, 2, 4]], equal[[0, 1, 2, 4]])
    assert 0 < (apart[3] - apart[2]).norm() < 5 * NUDGE
    assert apart[5].norm().item() == pytest.approx(1.0)


@pytest.mark.parametrize("factor", [1e-200, 1e200])
@pytest.mark.parametrize("method", METHODS)
def test_lengths_do_not_matter(method, factor):
    vectors = drawn(4, 3)
    expected = align(vectors, method).prototypes
    assert torch.allclose(align(vectors * factor, method).prototypes, expected, atol=1e-9)


@pytest.mark.parametrize(
    ("size", "method"),
    [
        ((5, 4), "exact"),
        ((7, 2), "exact"),
        ((5, 4), "paper"),
        ((9, 3), "paper"),
        ((9, 3), "descent"),
        ((20, 4), "auto"),
    ],
)
def test_traces_begin_at_the_start_and_end_at_the_end(size, method):
    vectors = drawn(*size)
    aligned = align(vectors, method, trace=True)
    assert aligned.distances.shape == (aligned.steps + 1, 3)
    for row, points in ((0, vectors / vectors.norm(dim=1, keepdim=True)), (-1, aligned.prototypes)):
        apart = distances(points)
        expected = torch.stack([apart.min(), apart.mean(), apart.max()])
        assert torch.allclose(aligned.distances[row], expected, atol=1e-12)
    assert aligned.distances[-1].min().item() == pytest.approx(aligned.min_distance, abs=1e-12)
    assert torch.equal(align(vectors, method).prototypes, aligned.prototypes)


# Not (7, 3): its minimum is flat to the fourth order, so that rounding moves the points by more than 1e-6.
SIZES = st.sampled_from([(2, 2), (3, 5), (5, 4), (6, 2), (6, 3), (8, 3)])


@pytest.mark.parametrize("method", ["exact", "paper", "descent"])
@settings(deadline=None, derandomize=True, max_examples=12)
@given(size=SIZES, seed=st.integers(0, 10_000))
def test_rotated_prototypes_give_the_rotated_answer(method, size, seed):
    count, dimension = size
    if method == "exact" and count > dimension + 1 and dimension > 2:
        return
    vectors, turn = drawn(count, dimension, seed), rotation(dimension, seed + 1)
    plain, turned = align(vectors, method), align(vectors @ turn, method)
    assert turned.energy == pytest.approx(plain.energy, abs=1e-9)
    assert torch.allclose(turned.prototypes, plain.prototypes @ turn, atol=1e-6)


@pytest.mark.parametrize("method", ["exact", "paper", "descent"])
@settings(deadline=None, derandomize=True, max_examples=12)
@given(size=SIZES, seed=st.integers(0, 10_000), randomness=st.randoms(use_true_random=False))
def test_classes_in_another_order_give_the_answer_in_that_order(method, size, seed, randomness):
    count, dimension = size
    if method == "exact" and count > dimension + 1 and dimension > 2:
        return
    vectors, order = drawn(count, dimension, seed), list(range(count))
    randomness.shuffle(order)
    plain, mixed = align(vectors, method), align(vectors[order], method)
    assert mixed.energy == pytest.approx(plain.energy, abs=1e-9)
    assert torch.allclose(mixed.prototypes, plain.prototypes[order], atol=1e-6)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0, 2.0]], "torch tensor or a NumPy array, not list"),
        (torch.ones(3), r"two axes, \(K, d\), but their shape is \(3,\)"),
        (torch.ones(2, 3, 4), "two axes"),
        (torch.ones(2, 3, dtype=torch.int64), "floating type, not torch.int64"),
        (np.ones((2, 3), dtype=np.int32), "floating type, not int32"),
        (torch.ones(2, 3, dtype=torch.complex64), "floating type"),
        (torch.empty(0, 3), "at least one vector"),
        (np.empty((3, 0)), "at least one vector"),
        (torch.tensor([[1.0, math.nan]]), "finite"),
        (np.array([[1.0, math.inf], [0.0, 1.0]]), "finite"),
        (torch.ones(3, 1), "one dimension, not 3"),
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_what_are_no_prototypes_is_refused(vectors, message, method):
    with pytest.raises(ValueError, match=message):
        align(vectors, method)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "exat"}, "Unknown method 'exat'; known: auto, exact, paper, descent"),
        ({"s": -0.5}, "s must be"),
        ({"s": math.nan}, "s must be"),
        ({"schedule": {"steps": 3}}, "schedule must be a Schedule, not dict"),
        ({"tolerance": 0.0}, "tolerance must be"),
        ({"limit": 0}, "limit must be"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        align(SOME, **arguments)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"stop": "never"}, "'change', 'rounding' or 'tangential'"),
        ({"eta": 0.0}, "greater than 0"),
        ({"eta": math.inf}, "finite number"),
        ({"mu": 1.0}, "less than 1"),
        ({"mu": -0.1}, "greater than or equal to 0"),
        ({"mu": math.nan}, "(greater than or equal to|less than)"),
        ({"decay": 1.5}, "less than or equal to 1"),
        ({"decay": 0.0}, "greater than 0"),
        ({"decay_every": 0}, "greater than or equal to 1"),
        ({"first_decay": 2.5}, "valid integer"),
        ({"steps": 0}, "greater than or equal to 1"),
        ({"steps": True}, "a number"),
        ({"patience": -1}, "greater than or equal to 1"),
        ({"epsilon": -1e-4}, "greater than 0"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(settings, complaint):
    ((name, value),) = settings.items()
    said = rf"^{name} must be .*{complaint}.*, got {re.escape(repr(value))}"
    with pytest.raises(ValueError, match=said):
        Schedule(**settings)


def test_a_schedule_has_no_other_settings():
    with pytest.raises(ValueError, match="Schedule has no setting 'epsilom'; did you mean 'epsilon'"):
        Schedule(epsilom=1e-4)


def test_the_example_of_the_manual_runs(capsys):
    """Its printed energies and nearest distances are those on the page; the steps of a descent depend on rounding."""
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(example, {})
    printed = [line.split()[3:] for line in capsys.readouterr().out.splitlines()]
    promised = [line.split()[4:] for line in example.splitlines() if line.startswith("# ")]
    assert printed == promised
    assert len(printed) == 2
