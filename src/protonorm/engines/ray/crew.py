"""Actors of a run on the cluster: start, transfer of missing data, set-up and shutdown.

An actor stays on the node that Ray selected. An array is read from the node's own disk, or sent to the node once, in
pieces.
"""

import json
import re
import secrets
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protonorm.core.frames import pack, unpack
from protonorm.core.progress import report
from protonorm.engines.choice import ActorSettings
from protonorm.engines.handover import mapped_from, raise_error
from protonorm.engines.ray.actor import Actor, ArrayFacts, hash_array, hash_part, sweep, versions_here
from protonorm.engines.ray.cluster import node_name, nodes, on_node, reason, spare_actors
from protonorm.errors import Failed

START = 600.0  # seconds for the first actor to start
PATIENCE = 120.0  # seconds for the other actors after the first; the cluster may be busy
LOSSES = 4  # consecutive actors that may be lost without any answer
GRACE = 5.0  # seconds for an actor to clean up
SWEEP = 30.0  # seconds for nodes to remove the files of killed actors
PIECE = 2**26  # bytes per piece of data in transit


@dataclass(eq=False)
class Member:
    """Driver-side state of an actor."""

    number: int
    handle: Any
    again: bool = False  # whether it is reused from an earlier run of this process
    stage: str = "look"  # while it starts: look or open
    node: str = ""  # id of its node
    facts: dict[str, Any] = field(default_factory=dict)  # facts that it reported on its node
    message: int = 0  # number of the last message sent to it
    holds: dict[int, set[int]] = field(default_factory=dict)  # by client: rounds whose states it has

    def __str__(self) -> str:
        return node_name(self.facts.get("host", ""), self.node)


class Killed(Failed):
    """End of an actor's process while it starts, as for lack of memory; another actor may start."""


def other_versions(actual: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    """Return how versions differ, those of the package's source files as one of the package."""
    pairs = {name: (actual.get(name, "unknown"), wanted) for name, wanted in expected.items()}
    different = {name: f"{found} instead of {wanted}" for name, (found, wanted) in pairs.items() if found != wanted}
    if source := different.pop("source", ""):
        different.setdefault("protonorm", f"{expected['protonorm']}, but with other source files ({source})")
    return [f"{name} {text}" for name, text in different.items()]


class Crew:
    """Actors of one run."""

    def __init__(self, ray: Any, settings: ActorSettings, supply: "Supply", setup: dict[str, Any]) -> None:
        self.ray, self._settings, self._supply = ray, settings, supply
        self.members: dict[int, Member] = {}  # ready actors by number
        self.coming: dict[Any, Member] = {}  # starting actors by the Ray reference of their pending answer
        self.losses = 0  # actors lost since the last answer
        self._count = 0  # target number of actors
        self._token, self._hired = secrets.token_hex(4), 0
        self._setup = pack(setup | {"arrays": supply.facts})
        self._versions = versions_here()
        self._warned: set[str] = set()  # failures already reported
        self._folders: dict[str, set[str]] = {}  # by node: folders that its actors created
        self._supplied: set[str] = set()  # nodes that were sent their missing arrays, while an actor is on them

    def start(self, count: int) -> None:
        """Start `count` actors and wait until they are ready; continue with fewer if the cluster lacks resources."""
        self._count = count
        for _ in range(count):
            self.hire()
        end = time.monotonic() + START
        while self.coming:
            report("Starting actors", len(self.members), count)
            left = end - time.monotonic()
            ready, _ = self.ray.wait(list(self.coming), timeout=max(0.0, min(left, 1.0)))
            if ready:
                try:
                    self.advance(ready[0])
                except Killed:
                    if self.losses == LOSSES:
                        raise
                    self.losses += 1
                    self.hire()
                if len(self.members) == 1:
                    end = min(end, time.monotonic() + PATIENCE)
            elif left <= 0:
                break
        report("Starting actors", count, count)
        if not self.members:
            free = self.ray.available_resources()
            raise Failed(
                f"No actor has begun after {START:g} seconds; the cluster has {free.get('CPU', 0):g} free cores and "
                f"{free.get('GPU', 0):g} free GPUs."
            )
        if self.coming:
            share = f"{len(self.members)} of {count} actors have begun after {PATIENCE:g} seconds"
            warnings.warn(f"Only {share}; the run goes on with these.", stacklevel=5)
        for member in list(self.coming.values()):
            self.dismiss(member)

    def hire(self, node: str | None = None) -> Member:
        """Request another actor from Ray, on any node or on a given one; `advance` processes its answers."""
        idle = spare_actors(None if node else self._settings)
        self._hired += 1
        member = Member(self._hired, idle.pop(), again=True) if idle else Member(self._hired, self._new(node))
        self.coming[member.handle.look.remote(self._token, json.dumps(self._supply.facts).encode())] = member
        return member

    def advance(self, ref: Any) -> Member | None:
        """Process the answer of a starting actor; return the actor once it is ready, raise Failed if it failed."""
        member = self.coming.pop(ref)
        try:
            content = self.ray.get(ref)
            if member.stage == "look":
                self._check_versions(member, json.loads(content))
                missing = self._supply.missing(member.facts["arrays"])
                if missing and member.node not in self._supplied:  # else another actor of the node received them
                    self._supplied.add(member.node)
                    self._supply.send(self.ray, member.handle, str(member), missing)
                self.coming[member.handle.open.remote(self._setup)], member.stage = member, "open"
                return None
            header, _, _ = unpack(content)
        except self.ray.exceptions.RayError as error:
            if not member.again or member.stage != "look":
                raise self._start_failure(member, error) from error
            self.hire()  # the actor ended while idle
            return None
        except Failed:
            self.dismiss(member)
            raise
        if "error" in header:
            self.dismiss(member)
            raise_error(header | {"text": f"{header.get('text')} (This was on node {member}.)"})
        self.members[member.number] = member
        return member

    def try_advance(self, ref: Any) -> Member | None:
        """Process the answer of an actor started during a run; warn about and replace a failed actor."""
        try:
            return self.advance(ref)
        except (Failed, ValueError, OSError, RuntimeError) as error:
            if str(error) not in self._warned:  # the same node may fail repeatedly
                self._warned.add(str(error))
                warnings.warn(f"{error} This actor is given up; the run goes on.", stacklevel=2)
            self.lose()
            return None

    def lose(self, member: Member | None = None) -> None:
        """Replace a lost actor; None if it is dismissed already."""
        if member:
            self.dismiss(member)
        self.losses += 1
        self.refill()

    def refill(self) -> None:
        """Restore the initial number of actors, as far as resources allow and unless actors keep failing."""
        present = len(self.members) + len(self.coming)
        if self.losses > LOSSES or present >= self._count:
            return
        room = sum(self._settings.fit(node.cpus, node.gpus) for node in nodes(self.ray))
        for _ in range(min(self._count, room) - present):
            self.hire()

    def dismiss(self, member: Member) -> None:
        """Kill an actor."""
        self.members.pop(member.number, None)
        self.coming = {ref: other for ref, other in self.coming.items() if other is not member}
        if member.node not in {other.node for other in self._everybody()}:
            self._supplied.discard(member.node)  # the last actor of a node removes the data
        with suppress(Exception):  # actor or node may be lost
            self.ray.kill(member.handle)

    def close(self, *, gently: bool) -> None:
        """End all actors, and remove their files from the nodes."""
        members = self._everybody()
        left: set[int] = set()
        if gently:
            with suppress(Exception):
                refs = {member.handle.leave.remote(): member for member in members if member.node}
                ready, _ = self.ray.wait(list(refs), num_returns=len(refs), timeout=GRACE) if refs else ([], [])
                left = {refs[ref].number for ref in ready}
        idle = spare_actors(self._settings)
        for member in members:
            if idle is not None and member.number in left:
                idle.append(member.handle)
            else:
                self.dismiss(member)
        self.members, self.coming = {}, {}
        if len(left) < self._hired:
            self._sweep()

    def _new(self, node: str | None) -> Any:
        resources = {"num_cpus": self._settings.num_cpus, "num_gpus": self._settings.num_gpus}
        once = {"max_restarts": 0, "max_task_retries": 0}  # a restarted actor would lack its states
        strategy = on_node(node) if node else "SPREAD"
        return self.ray.remote(Actor).options(scheduling_strategy=strategy, **resources, **once).remote()

    def _everybody(self) -> list[Member]:
        return [*self.members.values(), *self.coming.values()]

    def _check_versions(self, member: Member, facts: dict[str, Any]) -> None:
        """Record the facts on an actor's node; raise Failed if other versions could change results."""
        member.node, member.facts = facts["node"], facts
        self._folders.setdefault(member.node, set()).update(facts["folders"])
        if texts := other_versions(facts["versions"], self._versions):
            raise Failed(
                f"Node {member} has other versions than this machine: {', '.join(texts)}. "
                "Results are promised on equal versions alone: install the same everywhere."
            )

    def _start_failure(self, member: Member, error: Exception) -> Failed:
        """Dismiss an actor that did not start, and return an error that names its node, if known."""
        self.dismiss(member)
        match = re.search(r"ip=([\w.:]+)", str(error))
        location = f" on node {member}" if member.node else f" on the node at {match[1]}" if match else ""
        cause = reason(error)
        hint = " Is it installed there?" if "No module named" in cause else ""
        died = isinstance(error, self.ray.exceptions.RayActorError) and "in its creation task" not in str(error)
        return (Killed if died else Failed)(f"An actor did not begin{location}: {cause}.{hint}")

    def _sweep(self) -> None:
        """Remove the files that killed actors left on their nodes."""
        if spare_actors(self._settings) is not None:  # local cluster
            sweep(sorted(set().union(*self._folders.values())), GRACE)
            return
        with suppress(Exception):  # node or cluster may be lost
            alive = {node.id for node in nodes(self.ray)}
            tasks = [
                self.ray.remote(sweep)
                .options(num_cpus=0, max_retries=0, scheduling_strategy=on_node(node))
                .remote(sorted(folders), GRACE)
                for node, folders in self._folders.items()
                if node in alive
            ]
            if tasks:
                self.ray.wait(tasks, num_returns=len(tasks), timeout=SWEEP)


class Supply:
    """Arrays of a simulation and their descriptions."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = dict(arrays)
        self.facts = [facts_of(name, array) for name, array in arrays.items()]

    @property
    def nbytes(self) -> int:
        """Total bytes of all arrays."""
        return sum(facts.nbytes for facts in self.facts)

    def missing(self, available: Mapping[str, str]) -> list[ArrayFacts]:
        """List the arrays that a node neither has on disk nor has received."""
        return [facts for facts in self.facts if not available.get(facts.name)]

    def send(self, ray: Any, actor: Any, node: str, missing: Sequence[ArrayFacts]) -> None:
        """Send arrays to one actor of a node, for all actors there."""
        description = f"Megabytes of data sent to node {node}"
        total, done = sum(facts.nbytes for facts in missing), 0
        for facts in missing:
            content = np.ascontiguousarray(self._arrays[facts.name]).reshape(-1).view(np.uint8)
            for offset in range(0, facts.nbytes, PIECE):
                report(description, done >> 20, total >> 20)
                piece = ray.put(content[offset : offset + PIECE].tobytes())
                if error := ray.get(actor.write.remote(facts.sha256, offset, facts.nbytes, piece)):
                    raise Failed(f"Node {node} cannot keep the data: {error}.")
                done += min(PIECE, facts.nbytes - offset)
        report(description, total >> 20, total >> 20)


def facts_of(name: str, array: NDArray[Any]) -> ArrayFacts:
    """Describe an array, so that another node can look it up."""
    layout = (name, array.dtype.str, array.shape, array.nbytes)
    if origin := mapped_from(array):
        file, offset = origin
        status = Path(file).stat()
        digest = _hash_mapped(file, offset, array.nbytes, status.st_mtime_ns, status.st_ino)
        return ArrayFacts(*layout, digest, file, offset)
    return ArrayFacts(*layout, hash_array(array))


@lru_cache(maxsize=16)
def _hash_mapped(file: str, offset: int, nbytes: int, *_: int) -> str:
    """Hash a part of a file; modification time and inode are arguments, so that the cache misses changed files."""
    return hash_part(file, offset, nbytes)
