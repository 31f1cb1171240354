"""The app for Flower's own commands: what is written, and that server and clients do their work in it."""

import ast
import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from benchmarks.flower_way import FlowerFederation
from flwr.app import Context, Message, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate
from flwr.common.constant import FAB_MAX_SIZE
from flwr.supercore.task_identity import TaskIdentity
from PIL import Image

import protonorm as pn
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.flower.app import Introductions, Workforce, make_client_app, make_server_app
from protonorm.deployment.flower.export import export_app
from protonorm.deployment.flower.transport import unwrap_unable
from protonorm.errors import Failed
from protonorm.runs.run import read_run
from protonorm.session.build import build
from tests.deployment.processes import free_port
from tests.deployment.sites import agreement_of
from tests.support import run, run_folder

PLAIN = {"algorithm": "protonorm", "classes": ["a", "b", "c"], "feature_dim": 8, "rounds": 2, "seed": 0}


def terms(**change):
    return Agreement.of({**PLAIN, "evaluated": ["validation", "test"], **change})


def load(folder, name):
    """Load a file of the app as Flower does."""
    spec = importlib.util.spec_from_file_location(name, folder / "federation" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.app


class FakeGrid:
    """Nodes whose app is called when a message is fetched; they are numbered from 100 on."""

    def __init__(self, app, settings, run=None):
        self.app, self.run = app, run or {}
        self.contexts = {
            100 + place: Context(5, 100 + place, own, RecordDict(), self.run) for place, own in enumerate(settings)
        }
        self.messages = {}

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{len(self.messages)}-{message.metadata.dst_node_id}"
            self.messages[message.metadata.message_id] = message
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, ids):
        message = self.messages.pop(next(iter(ids)), None)
        return [] if message is None else [self.app(message, self.contexts[message.metadata.dst_node_id])]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    for name, value in (("task_id", 3), ("run_id", 5), ("node_id", 1)):
        monkeypatch.setattr(TaskIdentity, f"_{name}", value)
    return tmp_path / "home"


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # in Flower's own code
def test_the_app_is_what_flower_and_its_hub_ask_for(tmp_path):
    place = export_app(terms(), tmp_path / "app")
    config, warnings = load_and_validate(place / "pyproject.toml")
    assert not warnings
    assert config["tool"]["flwr"]["app"]["fab-format-version"] == 1
    fab = build_fab_from_disk(place)
    assert len(fab) < FAB_MAX_SIZE / 100
    assert "Apache License" in (place / "LICENSE").read_text()
    assert terms().digest in (place / "README.md").read_text()
    assert Agreement.read((place / "federation" / "agreement.json").read_bytes()).digest == terms().digest


def test_the_app_holds_no_code_but_a_call(tmp_path):
    place = export_app(terms(), tmp_path / "app")
    for path in place.rglob("*.py"):
        kinds = {type(one) for one in ast.walk(ast.parse(path.read_text()))}
        assert not kinds & {ast.FunctionDef, ast.ClassDef, ast.For, ast.While, ast.If, ast.Lambda}


def test_only_the_public_api_of_flower_is_used():
    """And nothing of Flower outside of its own package."""
    source, found = Path(pn.__file__).parent, set()
    for path in source.rglob("*.py"):
        for one in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [one.module] if isinstance(one, ast.ImportFrom) else []
            names += [name.name for name in one.names] if isinstance(one, ast.Import) else []
            found |= {(path.parent.name, name) for name in names if name and name.split(".")[0] == "flwr"}
    assert found == {("flower", "flwr.app"), ("flower", "flwr.clientapp"), ("flower", "flwr.serverapp")}


def test_a_folder_that_is_in_use_is_left_alone(tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "mine").write_text("x")
    with pytest.raises(ValueError, match="not empty"):
        export_app(terms(), tmp_path / "app")
    assert [one.name for one in (tmp_path / "app").iterdir()] == ["mine"]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"input": {"shape": [16, 16, 1], "type": "uint8"}, "shared_network": "plain", "algorithm": "fedkd"},
    ],
    ids=["vectors", "pictures"],
)
def test_a_simulation_runs_with_data_that_are_made_up(tmp_path, home, change):
    place = export_app(terms(**change), tmp_path / "app")
    settings = [{"partition-id": number, "num-partitions": 2} for number in (1, 0)]
    grid = FakeGrid(load(place, "client_app"), settings, {"batch-size": 8, "lr": 0.01})
    load(place, "server_app")(grid, Context(5, 1, {}, RecordDict(), {}))
    found = read_run(home / "protonorm" / "runs" / "5")
    assert [record.evaluated for record in found.rounds] == ["all", "all"]
    assert found.info.experiment.clients == 2


def test_a_simulation_takes_its_parts_of_a_data_set(tmp_path, home):
    """Rounds, arrays and all, are those of a simulation of ours with the same settings."""
    given = {"dataset": "spiral", "lr": 0.05, "batch-size": 64}
    settings = {"algorithm": "fedproto", "dataset": "spiral", "lr": 0.05, "batch_size": 64, "clients": 2, "rounds": 2}
    experiment = pn.Experiment.of(settings | {"seed": 3})
    path = tmp_path / "agreement.json"
    path.write_bytes(agreement_of(build(experiment)[0], ("validation", "test")).write())
    nodes = [{"partition-id": number, "num-partitions": 2} for number in range(2)]
    grid = FakeGrid(make_client_app(path), nodes, given)
    make_server_app(path)(grid, Context(5, 1, {}, RecordDict(), {"folder": str(tmp_path / "record")}))
    run(experiment, tmp_path / "serial")
    found, expected = read_run(tmp_path / "record"), read_run(run_folder(experiment, tmp_path / "serial"))
    assert [one.model_dump(exclude={"arrays"}) for one in found.rounds] == [
        one.model_dump(exclude={"arrays"}) for one in expected.rounds
    ]


def write_samples(path, seed):
    rng, labels = np.random.default_rng(seed), np.arange(30) % 3
    inputs = (rng.normal(size=(30, 6)) + labels[:, None]).astype(np.float32)
    np.savez(path, inputs=inputs, labels=labels, classes=np.array(["a", "b", "c"]))
    return path


def test_real_nodes_have_data_networks_and_states_of_their_own(tmp_path, home):
    place = export_app(terms(), tmp_path / "app")
    settings = []
    for number in range(2):
        data = write_samples(tmp_path / f"{number}.npz", number)
        own = {"client-id": number, "data-path": f"array:{data}", "state-path": str(tmp_path / f"states {number}")}
        settings.append(own | {"batch-size": 4, "evaluation": ["off", "classes"][number], "lr": 0.05})
    grid = FakeGrid(load(place, "client_app"), settings)
    server = load(place, "server_app")
    server(grid, Context(5, 1, {}, RecordDict(), {"clients": 2, "folder": str(tmp_path / "record")}))
    found = read_run(tmp_path / "record")
    assert [record.evaluated for record in found.rounds] == ["some", "some"]  # one owner tells nothing
    for number in range(2):
        assert list((tmp_path / f"states {number}").rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({}, "neither data-path, as a real one has, nor partition-id"),
        ({"data-path": "array:x.npz"}, "expected its number"),
        ({"data-path": "array:x.npz", "client-id": "0"}, "expected its number"),
        ({"data-path": "array:x.npz", "client-id": True}, "expected its number"),
        ({"data-path": "array:x.npz", "client-id": 0, "colour": "red"}, "colour"),
        ({"partition-id": -1}, "expected its number"),
    ],
    ids=str,
)
def test_settings_of_a_node_are_checked(tmp_path, home, caplog, own, said):
    """Its owner reads in its log what is wrong; the server is told of simulated nodes only."""
    place = export_app(terms(), tmp_path / "app")
    grid = FakeGrid(load(place, "client_app"), [own])
    message = next(iter(messages_of(grid, "train")))
    reason, simulated = unwrap_unable(grid.app(message, grid.contexts[100]))
    assert simulated == ("partition-id" in own)
    assert (said in reason) == simulated
    assert (said in caplog.text) != simulated


def messages_of(grid, kind):
    grid.push_messages([Message(RecordDict(), node, kind) for node in grid.contexts])
    return grid.messages.values()


def test_of_two_nodes_of_one_number_one_counts_and_one_of_another_agreement_never(tmp_path, home):
    paths = []
    for seed in (0, 1):
        paths.append(tmp_path / f"{seed}.json")
        paths[-1].write_bytes(terms(seed=seed).write())
    apps = [make_client_app(path) for path in paths]
    grid = FakeGrid(None, [{"partition-id": 0}, {"partition-id": 0}, {"partition-id": 1}])
    grid.app = lambda message, context: apps[context.node_id == 102](message, context)
    known = Introductions(grid, terms().digest)
    first, second, other = grid.get_node_ids()
    assert known([second, other, first]) == {0: 101}
    assert known([first, second, other]) == {0: 101}
    assert known([first, other]) == {0: 100}  # the same client, started again
    assert known([first, second, other]) == {0: 100}
    assert known([other]) == {}


def test_a_node_with_an_invalid_number_is_asked_once_and_left_out(tmp_path, home, caplog):
    path = tmp_path / "agreement.json"
    path.write_bytes(terms().write())
    grid = FakeGrid(make_client_app(path), [{"client-id": "first"}, {"client-id": 1}])
    known = Introductions(grid, terms().digest)
    for _ in range(3):
        assert known(grid.get_node_ids()) == {1: 101}
    assert [one.message for one in caplog.records if "cannot take part" in one.message] == [
        "A node cannot take part: The node has client-id='first'; expected its number, 0, 1, 2 and so on."
    ]


def test_a_simulation_with_a_wrong_number_of_nodes_ends_with_a_sentence(tmp_path, home):
    """The data have three clients; the run ends at the first answer, and not after hours of waiting."""
    for number, name in enumerate(("east", "north", "west")):
        for label in ("a", "b", "c"):
            write_pictures(tmp_path / "data" / name / label, number)
    config = {"dataset": f"clients:{tmp_path / 'data'}", "folder": str(tmp_path / "record")}
    place = export_app(terms(), tmp_path / "app")
    nodes = [{"partition-id": number, "num-partitions": 2} for number in range(2)]
    grid = FakeGrid(load(place, "client_app"), nodes, config)
    with pytest.raises(Failed, match=r"client-\d cannot work: num-supernodes must be 3, .*got 2.*num-supernodes=3"):
        load(place, "server_app")(grid, Context(5, 1, {}, RecordDict(), config))


def write_pictures(folder, seed):
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    for number in range(4):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / f"{number}.png")


def test_a_run_goes_on_while_enough_clients_can_work():
    workforce = Workforce(4, needed=3)
    workforce.lose(1, "no data")
    workforce.lose(1, "no data")
    with pytest.raises(Failed, match="client-2 cannot work: no data either"):
        workforce.lose(2, "no data either")


def test_flower_installs_nothing_for_the_app_and_needs_no_index(tmp_path):
    """As Flower runs `uv sync` before each run; protonorm is on no index."""
    place = export_app(terms(), tmp_path / "app")
    env = os.environ | {"UV_OFFLINE": "1", "UV_NO_CACHE": "1", "UV_PROJECT_ENVIRONMENT": str(tmp_path / "env")}
    command = [sys.executable, "-m", "uv", "sync", "--python", sys.executable, "--no-install-project"]
    command += ["--no-install-package", "flwr", "--inexact"]
    said = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr
    assert not list((tmp_path / "env").rglob("*.dist-info"))


def test_amended_terms_are_the_first_ones_of_the_app(tmp_path, home):
    amended = terms().amended({"rounds": 1, "algorithm": {"lam": 5.0}}, 3)
    place = export_app(amended, tmp_path / "app", clients=4)
    exported = Agreement.read((place / "federation" / "agreement.json").read_bytes())
    assert (exported.rounds, exported.algorithm["lam"], exported.amends) == (1, 5.0, None)
    assert "num-supernodes=4" in (place / "README.md").read_text()
    grid = FakeGrid(load(place, "client_app"), [{"partition-id": 0, "num-partitions": 1}])
    load(place, "server_app")(grid, Context(5, 1, {}, RecordDict(), {"folder": str(tmp_path / "record")}))
    assert len(read_run(tmp_path / "record").rounds) == 1


@pytest.mark.long
def test_flwr_runs_the_app_in_a_simulation_of_its_own(tmp_path):
    """Flower's server, executor and Ray; the app is what was written, with nothing changed."""
    place, port, programs = export_app(terms(), tmp_path / "app"), free_port(), Path(sys.executable).parent
    home = tmp_path / "home"
    home.mkdir()
    connection = f'[superlink]\ndefault = "mine"\n[superlink.mine]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (home / "config.toml").write_text(connection)
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | quiet | {"FLWR_HOME": str(home), "OMP_NUM_THREADS": "1", "PATH": path}
    command = [str(programs / "flower-superlink"), "--insecure", "--simulation", "--host", "127.0.0.1"]
    command += ["--port", str(port)]
    log = (tmp_path / "superlink.log").open("wb")
    link = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        wait_for(port)
        start = [str(programs / "flwr"), "run", str(place), "mine", "--stream"]
        said = subprocess.run(start, env=env, capture_output=True, text=True, check=True, timeout=600).stdout
    finally:
        link.terminate()
        link.wait(60)
        log.close()
    assert "All 2 rounds are done" in said
    (record,) = (home / "protonorm" / "runs").iterdir()
    assert len(read_run(record).rounds) == 2


@pytest.mark.long
def test_flwr_runs_the_app_in_a_deployment_of_its_own(tmp_path):
    """Flower's server and two of its nodes, over TLS and with keys; the app is what was written."""
    data = [write_samples(tmp_path / f"{number}.npz", number) for number in range(2)]
    with FlowerFederation(tmp_path / "flower", terms(), data) as federation:
        federation.run(f'clients=2 folder="{tmp_path / "record"}"')
        for _ in range(1500):
            federation.check()
            done = (tmp_path / "record" / "metrics.jsonl").exists() and read_run(tmp_path / "record").finished
            if done:
                break
            time.sleep(0.2)
    assert [one.evaluated for one in read_run(tmp_path / "record").rounds] == ["all", "all"]


def wait_for(port):
    """Wait until somebody listens."""
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    raise AssertionError("Flower's server does not answer.")
