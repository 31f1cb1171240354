"""The doctor: what is wrong with a folder, a port, a certificate, a clock, data or the disk, each in a sentence."""

import datetime as dt
import email.utils
import shutil
import socket
import ssl
import threading
from contextlib import contextmanager

import numpy as np
import pytest

from protonorm.deployment import doctor
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.client_folder import ClientFolder
from protonorm.deployment.doctor import (
    compare_clocks,
    find_disk_space,
    find_free_port,
    find_name,
    find_server,
    find_versions,
    look_at_client,
    look_at_server,
)
from protonorm.deployment.federation_folder import FederationFolder
from protonorm.deployment.keys import make_authority, make_client_key, make_server_certificate
from protonorm.deployment.process_lock import process_lock
from protonorm.deployment.settings import FederationSettings
from tests.support import pictures

LONG_AGO = dt.datetime(2001, 1, 1, tzinfo=dt.UTC)
TERMS = {"algorithm": "protonorm", "classes": ["a", "b", "c"], "feature_dim": 8, "rounds": 3, "seed": 0}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def make_federation(path, port, **settings):
    plain = {"name": "hospitals", "hosts": ["localhost", "127.0.0.1"], "bind": "127.0.0.1", "port": port} | settings
    return FederationFolder.create(path, FederationSettings.of(plain), Agreement.of(TERMS))


@pytest.fixture
def folder(tmp_path):
    made = make_federation(tmp_path / "federation", free_port())
    made.add("berlin", make_client_key(tmp_path / "berlin.key"))
    return made


@contextmanager
def answering(port, certificate=None, key=None, date=None):
    """Listen at a port, with TLS if there is a certificate, and answer every request with the time."""
    listener = socket.create_server(("127.0.0.1", port))
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)

    def serve():
        while True:
            try:
                channel, _ = listener.accept()
            except OSError:
                return
            with channel:
                try:
                    channel.settimeout(10)
                    spoken = context.wrap_socket(channel, server_side=True) if context else channel
                    with spoken:
                        if spoken.recv(4096):
                            spoken.sendall(f"HTTP/1.1 404 No\r\nDate: {date or now()}\r\n\r\n".encode())
                except OSError:
                    pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def now(seconds=0):
    return email.utils.format_datetime(dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds), usegmt=True)


def finds(*words, **options):
    return list(find_server(*words, **options))


def wrong(findings):
    """Return what is wrong: a word and a sentence each."""
    return [(one.what, one.text) for one in findings if not one.ok]


def test_nothing_is_wrong_with_a_new_federation(folder):
    found = list(look_at_server(folder))
    assert wrong(found) == []
    assert {one.what for one in found} == {
        "version", "disk", "key", "agreement", "clients", "certificate", "name", "server", "port",
    }  # fmt: skip
    assert any(folder.agreement.fingerprint in one.text for one in found)


def test_a_port_that_is_taken_is_told(folder):
    with answering(folder.settings.port):
        (one,) = wrong(look_at_server(folder))
    assert one[0] == "port"
    assert f"127.0.0.1:{folder.settings.port}" in one[1]
    assert "address already in use" in one[1]


def test_the_port_of_a_running_server_is_its_own(folder):
    ways = folder.tls
    with process_lock(folder.server_lock, "The server"), answering(folder.settings.port, ways.certificate, ways.key):
        assert wrong(look_at_server(folder)) == []
    with process_lock(folder.server_lock, "The server"):
        (one,) = wrong(look_at_server(folder))
    assert one[0] == "port"
    assert "No server listens" in one[1]


def test_a_running_server_with_the_certificate_from_before_is_told(folder):
    with process_lock(folder.server_lock, "The server"), answering(folder.settings.port):
        assert wrong(look_at_server(folder)) == []
        folder.renew_certificates()
        ((what, text),) = wrong(look_at_server(folder))
    assert what == "certificate"
    assert "runs with the certificate from before" in text


def test_the_server_s_own_port_is_looked_at_without_a_connection(folder, monkeypatch):
    """A connection would be counted as a denied request; a proxy has nothing to do with this machine's own ports."""
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr(doctor, "https_connection", None)
    with process_lock(folder.server_lock, "The server"), answering(folder.settings.port):
        assert wrong(look_at_server(folder)) == []


def test_a_port_for_figures_that_is_taken_is_told(tmp_path):
    made = make_federation(tmp_path / "f", free_port(), metrics_port=free_port())
    made.add("berlin", make_client_key(tmp_path / "berlin.key"))
    with answering(made.settings.metrics_port):
        (one,) = wrong(look_at_server(made))
    assert "for figures" in one[1]


def test_a_key_that_others_can_read_is_told(folder):
    folder.tls.key.chmod(0o640)
    found = wrong(look_at_server(folder))
    assert (
        "key",
        f"{folder.tls.key} can be read by others than its owner: chmod 600 it, or make a new one.",
    ) in found


def test_a_key_that_is_missing_or_of_another_certificate_is_told(folder, tmp_path):
    make_server_certificate((folder.authority_key, folder.tls.authority), tmp_path / "k", tmp_path / "c", ["localhost"])
    shutil.copy(tmp_path / "k", folder.tls.key)
    assert wrong(look_at_server(folder)) == [("certificate", "The server's key does not belong to its certificate.")]
    folder.tls.key.unlink()
    assert [what for what, _ in wrong(look_at_server(folder))] == ["key", "certificate"]


def test_a_certificate_that_has_expired_or_ends_soon_is_told(folder):
    ways = folder.tls
    for left, said in ((-1, "expired on"), (10, "It ends soon: `protonorm deploy renew`")):
        ways.key.unlink()
        ways.certificate.unlink()
        begin = dt.datetime.now(dt.UTC) - dt.timedelta(days=2 * 365 - left)
        make_server_certificate(
            (folder.authority_key, ways.authority), ways.key, ways.certificate, ["localhost"], begin
        )
        (one,) = wrong(look_at_server(folder))
        assert one[0] == "certificate"
        assert said in one[1]
    folder.renew_certificates()
    assert wrong(look_at_server(folder)) == []


def test_a_certificate_for_other_names_is_told(folder):
    other = FederationFolder(folder.path, folder.settings.model_copy(update={"hosts": ["127.0.0.2"]}))
    found = wrong(look_at_server(other))
    assert ("certificate", "The server's certificate is for localhost, 127.0.0.1, not for 127.0.0.2.") in found


def test_a_federation_without_clients_or_with_a_damaged_agreement_is_told(tmp_path):
    made = make_federation(tmp_path / "f", free_port())
    assert [what for what, _ in wrong(look_at_server(made))] == ["clients"]
    (made.path / "agreement.json").write_text("{}")
    assert [what for what, _ in wrong(look_at_server(made))] == ["agreement"]


def test_a_name_that_nobody_knows_is_told():
    found = find_name("nobody.invalid")
    assert not found.ok
    assert "nobody.invalid is not known on this machine" in found.text
    assert find_name("127.0.0.1").text == "127.0.0.1 is 127.0.0.1."


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    assert find_disk_space(tmp_path).ok
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 99, 2**20))
    found = find_disk_space(tmp_path)
    assert (found.what, found.ok) == ("disk", False)
    assert "need 1 GiB at least" in found.text


def test_a_package_that_is_missing_is_told(monkeypatch):
    real = doctor.importlib.metadata.version

    def version(name):
        if name == "aiohttp":
            raise doctor.importlib.metadata.PackageNotFoundError
        return real(name)

    monkeypatch.setattr(doctor.importlib.metadata, "version", version)
    assert wrong(find_versions()) == [("version", "aiohttp is not installed: pip install '.[deploy]' in a checkout.")]


def test_a_server_is_looked_at_as_a_client_sees_it(folder):
    ways, port = folder.tls, folder.settings.port
    with answering(port, ways.certificate, ways.key):
        found = finds("localhost", port, ways.authority)
    assert [(one.what, one.ok) for one in found] == [("port", True), ("certificate", True), ("clock", True)]


def test_another_authority_is_told(folder, tmp_path):
    ways, port = folder.tls, folder.settings.port
    make_authority(tmp_path / "k", tmp_path / "c", "another")
    with answering(port, ways.certificate, ways.key):
        assert wrong(finds("localhost", port, tmp_path / "c")) == [
            ("certificate", "The server's certificate is not from this federation's authority.")
        ]


def test_an_expired_certificate_and_another_name_are_told(folder, tmp_path):
    port, authority = folder.settings.port, folder.tls.authority
    key, certificate = tmp_path / "k", tmp_path / "c"
    make_server_certificate((folder.authority_key, authority), key, certificate, ["other.example"], LONG_AGO)
    with answering(port, certificate, key):
        (expired, name) = wrong(finds("localhost", port, authority))
    assert "The server's certificate expired on 2003-01-01" in expired[1]
    assert name[1] == "The server's certificate is for other.example, not for localhost."


def test_plaintext_is_told_to_who_expects_tls(folder):
    port = folder.settings.port
    with answering(port):
        assert wrong(finds("localhost", port, folder.tls.authority)) == [
            ("certificate", "The server speaks plaintext, and TLS was agreed on.")
        ]


def test_nobody_at_a_port_is_told(folder):
    (one,) = wrong(finds("127.0.0.1", folder.settings.port, folder.tls.authority))
    assert one[0] == "port"
    assert "No server listens" in one[1]


def test_a_proxy_that_is_not_there_is_told_and_looks_up_the_name(folder, client, monkeypatch):
    """Names of servers are often known to the proxy alone; its password is not shown."""
    monkeypatch.setattr(doctor, "find_name", None)
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:secret@127.0.0.1:{free_port()}")
    found = {one.what: one for one in look_at_client(client)}
    assert found["name"].ok
    assert "is looked up by the proxy 127.0.0.1:" in found["name"].text
    assert "which HTTPS_PROXY names" in found["port"].text
    assert "secret" not in found["name"].text + found["port"].text


def test_silence_is_told(folder, monkeypatch):
    monkeypatch.setattr(doctor, "PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", folder.settings.port)):
        (one,) = wrong(finds("127.0.0.1", folder.settings.port, folder.tls.authority))
    assert one == ("certificate", "The server ended the connection instead of showing a certificate.")


def test_a_clock_that_is_wrong_is_told(folder):
    ways, port = folder.tls, folder.settings.port
    with answering(port, ways.certificate, ways.key, date=now(-3600)):
        ((what, text),) = wrong(finds("localhost", port, ways.authority))
    assert what == "clock"
    assert "seconds ahead of the server's: set it by NTP" in text
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    assert compare_clocks(noon, noon + dt.timedelta(seconds=60)).ok
    assert "is 61 seconds ahead of" in compare_clocks(noon, noon + dt.timedelta(seconds=61)).text
    assert "is 90 seconds behind the" in compare_clocks(noon, noon - dt.timedelta(seconds=90)).text


def test_a_port_that_only_others_may_use_is_told(monkeypatch):
    def bind(self, address):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", bind)
    assert "permission denied" in find_free_port("127.0.0.1", 80).text


@pytest.fixture
def client(folder, tmp_path):
    made = ClientFolder.create(tmp_path / "lima", "lima")
    made.confirm(folder.bundle(folder.add("lima", made.public_key)))
    data = pictures([0, 1, 2] * 8, 3)
    np.savez(tmp_path / "data.npz", images=data.inputs, labels=data.labels, classes=np.array(["a", "b", "c"]))
    np.savez(tmp_path / "other.npz", images=data.inputs, labels=data.labels, classes=np.array(["a", "b", "z"]))
    made.change(data=str(tmp_path / "data.npz"), model="cnn")
    return made


def test_nothing_is_wrong_with_a_client_whose_server_is_there(folder, client):
    ways = folder.tls
    with answering(folder.settings.port, ways.certificate, ways.key):
        found = list(look_at_client(client))
    assert wrong(found) == []
    assert [one.what for one in found][-7:] == [
        "bundle", "name", "port", "certificate", "identity", "clock", "data",
    ]  # fmt: skip


def test_data_and_networks_that_do_not_fit_are_told(client, tmp_path):
    client.change(data=str(tmp_path / "other.npz"))
    found = dict(wrong(look_at_client(client)))
    assert "a class that the agreement does not have: z" in found["data"]
    assert "No server listens" in found["port"]
    client.change(data=str(tmp_path / "data.npz"), model="no_such_network")
    assert "Unknown network" in dict(wrong(look_at_client(client)))["data"]
    (tmp_path / "data.npz").unlink()
    client.change(model="cnn")
    assert "data" in dict(wrong(look_at_client(client)))


def test_a_client_without_a_bundle_or_with_that_of_another_is_told(folder, client, tmp_path):
    other = ClientFolder.create(tmp_path / "quito", "quito")
    assert [what for what, _ in wrong(look_at_client(other))] == ["bundle"]
    shutil.copy(client.path / "bundle.json", other.path / "bundle.json")
    ((what, text),) = wrong(look_at_client(other))
    assert what == "bundle"
    assert text.startswith("The bundle is for the key SHA256:")
