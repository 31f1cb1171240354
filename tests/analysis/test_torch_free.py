"""Modules that say so are imported without torch, which takes seconds."""

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

PROMISES = ("Nothing here needs torch", "Does not import torch")


def promises(path):
    text = path.read_text(encoding="utf-8")
    return any(promise in text for promise in PROMISES)


def test_modules_that_promise_it_do_not_import_torch():
    root = Path(str(files("protonorm")))
    found = [path for path in root.rglob("*.py") if promises(path)]
    names = [".".join(("protonorm", *path.relative_to(root).with_suffix("").parts)) for path in found]
    assert {"protonorm.analysis.comparison", "protonorm.report.figures", "protonorm.runs.run"} <= set(names)
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules, name"
    )
    subprocess.run([sys.executable, "-c", code, *names], check=True)
