"""Small experiments for tests: the spiral, and tiny pictures."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import protonorm as pn
from protonorm.algorithms import ALGORITHMS
from protonorm.config.methods import Experiments, read_comparison
from protonorm.runs.run import read_run
from protonorm.runs.states import stray_states
from protonorm.session.build import build

# Methods whose messages have the form of another one's. A method that is not listed is tested with `make test`.
ALIKE = {
    **dict.fromkeys(("fedproto", "tinyproto", "fedtgp", "fedorgp", "fedsa", "fedsaf", "fedhp"), "protonorm"),
    **dict.fromkeys(("fedkwaz", "fedl2g"), "protonorm"),
    **dict.fromkeys(("fednh", "feduv", "fedprox", "ditto", "moon", "fedper", "fedrep", "fedpac", "fpl"), "fedavg"),
    **dict.fromkeys(("fedrolex", "fjord"), "heterofl"),
    **dict.fromkeys(("fml", "fedmrl", "duet"), "fedkd"),
    "fedre": "fedgh",
    **dict.fromkeys(("afl", "fedcgs"), "choir"),
    "targets": "local",
}
FROZEN = {name: 1 + (name == "choir") for name in ("afl", "fedcgs", "choir")}  # on frozen trunks: rounds of each


def long_unless(short: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Return parameters of a test; `make test-long` alone runs those that are not among `short`."""
    return [one if one in short else pytest.param(one, marks=pytest.mark.long) for one in values]


def cases(named: Mapping[str, Any], short: Collection[str]) -> list[Any]:
    """Return named parameters of a test; `make test-long` alone runs those that are not among `short`."""
    assert named.keys() >= set(short), set(short) - named.keys()
    return [
        pytest.param(
            *value if isinstance(value, tuple) else (value,), id=name, marks=() if name in short else pytest.mark.long
        )
        for name, value in named.items()
    ]


def methods() -> list[Any]:
    """Return all methods as parameters of a test; `make test` runs one for each form of message."""
    return long_unless(ALGORITHMS.keys() - ALIKE.keys(), sorted(ALGORITHMS))


def spiral(**settings: Any) -> pn.Experiment:
    """Six clients with small perceptrons on a sixty-point spiral."""
    usual = {
        "algorithm": "protonorm",
        "dataset": {"name": "spiral", "points": 60},
        "partition": {"name": "dirichlet", "alpha": 0.3, "least": 4},
        "clients": 6,
        "rounds": 3,
        "batch_size": 8,
        "lr": 0.05,
    }
    return pn.Experiment.of(usual | frozen(settings) | settings)


def frozen(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the networks of an experiment with vectors whose method needs frozen trunks."""
    method = settings.get("algorithm")
    name = method["name"] if isinstance(method, dict) else method
    return {"models": "frozen:identity"} if isinstance(name, str) and name in FROZEN else {}


def vectors(of: pn.Dataset) -> pn.Dataset:
    """Return a data set of pictures with five numbers in place of each: means of stripes, from 0 to 1."""
    stripes = of.inputs.reshape(len(of.inputs), -1)[:, :255].reshape(len(of.inputs), 5, 51)
    return pn.Dataset(of.name, (stripes.mean(2) / 255).astype(np.float32), of.labels, of.classes)


def pictures(labels: list[int] | np.ndarray, classes: int, side: int = 16, seed: int = 0) -> pn.Dataset:
    """Noise pictures whose brightness tells their class."""
    labels = np.asarray(labels, dtype=np.int64)
    noise = np.random.default_rng(seed).integers(0, 60, (len(labels), side, side, 1))
    level = (190 * labels / max(classes - 1, 1)).astype(np.int64)[:, None, None, None]
    return pn.Dataset("tiny", (noise + level).astype(np.uint8), labels, tuple(f"class {k}" for k in range(classes)))


def contents(folder: Path) -> dict[str, bytes]:
    """Read all files of a run that must not depend on how it was run."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("timings.jsonl", "provenance.jsonl", "lock")
    }


def run(experiment: pn.Experiment, out: Path, engine: str = "serial", **options: Any) -> pn.Result:
    """Run in this process unless the test says otherwise: no time to start workers."""
    return pn.run(experiment, out=out, engine=engine, **options)


def site(id: int = 0, **settings: Any) -> Any:
    """Make one client's site of the spiral experiment."""
    return build(spiral(**settings))[1].site(id)


def run_folder(experiment: pn.Experiment, root: Path) -> Path:
    return root / experiment.key


def count_floats(tensors: dict[str, Any]) -> int:
    """Count floating numbers without the package's own counting."""
    return sum(value.numel() for value in tensors.values() if value.is_floating_point())


class Given:
    """A partition with the given shares."""

    seed = 0

    def __init__(self, shares: list[list[int]]) -> None:
        self.shares = shares

    def assign(self, labels: np.ndarray, clients: int) -> list[np.ndarray]:
        return [np.array(share, dtype=np.int64) for share in self.shares]

    def description(self) -> dict[str, Any]:
        return {"name": "given", "shares": self.shares}


def killed_after_last_round(experiment: pn.Experiment, out: Path) -> Path:
    """Do a run, and leave its folder as if the engine had not heard that the last round is final."""
    folder, before = run_folder(experiment, out), dict[str, bytes]()

    def keep(round: Any) -> None:
        if round.number == experiment.rounds - 1:
            before.update({path.name: path.read_bytes() for path in (folder / "clients").iterdir()})

    run(experiment, out, watch=keep)
    for name, content in before.items():
        (folder / "clients" / name).write_bytes(content)
    assert stray_states(read_run(folder))
    return folder


def experiments_of(methods: Sequence[Any], given: Mapping[str, Any] | None = None) -> Experiments:
    """Return the experiments of each method of a comparison, one for each seed; `local` is always included."""
    return read_comparison(methods, given).experiments
