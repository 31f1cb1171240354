"""Damaged records and exports: no traceback, no changed number without a word, and the word names the file.

`broken` damage is to bytes, so that checksums tell. `forged` damage has its checksums made right again: what is inside
is of the wrong kind, and what is printed may follow it, but nothing ends in a traceback.
"""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import protonorm as pn
from protonorm.cli.app import app
from protonorm.config.parsing import read_settings
from protonorm.files import checksum, sealed
from tests.hardening.mutations import (
    damage_arrays,
    damage_bytes,
    damage_json,
    damage_lines,
    sealed_again,
    unsealed_again,
)
from tests.support import contents, pictures, run

MUTATIONS = int(os.environ.get("PROTONORM_MUTATIONS", "2400"))  # in the long form
UNREAD = ("lock", "README.md")  # no command reads them
PIECES = 8  # tests that these are divided among

pytestmark = pytest.mark.filterwarnings("default")  # a warning is a line on the error stream, as for people


class Watched(NamedTuple):
    """Two finished runs, one that is not finished, an exported client, and what the commands say of them."""

    root: Path
    words: list[str]  # of the unfinished run's command
    key: str  # of the run that is damaged
    other: str  # of the other one
    files: dict[str, bytes]  # of all folders, by their path under the root
    whole: dict[str, bytes]  # the unfinished run's folder as it is when it has been brought to its end
    said: dict[str, object]  # by command


class Stopped(BaseException):
    """Stop a run in the middle."""


def stop_after(round):
    def watch(one):
        if one.number == round:
            raise Stopped

    return watch


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    root = tmp_path_factory.mktemp("damage")
    data = pictures([0, 1, 2] * 16, 3)
    np.savez(root / "tiny.npz", images=data.inputs, labels=data.labels)
    Image.fromarray(data.inputs[7, :, :, 0]).save(root / "picture.png")
    words = [f"dataset=npz:{root / 'tiny.npz'}", "partition=iid", "models=plain", "feature_dim=3", "clients=2"]
    words += ["batch_size=8", "rounds=3"]
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("PROTONORM_DATA", str(root / "data"))
        one, two = (pn.Experiment.of(read_settings([*words, f"seed={seed}"])) for seed in (0, 1))
        for experiment in (one, two):
            run(experiment, root / "runs")
        with pytest.raises(Stopped):
            run(one, root / "begun", watch=stop_after(2))
        failed = root / "begun" / one.key / "failure.json"
        failed.write_bytes(sealed({"round": 3, "reason": "a test"}, pretty=True, owner=one.key))
        run(one, root / "runs").clients[1].save(root / "export")
        run(two, root / "runs").clients[1].save(root / "other export")
    files = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    found = Watched(root, words, one.key, two.key, files, contents(root / "runs" / one.key), {})
    return found._replace(said={name: command(found) for name, command in COMMANDS.items()})


class Answer(NamedTuple):
    """What a command said, and what it left."""

    code: int
    out: str
    err: str
    left: object = None  # what it wrote


def call(*words):
    result = CliRunner().invoke(app, list(map(str, words)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)


def show(watched):
    return call("show", "--out", watched.root / "runs")


def show_one(watched):
    return call("show", watched.key, "--out", watched.root / "runs")


def show_json(watched):
    return call("show", watched.key, "--out", watched.root / "runs", "--json")


def report(watched):
    page = watched.root / "page.html"
    page.unlink(missing_ok=True)
    found = call("report", watched.key, "--out", watched.root / "runs", "--to", page)
    return found._replace(left=page.read_text() if page.exists() else "")


def predict(watched):
    return call(
        "predict", watched.key, watched.root / "picture.png", "--client", 1, "--out", watched.root / "runs", "--json"
    )


def predict_export(watched):
    return call("predict", watched.root / "export", watched.root / "picture.png", "--json")


def export(watched):
    target = watched.root / "exported again"
    shutil.rmtree(target, ignore_errors=True)
    found = call("export", watched.key, target, "--client", 1, "--out", watched.root / "runs")
    return found._replace(left=contents(target) if target.exists() else {})


def show_begun(watched):
    return call("show", watched.key, "--out", watched.root / "begun")


def go_on(watched):
    before = contents(watched.root / "begun" / watched.key)
    found = call("run", *watched.words, "--engine", "serial", "--out", watched.root / "begun", "--json")
    after = contents(watched.root / "begun" / watched.key)
    restore(watched, "begun")
    return found._replace(left=(before, after))


FINISHED = [show, show_one, show_json, report, predict, export]
COMMANDS = {one.__name__: one for one in [*FINISHED, predict_export, show_begun, go_on]}


def restore(watched, part):
    """Bring a folder back to what it was."""
    place = watched.root / part
    wanted = {name: held for name, held in watched.files.items() if name.startswith(f"{part}/")}
    for path in sorted(place.rglob("*")):
        if path.is_file() and str(path.relative_to(watched.root)) not in wanted:
            path.unlink()
    for name, held in wanted.items():
        path = watched.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != held:
            path.write_bytes(held)


class Damage(NamedTuple):
    """One damaged file."""

    file: str  # its path under the root
    told: str
    changes: dict[str, bytes | None]  # new contents by path; None for a file that is removed
    forged: bool

    @property
    def part(self) -> str:
        return self.file.split("/")[0]

    @property
    def name(self) -> str:
        return Path(self.file).name


def candidates(watched):
    """List the files that can be damaged."""
    folders = [f"runs/{watched.key}/", "export/", f"begun/{watched.key}/"]
    return [name for name in sorted(watched.files) if name.startswith(tuple(folders)) and Path(name).name not in UNREAD]


def broken(watched, file, chance):
    content = watched.files[file]
    twin = file.replace(watched.key, watched.other).replace("begun/", "runs/").replace("export/", "other export/")
    if file.endswith(".jsonl") and chance.integers(4) == 0:
        told, new = damage_lines(content, chance)
    else:
        told, new = damage_bytes(content, chance, watched.files.get(twin))
    return Damage(file, told, {file: new}, forged=False)


def forged(watched, file, chance):
    content = watched.files[file]
    if file.endswith(".json"):
        told, value = damage_json(unsealed_again(content), chance)
        return Damage(file, told, {file: sealed_again(value, pretty=True)}, forged=True)
    if file.endswith(".jsonl"):
        lines = content.splitlines(keepends=True)
        at = int(chance.integers(len(lines)))
        told, value = damage_json(unsealed_again(lines[at]), chance)
        lines[at] = sealed_again(value, pretty=False, owner=watched.key)
        return Damage(file, f"line {at}: {told}", {file: b"".join(lines)}, forged=True)
    if not file.endswith("evaluations.bin"):
        told, new = damage_arrays(content, chance)
        changes = {file: new}
        if file == "export/client.safetensors":  # which the other file vouches for
            value = unsealed_again(watched.files["export/client.json"])
            changes["export/client.json"] = sealed_again(value | {"weights": checksum(new)}, pretty=True)
        return Damage(file, told, changes, forged=True)
    metrics = str(Path(file).with_name("metrics.jsonl"))
    records = [unsealed_again(line) for line in watched.files[metrics].splitlines()]
    at, blocks, told = int(chance.integers(len(records))), [], ""
    for number, record in enumerate(records):
        place = record["arrays"]
        block = content[place["start"] : place["start"] + place["size"]]
        if number == at:
            told, block = damage_arrays(block, chance)
        record["arrays"] = {"start": sum(map(len, blocks)), "size": len(block)}
        blocks.append(block)
    lines = b"".join(sealed_again(record, pretty=False, owner=watched.key) for record in records)
    return Damage(file, f"round {at + 1}: {told}", {file: b"".join(blocks), metrics: lines}, forged=True)


def commands_for(damage):
    """List the commands that read a file."""
    if damage.part == "runs":
        return FINISHED
    return [predict_export] if damage.part == "export" else [show_begun, go_on]


def complaints(watched, damage):
    """Do damage, give the commands, undo it; list what was not as it should be."""
    found = []
    for name, content in damage.changes.items():
        path = watched.root / name
        path.unlink() if content is None else path.write_bytes(content)
    try:
        for command in commands_for(damage):
            try:
                answer = command(watched)
            except Exception as error:  # a traceback: told with all others
                restore(watched, damage.part)
                for name, content in damage.changes.items():
                    path = watched.root / name
                    path.unlink(missing_ok=True) if content is None else path.write_bytes(content)
                found.append(f"{command.__name__}: {type(error).__name__}: {str(error)[:200]}")
                continue
            found += [f"{command.__name__}: {fault}" for fault in faults(watched, damage, command, answer)]
    finally:
        restore(watched, damage.part)
    return [f"{damage.file} ({'forged' if damage.forged else 'broken'}, {damage.told}): {one}" for one in found]


def faults(watched, damage, command, answer):
    """Judge one answer."""
    usual = watched.said[command.__name__]
    if answer.code not in (0, 1, 2):
        yield f"exit code {answer.code}"
    if "Traceback" in answer.out + answer.err:
        yield f"a traceback: {answer.err[-300:]}"
    if command is show and watched.other not in answer.out:
        yield "it hides the other run"
    if damage.name in ("timings.jsonl", "provenance.jsonl") and answer.code:
        yield f"damaged notes are more than lost: {answer.err}"
    if answer.code and not named(watched, damage, answer.err):
        yield f"the complaint does not name the file: {answer.err[:300]}"
    told = answer.err + page_text(command, answer) + (answer.out if damage.name == "provenance.jsonl" else "")
    silent = answer.code == 0 and not named(watched, damage, told)
    if silent and not damage.forged and not is_note_lost(damage, command):
        yield from changes(watched, damage, command, answer, usual)
    if command is go_on and answer.code and not (damage.forged and damage.name == "server.safetensors"):
        before, after = answer.left
        kept = before.keys() - {"failure.json"}  # why it stopped the last time is forgotten when it goes on
        if lost := sorted(name for name in kept if after.get(name) != before[name]):
            yield f"what was refused was changed all the same: {lost}"
    if command in (show_json, predict, predict_export) and answer.code == 0:
        try:
            json.loads(answer.out)
        except ValueError as error:
            yield f"no JSON: {error}"


def changes(watched, damage, command, answer, usual):
    """List what an answer without a word of complaint says differently."""
    if command is go_on:
        after = answer.left[1]
        wanted = {name: held for name, held in (watched.whole | own_part(watched, damage)).items() if held is not None}
        if bad := sorted(name for name in wanted.keys() | after.keys() if wanted.get(name) != after.get(name)):
            yield f"without a word, these files end up different: {bad}"
    elif without_times(answer.out) != without_times(usual.out):
        yield "without a word, it prints something else"
    elif answer.left != usual.left and damage.name != "timings.jsonl":
        yield "without a word, it writes something else"


def is_note_lost(damage, command):
    """Return whether all that is lost is the note why a run had stopped: a run without one has not failed."""
    return command is show_begun and damage.name == "failure.json" and damage.changes[damage.file] is None


def own_part(watched, damage):
    """Return the damaged file itself, which a run that does not need it leaves as it is."""
    if damage.name in ("failure.json", "timings.jsonl", "provenance.jsonl"):
        return {}
    start = f"begun/{watched.key}/"
    stays = {name.removeprefix(start): held for name, held in damage.changes.items() if name.startswith(start)}
    needed = {
        "experiment.json",
        "population.safetensors",
        "metrics.jsonl",
        "evaluations.bin",
        "server.safetensors",
        "chosen.safetensors",
    }
    return {name: held for name, held in stays.items() if name not in needed}


def named(watched, damage, text):
    """Return whether a text names the damaged file; of a forged one, or one of another run, any file of the run."""
    if damage.name in text:
        return True
    if damage.name == "experiment.json" and damage.changes[damage.file] is None:
        return "is not a run" in text or "There is no run" in text
    if damage.forged and damage.name.endswith((".safetensors", ".bin")):
        return bool(text.strip())  # a sentence
    if damage.forged and ("not enough memory" in text or "is of format" in text):
        return True
    loose = damage.forged or "swapped" in damage.told
    return loose and bool(re.search(r"[\w.]+\.(json|jsonl|bin|safetensors)\b", text) or watched.key in text)


def page_text(command, answer):
    return str(answer.left) if command is report else ""


def without_times(text):
    return re.sub(r"[\d.]+ (s|min|h)\b", "", text)


def test_the_undamaged_is_read_without_a_word(watched):
    for name, answer in watched.said.items():
        assert (answer.code, answer.err) == (0, ""), name
    assert watched.said["go_on"].left[1] == watched.whole
    assert COMMANDS["report"](watched) == watched.said["report"]


@pytest.mark.usefixtures("bounded_memory")
@pytest.mark.parametrize("way", [broken, forged], ids=lambda way: way.__name__)
def test_damage_is_told_by_the_name_of_its_file(watched, way):
    """Each file once."""
    chance, bad = np.random.default_rng(1), []
    for file in candidates(watched):
        bad += complaints(watched, way(watched, file, chance))
    assert not bad, "\n".join(bad)


@pytest.mark.long
@pytest.mark.usefixtures("bounded_memory")
@pytest.mark.parametrize("piece", range(PIECES))
def test_long_damage_of_many_kinds(watched, piece):
    chance, bad, done = np.random.default_rng(100 + piece), [], 0
    files = candidates(watched)
    while done < MUTATIONS // PIECES:
        file = files[chance.integers(len(files))]
        bad += complaints(watched, (broken, forged)[chance.integers(2)](watched, file, chance))
        done += 1
    sys.stdout.write(f"\n{done} mutations\n")
    assert not bad, f"{len(bad)} faults\n" + "\n".join(sorted(bad))
