"""A client that was written from docs/wire.md, with NumPy alone, takes part beside ours, and its classes improve."""

import ast
import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
from tools import wire_tables

import protonorm as pn
from protonorm.core.frames import join, split
from protonorm.core.training import Training
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.client_folder import ClientFolder
from protonorm.deployment.federation import run_federation
from protonorm.deployment.federation_folder import FederationFolder
from protonorm.deployment.https import protocol
from protonorm.deployment.https.client import Connection
from protonorm.deployment.https.serving import open_server, run
from protonorm.deployment.messages import RequestHeader, read_answer_header, write_request
from protonorm.deployment.node import Node
from protonorm.deployment.settings import FederationSettings
from protonorm.deployment.site import make_site, open_store
from protonorm.deployment.worker import Worker
from tests.deployment import numpy_client
from tests.deployment.federation import Line
from tests.deployment.processes import free_port
from tests.docs.pages import blocks

SOURCE = Path(numpy_client.__file__)
CLASSES = ("ant", "bee", "cow", "dog")
TERMS = {
    "algorithm": {"name": "protonorm", "gamma": 10.0},
    "classes": list(CLASSES),
    "feature_dim": 8,
    "rounds": 5,
    "seed": 3,
}


def samples(seed, classes, count=40):
    """Draw points around a centre for each class, which is the same for everybody."""
    centres = np.random.default_rng(9).normal(size=(len(CLASSES), 6))
    random = np.random.default_rng(seed)
    labels = np.array(classes).repeat(count)
    return (centres[labels] + 0.8 * random.normal(size=(len(labels), 6))).astype(np.float32), labels


def our_nodes(agreement, folder):
    found = {}
    for id, classes in enumerate([(0, 1, 2, 3), (1, 2, 3)]):
        points, labels = samples(id, classes)
        data = pn.Dataset("points", points, labels, CLASSES)
        site = make_site(agreement, id, data, "mlp", Training(validation=0.1, lr=0.05, batch_size=8))
        found[id] = Node(agreement, site, open_store(folder / str(id), agreement), "classes")
    return found


def told(lines, what):
    return [event for event in lines if event.what == what]


def test_it_imports_neither_torch_nor_protonorm():
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    names = {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    others = {name.split(".")[0] for name in names} - set(sys.stdlib_module_names)
    assert others == {"numpy"}


def test_it_has_the_frames_of_the_page():
    (page,) = [block.text for block in blocks("docs/wire.md") if block.kind == "python"]
    scope = {}
    exec(page.partition("frame = write_frame")[0], scope)
    header, tensors = {"a": [1, "ü"]}, {"x": np.arange(6.0).reshape(2, 3), "n": np.array(7)}
    assert scope["write_frame"](header, tensors) == numpy_client.write_frame(header, tensors)
    found, held = scope["read_frame"](numpy_client.write_frame(header, tensors))
    assert found == header
    assert held["x"].tolist() == tensors["x"].tolist()


def test_it_reads_and_writes_what_we_do(tmp_path):
    agreement = Agreement.of(TERMS)
    plain = json.loads(agreement.write())
    assert numpy_client.digest_of(plain) == agreement.digest
    client = numpy_client.Client(plain, 2, *samples(2, (0, 1, 2)), tmp_path / "own")
    asked = {"format": 1, "agreement": agreement.digest, "client": 2, "round": 1, "kind": "train", "trained": 0}
    request = write_request(RequestHeader.model_validate(asked), b"")
    first = client.answer(request)
    assert client.answer(request) == first
    assert not read_answer_header(first)[0].declined
    for change in ({"client": 1}, {"agreement": "0" * 64}, {"trained": 3}):
        header = read_answer_header(client.answer(join({**split(request)[0], **change}, b"")))[0]
        assert header.declined
    assert read_answer_header(client.answer(b"nonsense is shorter"))[0].declined


def test_it_takes_part_and_its_classes_improve(tmp_path):
    """It has ants, bees and cows; after the first round nobody has trained towards the published prototypes yet."""
    agreement = Agreement.of(TERMS)
    client = numpy_client.Client(json.loads(agreement.write()), 2, *samples(2, (0, 1, 2)), tmp_path / "own")
    line, events = Line({**our_nodes(agreement, tmp_path), 2: client}), []
    run = run_federation(
        agreement,
        line,
        tmp_path / "run",
        clients=["north", "south", "numpy"],
        deadline=60.0,
        notify=events.append,
        clock=lambda: line.now,
    )
    assert [len(one.lost) for one in run.rounds] == [0] * 5
    assert not told(events, "refused")
    check_improvement(run)


def test_its_prototypes_are_as_long_as_those_of_others_whatever_the_scale_of_its_inputs(tmp_path):
    """Raw inputs of this scale made them more than ten times as long, and the server reported the client as suspect."""
    agreement = Agreement.of(TERMS)
    points, labels = samples(2, (0, 1, 2))
    client = numpy_client.Client(json.loads(agreement.write()), 2, 3 * points, labels, tmp_path / "own")
    line, events = Line({**our_nodes(agreement, tmp_path), 2: client}), []
    names = ["north", "south", "numpy"]
    run = run_federation(
        agreement, line, tmp_path / "run", clients=names, deadline=60.0, notify=events.append, clock=lambda: line.now
    )
    lengths = [event.numbers["length"] for event in told(events, "compared") if event.client == 2]
    assert len(lengths) == len(run.rounds)
    assert max(lengths) < 5
    check_improvement(run)


def test_its_usage_is_printed_if_a_word_is_missing():
    said = subprocess.run([sys.executable, str(SOURCE), "bundle.json"], capture_output=True, text=True)
    assert said.returncode == 1
    assert said.stderr.startswith("usage: python numpy_client.py BUNDLE KEY DATA FOLDER")


def check_improvement(run):
    """Compare its right answers of 30 in the last round and the first, by published prototypes and by its own layer."""
    for rule in ("nearest-global", "logits"):
        right = [int(run.arrays(record)[f"test.correct.clients.{rule}"][2]) for record in run.rounds]
        assert run.arrays(run.rounds[0])["test.support.clients"][2] == 30
        assert right[-1] >= 26
        assert right[-1] > right[0]  # by how much depends on how good the first round is


WITHOUT = "import runpy, sys; sys.modules.update(torch=None, protonorm=None); sys.argv = sys.argv[1:]; "


def test_it_takes_part_over_tls_with_its_own_key(tmp_path):
    """The server and two clients of ours are in this process; it has one of its own, where torch cannot be imported."""
    agreement, events = Agreement.of(TERMS), []
    plain = {"name": "points", "hosts": ["127.0.0.1"], "bind": "127.0.0.1", "port": free_port(), "quorum": 1.0}
    folder = FederationFolder.create(tmp_path / "server", FederationSettings.of(plain), agreement)
    homes = [ClientFolder.create(tmp_path / name, name) for name in ("north", "south", "numpy")]
    members = [folder.add(home.settings.name, home.public_key) for home in homes]
    bundle = folder.write_bundle(members[2])
    points, labels = samples(2, (0, 1, 2))
    np.savez(tmp_path / "points.npz", inputs=points, labels=labels)
    command = [sys.executable, "-c", f"{WITHOUT} runpy.run_path(sys.argv[0], run_name='__main__')", str(SOURCE)]
    command += map(str, [bundle, homes[2].tls.key, tmp_path / "points.npz", tmp_path / "own"])
    for home, member in zip(homes, members, strict=True):
        home.confirm(folder.bundle(member))
    other = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert "cannot be reached" in other.stderr.readline()  # it tries again until there is a server
    with open_server(folder) as server:
        threads = []
        for id, node in our_nodes(agreement, tmp_path / "ours").items():
            sizes = {"largest": 2**20, "largest_answer": 2**20}
            connection = Connection("127.0.0.1", server.port, *homes[id].tls, **sizes)
            worker = Worker(connection, node, agreement, lambda *said: None)
            threads.append(threading.Thread(target=worker.run, kwargs={"linger": 0.0}))
            threads[-1].start()
        try:
            found = run(folder, server, events.append)
            assert other.wait(60) == 0, other.stderr.read()
        finally:
            other.kill()
            other.communicate()
            for thread in threads:
                thread.join(60)
    assert [len(one.lost) for one in found.rounds] == [0] * 5
    assert not told(events, "refused")
    check_improvement(found)


def test_the_tables_of_the_page_are_up_to_date():
    page = wire_tables.PAGE.read_text(encoding="utf-8")
    assert wire_tables.written(page) == page
    assert {match["name"] for match in wire_tables.PLACE.finditer(page)} == wire_tables.PARTS.keys()


def test_the_page_names_all_calls_and_headers():
    page = wire_tables.PAGE.read_text(encoding="utf-8")
    calls = set(re.findall(r"^\| `((?:GET|POST) /v1/\w+)` \|", page, re.MULTILINE))
    assert calls == {f"GET {protocol.WORK}", f"POST {protocol.ANSWER}"}
    headers = {protocol.FORMAT_HEADER, protocol.VERSION_HEADER, protocol.INSTANCE_HEADER, protocol.REQUEST_HEADER}
    headers |= {protocol.LEAVE_HEADER}
    assert set(re.findall(r"^\| `(Protonorm-\w+)` \|", page, re.MULTILINE)) == headers
    assert f"{protocol.HOLD:.0f} seconds" in page
