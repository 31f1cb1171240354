"""Commands in processes of their own, for tests."""

import json
import subprocess
import sys

IMPORTED = """
import json, runpy, sys
sys.argv = ["protonorm", *sys.argv[1:]]
try:
    runpy.run_module("protonorm", run_name="__main__")
except SystemExit as end:
    assert not end.code, end.code
sys.stderr.write("\\n" + json.dumps(sorted(sys.modules)))
"""


def imported(*words):
    """Run a command, and give the names of the modules that it imported."""
    done = subprocess.run([sys.executable, "-c", IMPORTED, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))
