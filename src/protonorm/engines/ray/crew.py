"""Actors on the cluster: hired, told what they need, and let go; each stays on the node where Ray has put it."""

from __future__ import annotations

import json
import re
import secrets
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from protonorm.core.progress import report
from protonorm.engines.processes.wire import raise_error
from protonorm.engines.ray.actor import Actor, versions_here
from protonorm.engines.ray.cluster import nodes, on_node, spare_actors
from protonorm.engines.ray.frames import pack, unpack
from protonorm.engines.ray.member import Coming, Member
from protonorm.engines.ray.node_folder import sweep
from protonorm.engines.ray.quiet import reason
from protonorm.engines.ray.settings import ActorSettings
from protonorm.engines.ray.supply import Supply
from protonorm.errors import Failed

START = 600.0  # seconds for the first actor to begin
PATIENCE = 120.0  # seconds for the others, after that: the cluster may be busy with something else
LOSSES = 4  # actors that may be lost one after the other without a single answer
GRACE = 5.0  # seconds for an actor to leave by itself
SWEEP = 30.0  # seconds for nodes to remove what actors that were ended have left


class Refused(Failed):
    """An actor that is of no use; the sentence names its node."""


class Crew:
    """The actors of one run."""

    def __init__(self, ray: Any, settings: ActorSettings, supply: Supply, told: dict[str, Any]) -> None:
        self.ray, self._settings, self._supply = ray, settings, supply
        self.members: dict[int, Member] = {}  # those that are ready, by number
        self.coming: dict[Any, Coming] = {}  # those that are not, by what is waited for
        self.losses = 0  # actors that were lost since the last answer
        self._count = 0  # how many there should be
        self._token, self._hired = secrets.token_hex(4), 0
        self._told = pack(told | {"arrays": supply.facts})
        self._versions = versions_here()
        self._said: set[str] = set()  # why actors were given up
        self._folders: dict[str, set[str]] = {}  # by node: what its actors have made there
        self._supplied: set[str] = set()  # nodes that were sent what they lacked, while an actor is there

    def start(self, count: int) -> None:
        """Hire so many actors, and wait until they are ready; fewer will do if the cluster has no room for all."""
        self._count = count
        for _ in range(count):
            self.hire()
        end = time.monotonic() + START
        while self.coming:
            report("Starting actors", len(self.members), count)
            left = end - time.monotonic()
            done, _ = self.ray.wait(list(self.coming), timeout=max(0.0, min(left, 1.0)))
            if done:
                self.advance(done[0])
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
            told = f"{len(self.members)} of {count} actors have begun after {PATIENCE:g} seconds"
            warnings.warn(f"Only {told}; the run goes on with these.", stacklevel=5)
        for coming in list(self.coming.values()):
            self.dismiss(coming.member)

    def hire(self, node: str | None = None) -> Member:
        """Ask Ray for another actor, where there is room or on one node; `advance` hears of it."""
        spare = spare_actors(None if node else self._settings)
        self._hired += 1
        member = Member(self._hired, spare.pop(), again=True) if spare else Member(self._hired, self._new(node))
        look = member.handle.look.remote(self._token, json.dumps(self._supply.facts).encode())
        self.coming[look] = Coming(member, "look")
        return member

    def advance(self, ref: Any) -> Member | None:
        """Hear of an actor that was hired; give it once it is ready. One that is of no use is Refused."""
        member, stage = self.coming.pop(ref)
        try:
            content = self.ray.get(ref)
            if stage == "look":
                self._meet(member, json.loads(content))
                self._send(member)
                self.coming[member.handle.open.remote(self._told)] = Coming(member, "open")
                return None
            header, _, _ = unpack(content)
        except self.ray.exceptions.RayError as error:
            if not member.again or stage != "look":
                raise self._refuse(member, error) from error
            self.hire()  # an actor that has ended while it was idle
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
        """Hear of an actor that was hired in the middle of a run; tell of one that is of no use, and replace it."""
        try:
            return self.advance(ref)
        except (Failed, ValueError, OSError, RuntimeError) as error:
            if str(error) not in self._said:  # a node that stays may be tried again and again
                self._said.add(str(error))
                warnings.warn(f"{error} This actor is given up; the run goes on.", stacklevel=2)
            self.losses += 1
            self.refill()
            return None

    def lose(self, member: Member) -> None:
        """Replace an actor that has ended."""
        self.dismiss(member)
        self.losses += 1
        self.refill()

    def refill(self) -> None:
        """Have as many actors as at the start, if there is room and they do not end at once."""
        there = len(self.members) + len(self.coming)
        if self.losses > LOSSES or there >= self._count:
            return
        room = sum(self._settings.fit(node.cpus, node.gpus) for node in nodes(self.ray))
        for _ in range(min(self._count, room) - there):
            self.hire()

    def dismiss(self, member: Member) -> None:
        """End an actor at once."""
        self.members.pop(member.number, None)
        for ref in [ref for ref, coming in self.coming.items() if coming.member is member]:
            del self.coming[ref]
        if member.node not in {other.node for other in self._everybody()}:
            self._supplied.discard(member.node)  # the last actor of a node takes the data with it
        with suppress(Exception):  # it may be gone, and so may its node
            self.ray.kill(member.handle)

    def close(self, *, gently: bool) -> None:
        """End all actors, and leave nothing on their nodes."""
        everybody = self._everybody()
        left: set[int] = set()
        if gently:
            with suppress(Exception):
                leaving = {member.handle.leave.remote(): member for member in everybody if member.node}
                done, _ = self.ray.wait(list(leaving), num_returns=len(leaving), timeout=GRACE) if leaving else ([], [])
                left = {leaving[ref].number for ref in done}
        spare = spare_actors(self._settings)
        for member in everybody:
            if spare is not None and member.number in left:
                spare.append(member.handle)
            else:
                self.dismiss(member)
        self.members, self.coming = {}, {}
        if len(left) < self._hired:
            self._sweep()

    def _new(self, node: str | None) -> Any:
        """Let Ray start an actor."""
        options = self.ray.remote(Actor).options(
            num_cpus=self._settings.num_cpus,
            num_gpus=self._settings.num_gpus,
            max_restarts=0,  # an actor that has lost its states must not pass for the one before
            max_task_retries=0,
            scheduling_strategy=on_node(node) if node else "SPREAD",
        )
        return options.remote()

    def _everybody(self) -> list[Member]:
        return [*self.members.values(), *(coming.member for coming in self.coming.values())]

    def _meet(self, member: Member, told: dict[str, Any]) -> None:
        """Take note of what an actor says of its node, and refuse one whose bits might differ."""
        member.node, member.told = told["node"], told
        self._folders.setdefault(member.node, set()).update(told["folders"])
        if differing := list(self._differences(told["versions"])):
            raise Refused(
                f"Node {member} has other versions than this machine: {', '.join(differing)}. "
                "Results are promised on equal versions alone: install the same everywhere."
            )

    def _differences(self, versions: dict[str, str]) -> Iterator[str]:
        for name, here in self._versions.items():
            there = versions.get(name, "unknown")
            if there == here:
                continue
            if name != "source":
                yield f"{name} {there} instead of {here}"
            elif versions.get("protonorm") == self._versions["protonorm"]:
                yield f"protonorm {versions['protonorm']}, but with other source files ({there} instead of {here})"

    def _send(self, member: Member) -> None:
        """Send an actor what its node lacks, unless another actor there was sent it."""
        lacking = self._supply.lacking(member.told["arrays"])
        if lacking and member.node not in self._supplied:
            self._supplied.add(member.node)
            self._supply.send(self.ray, member.handle, str(member), lacking)

    def _refuse(self, member: Member, error: Exception) -> Refused:
        """Say that an actor did not begin, and on which node, if that is known."""
        self.dismiss(member)
        found = re.search(r"ip=([\w.:]+)", str(error))
        place = f" on node {member}" if member.node else f" on the node at {found[1]}" if found else ""
        why = reason(error)
        hint = " Is it installed there?" if "No module named" in why else ""
        return Refused(f"An actor did not begin{place}: {why}.{hint}")

    def _sweep(self) -> None:
        """Remove what actors that were ended at once have left on their nodes."""
        if spare_actors(self._settings) is not None:  # a cluster of our own, on this machine
            sweep(sorted(set().union(*self._folders.values())), GRACE)
            return
        with suppress(Exception):  # a node may be gone, or all of the cluster
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
