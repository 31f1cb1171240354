"""Data for the nodes: an array is found on a node's own disk, or sent there once, in pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protonorm.core.progress import report
from protonorm.engines.processes.handover import mapped_from
from protonorm.engines.ray.node_folder import ArrayFacts, hash_array
from protonorm.errors import Failed

PIECE = 2**26  # bytes that are on their way at once


class Supply:
    """The arrays of a simulation, and what is told of them."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = dict(arrays)
        self.facts = [facts_of(name, array) for name, array in arrays.items()]

    @property
    def nbytes(self) -> int:
        """Count the bytes of all arrays."""
        return sum(facts.nbytes for facts in self.facts)

    def lacking(self, told: Mapping[str, str]) -> list[ArrayFacts]:
        """List the arrays that a node has neither found nor been sent."""
        return [facts for facts in self.facts if not told.get(facts.name)]

    def send(self, ray: Any, actor: Any, node: str, lacking: Sequence[ArrayFacts]) -> None:
        """Send arrays to one actor of a node, for all actors there."""
        what = f"Megabytes of data sent to node {node}"
        whole, done = sum(facts.nbytes for facts in lacking), 0
        for facts in lacking:
            content = np.ascontiguousarray(self._arrays[facts.name]).reshape(-1).view(np.uint8)
            for offset in range(0, facts.nbytes, PIECE):
                report(what, done >> 20, whole >> 20)
                piece = ray.put(content[offset : offset + PIECE].tobytes())
                if said := ray.get(actor.write.remote(facts.sha256, offset, facts.nbytes, piece)):
                    raise Failed(f"Node {node} cannot keep the data: {said}.")
                done += min(PIECE, facts.nbytes - offset)
        report(what, whole >> 20, whole >> 20)


def facts_of(name: str, array: NDArray[Any]) -> ArrayFacts:
    """Say what there is to know of an array, so that it can be found elsewhere."""
    told = (name, array.dtype.str, array.shape, array.nbytes)
    if origin := mapped_from(array):
        file, offset = origin
        found = Path(file).stat()
        digest = _hash_mapped(file, offset, array.nbytes, found.st_mtime_ns, found.st_ino)
        return ArrayFacts(*told, digest, file, offset)
    return ArrayFacts(*told, hash_array(array))


@lru_cache(maxsize=16)
def _hash_mapped(file: str, offset: int, nbytes: int, *_: int) -> str:
    """Condense a part of a file; its time is among the arguments, so that a changed one is condensed anew."""
    return hash_array(np.memmap(file, np.uint8, "r", offset, (nbytes,)))
