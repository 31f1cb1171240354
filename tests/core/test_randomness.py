"""Random streams: what is drawn inside, and that nobody outside notices."""

import random

import numpy as np
import torch

from protonorm.core.randomness import seeded


def draws():
    return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()


def test_the_numbers_of_a_stream_are_those_of_its_seed_sequence():
    """As torch, numpy and Python draw them after the usual ways to seed: runs of before must give the same bits."""
    words = np.random.SeedSequence([7, 3, 5]).generate_state(3)
    with seeded(7, 3, 4):
        found = draws()
    state = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        torch.manual_seed(int(words[0]) << 32 | int(words[1]))
        np.random.seed(words[2])
        random.seed(int(words[2]))
        assert draws() == found
    finally:
        torch.set_rng_state(state[0])
        np.random.set_state(state[1])
        random.setstate(state[2])


def test_streams_differ_and_leave_the_outer_numbers_alone():
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    expected = draws()
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    found = []
    for place in ((0, 1, 2), (1, 1, 2), (0, 2, 2), (0, 1, 3), (0, 1, 2, "evaluate"), (0, 1, 2, "state")):
        with seeded(*place):
            found.append(draws())
    assert len(set(map(str, found))) == len(found)
    assert draws() == expected
