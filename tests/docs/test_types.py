"""Type checkers accept what the pages show, also those of people who have no plugin for pydantic."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks

PAGES = ("README.md", "docs/tutorial.md", "docs/howto.md", "docs/add-your-own.md")
CACHE = ROOT / ".mypy_cache" / "without_plugin"  # the first time mypy reads all of torch


@pytest.fixture(scope="module")
def complaints(tmp_path_factory):
    """Run mypy without our settings over all blocks of Python, and give its lines by page."""
    folder = tmp_path_factory.mktemp("blocks")
    for page in PAGES:
        for block in blocks(page):
            if block.kind == "python":
                name = f"{Path(page).stem}_{block.line}.py".replace("-", "_")
                (folder / name).write_text(block.text)
    options = ["--config-file=", "--follow-imports=silent", f"--cache-dir={CACHE}", "--no-error-summary"]
    found = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "."],
        cwd=folder,
        env=os.environ | {"MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not found.stderr
    assert len(list(folder.iterdir())) > 10
    return found.stdout.splitlines()


@pytest.mark.long
def test_the_readme_has_right_types(complaints):
    assert [line for line in complaints if line.startswith("README")] == []


@pytest.mark.long
def test_an_experiment_can_be_made_from_some_settings(complaints):
    assert [line for line in complaints if "Experiment" in line or "compare" in line] == []


@pytest.mark.long
def test_the_guides_files_pass_strict_types_without_plugins(tmp_path):
    """As printed, each beside the others; also the partition, which is no file."""
    for block in blocks("docs/add-your-own.md"):
        if block.kind == "python" and (block.title or "ByPosition" in block.text):
            (tmp_path / (block.title or "partition.py")).write_text(block.text)
    assert {"fedprox.py", "median.py", "heads.py", "decayed.py", "partition.py"} <= {p.name for p in tmp_path.iterdir()}
    options = ["--config-file=", "--follow-imports=silent", f"--cache-dir={CACHE}", "--strict", "--no-error-summary"]
    environment = os.environ | {"MYPYPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "mypy", *options, "."]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "")
