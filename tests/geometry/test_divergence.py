import math

import pytest
import torch

from protonorm.geometry.divergence import divergence


def logits(*rows):
    return torch.tensor(rows, dtype=torch.float64).log()


@pytest.mark.parametrize(("reduction", "parts"), [("mean", 2 * 2), ("batchmean", 2)])
def test_two_rows_by_hand(reduction, parts):
    """Row 1: ½ ln(½/¼) + ½ ln(½/¾) = ½ ln 4/3. Row 2: equal answers, 0. Divided by B·K = 4, or by B = 2."""
    value = divergence(logits([1, 1], [1, 4]), logits([1, 3], [2, 8]), reduction)
    assert float(value) == pytest.approx(0.5 * math.log(4 / 3) / parts)


def test_it_is_that_of_the_teacher_from_the_pupil():
    """¼ ln(¼/½) + ¾ ln(¾/½) = ¾ ln 3 − ln 2, not ½ ln 4/3."""
    value = divergence(logits([1, 3]), logits([1, 1]), "batchmean")
    assert float(value) == pytest.approx(0.75 * math.log(3) - math.log(2))


def test_answers_of_probability_zero_give_numbers():
    """q = (1, 0) and log p = (−200, 0): KL = 200. The other way round q = (0, 1): KL = 200 again."""
    sure, opposite = torch.tensor([[100.0, -100.0]]), torch.tensor([[-100.0, 100.0]])
    assert float(divergence(sure, opposite, "batchmean")) == 200
    assert float(divergence(opposite, sure, "batchmean")) == 200
    assert float(divergence(sure, sure, "batchmean")) == 0


def test_the_gradient_is_the_difference_of_the_answers():
    """∂KL(q‖p)/∂o = (p − q)/B: with p = (¼, ¾) and q = (½, ½), (−¼, ¼)."""
    pupil = logits([1, 3]).requires_grad_()
    divergence(logits([1, 1]), pupil, "batchmean").backward()
    assert pupil.grad.tolist() == [pytest.approx([-0.25, 0.25])]
