import pytest
import torch
from torch import nn

from protonorm.averaging import average_by_examples, fitting, shared


def reply(value, examples):
    return {"model.w": torch.tensor(value), "num_examples": torch.tensor(examples)}


def test_the_average_is_weighted_by_numbers_of_samples():
    """(1·2 + 4·7)/5 = 6."""
    assert average_by_examples({"model.w": torch.zeros(1)}, [reply([2.0], 1), reply([7.0], 4)])["model.w"] == 6.0


def test_a_model_of_another_shape_is_refused_even_if_it_could_be_broadcast():
    with pytest.raises(ValueError, match=r"the shape of model.w is \(1,\), expected \(2,\)"):
        average_by_examples({"model.w": torch.zeros(2)}, [reply([2.0], 1)])


def test_a_model_with_another_name_is_refused():
    with pytest.raises(ValueError, match=r"the shape of model.v is None, expected \(1,\)"):
        fitting({"model.w": torch.zeros(1)}, {"model.v": torch.zeros(1)})


@pytest.mark.parametrize("examples", [0, -3, 1.5, [1, 2]])
def test_numbers_of_samples_that_are_none_are_refused(examples):
    with pytest.raises(ValueError, match="does not fit|num_examples must be one whole number"):
        average_by_examples({"model.w": torch.zeros(1)}, [reply([2.0], examples)])


def test_buffers_are_shared_or_stay():
    """Batch norm on 3 channels: weight, bias, running mean and variance float; the batch counter is an integer."""
    assert shared("a", nn.BatchNorm1d(3), "averaged").keys() == {
        "a.weight",
        "a.bias",
        "a.running_mean",
        "a.running_var",
    }
    assert shared("a", nn.BatchNorm1d(3), "local").keys() == {"a.weight", "a.bias"}
