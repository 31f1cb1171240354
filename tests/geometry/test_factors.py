import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protonorm.geometry.factors import Factors, compress, decompress, factorise, largest_rank, rank, singular
from tests.geometry.arrangements import drawn


def numbers(tensors):
    return sum(value.numel() for value in tensors.values())


def diagonal(*values, columns=10):
    matrix = torch.zeros(len(values), columns)
    matrix.diagonal().copy_(torch.tensor(values))
    return matrix


@pytest.mark.parametrize(
    ("energy", "kept"), [(0.3, 1), (0.64, 1), (0.65, 2), (0.9, 2), (0.96, 2), (0.97, 3), (0.99, 3), (1.0, 4)]
)
def test_the_rank_is_the_smallest_that_keeps_the_energy(energy, kept):
    """Squares 64, 32, 3, 1 of 100 in all: 0.64, 0.96, 0.99 and 1 of them with one, two, three and four values."""
    assert rank(torch.tensor([64.0, 32.0, 3.0, 1.0], dtype=torch.float64).sqrt(), energy) == kept


def test_factors_by_hand():
    """diag(8, 6, 1) in (6, 10), squares 64 + 36 + 1 = 101: 100/101 > 0.99 with two values, and the 1 is lost."""
    matrix = diagonal(8.0, 6.0, 1.0, 0.0, 0.0, 0.0)
    factors = factorise(matrix, 0.99)
    assert factors.s.tolist() == pytest.approx([8.0, 6.0])
    assert (factors.u.shape, factors.v.shape) == ((6, 2), (2, 10))
    rebuilt = decompress(compress({"w": matrix}, 0.99), ["w"])["w"]
    torch.testing.assert_close(rebuilt, diagonal(8.0, 6.0, 0.0, 0.0, 0.0, 0.0))


def test_a_matrix_of_rank_one_keeps_rank_one():
    """(1 … 8)ᵀ(1 … 6) has one singular value, √204 · √91, and needs 8 + 1 + 6 numbers for 48."""
    matrix = torch.arange(1.0, 9).outer(torch.arange(1.0, 7))
    for energy in (0.01, 0.95, 0.999):
        said = compress({"w": matrix}, energy)
        assert said["w.s"].tolist() == pytest.approx([(204 * 91) ** 0.5])
        assert numbers(said) == 15
        torch.testing.assert_close(decompress(said, ["w"])["w"], matrix)


def test_zeros_have_rank_one():
    said = compress({"w": torch.zeros(4, 5)}, 0.95)
    assert said["w.s"].tolist() == [0.0]
    assert torch.equal(decompress(said, ["w"])["w"], torch.zeros(4, 5))


def test_factors_are_sent_only_if_they_are_smaller():
    """Rank 2 of (4, 10) costs 2·15 = 30 < 40 numbers; of (4, 5) 2·10 = 20, which is not less than 20."""
    assert compress({"w": diagonal(1.0, 1.0, 0.0, 0.0, columns=10)}, 1.0).keys() == {"w.u", "w.s", "w.v"}
    assert compress({"w": diagonal(1.0, 1.0, 0.0, 0.0, columns=5)}, 1.0).keys() == {"w"}


def test_full_rank_is_sent_as_it_is():
    """A head (10, 512) of equal singular values needs 10 of 10 at 0.95: 10·523 numbers are more than 5120."""
    matrix = torch.eye(10, 512)
    said = compress({"w": matrix}, 0.95)
    assert torch.equal(said["w"], matrix)


def test_vectors_scalars_and_integers_are_sent_as_they_are():
    state = {"bias": torch.ones(50), "scale": torch.tensor(2.0), "table": torch.ones(9, 9).long()}
    said = compress(state, 0.5)
    assert all(said[name] is value for name, value in state.items())


def test_one_by_one_convolutions_survive():
    """(64, 32, 1, 1) is a matrix (64, 32), not 2048 matrices (1, 1)."""
    kernel = drawn(64, 32).float().reshape(64, 32, 1, 1)
    rebuilt = decompress(compress({"w": kernel}, 0.6), ["w"])["w"]
    assert rebuilt.shape == kernel.shape
    assert float((rebuilt - kernel).square().sum()) <= 0.4 * float(kernel.square().sum())
    assert float(rebuilt.square().sum()) >= 0.6 * float(kernel.square().sum()) * (1 - 1e-6)


def test_a_convolution_is_one_matrix_of_its_output_channels():
    """Eight equal filters are a matrix (8, 27) of rank 1: 8 + 1 + 27 numbers; v keeps the filters' shape."""
    kernel = drawn(1, 27).float().reshape(1, 3, 3, 3).repeat(8, 1, 1, 1)
    said = compress({"w": kernel}, 0.95)
    assert {name: tuple(value.shape) for name, value in said.items()} == {
        "w.u": (8, 1),
        "w.s": (1,),
        "w.v": (1, 3, 3, 3),
    }
    torch.testing.assert_close(decompress(said, ["w"])["w"], kernel)


def test_memory_layout_does_not_matter():
    kernel = drawn(16, 36).float().reshape(16, 4, 3, 3)
    one, two = (compress({"w": each}, 0.5) for each in (kernel, kernel.to(memory_format=torch.channels_last)))
    assert all(torch.equal(one[name], two[name]) and two[name].is_contiguous() for name in one)


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (7, 7), (1, 4), (30, 2)])
def test_the_decomposition_is_the_known_one(shape):
    matrix = drawn(*shape)
    u, s, v = singular(matrix)
    torch.testing.assert_close(s, torch.linalg.svdvals(matrix))
    torch.testing.assert_close(u * s @ v, matrix)
    identity = torch.eye(min(shape), dtype=torch.float64)
    torch.testing.assert_close(u.T @ u, identity)
    torch.testing.assert_close(v @ v.T, identity)


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e30, 1e200])
def test_size_does_not_matter(scale):
    matrix = drawn(6, 20)
    assert torch.allclose(singular(scale * matrix).s / scale, singular(matrix).s)
    assert rank(scale * singular(matrix).s, 0.8) == rank(singular(matrix).s, 0.8)


shapes = st.one_of(
    st.tuples(st.integers(1, 24), st.integers(1, 24)),
    st.tuples(st.integers(1, 16), st.integers(1, 8), st.sampled_from([1, 3]), st.sampled_from([1, 3])),
)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(shapes, st.floats(0.01, 1.0), st.integers(0, 2**31), st.floats(0.0, 3.0))
def test_the_squared_error_is_at_most_the_energy_left_out(shape, energy, seed, slope):
    """‖w − ŵ‖² ≤ (1 − E)·‖w‖², up to float32, and never more numbers than before; `slope` makes spectra steep."""
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    weight *= torch.arange(1.0, len(weight) + 1).pow(-slope).reshape(-1, *[1] * (weight.ndim - 1))
    said = compress({"w": weight}, energy)
    rebuilt = decompress(said, ["w"])["w"]
    whole = float(weight.double().square().sum())
    error = float((weight.double() - rebuilt.double()).square().sum())
    assert error <= (1 - energy) * whole + 1e-6 * whole
    assert numbers(said) <= weight.numel()
    assert len(said.get("w.s", [1])) >= 1
    assert (rebuilt.shape, rebuilt.dtype) == (weight.shape, weight.dtype)


def test_names_that_look_like_tags_are_told_apart():
    """A layer with parameters u, s and v of its own is not taken for the factors of something."""
    state = {"low.u": torch.ones(2, 2), "low.s": torch.ones(2), "low.v": torch.ones(2, 2)}
    rebuilt = decompress(compress(state, 0.9), state)
    assert all(torch.equal(rebuilt[name], state[name]) for name in state)


@pytest.mark.parametrize(
    ("shape", "rank"),
    [
        *[((8, 8), 3), ((4, 10), 2), ((4, 5), 1), ((3, 3), 1), ((2, 2), 0), ((1, 100), 0)],
        *[((64, 32, 1, 1), 21), ((8, 3, 3, 3), 5), ((50,), 0), ((), 0), ((0, 7), 0)],
    ],
)
def test_the_largest_rank_that_saves_numbers(shape, rank):
    """q(m + n + 1) < mn: (8, 8) 3·17 = 51 < 64 ≤ 68; (4, 5) 10 < 20 ≤ 20; (64, 32) 21·97 = 2037 < 2048 ≤ 2134."""
    assert largest_rank(shape) == rank


def test_impossible_energies_and_numbers_are_refused():
    for energy in (0.0, -1.0, 1.01, float("nan")):
        with pytest.raises(ValueError, match="above 0 and be at most 1"):
            compress({"w": torch.ones(9, 9)}, energy)
    with pytest.raises(ValueError, match="not finite"):
        compress({"w": torch.full((9, 9), torch.inf)}, 0.9)


def test_factors_have_the_type_of_what_they_replace():
    for dtype in (torch.float16, torch.float32, torch.float64):
        factors = factorise(torch.ones(9, 9, dtype=dtype), 0.9)
        assert isinstance(factors, Factors)
        assert all(part.dtype == dtype for part in factors)
