"""Small runs, and records written by hand, for tests of the report page."""

import json
import re
from html import unescape
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from protonorm.files import pretty
from protonorm.history import Run, read_run, stamp
from protonorm.report.page import write_page

METHOD = {"name": "protonorm", "lam": 1.0, "gamma": 100.0}


def record(
    folder: Path, *, classes=3, clients=4, rounds=3, done=None, width=5, names=None, method=METHOD, seed=0, **more
):
    """Write the record of a run that never was; numbers follow from round, client and class."""
    key = folder.name
    (folder / "prototypes").mkdir(parents=True)
    names = names or [f"class {k}" for k in range(classes)]
    counts = np.add.outer(np.arange(clients), np.arange(classes)).tolist()  # (M, K)
    about = {
        "key": key,
        "experiment": {"algorithm": method, "dataset": {"name": "fashion"}, "partition": {"name": "iid", "seed": 1}}
        | {"models": "light", "feature_dim": width, "clients": clients, "rounds": rounds, "seed": seed}
        | more,
        "rules": ["global", "logits"],
        "headline": "global",
        "networks": ["plain"] * clients,
        "classes": names,
        "counts": {"train": counts, "test": counts},
        "majority": accuracy(0.25, clients, classes),
        "versions": {"python": "3.11", "protonorm": "0"},
    }
    (folder / "experiment.json").write_bytes(pretty(about))
    random = np.random.default_rng(seed)
    done = rounds if done is None else done
    lines = [metrics(round, round / (rounds + 1), clients, classes) for round in range(1, done + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "timings.jsonl").write_text('{"round": 0.5}\n' * done)
    for round in sorted({*np.linspace(1, rounds, min(50, rounds)).round().astype(int).tolist()}):
        vectors = random.standard_normal((classes, width)).astype(np.float32)
        shown = {"classes": np.arange(classes), "prototypes": vectors}
        if round <= done:
            save_file(shown, folder / "prototypes" / f"{round}.safetensors")
    if done:
        save_file({"none": np.zeros(1)}, folder / "server.safetensors", {"stamp": stamp(key, "server", done)})
    return folder


def metrics(round, share, clients, classes):
    apart = {"min": 1.0, "mean": 2.0, "max": 3.0}
    return {
        "round": round,
        "cohort": "all",
        "loss": 1.0,
        "rules": {
            "global": accuracy(share, clients, classes) if round > 1 else None,
            "logits": accuracy(share / 2, clients, classes),
        },
        "bytes": {"up": 100, "down": 200},
        "prototypes": {"distance": apart, "margins": [1.0] * classes, "classes": list(range(classes))},
    }


def accuracy(share, clients, classes):
    return {"pooled": share, "mean": share, "worst": share} | {
        "clients": [share] * clients,
        "classes": [share] * classes,
    }


def made(folder: Path, **settings) -> Run:
    return read_run(record(folder, **settings))


def page(runs, folder: Path) -> str:
    return write_page(runs, folder / "page.html").read_text(encoding="utf-8")


def data(text: str) -> dict:
    """Read the charts' data back, as a browser does."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def words(text: str) -> str:
    """Give what a reader reads, without style, data and script."""
    body = re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", body)).split())
