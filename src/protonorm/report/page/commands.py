"""Reproducing the runs of a page: settings, commands, and the sources of its numbers.

A record lists the settings that the user gave, named as on the command line. Does not import torch.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from protonorm.analysis.contrasts import UNLIKE, is_local, is_solo
from protonorm.analysis.settings import run_settings
from protonorm.config.kinds import COMPONENTS, KINDS
from protonorm.config.parsing import seeds_word
from protonorm.core.own_failures import PREFIX
from protonorm.core.text import counted, visible
from protonorm.report.page.groups import Groups, setting_text
from protonorm.runs import layout
from protonorm.runs.schema import Provenance, RunInfo

WIDTH = 76  # maximum characters of a line of a command
NETWORKS = ("models", "auxiliary")  # settings whose values are networks
SOURCES = [  # (part of the page, file in a run's folder, how it is aggregated)
    ("Settings, commands, versions", layout.INFO, "as recorded; a command names the settings that the user gave"),
    ("How the runs were made", layout.PROVENANCE, "as recorded when a run began or went on"),
    ("Samples of each client and class", layout.POPULATION, "as recorded; the majority line follows from them"),
    ("Reported round", layout.METRICS, "best mean validation accuracy under the headline rule; without, the best test"),
    ("Accuracy and measures: tables", layout.METRICS, "rules; mean and 95 % interval over seeds, or the range of two"),
    ("Accuracy: curves", layout.METRICS, "rules; mean over seeds, with the same interval"),
    ("Accuracy of clients and classes", layout.EVALUATIONS, "right answers divided by samples"),
    ("Who gains, who loses", layout.EVALUATIONS, "accuracy of a client minus that of the same client in the reference"),
    ("Distances", layout.METRICS, "prototypes, as recorded"),
    ("Margins", layout.EVALUATIONS, "divided by the mean distance of their round"),
    ("Bytes", layout.METRICS, "bytes, summed over rounds"),
    ("Sphere", "prototypes/<round>.safetensors", "brought to unit length and projected; angles are those before it"),
    ("Seconds", layout.TIMINGS, "as recorded"),
    ("How far a run is", f"{layout.SERVER}, {layout.FAILURE}", "committed rounds; why it stopped"),
]

Facts = tuple[tuple[str, str], ...]  # (name, value)


class Command(NamedTuple):
    """Words of a command, and notes on what the record does not hold."""

    words: list[str]
    notes: list[str]


def commands(groups: Groups) -> dict[str, Any]:
    """Build one command for all runs where possible, and one for each run."""
    runs = [run for seeds in groups.values() for run in seeds]
    singles = [(run.info.key, run_command(run.info)) for run in runs]
    comparison = compare_command(groups) if len(runs) > 1 else None
    notes = dict.fromkeys(note for _, command in singles for note in command.notes)
    return {
        "compare": shell_text("compare", comparison.words) if comparison else None,
        "runs": [(visible(key), shell_text("run", command.words)) for key, command in singles],
        "notes": [visible(note) for note in notes],
    }


def run_command(info: RunInfo) -> Command:
    """Build the words after `protonorm run`: the settings that the user gave."""
    notes: list[str] = []
    return Command([f"{name}={_value(name, value, info, notes)}" for name, value in info.changed.items()], notes)


def compare_command(groups: Groups) -> Command | None:
    """Build the words after `protonorm compare`, if the runs are methods × seeds and otherwise alike.

    If every method but Local also has its solo control, and there are no other runs, the command creates both.
    """
    with_controls = len({is_solo(runs[0]) for runs in groups.values()}) == 2
    if with_controls and not _have_controls(groups):
        return None
    infos = [[run.info for run in runs] for runs in groups.values() if not (with_controls and is_solo(runs[0]))]
    seeds = [[info.experiment.seed for info in group] for group in infos]
    every = [info for group in infos for info in group]
    if any(item != seeds[0] for item in seeds) or any(_shared(info) != _shared(every[0]) for info in every):
        return None
    if any("auxiliary" in info.changed for info in every):
        return None  # `local`, which is part of every comparison, does not accept it
    notes: list[str] = []
    methods = [_method(group[0], notes) for group in infos]
    if any("," in field for _, fields in methods for field in fields):
        return None  # commas separate the fields of a method
    changed = {name: (value, info) for info in every for name, value in info.changed.items()}
    words = [":".join(filter(None, [name, ",".join(fields)])) for name, fields in methods]
    words += [
        f"{name}={_value(name, value, info, notes)}"
        for name, (value, info) in changed.items()
        if name.split(".")[0] not in ("algorithm", "seed")
    ]
    words += [] if seeds[0] == [0] else [seeds_word(seeds[0])]
    return Command([*words, *(["--solo"] if with_controls else [])], notes)


def _have_controls(groups: Groups) -> bool:
    """Return whether each method but Local has one solo control, with the same seeds and settings."""
    settings: dict[bool, list[str]] = {False: [], True: []}
    for runs in groups.values():
        if not is_local(runs[0]):
            plain = [run_settings(run.info, without=UNLIKE) for run in runs]
            settings[is_solo(runs[0])].append(json.dumps(plain, sort_keys=True))
    return sorted(settings[False]) == sorted(settings[True])


def shell_text(verb: str, words: list[str]) -> str:
    """Format a command for a shell, wrapped to the width of a page."""
    lines = [f"protonorm {verb}"]
    for word in map(shell_word, words):
        if len(lines[-1]) + len(word) > WIDTH:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {word}"
    return "\n".join(lines)


def shell_word(word: str) -> str:
    r"""Quote a word for a shell; invisible characters are escaped as bash and zsh read them: $'\x1b'."""
    if visible(word) == word:
        return shlex.quote(word)
    plain = word.replace("\\", "\\\\").replace("'", "\\'")
    plain = re.sub("[\udc80-\udcff]", lambda byte: f"\\x{ord(byte[0]) - 0xDC00:02x}", plain)  # not valid text
    plain = re.sub("[\x80-\x9f\xad]", lambda sign: f"\\u{ord(sign[0]):04x}", plain)  # to a shell, \x85 is a byte
    return f"$'{visible(plain)}'"


def settings_table(groups: Groups) -> dict[str, Any]:
    """Build the table of all settings, a column for each method; True marks settings that the user gave."""
    columns = []  # the texts of each method's settings, and which were given
    for runs in groups.values():
        texts = {name: setting_text(value) for name, value in run_settings(runs[0].info).items()}
        texts["seed"] = ", ".join(str(run.info.experiment.seed) for run in runs)
        columns.append((texts, set().union(*(run.info.changed for run in runs))))
    positions = {name: position for position, name in enumerate(columns[0][0])}
    names = dict.fromkeys(name for texts, _ in columns for name in texts)
    rows = [
        (name, [(texts.get(name, ""), name in changed) for texts, changed in columns])
        for name in sorted(names, key=lambda name: positions.get(name.split(".")[0], len(positions)))
    ]
    return {"methods": list(groups), "rows": rows}


def _shared(info: RunInfo) -> dict[str, Any]:
    """Return the settings that the methods of a comparison share: all but the method and the seed."""
    own = ("algorithm", "seed", "auxiliary")  # only some methods have a second network
    return {name: value for name, value in info.experiment.plain().items() if name not in own}


def _method(info: RunInfo, notes: list[str]) -> tuple[str, list[str]]:
    """Return a method's name and its fields as `compare` accepts them: field=value."""
    name = info.changed.get("algorithm", KINDS["algorithm"].default)
    own = {key: value for key, value in info.changed.items() if key.startswith("algorithm.")}
    fields = [f"{key.removeprefix('algorithm.')}={setting_text(value)}" for key, value in own.items()]
    return _value("algorithm", name, info, notes), fields


def _value(name: str, value: Any, info: RunInfo, notes: list[str]) -> str:
    """Format a value that the user gave; notes list what the record does not hold of it."""
    if name in COMPONENTS:
        return setting_text(_named(name, str(value), KINDS[name].table(), notes))
    if name in NETWORKS:
        own = [network["name"] for network in info.networks if isinstance(network, dict)]
        names = [value] if isinstance(value, str) else value
        return ",".join(_named("network", network, [] if network in own else [network], notes) for network in names)
    return setting_text(value)


def _named(kind: str, name: str, registered: Collection[str], notes: list[str]) -> str:
    """Return the word for a component or a network, given the known names."""
    base, _, path = name.partition(":")
    if base.startswith(PREFIX) or base.endswith(".py"):
        file = f"{base.removeprefix(PREFIX).removesuffix('.py')}.py"
        notes.append(f"{file} is a file of your own: its folder is not on record.")
        return f"{file}:{path}"
    if base in registered and base != name:
        notes.append(f"The record tells the {kind} {name} by its content: put the place of {path} for PATH.")
        return f"{base}:PATH"
    if name not in registered:
        notes.append(f"The {kind} {name} was given from Python: no command makes it.")
    return name


def origins(groups: Groups) -> list[dict[str, Any]]:
    """Describe how runs were made: command, the user's commit, versions and machine; equal runs share an entry.

    Starts that led to no round are omitted.
    """
    keys: dict[tuple[Facts, ...], list[str]] = {}
    for run in (run for runs in groups.values() for run in runs):
        last = {start.done: start for start in run.starts}
        led = [start for start in last.values() if start.done < len(run.rounds)] or list(last.values())[-1:]
        keys.setdefault(tuple(_facts(start, numbered=len(led) > 1) for start in led), []).append(run.info.key)
    return [{"runs": runs, "starts": [list(facts) for facts in starts]} for starts, runs in keys.items() if starts]


def sources(groups: Groups) -> dict[str, Any]:
    """List the source files, with a fingerprint of the metrics to compare a page with its record."""
    rows = []
    for run in (run for runs in groups.values() for run in runs):
        metrics = layout.read_file(run.folder / layout.METRICS)
        digest = "no file" if metrics is None else hashlib.sha256(metrics).hexdigest()[:16]
        facts = {"folder": run.folder.resolve().name, "key": run.info.key}
        rows.append(facts | {"metrics": digest, "versions": _versions(run.info.versions)})
    return {"parts": SOURCES, "runs": rows}


def _facts(provenance: Provenance, *, numbered: bool) -> Facts:
    states = {None: "", True: ", with changes that were not committed", False: ", nothing changed since"}
    facts = {
        "command": provenance.command,
        "commit": "no repository" if provenance.commit is None else f"{provenance.commit}{states[provenance.dirty]}",
        "versions": _versions(provenance.versions),
        "processor": f"{provenance.cpu}, {counted(provenance.cores, 'core')}",
        "threads": f"{provenance.threads} in each process",
        "engine": provenance.engine,
        "device": provenance.device,
        "platform": provenance.platform,
    }
    return (*([("from round", str(provenance.done + 1))] if numbered else []), *facts.items())


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in versions.items())
