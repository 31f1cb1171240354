"""The device that an experiment computes on: refused in few words where it cannot be used."""

from __future__ import annotations

import re

import torch

from protonorm.core.types import shortened, shown

SAID = 120  # characters of what torch says


def check_device(name: str) -> None:
    """Refuse a device that is no device, or that this machine does not have."""
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", name):
        raise ValueError(f"device={shown(name)} is refused: expected cpu, cuda or cuda:1.")
    if name != "cpu" and (lacking := _lacking(name)):
        raise ValueError(f"device={name!r} cannot be used here: {lacking}; cpu always can.")


def _lacking(name: str) -> str:
    """Say what a device lacks; nothing if it can be used."""
    if not torch.backends.cuda.is_built():
        return "this torch was built without CUDA"
    count = torch.cuda.device_count()
    if not count:
        return "torch finds no GPU"
    if int(name.partition(":")[2] or 0) >= count:
        return f"torch finds {count} GPU{'s' if count > 1 else ''}, counted from 0"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        first = re.split(r"[\n.;:]\s", str(error), maxsplit=1)[0]  # what follows speaks of torch's inside
        return shortened(first, SAID) or "torch does not say why"
    return ""
