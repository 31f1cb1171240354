"""What the network costs in a round: `protonorm deploy` against Flower's own processes, with the same work.

One server and four clients on this machine, with TLS and keys. All ways have the same agreement, the same data, the
same messages and the same round loop; a client trains for milliseconds, so that what is measured is all the rest. The
first round, in which processes warm up, is left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from protonorm.deployment.agreement import Agreement
from protonorm.deployment.client_folder import ClientFolder
from protonorm.deployment.federation_folder import FederationFolder
from protonorm.deployment.settings import FederationSettings

from .flower_way import FlowerFederation, free_port
from .results import silent

CLIENTS, ROUNDS, CLASSES, WIDTH, SAMPLES, FEATURES = 4, 8, 10, 512, 60, 20
LONGEST = 900.0  # seconds for all rounds of one way
OURS, SAME_LOOP, FLOWER = "protonorm deploy", "Flower, push and pull", "Flower, send_and_receive"

SERVER = """
import json, sys, time
from protonorm.deployment.https.serving import serve
from protonorm.deployment.federation_folder import FederationFolder
def tell(event):
    with open(sys.argv[2], "a") as file:
        file.write(json.dumps([time.time(), event.what, event.round, dict(event.numbers)]) + "\\n")
folder = FederationFolder.open(sys.argv[1])
folder.wanted.touch()
serve(folder, tell, once=True)
"""
CLIENTS_CODE = """
import contextlib, os, signal, sys
import torch
from protonorm.deployment.client_folder import ClientFolder
from protonorm.deployment.worker import run_client
children = []
for folder in sys.argv[1:]:  # a process each, forked after what is slow to import
    children.append(os.fork())
    if not children[-1]:
        run_client(ClientFolder.open(folder), linger=0.0)
        os._exit(0)
def end(*_):
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)
signal.signal(signal.SIGTERM, end)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""

Events = list[tuple[float, str, int, dict[str, float]]]  # time, what, round, numbers


def measure(notify: Callable[[str], None] = silent, clients: int = CLIENTS, rounds: int = ROUNDS) -> dict[str, Any]:
    """Run the federation in each way, and compare its rounds."""
    agreement, loops = _agreement(rounds), {}
    with tempfile.TemporaryDirectory() as root:
        data = [_samples(Path(root) / f"{number}.npz", number) for number in range(clients)]
        for name in (OURS, SAME_LOOP, FLOWER):
            notify(f"deployment: {name}")
            folder = Path(root) / name.replace(" ", "-").replace(",", "")
            grid = {SAME_LOOP: "push and pull", FLOWER: "send_and_receive"}.get(name)
            events = _flower(folder, agreement, data, grid) if grid else _ours(folder, agreement, data)
            loops[name] = summary(events, rounds)
    return {"clients": clients, "rounds": rounds, "K": CLASSES, "d": WIDTH, "ways": loops}


def ours(clients: int = CLIENTS, rounds: int = ROUNDS) -> dict[str, float]:
    """Measure the rounds of `protonorm deploy` alone."""
    with tempfile.TemporaryDirectory() as root:
        data = [_samples(Path(root) / f"{number}.npz", number) for number in range(clients)]
        return summary(_ours(Path(root) / "federation", _agreement(rounds), data), rounds)


def _agreement(rounds: int) -> Agreement:
    terms = {"algorithm": "protonorm", "classes": [f"class {k}" for k in range(CLASSES)], "seed": 0}
    return Agreement.of(terms | {"feature_dim": WIDTH, "rounds": rounds, "evaluated": ["test"]})


def _samples(path: Path, number: int) -> Path:
    rng, labels = np.random.default_rng(number), np.arange(SAMPLES) % CLASSES
    inputs = rng.normal(size=(SAMPLES, FEATURES)) + labels[:, None]
    names = np.array([f"class {k}" for k in range(CLASSES)])
    np.savez(path, inputs=inputs.astype(np.float32), labels=labels, classes=names)
    return path


def _ours(folder: Path, agreement: Agreement, data: list[Path]) -> Events:
    """Run the federation as `protonorm deploy` does: a process for the server, and one for each client."""
    plain = {"name": "bench", "hosts": ["127.0.0.1"], "bind": "127.0.0.1", "port": free_port(), "quorum": 1.0}
    server = FederationFolder.create(folder, FederationSettings.of(plain), agreement)
    folders = []
    for number, path in enumerate(data):
        client = ClientFolder.create(folder / f"client-{number}", f"client-{number}")
        client.confirm(server.bundle(server.add(client.settings.name, client.public_key)))
        client.change(data=f"array:{path}", allowed="classes")
        folders.append(client.path)
    events, env = folder / "events.jsonl", os.environ | {"OMP_NUM_THREADS": "1"}
    commands = [[SERVER, str(folder), str(events)], [CLIENTS_CODE, *map(str, folders)]]
    running = [subprocess.Popen([sys.executable, "-c", *command], env=env) for command in commands]

    def check() -> None:
        if any(process.poll() for process in running):
            raise RuntimeError("A process of the federation has failed.")

    try:
        return _wait(events, check)
    finally:
        for process in running:
            if process.poll() is None:
                process.terminate()
            process.wait()


def _flower(folder: Path, agreement: Agreement, data: list[Path], grid: str) -> Events:
    with FlowerFederation(folder, agreement, data, grid) as federation:
        federation.run()
        return _wait(federation.events, federation.check)


def _wait(events: Path, check: Callable[[], None]) -> Events:
    """Wait until all rounds are done; give what happened."""
    end = time.monotonic() + LONGEST
    while time.monotonic() < end:
        check()
        lines = events.read_text().splitlines() if events.exists() else []
        if lines and '"finished"' in lines[-1]:
            return [tuple(json.loads(line)) for line in lines]
        time.sleep(0.2)
    raise RuntimeError("The rounds take too long.")


def summary(events: Events, rounds: int) -> dict[str, float]:
    """Take the medians over rounds: their seconds, of which the slowest client trained, and the server aggregated."""
    durations, training, server = [], [], []
    for number in range(2, rounds + 1):
        at = {kind: time for time, kind, round, _ in events if round == number and kind in ("round", "committed")}
        answers = [(time, numbers) for time, kind, round, numbers in events if (kind, round) == ("answered", number)]
        answers = [answer for answer in answers if answer[0] <= at["committed"]]  # not those of the last evaluation
        durations.append(at["committed"] - at["round"])
        training.append(max(numbers["seconds"] for _, numbers in answers))
        server.append(at["committed"] - max(time for time, _ in answers))
    overhead = median(total - own - last for total, own, last in zip(durations, training, server, strict=True))
    medians = {"round": median(durations), "training": median(training), "server": median(server), "overhead": overhead}
    return {name: float(f"{value:.3g}") for name, value in medians.items()}


def table(result: dict[str, Any]) -> list[list[str]]:
    """Show a line for each way, headings first."""
    rows = [["way", "a round, s", "training, s", "server, s", "the rest, s", "of send_and_receive's"]]
    base = result["ways"][FLOWER]["overhead"]
    for name, measured in result["ways"].items():
        share = f"{100 * measured['overhead'] / base:.3g} %"
        rows.append([name, *(f"{measured[part]:.3g}" for part in ("round", "training", "server", "overhead")), share])
    return rows
