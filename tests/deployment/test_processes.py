"""Federations of real processes over TLS with keys: the numbers are a simulation's, whoever is killed meanwhile."""

import json
import signal

import numpy as np
import pytest
from typer.testing import CliRunner

from protonorm import tensors
from protonorm.cli.app import app
from protonorm.cli.options import Checkpoint
from protonorm.cli.predict import find_client
from protonorm.deployment.client_folder import ClientFolder
from protonorm.inference.loading import load_client
from protonorm.runs.layout import stamp
from protonorm.runs.run import read_run
from tests.contract.playing import same
from tests.deployment.keyring import until
from tests.deployment.processes import RealFederation


def assert_same_as_serial(federation):
    """Every round's record and arrays, the server's tensors, and each client's state on its own disk are equal."""
    found, expected = read_run(federation.server.run_folder), read_run(federation.serial())
    rounds = federation.experiment.rounds
    assert len(found.rounds) == rounds
    for ours, theirs in zip(found.rounds, expected.rounds, strict=True):
        assert ours.model_dump(exclude={"arrays"}) == theirs.model_dump(exclude={"arrays"})
        left, right = found.arrays(ours), expected.arrays(theirs)
        assert left.keys() == right.keys()
        assert all(np.array_equal(left[name], right[name], equal_nan=True) for name in left)
    one, two = (
        tensors.load(run.folder / "server.safetensors", stamp(run.info.key, "server", rounds))
        for run in (found, expected)
    )
    assert same(one, two)
    for id, client in enumerate(federation.clients):
        state = next((client.states / federation.agreement.digest[:16]).glob(f"{id}.{rounds}.*"))
        theirs = expected.folder / "clients" / state.name
        assert same(tensors.decode(state.read_bytes()), tensors.decode(theirs.read_bytes()))


def assert_exported_as_measured(federation, folder):
    """Each client's network, exported by the command, has the accuracies of the record on the client's test part."""
    run = read_run(federation.server.run_folder)
    for client in federation.clients:
        id = client.bundle.client
        first = next(one.round for one in run.rounds if id in (range(3) if one.cohort == "all" else one.cohort))
        done = CliRunner().invoke(app, ["deploy", "export", str(folder / str(id)), "--folder", str(client.path)])
        assert done.exit_code == 0, done.output
        site, found = client.node()._site, find_client(str(client.path), None, Checkpoint.chosen, None, None, None)
        x, y = (values[site.parts[0].test] for values in (site.dataset.inputs, site.dataset.labels))
        best = run.chosen.record.round
        assert found.info.round == (best if best >= first else len(run.rounds))
        for trained in (found, load_client(folder / str(id))):
            for rule in run.info.rules:
                expected = run.by_client(run.rounds[trained.info.round - 1], rule)[id]
                assert (trained.predict(x, rule) == y).mean() == expected


def test_fedkd_of_three_processes_gives_the_bits_of_a_simulation(tmp_path):
    """Two clients with networks of their own share a second one; everybody ends by itself, with success."""
    with RealFederation(tmp_path, algorithm="fedkd") as federation:
        federation.server.wanted.touch()
        running = [federation.start_server(), *(federation.start_client(id) for id in range(2))]
        assert [one.wait(300) for one in running] == [0, 0, 0], federation.output("server.out")
        assert "refused" not in federation.output("server.out")
        assert_same_as_serial(federation)
        assert_exported_as_measured(federation, tmp_path / "exported")


def test_a_secure_sum_of_three_processes_gives_the_bits_of_a_simulation(tmp_path):
    """Keys of TLS sign pledges; who has another key than the agreement names gets no bundle."""
    with RealFederation(tmp_path, clients=3, algorithm="protonorm", combine="secure_sum") as federation:
        federation.server.wanted.touch()
        running = [federation.start_server(), *(federation.start_client(id) for id in range(3))]
        assert [one.wait(300) for one in running] == [0, 0, 0, 0], federation.output("server.out")
        assert "burned" not in federation.output("server.out")
        assert_same_as_serial(federation)
        events = [json.loads(line)["event"] for line in (tmp_path / "berlin" / "audit.jsonl").read_text().splitlines()]
        assert events.count("masked") == 2
        stranger = ClientFolder.create(tmp_path / "stranger", "quito")
        with pytest.raises(ValueError, match="is not one of the agreement's members"):
            federation.server.bundle(federation.server.add("quito", stranger.public_key))


def test_three_processes_share_the_noise_of_a_secure_sum(tmp_path):
    """Two rounds of σ = 3: ρ = 2/18 for each client, charged before its message leaves. The server hears neither loss
    nor counts, and publishes noisy sums of all classes whose longest has length C.
    """
    noise = {"name": "gaussian", "bounds": "message", "noise": 3.0, "epsilon": 3.0, "clip": 2.0, "colluding": 1}
    settings = {"clients": 3, "algorithm": "fedproto", "combine": "secure_sum", "protect": noise}
    with RealFederation(tmp_path, **settings) as federation:
        federation.server.wanted.touch()
        running = [federation.start_server(), *(federation.start_client(id) for id in range(3))]
        assert [one.wait(300) for one in running] == [0, 0, 0, 0], federation.output("server.out")
        assert "burned" not in federation.output("server.out")
        found = read_run(federation.server.run_folder)
        assert [(one.metrics, one.lost) for one in found.rounds] == [({}, {})] * 2
        published = tensors.load(found.folder / "server.safetensors", stamp(found.info.key, "server", 2))
        rows = next(value for name, value in published.items() if name.endswith("prototypes"))
        assert rows.shape == (3, 8)
        assert float(rows.norm(dim=1).max()) == pytest.approx(2.0)
        for client in federation.clients:
            ledger = json.loads((client.states / "privacy.json").read_text())
            assert [(one["round"], one["loss"]) for one in ledger["releases"]] == [(1, 1 / 18), (2, 1 / 18)]
            assert [one["round"] for one in ledger["masked"]] == [1, 2]
            lines = [json.loads(line) for line in (client.path / "audit.jsonl").read_text().splitlines()]
            events = [line["event"] for line in lines if line["event"] in ("released", "masked", "sent")]
            assert events.index("released") < events.index("masked")
            assert [line["epsilon"] for line in lines if line["event"] == "released"][-1] < 3.0


def test_server_and_client_killed_in_a_round_give_the_bits_of_a_simulation(tmp_path):
    """In the second of three rounds of ProtoNorm the server and a client are killed, and started again."""
    with RealFederation(tmp_path, algorithm="protonorm", rounds=3) as federation:
        federation.server.wanted.touch()
        server, first, second = federation.start_server(), federation.start_client(0), federation.start_client(1)
        federation.wait_for("server.out", "asked Round 2", times=1)
        for one in (server, first):
            one.send_signal(signal.SIGKILL)
            assert one.wait(10) == -signal.SIGKILL
        server, first = federation.start_server(), federation.start_client(0)
        assert [one.wait(300) for one in (server, first, second)] == [0, 0, 0], federation.output("server.out")
        assert federation.output("server.out").count("started") == 2
        assert federation.output("1.out").count("The client is connected") >= 2 or "reached" in federation.output(
            "1.out"
        )
        assert_same_as_serial(federation)


@pytest.mark.long
def test_members_come_and_go_and_terms_are_amended(tmp_path):
    """All must answer, and the third takes its time. The second is revoked in round 3, another joins from round 4 on,
    the first gets a new key, the server is killed, and rounds become 8. The networks are those that were measured.
    """
    with RealFederation(tmp_path, clients=3, algorithm="protonorm", rounds=5, validation=0.2) as federation:
        federation.clients[2].change(epochs=400)
        server, folder = federation.start_server(), federation.server
        running = {id: federation.start_client(id) for id in range(3)}
        folder.wanted.touch()
        federation.wait_for("server.out", "asked Round 3")
        folder.revoke("kyoto")
        assert running.pop(1).wait(5) == 1
        assert "does not know" in federation.output("1.out")
        fourth = federation.join("quito", "plain")
        running[3] = federation.start_client(3)
        federation.wait_for("server.out", "asked Round 4: client quito")
        first = federation.clients[0]
        states = first.store().folder
        line = first.rekey()
        first.confirm(folder.bundle(folder.rekey("berlin", line)))
        assert running[0].wait(5) == 1
        running[0] = federation.start_client(0)
        server.kill()
        server.wait(10)
        server = federation.start_server()
        terms = folder.amend({"rounds": 8})
        for client in (first, federation.clients[2], fourth):
            until(lambda client=client: client.offered is not None, 60.0)
            client.accept()
        assert [one.wait(120) for one in (server, *running.values())] == [0] * 4, federation.output("server.out")
        run = read_run(folder.run_folder)
        assert len(run.rounds) == 8
        assert run.finished
        assert "declined" not in federation.output("0.out")
        assert first.store().folder == states
        cohorts = {one.round: one.cohort for one in run.rounds}
        assert [cohorts[round] for round in range(1, 9)] == ["all"] * 3 + [[0, 2, 3]] * 5
        assert list(run.rounds[2].lost) in (["1"], [])  # it may have answered before it was revoked
        assert {one.confirmed for one in folder.roster if one.active} == {terms.digest}
        federation.clients = [first, federation.clients[2], fourth]
        assert_exported_as_measured(federation, tmp_path / "exported")


@pytest.mark.long
def test_a_killed_client_comes_back_to_the_same_server(tmp_path):
    """The server notices at once that it is gone, and asks it again."""
    with RealFederation(tmp_path, algorithm="protonorm", rounds=3) as federation:
        federation.server.wanted.touch()
        server, first, second = federation.start_server(), federation.start_client(0), federation.start_client(1)
        federation.wait_for("server.out", "asked Round 2", times=1)
        first.kill()
        first.wait(10)
        first = federation.start_client(0)
        assert [one.wait(300) for one in (server, first, second)] == [0, 0, 0], federation.output("server.out")
        assert_same_as_serial(federation)


def test_a_client_whose_server_has_another_agreement_ends_with_a_sentence(tmp_path):
    """The server's owner changed the terms after the client had confirmed them."""
    with RealFederation(tmp_path, algorithm="fedproto") as federation:
        other = federation.agreement.model_copy(update={"seed": 7})
        (federation.server.path / "agreement.json").write_bytes(other.write())
        federation.server.wanted.touch()
        federation.start_server()
        client = federation.start_client(0)
        assert client.wait(300) == 1
        assert "The server works by another agreement" in federation.output("0.out")
        federation.wait_for("server.out", "another agreement")
