"""What the documentation prints, works as printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def blocks(page):
    return [match.groups() for match in BLOCK.finditer((DOCS / page).read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", ["docs/tutorial.md", "docs/add-your-own.md"])
def test_every_command_and_script_of_the_page_runs(page, tmp_path):
    """In order, in one folder: files are written, commands run, Python runs as an unguarded script."""
    ran = 0
    for kind, title, text in blocks(page):
        if title:
            (tmp_path / title).write_text(text)
        elif kind == "bash":
            for line in text.replace("\\\n", " ").splitlines():
                call(line.split(), tmp_path)
                ran += 1
        elif kind == "python":
            (tmp_path / "script.py").write_text(text)
            call([sys.executable, "script.py"], tmp_path)
            ran += 1
    assert ran >= 4


def test_the_readmes_python_runs_as_an_unguarded_script_and_has_ten_lines(tmp_path):
    scripts = [text for kind, _, text in blocks("README.md") if kind == "python"]
    for text in scripts:
        assert len(text.strip().splitlines()) <= 10
        (tmp_path / "script.py").write_text(text)
        call([sys.executable, "script.py"], tmp_path)
    assert scripts


def test_the_own_algorithm_has_at_most_40_lines():
    (text,) = [text for _, title, text in blocks("docs/add-your-own.md") if title == "median.py"]
    assert len(text.strip().splitlines()) <= 40


def test_every_algorithm_has_a_page():
    from protonorm.algorithms import ALGORITHMS

    for name in ALGORITHMS:
        page = (DOCS / "docs" / "algorithms" / f"{name}.md").read_text(encoding="utf-8")
        assert f"algorithm={name}" in page or f"compare {name}" in page


def call(words, folder):
    if words[0] == "protonorm":
        words = [sys.executable, "-m", *words]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
