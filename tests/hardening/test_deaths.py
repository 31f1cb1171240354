"""A run may die at any file operation: the same command goes on, and the folder ends up as if nothing had happened.

The short form dies once at each operation of a small run. The long form does so in runs of several kinds, and in every
way in two of them, dies again and again on the way to the end, and kills real processes at random moments. Files that
are not the run's own lie in its folder all the while.
"""

import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import protonorm as pn
from protonorm.algorithms.fedproto import FedProto
from tests.hardening.filelayer import MODES, FileLayer, Killed
from tests.support import contents, run, run_folder, spiral

KILLS = int(os.environ.get("PROTONORM_KILLS", "50"))  # of real processes, in the long form
CHAINS = int(os.environ.get("PROTONORM_CHAINS", "8"))  # runs that die again and again, for each experiment

FOREIGN = {  # what is not the run's own
    ".notes.txt": b"mine",
    ".keep.me.1": b"mine too",
    "notes.txt": b"",
    "clients/mine.safetensors": b"weights",
    "clients/.0.1.safetensors.bak": b"a copy",
    "prototypes/readme.md": b"# prototypes",
    ".metrics.jsonl.backup": b"{}\n",
    "mine/.hidden.file": b"deep",
}


@dataclass(frozen=True)
class Unsteady(FedProto):
    """FedProto of which a client in three says what the server refuses, another one in each round."""

    def local_update(self, client, state, message):
        step = super().local_update(client, state, message)
        if (client.id + client.round) % 3:
            return step
        return pn.Step(step.state, {**step.message, "strange": torch.ones(1)}, step.metrics)


SMALL = {"clients": 2, "rounds": 2, "batch_size": 32}
EXPERIMENTS = {
    "protonorm": SMALL,
    "partial participation": {"clients": 5, "rounds": 3, "participation": 0.4, "evaluate": "cohort"},
    "seldom evaluated": {"clients": 3, "rounds": 3, "evaluate_every": 2},
    "quorum": {"clients": 3, "rounds": 3, "quorum": 0.5, "algorithm": Unsteady()},
    "fedtgp": {**SMALL, "algorithm": "fedtgp"},
    "fedavg": {**SMALL, "algorithm": "fedavg", "participation": 0.7},
    "solo": {**SMALL, "control": "solo", "rounds": 3},
}


@pytest.fixture(autouse=True)
def _quick_to_collect():
    """Set aside all that there is before a test, so that locks of processes that have died are found quickly."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def die(experiment, out, number, mode="before"):
    """Run until one operation, and die there; tell which one it was, or None if the run ended before."""
    layer = FileLayer(out, number, mode)
    with layer.watching(), suppress(Killed):
        run(experiment, out)
    if layer.dead:
        gc.collect()  # a process that has died holds no lock
    return layer.seen[-1] if layer.dead else None


def operations(experiment, out):
    """List all operations of a run."""
    layer = FileLayer(out)
    with layer.watching():
        run(experiment, out)
    return layer.seen


def plant(folder):
    for name, content in FOREIGN.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def differences(folder, whole):
    """Name the files in which a folder differs from an unbroken run with foreign files in it."""
    found, wanted = contents(folder), contents(whole) | FOREIGN
    return sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))


def resume(experiment, out, whole):
    """Plant foreign files and give the same command again; tell in which files the outcome differs."""
    folder = run_folder(experiment, out)
    plant(folder)
    try:
        run(experiment, out)
    except Exception as error:  # what went wrong is told together with what went wrong elsewhere
        return [f"{type(error).__name__}: {error}"]
    return differences(folder, run_folder(experiment, whole))


def test_the_layer_sees_every_way_to_write(tmp_path):
    """Six operations for a file that is moved to its place, and one or two for each other way."""
    layer = FileLayer(tmp_path)
    with layer.watching():
        from protonorm import files

        files.replace(tmp_path / "a", b"x")
        (tmp_path / "b").write_text("x")
        os.close(os.open(tmp_path / "c", os.O_CREAT | os.O_WRONLY))
        (tmp_path / "d" / "e").mkdir(parents=True)
        shutil.rmtree(tmp_path / "d")
        (tmp_path / "a").read_bytes()
        with open(tmp_path / "c", "r+b") as file:
            file.write(b"y")
            os.ftruncate(file.fileno(), 0)
    kinds = [(one.kind, Path(one.path).name) for one in layer.seen if not one.path.startswith(".a")]
    assert ("replace", "a") in kinds
    assert [one for one in kinds if one[1] != "a"] == [
        *(("open", "b"), ("write", "b")),
        ("open", "c"),
        *(("mkdir", "e"), ("mkdir", "d"), ("mkdir", "e")),  # the first one fails
        *(("rmdir", "e"), ("rmdir", "d")),
        *(("open", "c"), ("write", "c"), ("ftruncate", "c")),
    ]
    assert {one.kind for one in layer.seen if one.path.startswith(".a")} >= {"open", "write", "fsync"}


@pytest.mark.parametrize("mode", MODES)
def test_death_is_before_after_or_in_the_middle_of_a_write(tmp_path, mode):
    def write_and_clean_up():
        try:
            (tmp_path / "a").write_bytes(b"1234")
        finally:
            (tmp_path / "a").unlink()  # too late

    with FileLayer(tmp_path, 1, mode).watching(), pytest.raises(Killed):
        write_and_clean_up()
    assert (tmp_path / "a").read_bytes() == {"before": b"", "after": b"1234", "torn": b"12"}[mode]


def deaths(experiment, tmp_path, modes):
    """Die at each operation in some ways; return the number of deaths, and a line for each that left a trace."""
    seen = operations(experiment, tmp_path / "whole")
    found, bad = 0, []
    for number, expected in enumerate(seen):
        for mode in modes(number, expected):
            out = tmp_path / f"{number}-{mode}"
            operation = die(experiment, out, number, mode)
            assert operation == expected, f"operation {number} was {operation}, and {expected} before"
            found += 1
            if trace := resume(experiment, out, tmp_path / "whole"):
                bad.append(f"{mode} {number} ({operation}): {', '.join(trace)}")
            shutil.rmtree(out)
    return found, bad


def sampled(number, operation):
    """Choose one way to die at an operation: all ways come in turn."""
    return [MODES[number % (3 if operation.kind == "write" else 2)]]


def every(_, operation):
    return MODES if operation.kind == "write" else MODES[:2]


def test_a_run_that_died_at_any_operation_ends_as_an_unbroken_one(tmp_path):
    found, bad = deaths(spiral(**SMALL), tmp_path, sampled)
    assert found > 80
    assert not bad, "\n".join(bad)


@pytest.mark.long
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_long_death_at_any_operation(tmp_path, name):
    found, bad = deaths(spiral(**EXPERIMENTS[name]), tmp_path, every if name in ("protonorm", "quorum") else sampled)
    tell(f"{name}: {found} deaths at single operations")
    assert found > 50
    assert not bad, "\n".join(bad)


def die_again_and_again(experiment, tmp_path, chance):
    """Die at random operations until the run is done; return the number of deaths and what differs."""
    count = 0
    while die(experiment, tmp_path / "broken", chance.randrange(60), chance.choice(MODES)):
        count += 1
        plant(run_folder(experiment, tmp_path / "broken"))
        assert count < 200, "it does not come to an end"
    plant(run_folder(experiment, tmp_path / "broken"))
    return count, differences(run_folder(experiment, tmp_path / "broken"), run_folder(experiment, tmp_path / "whole"))


@pytest.mark.parametrize("name", ["partial participation", "quorum"])
def test_a_run_that_dies_again_and_again_ends_as_an_unbroken_one(tmp_path, name):
    experiment = spiral(**EXPERIMENTS[name])
    run(experiment, tmp_path / "whole")
    found, bad = die_again_and_again(experiment, tmp_path, random.Random(0))
    assert found > 1
    assert not bad


@pytest.mark.long
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_long_death_again_and_again(tmp_path, name):
    experiment = spiral(**EXPERIMENTS[name])
    run(experiment, tmp_path / "whole")
    chance, total, bad = random.Random(0), 0, []
    for _ in range(CHAINS):
        found, trace = die_again_and_again(experiment, tmp_path, chance)
        total += found
        bad += trace
        shutil.rmtree(tmp_path / "broken")
    tell(f"{name}: {total} deaths in {CHAINS} runs that died again and again")
    assert not bad


@pytest.mark.long
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL here")
def test_long_kill_9_at_random_moments(tmp_path):
    """Processes with two workers each; moments from the start of the process to the end of an unbroken run."""
    settings = {"clients": 4, "rounds": 12, "participation": 0.8}
    experiment = spiral(**settings)
    run(experiment, tmp_path / "whole")
    out, temporary = tmp_path / "broken", tmp_path / "temporary"
    temporary.mkdir()
    words = ["dataset=spiral", "dataset.points=60", "partition=dirichlet", "partition.alpha=0.3", "partition.least=4"]
    words += ["batch_size=8", "lr=0.05", *(f"{name}={value}" for name, value in settings.items())]
    command = [sys.executable, "-m", "protonorm", "run", *words, "--engine", "processes", "--workers", "2"]

    def start():
        return subprocess.Popen(
            [*command, "--out", str(out)],
            env=os.environ | {"TMPDIR": str(temporary)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    began = time.monotonic()
    with start() as process:
        assert process.wait(300) == 0
    whole = time.monotonic() - began
    chance, kills, done, bad = random.Random(0), 0, 0, []
    shutil.rmtree(out)
    while kills < KILLS:
        process = start()
        try:
            _, said = process.communicate(timeout=chance.uniform(0.1, 1.05) * whole)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            kills += 1
            if out.exists() and any(out.iterdir()):
                plant(run_folder(experiment, out))
            continue
        assert process.returncode == 0, said
        done += 1
        plant(run_folder(experiment, out))
        bad += differences(run_folder(experiment, out), run_folder(experiment, tmp_path / "whole"))
        shutil.rmtree(out)
    process = start()
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    plant(run_folder(experiment, out))
    bad += differences(run_folder(experiment, out), run_folder(experiment, tmp_path / "whole"))
    tell(f"{kills} processes killed, {done + 1} runs brought to their end")
    assert not bad
    left = [path for path in temporary.rglob("*") if path.is_file() and path.name != "lock"]
    assert not left, f"temporary files of killed processes stay behind: {left}"


def tell(figure):
    """Print how much was done, shown by the long form with -s or -rP."""
    sys.stdout.write(f"\n{figure}\n")
