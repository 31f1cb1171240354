"""Connections of the server: how many there may be, from whom, at which pace, and when they are cut."""

import os
import socket
import ssl
import subprocess
import sys
import time

import pytest

from protonorm.deployment.engine import Arrived
from protonorm.deployment.https.listener import Limits, Queue
from tests.deployment.keyring import Keys, drip, until, years

FORMAT = b"Protonorm-Format: 1\r\n"


@pytest.mark.parametrize("case", ["other authority", "none", "expired", "plaintext", "silence"])
def test_failed_handshakes_are_told_with_address_and_reason(keys, told, tmp_path, case):
    """Trap 3: asyncio itself logs nothing about them."""
    reasons = {
        "other authority": "unable to get local issuer certificate",
        "none": "peer did not return a certificate",
        "expired": "certificate has expired",
        "plaintext": "http request",
        "silence": "taking longer than",
    }
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    other = Keys(tmp_path)
    if case == "expired":
        other.admit(0, years(-3), signer=keys.signer)
    if case in ("expired", "other authority"):
        context.load_cert_chain(*other.tls()[1:])
    with keys.server(log=told.append, limits=Limits(handshake=0.3)) as server:
        with socket.create_connection(("127.0.0.1", server.port), 10) as plain:
            if case == "plaintext":
                plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            if case in ("plaintext", "silence"):
                assert plain.recv(100)[:1] in (b"", b"\x15")  # nothing, or an alert
            else:
                with context.wrap_socket(plain) as line:
                    assert line.recv(100) == b""
        until(lambda: told)
    assert told == [one for one in told if one.startswith("The handshake with 127.0.0.1 failed: ")]
    assert reasons[case] in told[0]


def test_addresses_have_a_cap_that_can_be_set(keys, told):
    """Trap 11: behind a proxy all clients have its address."""
    with keys.server(limits=Limits(per_address=3), log=told.append) as server:
        lines = [keys.line(server) for _ in range(3)]
        with pytest.raises(OSError):  # noqa: PT011
            keys.line(server).recv(1)
        until(lambda: told == ["A connection from 127.0.0.1 was closed: too many connections come from this address."])
        lines.pop().close()
        until(lambda: server._listener._by_address["127.0.0.1"] == 2)
        client = keys.connection(server)
        assert client.ask(wait=0) is None
        client.close()
        for line in lines:
            line.close()


def test_handshakes_have_a_pace_and_a_queue_of_bounded_length(keys, told):
    """Three begin at once, the next ones half a second after each other; two may wait for that."""
    with keys.server(limits=Limits(pending=2, pace=2.0), log=told.append) as server:
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(6)]
        until(lambda: told == ["A connection from 127.0.0.1 was closed: too many handshakes are pending."])
        assert (len(server._listener._queue), len(server._listener._new)) == (2, 3)
        until(lambda: len(server._listener._new) == 5)
        client = keys.connection(server)
        assert client.ask(wait=0) is None
        for one in silent:
            one.close()
        client.close()


def test_addresses_take_turns_and_the_one_with_most_loses():
    pairs = [socket.socketpair() for _ in range(5)]
    queue = Queue()
    for address, (one, _) in zip("aaaba", pairs, strict=True):
        queue.add(address, one)
    assert queue.drop() == "a"
    assert [one.fileno() < 0 for one, _ in pairs] == [False] * 4 + [True]
    taken = [queue.take() for _ in range(4)]
    assert taken == [(address, pairs[place][0]) for address, place in zip("abaa", (0, 3, 1, 2), strict=True)]
    assert not queue.filled.is_set()
    for one in [one for pair in pairs for one in pair]:
        one.close()


def test_of_connections_without_a_request_the_oldest_makes_room(keys, told):
    """One that drips a handshake, then one that is silent after its own: members get in at once."""
    with keys.server(limits=Limits(new=1), log=told.append) as server:
        member = keys.connection(server)
        assert member.ask(wait=0) is None
        with socket.create_connection(("127.0.0.1", server.port)) as stranger, keys.line(server, 1) as silent:
            assert stranger.recv(1) == b""
            other = keys.connection(server)
            other._own = member._own  # another connection of the same process
            assert other.ask(wait=0) is None
            assert silent.recv(1) == b""
            other.close()
        assert member.ask(wait=0) is None
        member.close()
    assert told == [
        "The handshake with 127.0.0.1 failed: it took long, and others wait.",
        "A connection from 127.0.0.1 was cut: it sent no request, and others wait.",
    ]


def test_a_key_has_few_connections(keys, told):
    with keys.server(limits=Limits(per_client=2), log=told.append) as server:
        lines = [keys.line(server) for _ in range(2)]
        until(lambda: len(server._listener.connections) == 2)
        with pytest.raises(OSError):  # noqa: PT011
            drip(keys.line(server), b"G", 0.05)
        assert told == ["A connection from 127.0.0.1 was cut: its client has too many."]
        client = keys.connection(server, 1)
        assert client.ask(wait=0) is None
        client.close()
        for line in lines:
            line.close()


def test_open_connections_have_a_cap(keys, told):
    with keys.server(limits=Limits(open=1), log=told.append) as server:
        with keys.line(server) as line:
            until(lambda: server._listener.connections)
            with pytest.raises(OSError):  # noqa: PT011
                keys.line(server).recv(1)
            assert line.fileno() >= 0
        until(lambda: any("too many connections are open" in one for one in told))


def test_two_hundred_half_open_handshakes_keep_nobody_out(keys):
    with keys.server() as server:
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
        client = keys.connection(server)
        assert client.ask(wait=0) is None
        client.close()
        for one in silent:
            one.close()


EMFILE = """
import resource, socket, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.deployment.keyring import Keys, until
keys, told = Keys(Path(sys.argv[1])), []
with keys.server(log=told.append) as server:
    client = keys.connection(server)
    assert client.ask(wait=0) is None
    client.close()
    hold = [open("/dev/null") for _ in range(5)]
    used = hold[-1].fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    lines = []
    try:
        while True:
            lines.append(socket.create_connection(("127.0.0.1", server.port)))
    except OSError:
        pass
    until(lambda: any("Too many open files" in one for one in told))
    for one in [*lines, *hold]:
        one.close()
    def answers():
        try:
            return keys.connection(server).ask(wait=0) is None
        except Exception:
            return False
    until(answers, 30)
    print("served again")
"""


def test_too_many_open_files_end_with_them(tmp_path):
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    done = subprocess.run(
        [sys.executable, "-c", EMFILE, str(tmp_path), root], capture_output=True, text=True, timeout=120, check=False
    )
    assert "served again" in done.stdout, done.stderr


def test_silence_after_the_handshake_and_dripped_heads_are_cut(keys, told):
    with keys.server(limits=Limits(header=0.5, idle=1.0), log=told.append) as server:
        silent, dripping = keys.line(server), keys.line(server)
        dripping.sendall(b"GET /v1/work HTT")
        assert silent.recv(1) == b""
        with pytest.raises(OSError):  # noqa: PT011
            drip(dripping, b"P", 0.05)
        idle = keys.line(server)
        idle.sendall(b"GET /v1/work HTTP/1.1\r\nHost: x\r\nPrefer: wait=0\r\n" + FORMAT + b"\r\n")
        assert idle.recv(1000).startswith(b"HTTP/1.1 204")
        start = time.monotonic()
        assert idle.recv(1) == b""
        assert 0.7 < time.monotonic() - start < 5
        for line in (silent, dripping, idle):
            line.close()
    assert any("it sent no request" in one for one in told)


def test_a_client_that_works_may_be_silent_for_longer(keys):
    with keys.server(limits=Limits(idle=0.5)) as server:
        client = keys.connection(server)
        client.ask(wait=0)
        server.push({0: b"work"})
        assert client.ask() == b"work"
        time.sleep(1.5)
        assert server.present() == {0}
        client.answer(b"work", b"done")
        assert server.pull(5.0) == [Arrived(0, b"done", current=True)]
        client.close()


def test_nothing_is_left_when_clients_come_and_go(keys, server):
    for _ in range(5):
        client = keys.connection(server)
        client.ask(wait=0)
        client.close()
    until(lambda: not server._listener.connections)
    assert not server._listener._by_key
    assert not server._listener._by_address
    assert not server._listener._new
