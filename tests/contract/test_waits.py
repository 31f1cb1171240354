"""On a GPU a program that reads a value waits for the device; nobody waits inside the training loop."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from protonorm.algorithms import ALGORITHMS
from protonorm.core import Order, seeded
from protonorm.federation.client import first_state, train_step
from protonorm.federation.policy import Policy
from protonorm.federation.rounds import begin
from protonorm.session.build import build
from tests.support import spiral

# Operations whose result's shape or Python value depends on the numbers in a tensor.
WAITING = {"_local_scalar_dense", "nonzero", "bincount", "masked_select", "_unique2", "equal"}


class Waits(TorchDispatchMode):
    """Count the operations that a GPU would have to be waited for."""

    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        masked = name == "index" and any(part is not None and part.dtype == torch.bool for part in args[1])
        if masked or name in WAITING:
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


def waits(algorithm, epochs):
    """Count them in a client's second round."""
    task, population = build(spiral(algorithm=algorithm, epochs=epochs))
    point, site = begin(task, Policy(6, 6)), population.site(0)
    state, reply = train_step(task, site, Order(0, 1, 0), first_state(task, site), point.message)
    said = task.algorithm.aggregate(task.server(1), point.state, iter([reply.message])).message
    with seeded(0, 2, 0), Waits() as counted:
        task.algorithm.local_update(site.client(2), state, said)
    return counted.found


# FedGen draws labels from counts that rest on the CPU: it reads values there, and waits for nobody.
@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - {"fedgen"}))
def test_more_batches_wait_no_more_often(algorithm):
    few, many = waits(algorithm, 1), waits(algorithm, 5)
    assert few
    assert few == many
