"""Diagnosis of a Ray cluster for an experiment: versions, data, memory, and a dry step on every node."""

import hashlib
import json
import time
from collections.abc import Iterator
from typing import NamedTuple

from protonorm.core.frames import pack, unpack
from protonorm.core.randomness import one_thread
from protonorm.core.task import ByClient, Order, Task
from protonorm.core.text import size_text
from protonorm.engines.choice import ActorSettings
from protonorm.engines.handover import arrays_of, describe_run, raise_error, refer_by_text
from protonorm.engines.ray.cluster import Node, connect, describe, nodes, reason
from protonorm.engines.ray.crew import Crew, Member, Supply
from protonorm.engines.serial import Host
from protonorm.errors import Failed
from protonorm.federation.policy import Policy
from protonorm.federation.population import SimulatedPopulation
from protonorm.federation.rounds import begin
from protonorm.files import Scratch
from protonorm.runs.states import CACHE, FolderStore
from protonorm.tensors import Tensors, encode

PATIENCE = 120.0  # seconds for an actor to start
KEY = "dry-step"


class Finding(NamedTuple):
    """Diagnostic sentence, and whether the check passed."""

    ok: bool
    text: str


Findings = Iterator[Finding]


def check_cluster(
    task: Task, population: SimulatedPopulation, settings: ActorSettings, workers: int | None
) -> Findings:
    """Check a cluster; yield findings, and a verdict at the end."""
    problems = 0
    for finding in _findings(task, population, settings, workers):
        problems += not finding.ok
        yield finding
    failure = f"The cluster cannot run this experiment as it is: see {_count(problems, 'problem')} above."
    yield Finding(not problems, failure if problems else "The cluster can run this experiment.")


def _findings(task: Task, population: SimulatedPopulation, settings: ActorSettings, workers: int | None) -> Findings:
    settings.check_device(population.training.device)
    sizes = population.parts.sizes().sum(1)
    order = Order(int(sizes.argmax()), 1, 0)  # the client with the most samples
    training = population.training.model_copy(update={"epochs": 1, "local_steps": None})
    one_epoch = SimulatedPopulation(
        task, population.dataset, population.parts, population.networks, training, features=population.features
    )
    message = begin(task, Policy(len(population), len(population))).message
    assert not isinstance(message, ByClient)
    ray = connect((workers or 0) * settings.num_cpus)
    yield Finding(True, describe())
    alive = nodes(ray)
    rooms = {node.id: settings.fit(node.cpus, node.gpus) for node in alive}
    for node in alive:
        has = f"Node {node} has {_count(node.cpus, 'core')} and {_count(node.gpus, 'GPU')}"
        yield Finding(True, f"{has}: room for {_count(rooms[node.id], 'actor')}.")
    if not any(rooms.values()):
        resources = f"{_count(settings.num_cpus, 'core')} and {_count(settings.num_gpus, 'GPU')}"
        yield Finding(False, f"No node has room for an actor with {resources}.")
        return
    supply = Supply(arrays_of(population))
    crew = Crew(ray, settings, supply, describe_run(task, one_epoch, refer_by_text) | {"key": KEY, "cache": CACHE})
    bits = {"this machine": _bits_here(task, one_epoch, order, message)}
    try:
        for node in alive:
            if rooms[node.id]:
                yield from _check_node(crew, node, rooms[node.id], supply, order, message, bits)
    finally:
        crew.close(gently=True)
    if others := [name for name, hash in bits.items() if hash != bits["this machine"]]:
        text = f"The dry step has other bits on {', '.join(others)} than on this machine, perhaps because of another "
        yield Finding(False, f"{text}processor: results would depend on where a client is.")
    elif len(bits) > 1:
        yield Finding(True, "The dry step has the same bits on all of these nodes and on this machine.")


def _check_node(
    crew: Crew, node: Node, room: int, supply: Supply, order: Order, message: Tensors, bits: dict[str, str]
) -> Findings:
    """Start an actor on a node, run a dry step, and yield the findings."""
    member = crew.hire(node.id)
    try:
        for stage in ("look", "open"):
            _wait(crew, member, node)
            if stage == "look":
                yield from _data_findings(member, supply)
        seconds, peak, bits[f"node {node}"] = _dry_step(crew, member, order, message)
    except (Failed, ValueError, OSError, RuntimeError) as error:
        yield Finding(False, str(error) if str(error).endswith((".", "?", ")")) else f"{error}.")
        return
    free, enough = member.facts["memory"] + peak, f"and there is memory for {_count(room, 'such actor')}"
    step = f"a dry step, one epoch of client {order.id}"
    text = f"Node {node} took {seconds:.2g} s and {size_text(peak)} of memory for {step}"
    if not member.facts["memory"]:
        yield Finding(True, f"{text}.")
    else:
        ok, few = room * peak <= free, f"but there is memory for {free // peak} of {room} such actors only"
        yield Finding(ok, f"{text}, {enough if ok else few} ({size_text(free)}).")


def _wait(crew: Crew, member: Member, node: Node) -> None:
    """Wait for the next answer of a starting actor; raise Failed after PATIENCE seconds."""
    ref = next(ref for ref, other in crew.coming.items() if other is member)
    ready, _ = crew.ray.wait([ref], timeout=PATIENCE)
    if not ready:
        crew.dismiss(member)
        raise Failed(f"No actor has begun on node {node} after {PATIENCE:g} seconds: is it busy with something else?")
    crew.advance(ref)


def _data_findings(member: Member, supply: Supply) -> Findings:
    """Report the versions and data on an actor's node."""
    versions = ", ".join(f"{name} {text}" for name, text in member.facts["versions"].items() if name != "source")
    yield Finding(True, f"Node {member} has the same versions as this machine: {versions}.")
    missing = sum(facts.nbytes for facts in supply.missing(member.facts["arrays"]))
    available = supply.nbytes - missing
    text = f"Node {member} has found {size_text(available)} of the data at their path, with the right checksum"
    if missing:
        disk = member.facts["disk"]
        room = f"where {size_text(disk)} are free"
        sent = f"{size_text(missing)} of the data are sent to node {member} once a run, {room}."
        yield Finding(missing < disk, f"{text}; {sent}" if available else sent)
    else:
        yield Finding(True, f"{text}; nothing has to be sent.")


def _dry_step(crew: Crew, member: Member, order: Order, message: Tensors) -> tuple[float, int, str]:
    """Train a client on a node; return seconds, peak memory in bytes, and a hash of reply and state."""
    header = {"verb": "train", "order": list(order), "message": 1, "own": False}
    start = time.perf_counter()
    try:
        content = crew.ray.get(member.handle.act.remote(pack(header), pack({}, message)), timeout=PATIENCE)
        peak = json.loads(crew.ray.get(member.handle.facts.remote()))["peak"]
    except crew.ray.exceptions.RayError as error:
        raise Failed(f"The dry step on node {member} failed: {reason(error)}.") from error
    seconds = time.perf_counter() - start
    answer, tensors, file = unpack(content)
    if "error" in answer:
        raise_error(answer | {"text": f"The dry step on node {member} failed: {answer.get('text')}"})
    return seconds, int(peak), hashlib.sha256(encode(tensors) + file).hexdigest()


def _bits_here(task: Task, population: SimulatedPopulation, order: Order, message: Tensors) -> str:
    """Run the dry step in this process and return its hash."""
    with Scratch() as scratch, one_thread():
        store = FolderStore(scratch.folder, KEY)
        reply = Host(task, population, store).train(order, message)
        return hashlib.sha256(encode(reply.message) + store.copy_out(order.id, order.round)).hexdigest()


def _count(number: float, noun: str) -> str:
    return f"{number:g} {noun}" if number == 1 else f"{number:g} {noun}s"
