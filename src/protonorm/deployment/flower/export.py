"""Export of a federation as a Flower app, which contains the agreement but no algorithm's code."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from protonorm.deployment.agreement import Agreement

PACKAGE = "federation"  # package name of the app
TARGET = "1.41.0"  # Flower version that the app was tested with

PYPROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "{summary}"
readme = "README.md"
license = {{ file = "LICENSE" }}
requires-python = ">=3.11"
dependencies = ["flwr>=1.41", "protonorm[flower]"]

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

[tool.flwr.app]
publisher = "protonorm"
fab-format-version = 1
flwr-version-target = "{target}"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

# Settings of a run; `flwr run . --run-config "rounds..."` cannot change the agreement, which is agreement.json.
[tool.flwr.app.config]
clients = 0        # how many there are; 0: as many as are connected when the run begins
quorum = 1.0       # share of the clients that must answer for a round to count
deadline = 600.0   # seconds that clients have in a round
folder = ""        # of the record; in Flower's home if there is none; a run with a folder that is there goes on
dataset = ""       # of a simulation, such as "fashion" or "clients:PATH"; made up if there is none
partition = ""     # of a simulation: how its samples are assigned to clients
models = ""        # of a simulation: a family of networks, or names
lr = 0.01          # of a simulation, as the next two
batch-size = 16
epochs = 1
"""

SERVER = '''"""The server of the federation: what it does is protonorm's; what was agreed on is in agreement.json."""

from pathlib import Path

from protonorm.deployment.flower.app import make_server_app

app = make_server_app(Path(__file__).with_name("agreement.json"))
'''

CLIENT = '''"""A client of the federation; what it does is protonorm's, and what was agreed on is in agreement.json."""

from pathlib import Path

from protonorm.deployment.flower.app import make_client_app

app = make_client_app(Path(__file__).with_name("agreement.json"))
'''

README = """# {title}

A federation by the agreement in `{package}/agreement.json` (SHA-256 `{digest}`), as an app for
[Flower](https://flower.ai). What it does is in the package `protonorm`, which has to be installed on the server and on
every node, with its extra `flower`; for a simulation Flower needs `ray` as well.

    flwr run .                                          # a simulation, with data that are made up
    flwr run . --run-config 'dataset="clients:/data"'   # a simulation, with a folder of data for each client

In a deployment each node gets settings of its own: `client-id`, its number from 0 on, `data-path`, its own data, and
if its owner likes `model`, `lr`, `batch-size`, `epochs`, `device`, `evaluation` (off, accuracy or classes) and
`state-path`:

    flower-supernode --superlink HOST:PORT --root-certificates ca.crt --auth-supernode-private-key KEY \\\\
        --node-config 'client-id=0 data-path="folder:/data/pictures" model="resnet8"'
    flwr run . NAME --run-config 'clients=4 folder="/srv/run"'

A node runs the app that the server sends, so its owner must trust the server's owner; `protonorm deploy` does without.
"""


def export_app(agreement: Agreement, folder: Path) -> Path:
    """Write the app into a new folder and return the folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is there already, and it is not empty; an app gets a folder of its own.")
    method = str(agreement.algorithm["name"])
    about = {
        "name": f"protonorm-{method.lower()}",
        "summary": f"A federation by {method} over {len(agreement.classes)} classes",
        "title": f"{method} over {len(agreement.classes)} classes",
        "package": PACKAGE,
        "target": TARGET,
        "digest": agreement.digest,
    }
    files = {
        "pyproject.toml": PYPROJECT.format(**about),
        "README.md": README.format(**about).replace("\\\\", "\\"),
        "LICENSE": _licence(),
        f"{PACKAGE}/__init__.py": '"""A federation, as an app for Flower."""\n',
        f"{PACKAGE}/server_app.py": SERVER,
        f"{PACKAGE}/client_app.py": CLIENT,
        f"{PACKAGE}/agreement.json": agreement.write().decode(),
    }
    for name, text in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder


def _licence() -> str:
    """Return the text of the licence."""
    try:
        found = distribution("protonorm").read_text("licenses/LICENSE")
    except PackageNotFoundError:
        found = None
    return found or "Apache License, Version 2.0: https://www.apache.org/licenses/LICENSE-2.0\n"
