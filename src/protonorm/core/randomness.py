"""Random streams: every draw comes from a stream (seed, round, node, purpose), and each stream is opened once.

A client's main stream of round 0 initialises its networks, that of a later round trains them; the server's main
streams initialise and aggregate. Every other random operation has its own purpose, and thus its own stream.
"""

import hashlib
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch

SERVER = -1  # node id of the server; client ids start at 0

Purpose = Literal["main", "state", "workspace", "cohort", "evaluate", "template", "system"]


@contextmanager
def seeded(seed: int, round: int, node: int, purpose: Purpose = "main") -> Iterator[None]:
    """Draw all random numbers inside the context from a stream; restore the outer random state afterwards."""
    digest = hashlib.sha256(f"{purpose} {seed} {round} {node}".encode()).digest()
    entropy = [seed, round, node + 1] if purpose == "main" else int.from_bytes(digest[:16], "little")
    words = np.random.SeedSequence(entropy).generate_state(3)
    python, numpy = random.getstate(), np.random.get_state()
    devices, number = range(torch.cuda.device_count()), int(words[0]) << 32 | int(words[1])
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(number)  # torch.manual_seed also spends a millisecond on absent devices
        if devices:
            torch.cuda.manual_seed_all(number)
        random.seed(int(words[2]))
        np.random.seed(words[2])
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use a single torch thread inside the context, because the number of threads changes the rounding of sums."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def cores() -> int:
    """Return the number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
