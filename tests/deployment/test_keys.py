"""Keys and certificates: OpenSSL and OpenSSH take them, only their owners read them, and doubtful ones are refused."""

import datetime as dt
import socket
import ssl
import stat
import threading

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from protonorm.deployment.keys import (
    check_public_line,
    hosts_of,
    key_fingerprint,
    make_authority,
    make_client_key,
    make_server_certificate,
    problems_of,
    read_certificate,
)

HOSTS = ["localhost", "127.0.0.1"]


def made(folder, hosts=HOSTS, now=None):
    """Make an authority and a server's certificate in a folder."""
    folder.mkdir()
    make_authority(folder / "ca.key", folder / "ca.crt", "eyes", now)
    authority = folder / "ca.key", folder / "ca.crt"
    make_server_certificate(authority, folder / "server.key", folder / "server.crt", hosts, now)
    return folder


def shake_hands(server, trusted, host):
    """Connect Python's ssl over a pair of sockets; raise the client's error."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server / "server.crt", server / "server.key")
    client = ssl.create_default_context(cafile=str(trusted / "ca.crt"))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()

    def serve():
        try:
            context.wrap_socket(theirs, server_side=True).close()
        except (ssl.SSLError, OSError):
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(ours, server_hostname=host).close()
    finally:
        ours.close()
        thread.join()


@pytest.mark.parametrize("host", HOSTS)
def test_tls_takes_the_certificate_strictly(tmp_path, host):
    folder = made(tmp_path / "one")
    shake_hands(folder, folder, host)
    assert problems_of(read_certificate(folder / "ca.crt"), read_certificate(folder / "server.crt"), host) == []


def test_another_authority_another_name_and_an_expired_certificate_are_refused(tmp_path):
    """By TLS, and by our own sentences."""
    then = dt.datetime.now(dt.UTC) - dt.timedelta(days=3 * 365)
    one, two, old = made(tmp_path / "one"), made(tmp_path / "two"), made(tmp_path / "old", now=then)
    early = made(tmp_path / "early", now=dt.datetime.now(dt.UTC) + dt.timedelta(days=9))
    cases = [
        (one, two, "localhost", "not from this federation's authority"),
        (one, one, "example.org", "is for localhost, 127.0.0.1, not for example.org"),
        (old, old, "localhost", "server's certificate expired on"),
        (early, early, "localhost", "is valid from"),
    ]
    for server, trusted, host, said in cases:
        with pytest.raises(ssl.SSLCertVerificationError):
            shake_hands(server, trusted, host)
        found = problems_of(read_certificate(trusted / "ca.crt"), read_certificate(server / "server.crt"), host)
        assert said in " ".join(found)


def test_private_keys_are_for_their_owner_and_nothing_is_overwritten(tmp_path):
    folder = made(tmp_path / "one")
    make_client_key(folder / "client")
    for name in ("ca.key", "server.key", "client"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    before = (folder / "client").read_bytes()
    with pytest.raises(ValueError, match="is there already"):
        make_client_key(folder / "client")
    assert (folder / "client").read_bytes() == before
    (folder / "ca.key").chmod(0o644)
    with pytest.raises(ValueError, match="can be read by others"):
        make_server_certificate((folder / "ca.key", folder / "ca.crt"), folder / "k", folder / "c", HOSTS)
    assert not (folder / "k").exists()


def test_a_client_s_key_is_openssl_s_and_its_public_line_openssh_s(tmp_path):
    line = make_client_key(tmp_path / "client")
    private = serialization.load_pem_private_key((tmp_path / "client").read_bytes(), None)
    assert isinstance(private.curve, ec.SECP384R1)
    assert check_public_line(f"{line} anna@clinic\n") == line
    assert check_public_line(line) == line
    assert key_fingerprint(line).startswith("SHA256:")
    assert len(key_fingerprint(line)) == 50  # 43 signs of base64 for 32 bytes


def test_what_is_no_public_key_is_refused(tmp_path):
    make_client_key(tmp_path / "client")
    public = ed25519.Ed25519PrivateKey.generate().public_key()
    other = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    small = ec.generate_private_key(ec.SECP256R1()).public_key()
    smaller = small.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    for line, said in {
        (tmp_path / "client").read_text(): "private key, which must never leave",
        "": "no public key",
        "ecdsa-sha2-nistp384 AAAA": "no public key",
        "x " * 10_000: "no public key",
        other: "must be of the kind ecdsa-sha2-nistp384",
        smaller: "must be of the kind ecdsa-sha2-nistp384",
        f"{smaller}\n{smaller}": "no public key",
    }.items():
        with pytest.raises(ValueError, match=said):
            check_public_line(line)


def test_hosts_are_names_or_addresses(tmp_path):
    folder = made(tmp_path / "one", ["fl.example.org", "10.0.0.7", "::1"])
    assert hosts_of(read_certificate(folder / "server.crt")) == ["fl.example.org", "10.0.0.7", "::1"]
    authority = folder / "ca.key", folder / "ca.crt"
    for bad in ("", "a b", "x" * 300, "http://a", "a..b"):
        with pytest.raises(ValueError, match="neither a host's name nor an address"):
            make_server_certificate(authority, folder / "k", folder / "c", [bad])
    with pytest.raises(ValueError, match="at least one name"):
        make_server_certificate(authority, folder / "k", folder / "c", [])
    with pytest.raises(ValueError, match="is no certificate"):
        read_certificate(folder / "ca.key")
