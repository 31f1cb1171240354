"""The commands `protonorm deploy …`: what they make, print and refuse; servers and clients at work have other tests."""

import json
import os
import re
import shutil
import stat

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from protonorm.cli.app import app
from protonorm.core.training import LrSchedule
from protonorm.deployment import worker
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.client_folder import ClientFolder
from protonorm.deployment.events import Event
from protonorm.deployment.federation_folder import FederationFolder
from protonorm.deployment.https import serving
from protonorm.deployment.process_lock import Ended, process_lock
from protonorm.deployment.status import StatusWriter
from protonorm.errors import Failed
from tests.cli.commands import imported
from tests.support import pictures, run, spiral

TERMS = ["classes=a,b,c", "feature_dim=8", "rounds=3"]


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PROTONORM_FEDERATION", raising=False)
    monkeypatch.delenv("PROTONORM_CLIENT", raising=False)
    runner = CliRunner()

    def invoke(*words, code=0, **options):
        found = runner.invoke(app, ["deploy", *map(str, words)], **options)
        assert found.exit_code == code, f"{found.output}\n{found.exception!r}"
        return found.output

    return invoke


@pytest.fixture
def federation(call, tmp_path):
    call("init", "fed", *TERMS)
    return FederationFolder.open(tmp_path / "fed")


@pytest.fixture
def joined(call, federation, tmp_path):
    """Make a federation with a client that has a bundle and data, and has confirmed nothing yet."""
    call("join", "berlin")
    call("add-client", "berlin", "berlin/client.pub", "--folder", "fed")
    data = pictures([0, 1, 2] * 8, 3)
    np.savez(tmp_path / "data.npz", images=data.inputs, labels=data.labels, classes=np.array(["a", "b", "c"]))
    return ClientFolder.open(tmp_path / "berlin")


@pytest.mark.parametrize("words", [["deploy", "--help"], ["deploy", "init", "--help"], ["deploy", "client", "--help"]])
def test_help_imports_nothing_heavy(words):
    heavy = {"torch", "numpy", "pydantic", "flwr", "cryptography", "prometheus_client", "aiohttp"}
    assert not heavy & imported(*words)


def test_status_and_stop_do_without_torch_and_aiohttp(federation, monkeypatch):
    monkeypatch.setenv("PROTONORM_FEDERATION", str(federation.path))
    for word in ("status", "stop"):
        assert not {"torch", "aiohttp"} & imported("deploy", word)


def test_the_commands_stand_in_the_order_in_which_they_are_needed(call):
    said = re.findall(r"^│ ([a-z][a-z-]*) ", call("--help"), re.M)
    assert said == [
        "init",
        "join",
        "add-client",
        "server",
        "client",
        "run",
        "export",
        "status",
        "stop",
        "doctor",
        "audit",
        "leakage",
        "renew",
        "revoke",
        "rekey",
        "remove-client",
        "amend",
        "accept",
        "alone",
        "leave",
        "export-app",
    ]


def test_init_makes_a_federation_and_shows_what_is_agreed_on(call, tmp_path):
    said = call("init", "fed", *TERMS, "--host", "fl.example.org", "--port", "9999", "--quorum", "0.75")
    made = FederationFolder.open(tmp_path / "fed")
    assert made.settings.model_dump() == {
        "format": 1, "name": "fed", "hosts": ["fl.example.org"], "bind": "0.0.0.0", "port": 9999, "quorum": 0.75,
        "deadline": 600.0, "grace": None, "patience": 3, "metrics_port": None, "per_address": 256,
    }  # fmt: skip
    assert made.agreement.classes == ["a", "b", "c"]
    assert (made.agreement.rounds, made.agreement.feature_dim, made.agreement.seed) == (3, 8, 0)
    assert made.agreement.algorithm["name"] == "protonorm"
    assert made.agreement.digest in said
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o700


def test_terms_may_stand_in_a_file(call, tmp_path):
    (tmp_path / "terms.yaml").write_text("classes: [x, 'y, z']\nalgorithm: {name: fedproto, lam: 2}\nrounds: 7\n")
    found = json.loads(call("init", "fed", "terms.yaml", "rounds=9", "--json"))
    assert found["agreement"]["classes"] == ["x", "y, z"]
    assert (found["agreement"]["algorithm"]["name"], found["agreement"]["rounds"]) == ("fedproto", 9)
    assert found["digest"] == Agreement.of(found["agreement"]).digest


def test_a_setting_alone_is_one_of_the_usual_method(call):
    found = json.loads(call("init", "fed", "classes=a,b", "algorithm.gamma=50", "--json"))["agreement"]["algorithm"]
    assert (found["name"], found["gamma"]) == ("protonorm", 50.0)
    found = json.loads(call("init", "two", "classes=a,b", "algorithm=fedproto", "algorithm.lam=2", "--json"))
    assert found["agreement"]["algorithm"]["name"] == "fedproto"


def test_the_input_of_a_shared_network_may_be_given_in_short(call):
    words = ["algorithm=fedavg", "shared_network=plain", "input=16x16x3"]
    found = json.loads(call("init", "fed", *TERMS, *words, "--json"))["agreement"]["input"]
    assert (found["shape"], found["type"]) == ([16, 16, 3], "uint8")


def test_a_federation_on_this_machine_alone_says_so(call, tmp_path):
    assert "from this machine alone" in call("init", "fed", *TERMS)
    assert FederationFolder.open(tmp_path / "fed").settings.bind == "127.0.0.1"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rounds=3"], "needs the names of the classes"),
        (["classes=a"], "classes"),
        (["classes=a,a"], "names 'a' twice"),
        ([*TERMS, "algorithm=nonsense"], "nonsense"),
        ([*TERMS, "algorithm=own.py:Mine"], "own.py:Mine"),
        ([*TERMS, "rund=3"], "no setting 'rund'"),
        ([*TERMS, "algorithm=fedavg", "shared_network=plain"], "as in input=32x32x3"),
        ([*TERMS, "algorithm=fedavg", "shared_network=plain", "input.shape=16,16,3"], "as in input=32x32x3"),
        ([*TERMS, "--quorum", "2"], "quorum must "),
        ([*TERMS, "--host", "a_b"], "hosts must "),
        ([*TERMS, "--host", "https://a.org:9092"], "hosts must be a host name or address without scheme, port or path"),
        ([*TERMS, "gamma=50"], "no setting 'gamma'; did you mean 'algorithm.gamma'?"),
        ([*TERMS, "combine=secure_sum"], "members=north.pub,south.pub,east.pub"),
        ([*TERMS, "combine=secure_sum", "members=a.pub"], "'a.pub' is no public key, and there is no such file"),
    ],
)
def test_what_cannot_be_agreed_on_makes_no_federation(call, tmp_path, words, said):
    assert said in " ".join(call("init", "fed", *words, code=2).split())
    assert not (tmp_path / "fed" / "federation.json").exists()


def test_join_makes_a_key_and_prints_its_public_half_alone(call, tmp_path):
    said = call("join", "berlin")
    client = ClientFolder.open(tmp_path / "berlin")
    assert client.public_key_file.read_text().strip() == said.splitlines()[-1]
    assert "PRIVATE" not in said
    assert "not empty" in call("join", "berlin", code=2)
    assert "name must " in call("join", "a/b", code=2)


def test_add_client_writes_a_bundle_and_its_checksum(call, federation, tmp_path):
    call("join", "berlin")
    call("join", "kyoto")
    line = (tmp_path / "berlin" / "client.pub").read_text().strip()
    said = call("add-client", "berlin", line, "--folder", "fed")
    first = federation.bundle(federation.roster[0])
    assert first.fingerprint in said
    assert (federation.bundles / "berlin.json").read_bytes() == first.write()
    found = json.loads(call("add-client", "kyoto", "kyoto/client.pub", "--folder", "fed", "--json"))
    assert (found["client"], found["checksum"]) == (1, federation.bundle(federation.roster[1]).fingerprint)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("nonsense", "is no public key"),
        ("nothere.pub", "there is no such file"),
        ("berlin/client.key", "must never leave its machine"),
        (
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl",
            "must be of the kind ecdsa",
        ),
    ],
)
def test_what_is_no_public_key_lets_nobody_in(call, federation, key, said):
    call("join", "berlin")
    assert said in call("add-client", "berlin", key, "--folder", "fed", code=2)
    assert federation.roster == []


def test_commands_find_the_folder_by_the_current_one_or_by_the_environment(call, federation, tmp_path, monkeypatch):
    assert "--folder" in call("status", code=2)
    assert json.loads(call("status", "--folder", "fed", "--json"))["federation"] == "fed"
    monkeypatch.setenv("PROTONORM_FEDERATION", str(federation.path))
    assert json.loads(call("status", "--json"))["federation"] == "fed"
    monkeypatch.delenv("PROTONORM_FEDERATION")
    monkeypatch.chdir(federation.path)
    assert json.loads(call("status", "--json"))["federation"] == "fed"


def test_status_tells_of_a_federation_and_of_a_client(call, joined, federation):
    StatusWriter(federation)(Event("committed", "Round 1 is done.", 1, numbers={"seconds": 1.0}))
    said = call("status", "--folder", "fed")
    assert "the server is not running" in said
    assert "1 of 3 are done" in said
    assert "berlin" in said
    assert "no agreement is confirmed yet" in call("status", "--folder", "berlin")
    assert json.loads(call("status", "--folder", "berlin", "--json"))["joined"] is False


def test_status_can_be_watched_until_ctrl_c(call, federation, monkeypatch):
    from protonorm.cli import deploy_status

    times = iter([None, KeyboardInterrupt])

    def sleep(seconds):
        if (error := next(times)) is not None:
            raise error

    monkeypatch.setattr(deploy_status.time, "sleep", sleep)
    assert call("status", "--folder", "fed", "--watch").count("the server is not running") == 2


def test_doctor_ends_with_an_error_if_something_is_wrong(call, joined, federation):
    assert "Nothing is wrong." in call("doctor", "--folder", "fed")
    federation.tls.key.chmod(0o644)
    assert "can be read by others than its owner" in call("doctor", "--folder", "fed", code=1)
    found = json.loads(call("doctor", "--folder", "berlin", "--json", code=1))
    assert found["ok"] is False
    assert [one["what"] for one in found["findings"] if not one["ok"]] == ["bundle"]


def test_stop_says_what_is_not_running(call, joined):
    assert "is not running" in call("stop", "--folder", "fed")
    assert "is not running" in call("stop", "--folder", "berlin")


def test_renew_makes_a_certificate_for_the_names_of_now(call, federation):
    settings = federation.path / "federation.json"
    settings.write_text(settings.read_text().replace('"localhost"', '"fl.example.org"'))
    assert "for fl.example.org, 127.0.0.1, until 2" in call("renew", "--folder", "fed")
    with process_lock(federation.server_lock, "The server"):
        assert "start it again to use the new one" in call("renew", "--folder", "fed")


def test_renew_writes_bundles_anew_if_the_address_has_changed(call, joined, federation):
    assert "bundle" not in call("renew", "--folder", "fed")
    settings = federation.path / "federation.json"
    settings.write_text(settings.read_text().replace("9092", "9093"))
    said = call("renew", "--folder", "fed")
    changed = FederationFolder.open(federation.path)
    assert changed.bundle(changed.roster[0]).fingerprint in said
    assert json.loads((changed.bundles / "berlin.json").read_text())["port"] == 9093


def test_revoke_lets_a_client_in_no_more(call, joined, federation):
    assert "is no longer let in" in call("revoke", "berlin", "--folder", "fed")
    assert [one.revoked for one in federation.roster] == [True]
    assert "There is no client 'kyoto'" in call("revoke", "kyoto", "--folder", "fed", code=2)


def take_part(monkeypatch, then=lambda notify: None):
    """Replace what clients do by what a test says; return the folders of those that were to take part."""
    ran = []

    def run_client(folder, notify, **_):
        ran.append(folder)
        folder.node()
        then(notify)

    monkeypatch.setattr(worker, "run_client", run_client)
    return ran


def test_a_client_sees_the_agreement_and_confirms_it_once(call, joined, federation, monkeypatch):
    ran = take_part(monkeypatch, lambda notify: notify("connected", "The client is connected."))
    own = ["--data", "data.npz", "--model", "cnn", "--lr", "0.5", "--evaluation", "classes"]
    own += ["--set", "optimiser=adam", "--set", "lr_schedule=cosine", "--set", "lr_schedule.floor=0.1"]
    said = " ".join(call("client", "fed/bundles/berlin.json", *own, "--yes").split())
    bundle = federation.bundle(federation.roster[0])
    for one in (
        bundle.fingerprint,
        bundle.terms.digest,
        "localhost:9092",
        "right, of each class",
    ):
        assert one in said
    assert "The client is connected." in said
    (client,) = ran
    assert client.path == joined.path
    assert (client.settings.lr, client.settings.model, client.settings.allowed) == (0.5, "cnn", "classes")
    assert (client.settings.optimiser, client.settings.lr_schedule) == ("adam", LrSchedule("cosine", floor=0.1))
    assert client.settings.data == f"npz:{joined.path.parent / 'data.npz'}"
    assert ClientFolder.open(joined.path).bundle == bundle
    again = call("client", "--folder", "berlin")  # all that was said is remembered
    assert bundle.fingerprint not in again
    assert ran[1].settings == client.settings
    events = (joined.log_folder / "client.log").read_text()
    assert events.count("The client is connected.") == 2


def test_without_a_confirmation_nothing_is_done(call, joined, monkeypatch):
    ran = take_part(monkeypatch)
    words = ["fed/bundles/berlin.json", "--data", "data.npz"]
    assert "The agreement is not confirmed" in call("client", *words, code=2)
    assert not joined.joined
    assert ran == []


def test_the_checksum_confirms_if_it_is_right_and_refuses_if_it_is_not(call, joined, federation, monkeypatch):
    ran = take_part(monkeypatch)
    words = ["fed/bundles/berlin.json", "--data", "data.npz", "--model", "cnn", "--checksum"]
    right = federation.bundle(federation.roster[0]).fingerprint
    wrong = right[:-1] + ("0" if right[-1] != "0" else "1")
    assert "not the one given" in call("client", *words, wrong, code=2)
    assert not joined.joined
    assert ran == []
    call("client", *words, right.replace(" ", "").upper())
    assert joined.joined
    assert len(ran) == 1


def test_another_agreement_than_the_confirmed_one_must_be_confirmed_too(call, joined, federation, monkeypatch):
    take_part(monkeypatch)
    words = ["--data", "data.npz", "--model", "cnn"]
    call("client", "fed/bundles/berlin.json", *words, "--yes")
    before = (joined.path / "bundle.json").read_bytes()
    plain = json.loads(before)
    plain["agreement"]["rounds"] = 5
    (joined.path.parent / "new.json").write_text(json.dumps(plain))
    said = call("client", "new.json", *words, code=2)
    assert "agreement.rounds (5 instead of 3)" in said
    assert "not confirmed" in said
    assert (joined.path / "bundle.json").read_bytes() == before


def test_a_bundle_for_another_key_is_refused(call, joined, federation):
    call("join", "kyoto")
    words = ["fed/bundles/berlin.json", "--folder", "kyoto", "--data", "data.npz", "--yes"]
    assert "The bundle is for the key SHA256:" in call("client", *words, code=2)
    assert not ClientFolder.open("kyoto").joined


def test_data_or_a_network_that_do_not_fit_end_in_a_sentence(call, joined, tmp_path):
    data = pictures([0, 1, 2] * 8, 3)
    np.savez(tmp_path / "other.npz", images=data.inputs, labels=data.labels, classes=np.array(["a", "b", "z"]))
    words = ["client", "fed/bundles/berlin.json", "--yes", "--check"]
    assert "has no data yet" in call(*words, code=2)
    assert "a class that the agreement does not have: z" in call(*words, "--data", "other.npz", code=2)
    assert "There are no data nowhere" in call(*words, "--data", "nowhere", code=2)
    assert "Unknown network" in call(*words, "--data", "data.npz", "--model", "nonsense", code=2)
    assert "batch_size must " in call(*words, "--data", "data.npz", "--batch-size", "1", code=2)
    shown = call(*words, "--data", "data.npz", "--model", "cnn")
    assert "fit the agreement" in shown
    assert "what would be sent" in shown


def test_an_audit_before_taking_part_finds_the_picture_of_a_class_with_one(call, joined, tmp_path):
    """Class c has one training picture; the policy holds it back. Nothing is sent: there is no server."""
    data = pictures([0, 1] * 15 + [2] * 3, 3)
    split = np.array([0] * 20 + [1] * 10 + [0, 1, 1], np.int8)
    names = np.array(["a", "b", "c"])
    np.savez(tmp_path / "data.npz", images=data.inputs, labels=data.labels, split=split, classes=names)
    words = ["client", "fed/bundles/berlin.json", "--yes", "--check", "--data", "data.npz", "--set", "validation=0"]
    call(*words, "--model", "plain")
    plain = json.loads(call("leakage", "--folder", "berlin", "--json"))
    found = {one["name"]: one for one in plain["clients"][0]["before"]["searches"]}
    assert (found["c"]["samples"], found["c"]["rank"]) == (1, 1)
    assert plain["policy"] == ""
    (tmp_path / "berlin" / "policy.yaml").write_text("protect: minimum_count\n")
    plain = json.loads(call("leakage", "--folder", "berlin", "--json"))
    after = {one["name"]: one for one in plain["clients"][0]["after"]["searches"]}
    assert after["c"]["rank"] > 1
    assert after["c"]["psnr"] is None
    assert "minimum_count least=5" in (tmp_path / "berlin" / "leakage.html").read_text("utf-8")


def test_no_own_code_is_run_if_it_is_not_wanted(call, joined, tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit('it ran')\n")
    words = ["client", "fed/bundles/berlin.json", "--yes", "--check", "--data", "data.npz", "--model", "mine.py:make"]
    said = call(*words, "--no-own-code", code=2)
    assert "it ran" not in said
    assert "mine.py" in said


def test_a_table_has_columns(call, joined, tmp_path):
    (tmp_path / "table.csv").write_text("x,y,kind\n" + "".join(f"{n},{n % 3},{'abc'[n % 3]}\n" for n in range(30)))
    words = ["client", "fed/bundles/berlin.json", "--yes", "--check", "--model", "mlp"]
    call(*words, "--data", "table.csv", "--label", "kind")
    found = ClientFolder.open(joined.path).settings.data
    assert found == {"name": "table", "path": str(tmp_path / "table.csv"), "label": "kind"}
    assert "--data, which is not given" in call(*words, "--label", "kind", code=2)


def test_an_owner_may_begin_anew_and_must_say_so_each_time(call, joined, monkeypatch):
    ran = take_part(monkeypatch)
    words = ["client", "fed/bundles/berlin.json", "--yes", "--data", "data.npz", "--model", "cnn"]
    call(*words, "--begin-anew")
    call(*words)
    assert [one.begin_anew for one in ran] == [True, False]


def test_a_client_that_is_refused_says_why_and_ends_with_an_error(call, joined, monkeypatch):
    def refuse(tell):
        raise Failed("The server does not know this client's key; its owner must add it first.")

    take_part(monkeypatch, refuse)
    words = ["client", "fed/bundles/berlin.json", "--yes", "--data", "data.npz", "--model", "cnn"]
    assert "The server does not know this client's key" in call(*words, code=1)
    assert "does not know this client's key" in (joined.log_folder / "client.log").read_text()


def test_the_doctor_tells_of_the_last_refusal_until_something_is_confirmed(call, joined, federation, monkeypatch):
    words = ["client", "fed/bundles/berlin.json", "--yes", "--data", "data.npz", "--model", "cnn"]
    call(*words, "--check")

    def last():
        found = json.loads(call("doctor", "--folder", "berlin", "--json", code=1))
        return [one for one in found["findings"] if one["what"] == "last start"]

    assert last() == []

    def refuse(tell):
        raise Failed("The server works by another agreement.")

    with monkeypatch.context() as patch:
        take_part(patch, refuse)
        call(*words, code=1)
    (one,) = last()
    assert not one["ok"]
    assert "The server works by another agreement. If that is mended, start it again" in one["text"]
    joined.confirm(federation.bundle(federation.roster[0]))
    assert last() == []


def test_a_client_that_is_asked_to_end_ends_well(call, joined, monkeypatch):
    def end(tell):
        raise Ended

    take_part(monkeypatch, end)
    call("client", "fed/bundles/berlin.json", "--yes", "--data", "data.npz", "--model", "cnn")
    assert "asked to end" in (joined.log_folder / "client.log").read_text()


def test_a_client_that_has_left_says_so_until_another_bundle_is_confirmed(call, joined, federation, monkeypatch):
    words = ["client", "fed/bundles/berlin.json", "--data", "data.npz", "--yes", "--check"]
    call(*words)
    left = []
    monkeypatch.setattr("protonorm.deployment.https.client.Connection.leave", lambda self: left.append(self))
    call("leave", "--folder", "berlin", "--yes")
    assert len(left) == 1
    assert "not running; it has left its federation." in call("status", "--folder", "berlin")
    assert "berlin has left its federation: it takes part again once" in call("client", "--folder", "berlin", code=2)
    assert "has left its federation" in call(*words, code=2)
    federation.change(0, gone="it left")
    call("add-client", "berlin", "berlin/client.pub", "--folder", "fed")
    call(*words)
    assert "its agreement is confirmed" in call("status", "--folder", "berlin")


def test_two_clients_cannot_have_one_folder(call, joined, monkeypatch):
    monkeypatch.setattr("protonorm.deployment.process_lock.PATIENCE", 0.01)
    with process_lock(joined.lock, "The client"):
        said = call("client", "fed/bundles/berlin.json", "--yes", "--data", "data.npz", code=2)
        assert "deploy doctor --folder" in call("client", "--folder", "berlin", "--check", code=2).replace("\n", " ")
    assert f"is running already, as process {os.getpid()}" in said


def serve_as(monkeypatch, then):
    """Replace what the server does by what a test says."""

    def serve(folder, notify, *, on_denied, on_connect, on_ready, once):
        then(folder, notify, once)

    monkeypatch.setattr(serving, "serve", serve)


def test_a_server_tells_what_happens_and_ends_well_if_it_is_asked_to(call, joined, federation, monkeypatch):
    def then(folder, notify, once):
        assert not once
        assert not folder.wanted.exists()
        notify(Event("round", "Round 1 of 3 begins.", 1, numbers={"needed": 1}))
        assert json.loads(folder.status_file.read_text())["state"] == "running"
        raise Ended

    serve_as(monkeypatch, then)
    assert "Round 1 of 3 begins." in call("server", "--folder", "fed")
    assert json.loads(call("status", "--folder", "fed", "--json"))["state"] == "stopped"


def test_a_page_is_written_at_the_end(call, joined, federation, monkeypatch, tmp_path):
    made = run(spiral(rounds=1), out=tmp_path / "runs").run
    shutil.copytree(made.folder, federation.run_folder)
    serve_as(monkeypatch, lambda folder, notify, once: notify(Event("finished", "All 3 rounds are done.", 3)))
    assert "Report: " in call("server", "--folder", "fed", "--run")
    assert "<html" in (federation.run_folder / "report.html").read_text()
    seen = json.loads(call("status", "--folder", "fed", "--json"))
    record = made.rounds[0].rules[made.info.headline]
    assert seen["history"][0]["test"] == record.mean
    assert seen["history"][0]["pooled"] == record.pooled
    assert f"{100 * record.pooled:.2f}" in call("status", "--folder", "fed")


def test_a_page_that_cannot_be_written_stops_nobody(call, joined, federation, monkeypatch):
    serve_as(monkeypatch, lambda folder, notify, once: notify(Event("finished", "All 3 rounds are done.", 3)))
    assert "The report could not be written" in call("server", "--folder", "fed", "--run")


def test_a_run_that_failed_is_not_tried_again_and_one_that_was_stopped_is(call, joined, federation, monkeypatch):
    def fail(folder, notify, once):
        assert once
        assert folder.wanted.exists()
        notify(Event("failed", "Training left the finite numbers.", 2))
        raise Failed("Training left the finite numbers.")

    def break_off(folder, notify, once):
        notify(Event("round", "Round 1 of 3 begins.", 1))
        raise Failed("The server cannot listen at 127.0.0.1:9092: Address already in use.")

    serve_as(monkeypatch, fail)
    assert "left the finite numbers" in call("server", "--folder", "fed", "--run", code=1)
    assert not federation.wanted.exists()
    assert "the run has failed: Training left" in " ".join(call("status", "--folder", "fed").split())
    serve_as(monkeypatch, break_off)
    assert "cannot listen" in call("server", "--folder", "fed", "--run", code=1)
    assert federation.wanted.exists()


def test_an_update_is_requested_by_its_option(call, joined, federation):
    assert "the rounds begin once" in call("run", "--update", "--no-wait", "--folder", "fed")
    assert federation.wanted.read_text() == "update"
    call("run", "--no-wait", "--folder", "fed")
    assert federation.wanted.read_text() == ""


def test_a_second_server_does_not_begin_the_rounds_of_the_first(call, joined, federation):
    with process_lock(federation.server_lock, "The server"):
        assert "is running already" in call("server", "--folder", "fed", "--run", code=2)
    assert not federation.wanted.exists()


@pytest.mark.parametrize(
    "error", [ValueError("The record is damaged."), OSError(28, "No space left on device"), Failed("It stopped.")]
)
def test_whatever_ends_a_server_is_in_its_log(call, joined, federation, monkeypatch, error):
    def fail(*_):
        raise error

    serve_as(monkeypatch, fail)
    call("server", "--folder", "fed", code=2 if isinstance(error, ValueError) else 1)
    last = json.loads((federation.log_folder / "server.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["level"], last["text"]) == ("ended", "error", str(error))


def test_a_run_needs_clients(call):
    call("init", "empty", *TERMS)
    assert "has no client yet" in call("run", "--folder", "empty", code=2)
    assert "has no client yet" in call("server", "--run", "--folder", "empty", code=2)


@pytest.mark.parametrize(("event", "code"), [("finished", 0), ("failed", 1)])
def test_a_run_is_followed_to_its_end(call, joined, federation, monkeypatch, event, code):
    from protonorm.cli import deploy_status

    board = StatusWriter(federation)
    board(Event("round", "Round 0 was before.", 1))
    steps = iter(["round", "committed", event])

    def sleep(seconds):
        what = next(steps)
        board(Event(what, f"It is {what}.", 1))
        if what == event:
            federation.wanted.unlink()

    monkeypatch.setattr(deploy_status.time, "sleep", sleep)
    with process_lock(federation.server_lock, "The server"):
        said = call("run", "--folder", "fed", code=code)
    assert [line.split("info")[-1].split("error")[-1].strip() for line in said.splitlines()][:3] == [
        "It is round.", "It is committed.", f"It is {event}.",
    ]  # fmt: skip
    assert ("The record is in" in said) == (event == "finished")


def test_a_run_whose_server_ends_says_so(call, joined, federation, monkeypatch):
    from protonorm.cli import deploy_status

    server = process_lock(federation.server_lock, "The server")
    server.__enter__()
    monkeypatch.setattr(deploy_status.time, "sleep", lambda seconds: server.__exit__(None, None, None))
    assert "The server has ended" in call("run", "--folder", "fed", code=1)
    assert federation.wanted.exists()


def test_a_run_can_be_asked_for_without_waiting(call, joined, federation):
    with process_lock(federation.server_lock, "The server"):
        assert "deploy status" in call("run", "--folder", "fed", "--no-wait")
    assert federation.wanted.exists()


def test_a_run_can_be_asked_for_before_there_is_a_server(call, joined, federation, monkeypatch):
    from protonorm.cli import deploy_status

    assert "the rounds begin once `protonorm deploy server`" in call("run", "--folder", "fed", "--no-wait")
    assert federation.wanted.exists()
    server, board = process_lock(federation.server_lock, "The server"), StatusWriter(federation)
    steps = iter([server.__enter__, lambda: board(Event("finished", "All rounds.", 3)), federation.wanted.unlink])
    monkeypatch.setattr(deploy_status.time, "sleep", lambda seconds: next(steps)())
    said = call("run", "--folder", "fed")
    server.__exit__(None, None, None)
    assert "the rounds begin once" in said
    assert "The record is in" in said


def test_an_app_for_flower_is_written_into_a_folder_of_its_own(call, federation, tmp_path):
    said = call("export-app", "app", "--folder", "fed")
    assert "flwr run app --stream --federation-config 'num-supernodes=2'" in said
    assert "amended" not in said
    assert (tmp_path / "app" / "pyproject.toml").is_file()
    assert "not empty" in call("export-app", "app", "--folder", "fed", code=2)


def test_an_app_has_the_terms_in_force_and_a_node_for_each_client(call, joined, federation, tmp_path):
    call("amend", "algorithm.lam=5", "rounds=400", "--folder", "fed")
    call("amend", "rounds=500", "--from", "300", "--folder", "fed")
    said = call("export-app", "app", "--folder", "fed")
    assert "'num-supernodes=1'" in said
    assert "amended from round 1 on: algorithm.lam (5.0 instead of 1.0), rounds (400 instead of" in said
    assert "amended from round 300 on are not in force yet" in said
    agreement = json.loads((tmp_path / "app" / "federation" / "agreement.json").read_text())
    assert (agreement["rounds"], agreement["algorithm"]["lam"]) == (400, 5.0)


def test_a_client_s_folder_may_be_named_by_the_environment(call, joined, monkeypatch):
    ran = take_part(monkeypatch)
    assert "Which client is meant?" in call("client", code=2)
    call("client", "fed/bundles/berlin.json", "--yes", "--data", "data.npz", "--model", "cnn")
    monkeypatch.setenv("PROTONORM_CLIENT", str(joined.path))
    call("client")
    assert [one.path for one in ran] == [joined.path] * 2
    assert json.loads(call("status", "--json"))["name"] == "berlin"


def test_what_is_not_installed_is_told(call, monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "aiohttp" else real(name))
    said = call("init", "fed", *TERMS, code=2)
    assert "`protonorm deploy` needs aiohttp, not installed here: pip install '.[deploy]' in a checkout." in said


def test_join_goes_to_the_folder_that_the_variable_names(call, tmp_path, monkeypatch):
    """Where `client` will look for it."""
    monkeypatch.setenv("PROTONORM_CLIENT", str(tmp_path / "elsewhere"))
    call("join", "berlin")
    assert ClientFolder.open(tmp_path / "elsewhere").settings.name == "berlin"
    assert not (tmp_path / "berlin").exists()


@pytest.mark.parametrize("words", [["--device", "foo"], ["--model", "nope"]])
def test_what_there_is_not_is_refused_and_not_remembered(call, joined, words):
    before = joined.settings
    assert words[1] in call("client", "fed/bundles/berlin.json", *words, "--yes", "--check", code=2)
    assert ClientFolder.open(joined.path).settings == before


def test_nothing_of_a_check_that_fails_is_remembered(call, joined, tmp_path):
    words = ["client", "--folder", "berlin", "--check"]
    call("client", "fed/bundles/berlin.json", "--data", "data.npz", "--model", "cnn", "--yes", "--check")
    before = ClientFolder.open(joined.path).settings, len((joined.path / "audit.jsonl").read_text().splitlines())
    data = pictures([0, 1, 2] * 8, 3)
    np.savez(tmp_path / "other.npz", images=data.inputs, labels=data.labels, classes=np.array(["a", "b", "z"]))
    assert "takes vectors (D,)" in call(*words, "--model", "mlp", "--lr", "0.5", code=2)
    assert "does not have: z" in call(*words, "--data", "other.npz", code=2)
    assert "nope" in call(*words, "--data", "folder:/nope", code=2)
    after = ClientFolder.open(joined.path).settings, len((joined.path / "audit.jsonl").read_text().splitlines())
    assert after == before
    call(*words, "--lr", "0.5")
    assert ClientFolder.open(joined.path).settings.lr == 0.5


def test_keys_that_others_can_read_are_refused_at_the_start_and_by_a_check(call, joined, federation):
    joined.tls.key.chmod(0o644)
    said = call("client", "fed/bundles/berlin.json", "--data", "data.npz", "--yes", "--check", code=2)
    assert "client.key can be read by others than its owner" in said
    federation.authority_key.chmod(0o644)
    assert "authority.key can be read by others" in call("server", "--folder", "fed", code=2)
    federation.authority_key.unlink()  # kept elsewhere
    federation.tls.key.chmod(0o644)
    assert "server.key can be read by others" in call("server", "--folder", "fed", code=2)


def test_without_a_bundle_there_is_nothing_to_take_part_in(call, joined):
    for command in ("client", "leakage", "alone"):
        assert "has no bundle yet" in call(command, "--folder", "berlin", code=2)


def test_a_bundle_of_another_version_says_so(call, joined, tmp_path):
    plain = json.loads((tmp_path / "fed" / "bundles" / "berlin.json").read_bytes())
    (tmp_path / "new.json").write_text(json.dumps(plain | {"format": 2}))
    said = " ".join(call("client", "new.json", "--folder", "berlin", code=2).split())
    assert "new.json is of another version of protonorm: format must be 1, got 2. All parties need one version." in said


def test_the_learning_rate_has_its_long_name_too(call, joined):
    call("client", "fed/bundles/berlin.json", "--data", "data.npz", "--learning-rate", "0.5", "--yes", "--check")
    assert ClientFolder.open(joined.path).settings.lr == 0.5


def test_terms_are_shown_whole_with_one_number_to_read_aloud(call, joined, federation, monkeypatch):
    """A hundred classes are all there; the number has 24 digits, and is the only one of its kind."""
    take_part(monkeypatch)
    said = call("client", "fed/bundles/berlin.json", "--data", "data.npz", "--model", "cnn", "--yes")
    bundle = federation.bundle(federation.roster[0])
    assert re.findall(r"\b\d{4}(?: \d{4}){5}\b", said) == [bundle.fingerprint]
    names = [f"class-{number}" for number in range(100)]
    terms = dict(Agreement.of({**federation.agreement.plain(), "classes": names}).lines())
    assert terms["classes"] == f"100: {', '.join(names)}"
    assert all("…" not in text for text in terms.values())


@pytest.mark.filterwarnings("always:.*pictures cannot be used:UserWarning")  # the command prints it
def test_pictures_that_cannot_be_read_are_listed_and_skip_bad_goes_on(call, joined, monkeypatch, tmp_path):
    """The advice of the refusal can be followed, and is remembered."""
    for number in range(12):
        place = tmp_path / "pets" / "abc"[number % 3] / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (16, 16), np.uint8)
        Image.fromarray(pixels).save(place)
    (tmp_path / "pets" / "a" / "bad.png").write_text("no picture")
    words = ["fed/bundles/berlin.json", "--data", "pets", "--model", "plain", "--yes", "--check"]
    refused = call("client", *words, code=2)
    assert "--skip-bad" in refused
    assert "The other 12 are used." in call("client", *words, "--skip-bad")
    assert ClientFolder.open(joined.path).settings.data == {
        "name": "folder", "path": str(tmp_path / "pets"), "skip_bad": True,
    }  # fmt: skip
    call("client", "--folder", "berlin", "--check")
    assert "--skip-bad must be given for a folder of pictures" in call(
        "client", "--folder", "berlin", "--data", "data.npz", "--skip-bad", "--check", code=2
    )


def draw(folder, size=16, channels=1, count=12, start=0):
    """Write pictures into the folders of three classes."""
    for number in range(start, start + count):
        place = folder / "abc"[number % 3] / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        shape = (size, size, 3) if channels == 3 else (size, size)
        Image.fromarray(np.random.default_rng(number).integers(0, 256, shape, np.uint8)).save(place)


def test_mixed_pictures_are_made_alike_by_the_option_that_the_message_names(call, joined, tmp_path):
    draw(tmp_path / "pets")
    draw(tmp_path / "pets", channels=3, start=12)
    words = ["fed/bundles/berlin.json", "--data", "pets", "--model", "plain", "--yes", "--check"]
    assert "--channels 3 or --channels 1 of `deploy client`" in call("client", *words, code=2).replace("\n", " ")
    assert "must be" not in call("client", *words, "--channels", "3", "--size", "24")
    path = str(tmp_path / "pets")
    expected = {"name": "folder", "path": path, "size": 24, "channels": 3}
    assert ClientFolder.open(joined.path).settings.data == expected
    call("client", "--folder", "berlin", "--check")
    assert "--size must be given for a folder of pictures" in call(
        "client", "--folder", "berlin", "--data", "data.npz", "--size", "24", "--check", code=2
    )


def test_pictures_of_another_shape_are_resized_by_the_options_that_the_message_names(call, tmp_path):
    call("init", "fed", *TERMS, "algorithm=fedavg", "shared_network=plain", "input=16x16x3")
    call("join", "berlin")
    call("add-client", "berlin", "berlin/client.pub", "--folder", "fed")
    draw(tmp_path / "pets", size=20)
    words = ["fed/bundles/berlin.json", "--data", "pets", "--yes", "--check"]
    said = " ".join(call("client", *words, code=2).split())
    assert "got (20, 20, 1) and uint8. --size 16 --channels 3 of `protonorm deploy client` makes them so." in said
    assert "fit the agreement" in call("client", *words, "--size", "16", "--channels", "3")


def test_amended_terms_are_shown_as_a_difference_and_confirmed(call, federation, joined):
    call("client", "fed/bundles/berlin.json", "--data", "data.npz", "--yes", "--check")
    said = call("amend", "rounds=9", "algorithm.lam=2", "grace=7", "--folder", "fed")
    terms = FederationFolder.open(federation.path).terms[-1]
    assert "rounds (9 instead of 3)" in said
    assert terms.fingerprint in said
    assert FederationFolder.open(federation.path).settings.grace == 7
    assert "this one does not run: `protonorm deploy client --folder" in call("accept", "--folder", "berlin")
    shown = []
    joined.show = shown.append
    assert not joined.offer(terms)
    assert "The server proposes other terms: algorithm.lam (2.0 instead of" in shown[0]
    assert "amends" not in shown[0]
    said = call("status", "--folder", "berlin")
    assert "its agreement is confirmed, and the server proposes other terms, which are not." in said
    assert "deploy accept" in said
    assert "not confirmed" in call("accept", "--folder", "berlin", code=2)
    assert "not the one given" in call("accept", "--folder", "berlin", "--checksum", "0000", code=2)
    said = call("accept", "--folder", "berlin", "--checksum", terms.fingerprint)
    assert "algorithm.lam (2.0 instead of" in said
    assert joined.terms.digest == terms.digest
    for classes in ("classes=[a,b]", "classes=a,b"):
        assert "classes cannot be amended" in call("amend", classes, "--folder", "fed", code=2)
    assert "did you mean 'algorithm.lam'?" in call("amend", "lam=3", "--folder", "fed", code=2)


@pytest.mark.parametrize("start", [1, 3])  # the bundle has the terms of the next round, which are those from before
def test_a_new_key_s_bundle_is_compared_with_the_terms_that_were_accepted(call, federation, joined, start):
    call("client", "fed/bundles/berlin.json", "--data", "data.npz", "--yes", "--check")
    call("amend", "rounds=9", "algorithm.lam=2", "--folder", "fed", "--from", start)
    joined.offer(FederationFolder.open(federation.path).terms[-1])
    call("accept", "--folder", "berlin", "--yes")
    call("rekey", "--folder", "berlin")
    call("rekey", "berlin", "berlin/new.pub", "--folder", "fed")
    said = " ".join(call("client", "fed/bundles/berlin.json", "--yes", "--check").split())
    assert "It is not what you confirmed before: certificate (another one), public_key (" in said
    assert "rounds (" not in said
    assert "algorithm.lam (" not in said


def test_check_counts_samples_by_class_and_warns_of_few(call, federation, joined, tmp_path):
    """18 of 24 samples are for training, and two of those are held out: five or six of each class."""
    words = ["client", "fed/bundles/berlin.json", "--data", "data.npz", "--yes", "--check"]
    assert "The data and the network fit" in call(*words)
    said = call(*words, "--set", "protect=minimum_count", "--set", "protect.least=7")
    assert "Fewer than 7 training samples: a (" in said
    assert "not sent" in said


def test_the_model_of_a_client_is_used_alone_and_shown_beside_the_rounds(call, federation, joined):
    call("client", "fed/bundles/berlin.json", "--data", "data.npz", "--yes", "--check")
    assert "has not trained yet" in call("export", "mine", "--folder", "berlin", code=2)
    said = call("alone", "--folder", "berlin")
    assert "Round 3 of 3 alone: test " in said
    seen = json.loads(call("status", "--folder", "berlin", "--json"))
    assert [one["round"] for one in seen["history"]] == [1, 2, 3]
    assert all(0 <= one["alone"] <= 1 for one in seen["history"])
    assert "Own accuracy" in call("status", "--folder", "berlin")


def test_messages_that_were_sent_without_noise_are_told_beside_the_privacy_loss(call, federation, joined):
    call("client", "fed/bundles/berlin.json", "--data", "data.npz", "--evaluation", "accuracy", "--yes", "--check")
    for round in (1, 2):
        joined.trail.write("sent", round=round, kind="train", digest=str(round))
    policy = "protect: {name: gaussian, epsilon: 4, bounds: message}\nevaluation: off\n"
    (joined.path / "policy.yaml").write_text(policy)
    sentence = "2 earlier messages were sent without noise: this ε does not cover them."
    assert sentence in " ".join(call("client", "--folder", "berlin", "--check").split())
    said = call("status", "--folder", "berlin")
    assert "ε = 0 of 4 is spent" in said
    assert sentence in said
    assert "evaluation: off" in said  # by the policy, whatever the settings say
    assert joined.count_unprotected(joined.within_policy.protect) == 2
    (joined.path / "policy.yaml").write_text("evaluation: all\n")
    assert "policy.yaml: evaluation must be" in "".join(call("status", "--folder", "berlin").split("\n"))


def test_a_missing_state_is_told_by_check_and_status(call, federation, joined):
    """Nothing is said before the first round, and while any state can be the one that the server asks for."""
    words = ["client", "fed/bundles/berlin.json", "--data", "data.npz", "--yes", "--check"]
    assert "is missing" not in call(*words) + call("status", "--folder", "berlin")
    for round in (1, 2):
        joined.trail.write("received", round=round, kind="train")
        joined.trail.write("sent", round=round, kind="train")
    for command in (words, ["status", "--folder", "berlin"]):
        said = " ".join(call(*command).split())
        assert "The state of round 2, the last one that the client answered, is missing" in said
        assert "--begin-anew" in said
    states = joined.history_folder
    states.mkdir(exist_ok=True)
    (states / "0.1.safetensors").touch()  # the best round's
    assert "is missing" in call("status", "--folder", "berlin")
    (states / "0.2.safetensors").touch()
    assert "is missing" not in call("status", "--folder", "berlin")
    (states / "0.2.safetensors").unlink()
    joined.trail.write(
        "declined", round=3, kind="train"
    )  # the answer of round 2 did not count, and its state was dropped
    assert "is missing" not in call("status", "--folder", "berlin")
    (states / "0.1.safetensors").unlink()
    assert "is missing" in call("status", "--folder", "berlin")


def test_check_says_what_the_validation_part_is_for(call, federation, joined):
    words = ["client", "fed/bundles/berlin.json", "--data", "data.npz", "--yes", "--check"]
    said = " ".join(call(*words).split())
    assert "validation samples are held out from training and are not used" in said
    assert "only test is evaluated: with --validation 0 they train" in said
    assert "validation samples" not in call(*words, "--validation", "0")
    call("init", "other", *TERMS, "evaluated=[validation,test]")
    call("add-client", "berlin", "berlin/client.pub", "--folder", "other")
    said = call("client", "other/bundles/berlin.json", "--folder", "berlin", "--validation", "0.2", "--yes", "--check")
    assert "they choose among rounds and rules and fit the rule joint" in " ".join(said.split())
