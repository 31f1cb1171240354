import math

import pytest
import torch

from protonorm.geometry.losses import class_euclidean, divergence, prototype_loss
from tests.geometry.arrangements import drawn, on_sphere

TARGETS = torch.tensor([[1.0, 0.0], [math.nan, math.nan], [0.0, 2.0]])
KNOWN = torch.tensor([True, False, True])


def test_prototype_loss_by_hand():
    """Errors (2, 0) and (1, −2), and a sample of an unknown class: (4 + 5)/(3·2) = 1.5; gradient 2(z − t)/6."""
    z = torch.tensor([[3.0, 0.0], [9.0, 9.0], [1.0, 0.0]], requires_grad=True)
    loss = prototype_loss(z, torch.tensor([0, 1, 2]), TARGETS, KNOWN)
    loss.backward()
    assert loss.item() == pytest.approx(1.5)
    assert torch.allclose(z.grad, torch.tensor([[4.0, 0.0], [0.0, 0.0], [2.0, -4.0]]) / 6)


def test_prototype_loss_is_the_mean_squared_error_with_a_fall_back():
    """The form of the released programs: a class without prototype has the detached feature as its target."""
    z, y, targets = on_sphere(20, 4), torch.arange(20) % 5, drawn(5, 4, seed=2)
    known = torch.tensor([True, True, False, True, False])
    fallen = torch.where(known[y].unsqueeze(1), targets[y], z)
    assert torch.allclose(prototype_loss(z, y, targets, known), torch.nn.functional.mse_loss(z, fallen))


@pytest.mark.parametrize("loss", [prototype_loss, class_euclidean])
def test_a_batch_without_known_classes_adds_nothing(loss):
    z = torch.ones(4, 2, requires_grad=True)
    value = loss(z, torch.ones(4, dtype=torch.int64), TARGETS, KNOWN)
    value.backward()
    assert value.item() == 0
    assert z.grad.abs().max() == 0


def test_class_euclidean_by_hand():
    """Class 0 has mean (4, 4), 5 from (1, 0); class 2 has mean (0, 2), its target: 5 in all.

    The gradient of ‖mean − t‖ is the unit vector (3, 4)/5 over two samples, and zero at the target.
    """
    z = torch.tensor([[3.0, 4.0], [5.0, 4.0], [9.0, 9.0], [0.0, 2.0]], requires_grad=True)
    loss = class_euclidean(z, torch.tensor([0, 0, 1, 2]), TARGETS, KNOWN)
    loss.backward()
    assert loss.item() == pytest.approx(5.0)
    assert torch.allclose(z.grad, torch.tensor([[0.3, 0.4], [0.3, 0.4], [0.0, 0.0], [0.0, 0.0]]))


def logits(*rows):
    return torch.tensor(rows, dtype=torch.float64).log()


@pytest.mark.parametrize(("reduction", "parts"), [("mean", 2 * 2), ("batchmean", 2)])
def test_the_divergence_of_two_rows_by_hand(reduction, parts):
    """Row 1: ½ ln(½/¼) + ½ ln(½/¾) = ½ ln 4/3. Row 2: equal answers, 0. Divided by B·K = 4, or by B = 2."""
    value = divergence(logits([1, 1], [1, 4]), logits([1, 3], [2, 8]), reduction)
    assert float(value) == pytest.approx(0.5 * math.log(4 / 3) / parts)


def test_the_divergence_is_that_of_the_teacher_from_the_pupil():
    """¼ ln(¼/½) + ¾ ln(¾/½) = ¾ ln 3 − ln 2, not ½ ln 4/3."""
    value = divergence(logits([1, 3]), logits([1, 1]), "batchmean")
    assert float(value) == pytest.approx(0.75 * math.log(3) - math.log(2))


def test_answers_of_probability_zero_give_numbers():
    """q = (1, 0) and log p = (−200, 0): KL = 200. The other way round q = (0, 1): KL = 200 again."""
    sure, opposite = torch.tensor([[100.0, -100.0]]), torch.tensor([[-100.0, 100.0]])
    assert float(divergence(sure, opposite, "batchmean")) == 200
    assert float(divergence(opposite, sure, "batchmean")) == 200
    assert float(divergence(sure, sure, "batchmean")) == 0


def test_the_gradient_of_the_divergence_is_the_difference_of_the_answers():
    """∂KL(q‖p)/∂o = (p − q)/B: with p = (¼, ¾) and q = (½, ½), (−¼, ¼)."""
    pupil = logits([1, 3]).requires_grad_()
    divergence(logits([1, 1]), pupil, "batchmean").backward()
    assert pupil.grad.tolist() == [pytest.approx([-0.25, 0.25])]
