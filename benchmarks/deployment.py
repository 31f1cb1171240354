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
CLIENT = """
import sys
from protonorm.deployment.client_folder import ClientFolder
from protonorm.deployment.worker import run_client
run_client(ClientFolder.open(sys.argv[1]), linger=0.0)
"""

Events = list[tuple[float, str, int, dict[str, float]]]  # time, what, round, numbers


def measure(tell: Callable[[str], None] = silent, clients: int = CLIENTS, rounds: int = ROUNDS) -> dict[str, Any]:
    """Run the federation in each way, and compare its rounds."""
    terms = {"algorithm": "protonorm", "classes": [f"class {k}" for k in range(CLASSES)], "seed": 0}
    agreement = Agreement.of(terms | {"feature_dim": WIDTH, "rounds": rounds, "evaluated": ["test"]})
    ways = {}
    with tempfile.TemporaryDirectory() as place:
        data = [_samples(Path(place) / f"{number}.npz", number) for number in range(clients)]
        for name in (OURS, SAME_LOOP, FLOWER):
            tell(f"deployment: {name}")
            folder = Path(place) / name.replace(" ", "-").replace(",", "")
            way = {SAME_LOOP: "push and pull", FLOWER: "send_and_receive"}.get(name)
            events = _flower(folder, agreement, data, way) if way else _ours(folder, agreement, data)
            ways[name] = summary(events, rounds)
    return {"clients": clients, "rounds": rounds, "K": CLASSES, "d": WIDTH, "ways": ways}


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
    places = []
    for number, path in enumerate(data):
        one = ClientFolder.create(folder / f"client-{number}", f"client-{number}")
        one.confirm(server.bundle(server.add(one.settings.name, one.public_key)))
        one.change(data=f"array:{path}", allowed="classes")
        places.append(one.path)
    events, env = folder / "events.jsonl", os.environ | {"OMP_NUM_THREADS": "1"}
    commands = [[SERVER, str(folder), str(events)], *([CLIENT, str(place)] for place in places)]
    running = [subprocess.Popen([sys.executable, "-c", *one], env=env) for one in commands]

    def check() -> None:
        if any(one.poll() for one in running):
            raise RuntimeError("A process of the federation has failed.")

    try:
        return _wait(events, check)
    finally:
        for one in running:
            if one.poll() is None:
                one.terminate()
            one.wait()


def _flower(folder: Path, agreement: Agreement, data: list[Path], way: str) -> Events:
    with FlowerFederation(folder, agreement, data, way) as federation:
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
    whole, training, server = [], [], []
    for number in range(2, rounds + 1):
        at = {what: time for time, what, round, _ in events if round == number and what in ("round", "committed")}
        answers = [(time, numbers) for time, what, round, numbers in events if (what, round) == ("answered", number)]
        answers = [one for one in answers if one[0] <= at["committed"]]  # not those of the last evaluation
        whole.append(at["committed"] - at["round"])
        training.append(max(numbers["seconds"] for _, numbers in answers))
        server.append(at["committed"] - max(time for time, _ in answers))
    overhead = median(one - own - last for one, own, last in zip(whole, training, server, strict=True))
    medians = {"round": median(whole), "training": median(training), "server": median(server), "overhead": overhead}
    return {name: float(f"{value:.3g}") for name, value in medians.items()}


def table(result: dict[str, Any]) -> list[list[str]]:
    """Show a line for each way, headings first."""
    rows = [["way", "a round, s", "training, s", "server, s", "the rest, s", "of send_and_receive's"]]
    base = result["ways"][FLOWER]["overhead"]
    for name, one in result["ways"].items():
        share = f"{100 * one['overhead'] / base:.3g} %"
        rows.append([name, *(f"{one[part]:.3g}" for part in ("round", "training", "server", "overhead")), share])
    return rows
