"""The command that makes a run again, from its record alone. Nothing here needs torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from protonorm.algorithms import ALGORITHMS
from protonorm.data import DATASETS, PARTITIONS
from protonorm.history import Run
from protonorm.models import FAMILIES
from protonorm.registry import Entry
from protonorm.report.page.usual import UNKNOWN, usual

TABLES = {"algorithm": ALGORITHMS, "dataset": DATASETS, "partition": PARTITIONS}
OWN = "protonorm_own_"  # how modules of users' own files are called
WHOLE = 10**9  # floating numbers below it that are whole are written so
ELSEWHERE = 512  # d of networks that are of no family


class Again(NamedTuple):
    """Words of a command, and what the record cannot say of them."""

    words: list[str]
    notes: list[str]


class Part(NamedTuple):
    """A method, a data set or a partition as a command gives it."""

    name: str
    fields: dict[str, Any]  # that differ from the usual ones
    notes: list[str]


def run_again(experiment: Mapping[str, Any]) -> Again:
    """Give the words after `protonorm run`: only what differs from the defaults."""
    method = component("algorithm", experiment["algorithm"])
    words = [] if method.name == "protonorm" else [f"algorithm={text(method.name)}"]
    words += [f"algorithm.{name}={text(value)}" for name, value in method.fields.items()]
    common = common_words(experiment)
    seed = [f"seed={experiment['seed']}"] if experiment["seed"] else []
    return Again([*words, *common.words, *seed], [*method.notes, *common.notes])


def compare_again(runs: Mapping[str, Sequence[Run]]) -> Again | None:
    """Give the words after `protonorm compare`, if the runs are methods × seeds and else alike."""
    commons = [common_words(run.experiment) for found in runs.values() for run in found]
    seeds = [[run.experiment["seed"] for run in found] for found in runs.values()]
    parts = [component("algorithm", found[0].experiment["algorithm"]) for found in runs.values()]
    if any(one != commons[0] for one in commons) or any(one != seeds[0] for one in seeds):
        return None
    methods = [method_word(part) for part in parts]
    if any("," in text(value) for part in parts for value in part.fields.values()):
        return None
    repeated = [] if seeds[0] == [0] else [f"seeds={','.join(map(str, seeds[0]))}"]
    notes = [note for part in parts for note in part.notes]
    return Again([*methods, *commons[0].words, *repeated], [*notes, *commons[0].notes])


def common_words(experiment: Mapping[str, Any]) -> Again:
    """Give the settings that the methods of a comparison share: all but the method and the seed."""
    words, notes = [], []
    dataset, partition = (component(kind, experiment[kind]) for kind in ("dataset", "partition"))
    for kind, part, first in (("dataset", dataset, "fashion"), ("partition", partition, "dirichlet")):
        words += [] if part.name == first else [f"{kind}={text(part.name)}"]
        words += [f"{kind}.{name}={text(value)}" for name, value in part.fields.items()]
        notes += part.notes
    defaults = {**usual("protonorm.experiment:Experiment"), **resolved(experiment)}
    dealt = {"clients"} if experiment["dataset"]["name"].startswith("clients:") else set()
    for name, value in experiment.items():
        if name in {*TABLES, "seed", *dealt} or value == defaults.get(name, UNKNOWN):
            continue
        words.append(f"{name}={networks(value, notes) if name == 'models' else text(value)}")
    words = [word for word in words if word != "partition=given"]  # the data say so themselves
    return Again(words, notes)


def component(kind: str, value: Mapping[str, Any]) -> Part:
    """Find what to type for a recorded component."""
    name, fields = value["name"], {key: one for key, one in value.items() if key not in ("name", "source")}
    table: Mapping[str, Entry] = TABLES[kind]
    if name in table:
        return Part(name, _changed(usual(table[name].target), value), [])
    if kind == "partition" and name == "given" and set(fields) <= {"seed"}:
        return Part(name, {} if fields.get("seed", 1) == 1 else fields, [])
    base, _, rest = name.partition(":")
    if base in table:
        note = f"The record tells the {kind} {name} by its content: put the place of {rest} for PATH."
        return Part(f"{base}:PATH", {}, [note])
    if base.startswith(OWN):
        file = f"{base.removeprefix(OWN)}.py"
        return Part(f"{file}:{rest}", fields, [f"{file} is a file of your own: its folder is not on record."])
    return Part(name, {}, [f"The {kind} {name} was given from Python: no command makes it."])


def method_word(part: Part) -> str:
    """Write a method as `compare` takes it: name:field=value,field=value."""
    fields = ",".join(f"{name}={text(value)}" for name, value in part.fields.items())
    return f"{part.name}:{fields}" if fields else part.name


def resolved(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Give the networks and the width that an experiment on these data has when none are named."""
    dataset, models = experiment["dataset"]["name"], experiment["models"]
    kind = dataset if dataset in DATASETS else ""
    family = DATASETS[kind].details["models"] if kind else "light"
    known = isinstance(models, str) and models in FAMILIES
    return {"models": family, "feature_dim": FAMILIES[models].feature_dim if known else ELSEWHERE}


def networks(value: Any, notes: list[str]) -> str:
    """Write networks with commas between; a function of the user's own by its file."""
    names = []
    for item in [value] if isinstance(value, str) else value:
        name = item if isinstance(item, str) else item["name"]
        base, _, rest = name.partition(":")
        if not isinstance(item, str):
            notes.append(f"The network {name} is your own: its file is not on record.")
        names.append(f"{base.removeprefix(OWN)}.py:{rest}" if base.startswith(OWN) else name)
    return ",".join(names)


def text(value: Any) -> str:
    """Write a value so that the command line reads it back."""
    if isinstance(value, float):
        written = repr(int(value)) if value == int(value) and abs(value) < WHOLE else repr(value)
        mantissa, e, power = written.partition("e")
        return f"{mantissa}.0e{power}" if e and "." not in mantissa else written  # YAML wants the point
    if isinstance(value, str) and yaml.safe_load(value) == value:
        return value
    if isinstance(value, list):
        return f"[{', '.join(map(text, value))}]"
    return json.dumps(value)


def _changed(defaults: Mapping[str, Any], value: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the fields that differ; how many samples the data hold is a setting only if fewer were taken."""
    counted = {"samples"} if "sha256" in value and "of" not in value else set()
    names = [name for name in defaults if name in value and name not in counted]
    return {name: value[name] for name in names if value[name] != defaults[name]}
