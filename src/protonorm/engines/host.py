"""Some clients in one process, and what each remembers."""

from __future__ import annotations

from protonorm.core import Reply
from protonorm.federation import client_step, first_state
from protonorm.record import States
from protonorm.setup import Setup
from protonorm.tensors import Tensors


class Host:
    """Keep clients' states between rounds, in memory and on the disk."""

    def __init__(self, setup: Setup, states: States) -> None:
        self._setup = setup
        self._states = states
        self._memory: dict[int, tuple[int, Tensors]] = {}  # client: (round it last trained in, state)

    def step(self, id: int, round: int, message: Tensors, *, train: bool, trained: int) -> Reply:
        """Let a client act in a round, given the last round it trained in, and keep what it remembers then."""
        state, reply = client_step(self._setup, id, round, self._recall(id, trained), message, train)
        if train:
            self._states.save(id, round, state)
            self._memory[id] = round, state
        return reply

    def _recall(self, id: int, trained: int) -> Tensors:
        held = self._memory.get(id)
        if held is None or held[0] != trained:  # new here, or it has trained elsewhere meanwhile
            state = self._states.load(id, trained) if trained else first_state(self._setup, id)
            held = self._memory[id] = trained, state
        return held[1]
