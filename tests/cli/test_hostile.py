"""What a command does when memory is short, when paths are odd, and when strange files lie in the current folder."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from protonorm.cli.app import app
from protonorm.data.published.prepare import SOURCES
from protonorm.errors import lacks_memory
from protonorm.models.split import examine
from protonorm.session import running

SPIRAL = ["dataset=spiral", "dataset.points=60", "clients=3", "partition=iid", "rounds=1", "--engine", "serial"]
HUGE = """
import torch
from torch import nn

import protonorm as pn


def wide(shape, feature_dim, num_classes):
    return pn.SplitModel(nn.Linear(2, 10**14), nn.Linear(2, num_classes))


class Hungry(nn.Module):
    def forward(self, x):
        return torch.empty(10**15)


def hungry(shape, feature_dim, num_classes):
    return pn.SplitModel(Hungry(), nn.Linear(2, num_classes))


def hungry_uncut(shape, feature_dim, num_classes):
    return nn.Sequential(nn.Linear(2, 3), Hungry())
"""


def call(*words):
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.mark.parametrize("name", ["wide", "hungry", "hungry_uncut"])
@pytest.mark.parametrize("command", ["run", "inspect"])
def test_a_network_that_does_not_fit_into_memory(tmp_path, command, name):
    """800 or 4000 TB, while it is made, or when it is tried."""
    path = tmp_path / "huge.py"
    path.write_text(HUGE)
    words = ["inspect", f"{path}:{name}", "--shape", "2", "--d", "2"]
    result = call(*(words if command == "inspect" else ["run", *SPIRAL, f"models={path}:{name}"]))
    assert result.exit_code == 1, result.output
    assert "There is not enough memory (" in result.stderr
    assert "GiB at once)" in result.stderr
    assert not list(tmp_path.glob("runs/*"))


def numpy_error():
    try:
        np.zeros(2**50)
    except MemoryError as error:
        return error
    pytest.skip("there is memory for everything here")


@pytest.mark.parametrize("make", [MemoryError, numpy_error, lambda: RuntimeError("CUDA out of memory. Tried …")])
def test_short_memory_is_a_sentence_with_code_1(monkeypatch, make):
    def fail(*_, **__):
        raise make()

    monkeypatch.setattr(running, "run", fail)
    result = call("run", *SPIRAL)
    assert result.exit_code == 1
    assert result.stderr.startswith("protonorm: There is not enough memory")
    assert result.stderr.count("\n") == 1


def test_other_errors_are_not_taken_for_it(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(running, "run", fail)
    assert str(call("run", *SPIRAL).exception) == "a mistake of ours"
    assert not lacks_memory(ValueError("out of memory"))


def test_a_forward_pass_that_lacks_memory_is_no_fault_of_the_network():
    class Hungry(torch.nn.Module):
        def forward(self, x):
            return torch.empty(10**15)

    with pytest.raises(RuntimeError, match="allocate memory"):
        examine(lambda *_: torch.nn.Sequential(torch.nn.Linear(2, 3), Hungry()), (2,), 2, 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["inspect", "mlp", "--shape", "9" * 5000], "got 99999"),
        (["inspect", "mlp", "--shape", "100000x100000"], "--shape must have at most"),
        (["inspect", "mlp", "--shape", "2", "--d", "100000000000"], "--d"),
        (["inspect", "mlp", "--shape", "2", "--classes", "9" * 31], "--classes"),
        (["run", *SPIRAL, "--workers", "100000000000"], "--workers"),
        (["run", *SPIRAL, "--out", ""], "--out"),
        (["show", "--out", ""], "--out"),
        (["compare", "local", *SPIRAL, "--figures", ""], "--figures"),
        (["reproduce", "table1", "--seeds", "9" * 5000], "got 99999"),
        (["run", "x" * 100_000], "neither a setting"),
        (["run", "x" * 100_000 + ".yaml"], "There is no file"),
        (["run", "\x1b[31m=1"], "'\\x1b[31m'"),
        (["show", "x\x1b[31m"], "There is no run"),
        (["compare", "x" * 4000], "Unknown algorithm"),
        (["compare", "x" * 5000], "must have at most 4096 characters"),
        (["compare", "\x1b[31m"], "Unknown algorithm"),
        (["run", "tracker=" + "x" * 4000], "Unknown tracker"),
        (["run", "tracker=[a]"], "is not a tracker"),
    ],
    ids=lambda value: (
        " ".join(value)[:30].encode("ascii", "backslashreplace").decode() if isinstance(value, list) else ""
    ),
)
def test_odd_words_are_refused_in_a_short_sentence(words, said):
    result = call(*words)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.stderr.split())
    assert "\x1b" not in result.stderr
    assert len(result.stderr) < 2000
    assert isinstance(result.exception, SystemExit)


def test_a_line_of_a_complaint_never_passes_for_another(tmp_path):
    path = tmp_path / "a\nprotonorm: all is well.yaml"
    assert call("run", path).stderr.count("\nprotonorm") == 0
    path.write_text("[")
    assert call("run", path).stderr.count("\nprotonorm") == 0


WRONG = "\x1b[31m\x07\u202e[bold]x"


@pytest.mark.parametrize(
    "words",
    [
        [WRONG],
        [f"--{WRONG}"],
        ["show", f"--{WRONG}"],
        ["show", WRONG, "one"],
        ["data", WRONG],
        ["data", "list", f"--{WRONG}=3"],
        ["bench", WRONG],
    ],
)
def test_wrong_words_are_shown_as_text(words):
    """The names of options and commands come back in the complaint, with escapes that can be seen."""
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert not {"\x1b", "\x07", "\u202e"} & set(result.stderr)
    assert "\\x1b[31m\\x07\\u202e[bold]x" in "".join(result.stderr.replace("│", " ").split())  # in a frame


@pytest.mark.parametrize("words", [["run", "--workers", WRONG], ["export", "x", "y", "--client", WRONG]])
def test_a_wrong_value_is_no_command_to_the_terminal(words):
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert words[-2] in result.stderr
    assert not {"\x1b", "\x07", "\u202e"} & set(result.stderr)


TRAPS = ["torch", "numpy", "yaml", "rich", "typer", "pydantic", "json", "random", "shlex", "difflib", "hashlib"]
TRAPS += ["dataclasses", "pathlib", "scipy", "filelock", "safetensors", "matplotlib", "sitecustomize_of_mine"]


def test_files_of_the_current_folder_are_not_executed(tmp_path):
    """`python -m` puts the current folder first, where a torch.py may lie."""
    for name in TRAPS:
        (tmp_path / f"{name}.py").write_text("from os import mkdir\nmkdir('executed')\n")
    words = [sys.executable, "-m", "protonorm", "inspect", "mlp", "--shape", "2", "--d", "2"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists()


def modules_that_python_itself_needs(folder):
    """Name what `python -m` imports for a package that does nothing: from the current folder, too, and without us."""
    (folder / "empty").mkdir()
    (folder / "empty" / "__main__.py").touch()
    words = [sys.executable, "-X", "importtime", "-m", "empty"]
    told = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True).stderr
    return {line.rsplit("|", 1)[1].strip().partition(".")[0] for line in told.splitlines()}


@pytest.mark.parametrize(
    "command", [[sys.executable, "-m", "protonorm"], [Path(sys.executable).with_name("protonorm")]]
)
def test_no_file_with_the_name_of_a_standard_module_is_executed(tmp_path, command):
    """Of all modules of the standard library, typing, enum and re among them, that Python can still be misled about."""
    (tmp_path / "elsewhere").mkdir()
    traps = sys.stdlib_module_names - modules_that_python_itself_needs(tmp_path / "elsewhere")
    assert {"typing", "enum", "re", "__future__", "inspect"} <= traps
    here = tmp_path / "here"
    here.mkdir()
    for name in traps:
        (here / f"{name}.py").write_text("from os import mkdir\nmkdir('executed')\n")
    done = subprocess.run([*command, "--help"], cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout
    assert not (here / "executed").exists()


def test_the_package_is_found_in_the_current_folder_all_the_same():
    source = Path(__file__).parents[2] / "src"
    words = [sys.executable, "-m", "protonorm", "--version"]
    done = subprocess.run(words, cwd=source, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("protonorm "), done.stderr


def test_signs_that_the_terminal_cannot_take_are_no_error(tmp_path):
    words = [sys.executable, "-m", "protonorm", "list", "partitions"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, env={"PYTHONIOENCODING": "ascii"}, check=False)
    assert done.returncode == 0, done.stderr
    assert b"dirichlet" in done.stdout


def test_data_are_fetched_over_https():
    addresses = {file.url for sources in SOURCES.values() for source in sources for file in source.files}
    assert len(addresses) == 5
    assert all(address.startswith("https://") for address in addresses)
