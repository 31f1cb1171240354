"""The folders of a federation and of a client: who may read them, what is in them, and what is refused."""

import datetime as dt
import json
import os
import stat
import subprocess
import sys

import numpy as np
import pytest
import torch

from protonorm.core.node import make_optimiser
from protonorm.core.training import Training
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.client_folder import ClientFolder
from protonorm.deployment.federation_folder import FederationFolder, Member
from protonorm.deployment.keys import hosts_of, make_client_certificate, make_client_key, read_certificate
from protonorm.deployment.messages import RequestHeader, read_answer_header, write_request
from protonorm.deployment.settings import ClientSettings, FederationSettings
from protonorm.runs.layout import INFO
from tests.support import pictures

YEAR_AGO = dt.datetime.now(dt.UTC) - dt.timedelta(days=370)
TERMS = {"algorithm": "protonorm", "classes": ["a", "b", "c"], "feature_dim": 8, "rounds": 3, "seed": 0}


def terms(**given):
    return Agreement.of(TERMS | given)


def settings(**given):
    return FederationSettings.of({"name": "hospitals", "hosts": ["localhost"]} | given)


@pytest.fixture
def made(tmp_path):
    return FederationFolder.create(tmp_path / "federation", settings(), terms())


def public_key(folder, name="one"):
    return make_client_key(folder / f"{name}.key")


def modes(folder):
    """Return all files that others than their owner may read, and all folders that they may enter."""
    return [path for path in [folder, *folder.rglob("*")] if stat.S_IMODE(path.stat().st_mode) & 0o077]


def test_what_is_made_can_be_opened_again(made):
    again = FederationFolder.open(made.path)
    assert again.settings == made.settings == settings()
    assert again.agreement.digest == terms().digest
    assert again.roster == []
    assert again.run_folder == made.path / "run"


def test_only_certificates_can_be_read_by_others_and_their_folder_cannot_be_entered(made):
    assert {path.name for path in modes(made.path)} == {"authority.crt", "server.crt"}
    assert stat.S_IMODE(made.tls.key.stat().st_mode) == stat.S_IMODE(made.authority_key.stat().st_mode) == 0o600


def test_the_server_has_a_certificate_for_all_its_names(tmp_path):
    made = FederationFolder.create(tmp_path / "f", settings(hosts=["fl.example.org", "192.0.2.7"]), terms())
    assert hosts_of(read_certificate(made.tls.certificate)) == ["fl.example.org", "192.0.2.7"]
    assert made.settings.host == "fl.example.org"


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "note").write_text("mine")
    with pytest.raises(ValueError, match="not empty"):
        FederationFolder.create(tmp_path, settings(), terms())
    with pytest.raises(ValueError, match="not empty"):
        ClientFolder.create(tmp_path, "one")
    assert os.listdir(tmp_path) == ["note"]


def test_what_is_no_folder_of_theirs_is_told(tmp_path):
    with pytest.raises(ValueError, match="deploy init"):
        FederationFolder.open(tmp_path)
    with pytest.raises(ValueError, match="deploy join"):
        ClientFolder.open(tmp_path)


def test_clients_get_numbers_in_the_order_in_which_they_are_added(made, tmp_path):
    keys = [public_key(tmp_path, name) for name in ("x", "y")]
    one, two = made.add("berlin", keys[0]), made.add("kyoto", f"{keys[1]} somebody@somewhere\n")
    assert (one, two) == (
        Member(0, "berlin", keys[0], one.certificate),
        Member(1, "kyoto", keys[1], two.certificate),
    )
    assert FederationFolder.open(made.path).roster == [one, two]


def test_a_revoked_client_may_come_back_with_another_key_alone(made, tmp_path):
    first, second = public_key(tmp_path), public_key(tmp_path, "two")
    made.add("berlin", first)
    with pytest.raises(ValueError, match="There is no client 'kyoto'; there are berlin"):
        made.revoke("kyoto")
    assert made.revoke("Berlin").revoked
    assert [one.revoked for one in FederationFolder.open(made.path).roster] == [True]
    with pytest.raises(ValueError, match="This key of client 'berlin' was revoked, and is not taken again: .*rekey"):
        made.add("berlin", first)
    with pytest.raises(ValueError, match="This key is that of client 'berlin'"):
        made.add("kyoto", first)
    made.run_folder.mkdir()
    (made.run_folder / "experiment.json").write_text("{}")  # also in the middle of a run
    member = made.add("berlin", second)
    assert (member.id, member.public_key, member.revoked) == (0, second, False)
    assert made.roster == [member]


def test_a_name_or_a_key_stands_once_on_the_roster(made, tmp_path):
    key = public_key(tmp_path)
    made.add("berlin", key)
    with pytest.raises(ValueError, match="There is a client 'berlin' already"):
        made.add("Berlin", public_key(tmp_path, "two"))
    with pytest.raises(ValueError, match="This key is that of client 'berlin'"):
        made.add("kyoto", key)
    assert len(made.roster) == 1


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "a b", "x" * 64, "ü"])
def test_a_name_that_is_no_word_adds_nobody(made, tmp_path, name):
    with pytest.raises(ValueError, match="name"):
        made.add(name, public_key(tmp_path))
    assert made.roster == []
    assert list(made.bundles.iterdir()) == []


def test_who_is_removed_or_has_a_new_key_keeps_its_number(made, tmp_path):
    for number, name in enumerate(("berlin", "kyoto")):
        made.add(name, public_key(tmp_path, str(number)))
    made.change(0, missed=2)
    old, new = made.roster[0], made.rekey("Berlin", public_key(tmp_path, "new"))
    assert (new.id, new.name, new.missed) == (0, "berlin", 2)
    assert old.public_key != new.public_key
    assert old.certificate != new.certificate
    with pytest.raises(ValueError, match="known already"):
        made.rekey("kyoto", new.public_key)
    assert made.membership().members == [0, 1]
    made.remove("berlin")
    assert made.membership().members == [1]
    with pytest.raises(ValueError, match="no longer a member"):
        made.rekey("berlin", public_key(tmp_path, "third"))
    assert made.add("berlin", new.public_key).active
    made.revoke("kyoto")
    assert made.membership().members == [0]
    assert made.rekey("kyoto", public_key(tmp_path, "fourth")).active


def test_a_client_goes_on_with_its_old_key_until_the_new_one_has_a_bundle(made, tmp_path):
    client = ClientFolder.create(tmp_path / "berlin", "berlin")
    client.confirm(made.bundle(made.add("berlin", client.public_key)))
    before = client.tls.key.read_bytes()
    line = client.rekey()
    assert client.tls.key.read_bytes() == before
    client.confirm(made.bundle(made.rekey("berlin", line)))
    assert client.tls.key.read_bytes() != before
    assert client.tls.key.stat().st_mode & 0o077 == 0
    assert client.public_key == made.roster[0].public_key
    assert not client.new_key.exists()


def test_amended_terms_are_a_chain_on_both_sides(made, tmp_path):
    client = ClientFolder.create(tmp_path / "berlin", "berlin")
    client.confirm(made.bundle(made.add("berlin", client.public_key)))
    store = client.store().folder
    terms = made.amend({"rounds": made.agreement.rounds + 1})
    assert (terms.amends.round, terms.root) == (1, made.agreement.digest)
    assert not client.offer(terms)
    assert client.offered.digest == terms.digest
    client.accept()
    assert client.offer(terms)
    assert client.offered is None
    assert client.terms.digest == made.current.digest
    assert client.store().folder == store
    later = made.amend({"rounds": made.agreement.rounds + 2}, 4)
    assert made.current.digest == terms.digest
    with pytest.raises(ValueError, match="do not amend the agreement"):
        ClientFolder.open(client.path).offer(later.amended({"rounds": 50}, 5))
    with pytest.raises(ValueError, match="begin before"):
        later.amended({"rounds": 50}, 3)
    client.confirm(made.bundle(made.rekey("berlin", client.rekey())))  # its bundle has the current terms
    assert client.store().folder == store


def test_an_amendment_is_replaced_for_its_round_until_an_owner_has_confirmed_it(made, tmp_path):
    """What the new one does not name stays amended. A client whose owner has confirmed the old one can confirm it."""
    client = ClientFolder.create(tmp_path / "berlin", "berlin")
    client.confirm(made.bundle(made.add("berlin", client.public_key)))
    rounds = made.agreement.rounds
    old = made.amend({"rounds": rounds + 4, "algorithm": {"lam": 3.0}}, rounds + 1)
    assert not client.offer(old)
    client.accept()  # the server does not know yet
    new = made.amend({"rounds": rounds + 3}, rounds + 1)
    assert [each.digest for each in made.terms] == [made.agreement.digest, new.digest]
    assert (new.rounds, new.algorithm["lam"], new.amends.previous) == (rounds + 3, 3.0, made.agreement.digest)
    assert not client.offer(new)
    client.accept()
    assert client.offer(new)
    assert [each.digest for each in client.confirmed_terms()] == [made.agreement.digest, new.digest]
    made.change(0, confirmed=old.digest)  # as a server does that has offered the old ones meanwhile
    assert made.membership().confirmed == {}
    assert made.amend({"algorithm": {"lam": 4.0}}).amends.round == rounds + 1
    made.change(0, confirmed=made.terms[-1].digest)
    assert made.amend({"rounds": rounds + 5}, rounds + 1).amends.previous == made.terms[-2].digest
    assert len(made.terms) == 3


def test_a_federation_that_is_done_is_amended_twice_for_its_next_round(made, monkeypatch):
    rounds = made.agreement.rounds
    monkeypatch.setattr("protonorm.deployment.federation_folder.committed", lambda folder: rounds)
    made.run_folder.mkdir(exist_ok=True)
    (made.run_folder / INFO).touch()
    for more in (4, 3):
        assert made.amend({"rounds": rounds + more}, rounds + 1).rounds == rounds + more
    assert (made.amend({"rounds": rounds + 2}).amends.round, len(made.terms)) == (rounds + 1, 2)
    with pytest.raises(ValueError, match=f"in round {rounds + 1} or later, got {rounds}"):
        made.amend({"rounds": rounds + 9}, rounds)


def test_terms_for_a_round_that_there_is_not_are_refused(made):
    rounds = made.agreement.rounds
    sentence = f"There is no round {rounds + 1} after the last, {rounds}: give rounds= too."
    with pytest.raises(ValueError, match=sentence):
        made.amend({"algorithm": {"lam": 3.0}}, rounds + 1)
    assert made.amend({"algorithm": {"lam": 3.0}, "rounds": rounds + 1}, rounds + 1).rounds == rounds + 1


def test_a_bundle_holds_no_secret_and_all_that_a_client_needs(made, tmp_path):
    member = made.add("berlin", public_key(tmp_path))
    path = made.write_bundle(member)
    text = path.read_text()
    assert "PRIVATE" not in text
    found = json.loads(text)
    assert (found["client"], found["host"], found["port"]) == (0, "localhost", 9092)
    assert found["authority"] == made.tls.authority.read_text()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"quorum": 0.0}, "quorum must .*, got 0.0"),
        ({"quorum": 1.5}, "quorum must .*, got 1.5"),
        ({"deadline": -1.0}, "deadline must .*, got -1.0"),
        ({"deadline": float("inf")}, "deadline must .*, got inf"),
        ({"port": 0}, "port must .*, got 0"),
        ({"hosts": []}, "hosts must "),
        ({"hosts": ["a b"]}, "hosts must "),
        ({"metrics_port": 9092}, "cannot both have the port 9092"),
        ({"plaintext": True}, "no setting 'plaintext'"),
        ({"per_address": 0}, "per_address must .*, got 0"),
        ({"quorums": 0.5}, "no setting 'quorums'"),
    ],
)
def test_settings_out_of_range_are_refused_in_a_sentence(given, said):
    with pytest.raises(ValueError, match=said):
        settings(**given)


def test_folders_of_earlier_versions_can_be_read():
    assert settings(plaintext=False) == settings()


def test_a_roster_that_was_changed_by_hand_is_refused(made, tmp_path):
    member = made.add("berlin", public_key(tmp_path))
    roster = made.path / "roster.json"
    roster.write_text(json.dumps({"members": [member._asdict() | {"id": 3}]}))
    with pytest.raises(ValueError, match="not numbered"):
        made.roster  # noqa: B018
    roster.write_text(json.dumps({"members": [{"id": 0}]}))
    with pytest.raises(ValueError, match="damaged"):
        made.roster  # noqa: B018
    roster.write_text(json.dumps({"members": [member._asdict() | {"revoked": "yes"}]}))
    with pytest.raises(ValueError, match="damaged"):
        made.roster  # noqa: B018


def test_a_new_certificate_is_of_the_same_authority_and_for_the_names_of_now(made):
    before = made.tls.certificate.read_bytes(), made.tls.key.read_bytes()
    other = FederationFolder(made.path, settings(hosts=["127.0.0.1"]))
    other.renew_certificates()
    found = read_certificate(made.tls.certificate)
    found.verify_directly_issued_by(read_certificate(made.tls.authority))
    assert hosts_of(found) == ["127.0.0.1"]
    assert (made.tls.certificate.read_bytes(), made.tls.key.read_bytes()) != before
    assert stat.S_IMODE(made.tls.key.stat().st_mode) == 0o600
    assert sorted(path.name for path in made.keys.iterdir()) == [
        "authority.crt", "authority.key", "server.crt", "server.key",
    ]  # fmt: skip


def test_clients_certificates_are_renewed_in_their_second_year(made, tmp_path):
    member, other = made.add("berlin", public_key(tmp_path)), made.add("kyoto", public_key(tmp_path, "two"))
    old = make_client_certificate((made.authority_key, made.tls.authority), member.public_key, "berlin", YEAR_AGO)
    made._write_roster([member._replace(certificate=old), other])
    made.renew_certificates()
    renewed, same = made.roster
    assert renewed.certificate not in (old, member.certificate)
    assert same == other
    assert made.bundle(renewed).public_key == member.public_key


def test_a_client_has_a_key_for_itself_alone(tmp_path):
    client = ClientFolder.create(tmp_path / "berlin", "berlin")
    assert modes(client.path) == []
    assert stat.S_IMODE(client.tls.key.stat().st_mode) == 0o600
    assert client.public_key_file.read_text() == f"{client.public_key} berlin\n"
    assert not client.joined
    with pytest.raises(ValueError, match="has no bundle yet"):
        client.bundle  # noqa: B018


def write_data(path):
    data = pictures([0, 1, 2] * 8, 3)
    np.savez(path, images=data.inputs, labels=data.labels, classes=np.array(["a", "b", "c"]))
    return path


def test_a_client_confirms_the_bundle_that_is_for_its_key_and_can_work(made, tmp_path):
    client = ClientFolder.create(tmp_path / "berlin", "berlin")
    other = ClientFolder.create(tmp_path / "kyoto", "kyoto")
    bundle = made.bundle(made.add("berlin", client.public_key_file.read_text()))
    with pytest.raises(ValueError, match="The bundle is for the key SHA256:"):
        other.confirm(bundle)
    assert not other.joined
    client.confirm(bundle)
    assert client.bundle.client == 0
    assert client.bundle.terms.digest == made.agreement.digest
    assert client.tls.authority.read_text() == made.tls.authority.read_text()
    with pytest.raises(ValueError, match="has no data yet"):
        client.node()
    client.change(data=str(write_data(tmp_path / "data.npz")), model="cnn", lr=0.05, batch_size=4)
    again = ClientFolder.open(client.path)
    assert again.settings == client.settings
    assert (again.settings.lr, again.settings.batch_size, again.settings.model) == (0.05, 4, "cnn")
    node = again.node()
    assert node._site.training.lr == 0.05
    assert node._site.training.batch_size == 4


def test_the_owner_of_a_client_decides_how_it_trains(made, tmp_path):
    """All settings of training are a client's own; seven were."""
    wanted = {
        "epochs": 3,
        "batch_size": 4,
        "lr": 0.25,
        "weight_decay": 0.1,
        "optimiser": "adamw",
        "optimiser_state": "kept",
        "metrics": "ranking",
        "lr_schedule": {"name": "step", "every": 1},
        "label_smoothing": 0.1,
        "clip": 0.5,
        "augment": "flip",
        "start": "equal",
        "protect": {"name": "minimum_count", "least": 2},
        "shuffle": False,
        "last_batch": "keep",
        "split": "random",
        "train": 0.5,
        "validation": 0.2,
        "precision": "bfloat16",
        "device": "cpu",
        "lowering": False,
        "compile": True,
    }
    assert wanted.keys() | {"momentum", "local_steps"} == Training.model_fields.keys()
    client = ClientFolder.create(tmp_path / "berlin", "berlin")
    client.confirm(made.bundle(made.add("berlin", client.public_key_file.read_text())))
    client.change(data=str(write_data(tmp_path / "data.npz")), model="cnn", **wanted)
    site = ClientFolder.open(client.path).node()._site
    assert site.training == Training(**wanted)
    second = site.client(2)
    assert (second.lr, second.epochs, second.batch_size) == (0.125, 3, 4)  # the step after every round halves
    assert second.training == site.training
    assert not site.networks[0].lowered
    with pytest.raises(ValueError, match="momentum must be 0 with adamw, got 0.9"):
        client.change(momentum=0.9)
    with pytest.raises(ValueError, match=r"must be one number each, got \[0.1, 0.2\]"):
        client.change(lr=[0.1, 0.2])
    own = tmp_path / "own.py"
    own.write_text("import torch\n\ndef make(weights, lr):\n    return torch.optim.Rprop(weights, lr)\n")
    client.change(optimiser=f"{own}:make", weight_decay=0.0, local_steps=0.5, epochs=1, shuffle=True)
    again = ClientFolder.open(client.path).node()._site.client(1)
    assert (again.training.optimiser, again.local_steps) == (f"{own}:make", 0.5)
    weights = [torch.nn.Parameter(torch.zeros(2))]
    assert isinstance(make_optimiser(again.training.optimiser, weights, 0.1, 0.0, 0.0), torch.optim.Rprop)
    with pytest.raises(ValueError, match="optimiser must be sgd, adam, adamw or file.py:NAME, got 'sgdx'"):
        client.change(optimiser="sgdx")


def test_the_policy_in_a_clients_folder_stands_above_its_settings(made, tmp_path):
    client = ClientFolder.create(tmp_path / "berlin", "berlin")
    client.confirm(made.bundle(made.add("berlin", client.public_key_file.read_text())))
    client.change(data=str(write_data(tmp_path / "data.npz")), model="cnn", allowed="classes")
    policy = client.path / "policy.yaml"
    policy.write_text("protect: {name: minimum_count, least: 3}\nevaluation: off\nreceived: 50\n")
    node = client.node()
    assert node.site.training.protect.least == 3
    assert (node._allowed, node._received) == ("off", 50)
    policy.write_text("rounds: 1\n")
    with pytest.raises(ValueError, match="allows 1 rounds at most"):
        client.node()


def test_earlier_terms_that_the_policy_does_not_allow_any_more_are_not_worked_by(made, tmp_path):
    """The owner confirmed fewer rounds and allows no more; the server asks by the terms that were confirmed before."""
    client = ClientFolder.create(tmp_path / "berlin", "berlin")
    client.confirm(made.bundle(made.add("berlin", client.public_key_file.read_text())))
    client.change(data=str(write_data(tmp_path / "data.npz")), model="cnn")
    first = client.bundle.terms
    client.offer(first.amended({"rounds": 1}, 1))
    client.accept()
    (client.path / "policy.yaml").write_text("rounds: 1\n")
    node = client.node()
    for terms, declined in ((client.terms, ""), (first, "The owner's policy allows 1 rounds at most")):
        fields = {"format": 1, "agreement": terms.digest, "client": 0, "round": 1, "kind": "train", "trained": 0}
        answer, _ = read_answer_header(node.answer(write_request(RequestHeader.model_validate(fields), b"")))
        assert answer.declined.startswith(declined)
        assert bool(answer.declined) == bool(declined)


def test_what_a_client_tells_of_its_evaluation_is_off_until_its_owner_says_otherwise(tmp_path):
    assert ClientFolder.create(tmp_path / "x", "x").settings.allowed == "off"


def test_data_may_be_a_path_alone_and_are_written_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures").mkdir()
    for name in ("a.npz", "a.csv", "a.bin"):
        (tmp_path / name).write_bytes(b"")

    def data(value):
        return ClientSettings.of({"name": "x", "data": value}).data

    assert data("pictures") == f"folder:{tmp_path / 'pictures'}"
    assert data("a.npz") == f"npz:{tmp_path / 'a.npz'}"
    assert data("a.csv") == f"table:{tmp_path / 'a.csv'}"
    assert data("array:a.npz") == f"array:{tmp_path / 'a.npz'}"
    assert data({"name": "table", "path": "a.csv"}) == {"name": "table", "path": str(tmp_path / "a.csv")}
    with pytest.raises(ValueError, match="several kinds"):
        data("a.bin")
    with pytest.raises(ValueError, match=r"There are no data nowhere\.npz"):
        data("nowhere.npz")


def test_a_network_of_ones_own_is_found_wherever_the_client_is_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ClientSettings.of({"name": "x", "model": "nets/mine.py:make"}).model == f"{tmp_path}/nets/mine.py:make"
    assert ClientSettings.of({"name": "x", "model": "cnn"}).model == "cnn"


def test_opening_folders_and_reading_the_roster_needs_no_torch(made, tmp_path):
    client = ClientFolder.create(tmp_path / "berlin", "berlin")
    made.add("berlin", client.public_key)
    code = (
        "import sys; from protonorm.deployment.federation_folder import FederationFolder as F; "
        "from protonorm.deployment.client_folder import ClientFolder as C; "
        f"F.open({str(made.path)!r}).roster; C.open({str(client.path)!r}).joined; "
        "sys.exit(bool({'torch', 'flwr'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
