"""A device that cannot be used is refused in a few words, whatever torch says of it."""

import pytest
import torch

from protonorm.config.experiment import check_device

DISPATCHER = (
    "Could not run 'aten::empty.memory_format' with arguments from the 'CUDA' backend. This could be because the "
    "operator doesn't exist for this backend. 'aten::empty.memory_format' is only available for these backends: "
    + "[CPU, Meta, QuantizedCPU, BackendSelect, Python, FuncTorchDynamicLayerBackMode]. "
    * 20
)


@pytest.fixture
def gpus(monkeypatch):
    """Pretend that torch was built with CUDA and finds some GPUs."""

    def pretend(count, said=None):
        def empty(*_, **__):
            if said:
                raise RuntimeError(said)

        monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch, "empty", empty)

    return pretend


def test_a_device_that_works_is_taken(gpus):
    check_device("cpu")
    gpus(2)
    check_device("cuda")
    check_device("cuda:1")


@pytest.mark.parametrize("name", ["mps", "meta", "cuda:", "cuda:x", "gpu", "", "cuda:1234", "cpu:0"])
def test_what_is_no_device(name):
    with pytest.raises(ValueError, match="device must be cpu, cuda or cuda:1, got "):
        check_device(name)


def test_a_torch_without_cuda(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    with pytest.raises(ValueError, match="device='cuda' cannot be used here: this torch was built without CUDA; cpu"):
        check_device("cuda")


def test_gpus_that_are_not_there(gpus):
    gpus(0)
    with pytest.raises(ValueError, match="torch finds no GPU"):
        check_device("cuda")
    gpus(2)
    with pytest.raises(ValueError, match="torch finds 2 GPUs, counted from 0"):
        check_device("cuda:2")


def test_what_torch_says_ends_with_its_first_sentence(gpus):
    gpus(1, DISPATCHER)
    with pytest.raises(ValueError, match="cannot be used here: Could not run") as refused:
        check_device("cuda")
    assert len(str(refused.value)) < 200
    assert "backends" not in str(refused.value)
