"""The server and a client's connection to it, over mutual TLS on this machine: who is let in, and what is refused."""

import gzip
import http.client
import http.server
import os
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from protonorm.deployment.doctor import find_server
from protonorm.deployment.engine import Arrived
from protonorm.deployment.https import calls as calls_module
from protonorm.deployment.https import client as client_module
from protonorm.deployment.https.client import Refused, Taken, Unreachable, Withdrawn
from protonorm.deployment.https.protocol import HOLD, request_id, tls_context
from protonorm.errors import Failed
from tests.deployment.keyring import LARGEST, Keys, drip, until, years
from tests.deployment.processes import free_port

FORMAT = b"Protonorm-Format: 1\r\n"
BOMB = gzip.compress(bytes(2**22))  # 4 kB that would become 4 MB


def exchange(keys, server, text, id=0, size=65536):
    """Send bytes over a connection by hand; return what comes back."""
    with keys.line(server, id) as line:
        line.sendall(text)
        found = b""
        while chunk := line.recv(size):
            found += chunk
        return found


def post(length=None, headers=b"", key="0" * 64):
    """Write the head of an answer."""
    about = b"" if length is None else b"Content-Length: %d\r\n" % length
    named = f"Protonorm-Request: {key}\r\n".encode()
    return b"POST /v1/answer HTTP/1.1\r\nHost: x\r\n" + FORMAT + named + about + headers + b"\r\n"


def test_bytes_go_to_a_client_and_back(keys, server):
    client = keys.connection(server)
    assert server.push({0: b"early"}) == {0: "it is not connected"}
    assert client.ask(wait=0) is None
    content = bytes(range(256)) * 4000  # 1,024,000 bytes, just below what is allowed
    assert server.push({0: content, 1: b""}) == {1: "it is not connected"}
    assert client.ask() == content
    client.answer(content, content[::-1])
    assert server.pull(10.0) == [Arrived(0, content[::-1], current=True)]
    assert server.present() == {0}
    client.close()
    until(lambda: server.present() == set())


def test_a_call_is_held_until_there_is_work(server, client):
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(client.ask)
        time.sleep(0.3)
        assert not asking.done()
        server.push({0: b"work"})
        assert asking.result(5) == b"work"


def test_a_call_is_held_for_less_than_the_patience_of_proxies_and_of_the_client(keys):
    """Trap 10."""
    assert HOLD < 25
    assert client_module.SILENCE >= HOLD + 15
    with keys.server(hold=0.2) as server:
        client = keys.connection(server)
        start = time.monotonic()
        assert client.ask() is None
        assert 0.2 <= time.monotonic() - start < 5
        client.close()


def test_silence_on_the_way_is_noticed(keys, server, monkeypatch):
    """Trap 10: a proxy that forgets a connection without a word."""
    monkeypatch.setattr(client_module, "SILENCE", 0.3)
    client = keys.connection(server)
    with pytest.raises(Unreachable, match="takes too long"):
        client.ask()
    assert client.ask(wait=0) is None  # the same process, though the server may not have noticed


def test_a_request_is_sent_until_it_is_answered(keys, server, client, monkeypatch):
    """A client that lost a request, as one that was killed, gets it again; after its answer it does not."""
    monkeypatch.setattr(calls_module, "AGAIN", 0.2)
    server.push({0: b"work"})
    assert client.ask() == b"work"
    start = time.monotonic()
    assert client.ask() == b"work"
    assert time.monotonic() - start >= 0.19  # it may not ask for it all the time
    client.answer(b"work", b"done")
    assert client.ask(wait=0) is None


def test_an_answer_is_taken_once_however_often_it_is_posted(server, client):
    """Trap 9."""
    server.push({0: b"work"})
    client.ask()
    for _ in range(3):
        client.answer(b"work", b"done")
    assert server.pull(0.2) == [Arrived(0, b"done", current=True)]
    server.push({0: b"work"})  # it was refused: the same request is repeated, and may be answered again
    client.answer(b"work", b"better")
    assert server.pull(5.0) == [Arrived(0, b"better", current=True)]


def test_a_late_answer_arrives_so_that_it_can_be_refused_and_one_that_nobody_asked_for_does_not(server, client):
    server.push({0: b"old"})
    assert client.ask() == b"old"
    server.push({0: b"new"})
    client.answer(b"old", b"late")
    assert server.pull(5.0) == [Arrived(0, b"late", current=False)]
    with pytest.raises(Withdrawn, match="no longer waits"):
        client.answer(b"never asked", b"done")
    client.ask(wait=0)
    for number in range(20):
        server.push({0: b"%d" % number})
    with pytest.raises(Withdrawn):
        client.answer(b"old", b"too late")
    assert len(server._clients[0].answered) == calls_module.REMEMBERED
    assert server.pull(0.1) == []


def test_an_answer_counts_as_that_of_the_client_whose_certificate_it_came_with(keys, server, client):
    other = keys.connection(server, 1)
    other.ask(wait=0)
    server.push({0: b"for one"})
    with pytest.raises(Withdrawn):
        other.answer(b"for one", b"forged")
    assert server.pull(0.1) == []
    other.close()


def test_who_went_away_is_lost_after_a_while_and_not_if_it_comes_back(keys):
    with keys.server(grace=0.6) as server:
        client = keys.connection(server)
        client.ask(wait=0)
        server.push({0: b"work"})
        client.close()
        assert server.pull(0.4) == []
        assert client.ask() == b"work"
        assert server.pull(0.8) == []  # it works
        client.close()
        assert server.pull(5.0) == [Arrived(0, failure="it went away and did not come back")]
        assert client.ask(wait=0) is None
        client.answer(b"work", b"done")  # it was at work all the time: the round may still need it
        assert server.pull(5.0) == [Arrived(0, b"done", current=False)]
        client.close()


def test_a_second_process_with_the_same_key_is_refused_and_the_first_goes_on(keys, server, client):
    second = keys.connection(server)
    with pytest.raises(Taken, match="same key is connected already"):
        second.ask(wait=0)
    server.push({0: b"work"})
    assert client.ask() == b"work"
    client.close()
    until(lambda: server.present() == set())
    assert second.ask() == b"work"
    second.close()


def test_a_new_call_of_the_same_process_takes_the_place_of_the_old_one(keys, server, client):
    again = keys.connection(server)
    again._own = client._own
    with ThreadPoolExecutor(1) as pool:
        old = pool.submit(client.ask)
        time.sleep(0.2)
        assert again.ask(wait=0) is None
        assert old.result(5) is None
    again.close()


def test_unknown_revoked_and_expired_clients_are_refused_in_a_sentence(keys, told):
    members = list(keys.members)
    with keys.server(roster=lambda: members, log=told.append) as server:
        stranger = keys.connection(server, 2)
        with pytest.raises(Refused, match="does not know this client's key"):
            stranger.ask(wait=0)
        client = keys.connection(server)
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(client.ask)
            until(lambda: server.present() == {0})
            start = time.monotonic()
            members[0] = members[0]._replace(revoked=True)
            with pytest.raises(Unreachable):
                asking.result(10)  # its open connection is cut
            assert time.monotonic() - start < 2
        with pytest.raises(Refused, match="has revoked"):
            client.ask()
        with pytest.raises(Refused):
            client.answer(b"x", b"y")
    assert any("its certificate no longer counts" in one for one in told)


def test_expiry_is_checked_with_every_request_of_an_open_connection(keys, server, client, monkeypatch):
    (connection,) = [one for one in server._listener.connections.values() if one.instance]
    assert connection.expires > time.time() + 86400
    monkeypatch.setattr(server._listener, "sweep", lambda keys: None)  # which would cut it at once
    connection.expires = time.time() - 1
    with pytest.raises(Refused, match="certificate has expired"):
        client.ask(wait=0)


def test_an_open_connection_is_cut_when_its_certificate_expires(server, client):
    (connection,) = [one for one in server._listener.connections.values() if one.instance]
    connection.expires = time.time() - 1
    until(lambda: server.present() == set())


def test_sessions_are_not_resumed(keys, server):
    """Trap 1: a resumed session would skip the check of the certificate."""
    assert server._listener._context.num_tickets == 0
    context = tls_context(ssl.PROTOCOL_TLS_CLIENT, *keys.tls())
    with context.wrap_socket(socket.create_connection(("127.0.0.1", server.port)), server_hostname="127.0.0.1") as line:
        line.sendall(b"GET /v1/work HTTP/1.1\r\nHost: x\r\nPrefer: wait=0\r\n" + FORMAT + b"\r\n")
        assert line.recv(100).startswith(b"HTTP/1.1 204")
        assert not line.session.has_ticket
        assert line.version() == "TLSv1.3"


def test_older_tls_is_refused(keys, server, told):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(("127.0.0.1", server.port)) as plain, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(plain)
    until(lambda: any("127.0.0.1 failed: unsupported protocol" in one for one in told))


@pytest.mark.parametrize(
    ("years_ago", "said"), [(3, "The client's certificate expired on"), (-1, "certificate is valid from")]
)
def test_a_client_looks_at_its_own_certificate_first(keys, server, tmp_path, years_ago, said):
    """Trap 2: a server that refuses a certificate just closes the connection."""
    own = Keys(tmp_path)
    own.admit(0, years(-years_ago))
    with pytest.raises(Refused, match=said):
        own.connection(server)


def test_a_client_refuses_a_certificate_of_another_authority_and_another_key(keys, server, tmp_path):
    own = Keys(tmp_path)
    own.admit(0, signer=keys.signer)
    with pytest.raises(Refused, match="The client's certificate is not from this federation's authority"):
        own.connection(server)
    own.admit(0)
    os.replace(own.folder / "1.key", own.folder / "0.key")
    with pytest.raises(Refused, match="key does not belong to its certificate"):
        own.connection(server)


def test_the_loop_is_asyncio_s_own(server):
    """Trap 4."""
    assert type(server._loop).__module__.startswith("asyncio.")


def test_compressed_answers_are_refused_and_never_unpacked(keys, server, client):
    """Trap 6."""
    server.push({0: b"work"})
    bomb = gzip.compress(bytes(2**24))
    assert len(bomb) < LARGEST
    head = post(len(bomb), b"Content-Encoding: gzip\r\n", request_id(b"work"))
    said = exchange(keys, server, head + bomb)
    assert said.startswith(b"HTTP/1.1 415")
    assert b"must not have a Content-Encoding" in said
    assert server.pull(5.0) == [Arrived(0, failure="An answer must not have a Content-Encoding")]


def test_the_length_of_an_answer_must_be_given_and_bounded(keys, server, client):
    """Trap 8: it is refused by its head alone, and the connection is closed."""
    server.push({0: b"work"})
    key = request_id(b"work")
    said = exchange(keys, server, post(2 * LARGEST, key=key))
    assert said.startswith(b"HTTP/1.1 413")
    assert b"Connection: close" in said
    assert server.pull(5.0) == [
        Arrived(0, failure=f"The answer has {2 * LARGEST} bytes; an answer has {LARGEST} at most by the agreement")
    ]
    said = exchange(keys, server, post(None, b"Transfer-Encoding: chunked\r\n", key) + b"1\r\nx\r\n0\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 411")


def test_an_answer_that_waits_for_leave_is_refused_before_it_is_sent(keys, server, client):
    server.push({0: b"work"})
    head = post(2 * LARGEST, b"Expect: 100-continue\r\n", request_id(b"work"))
    assert exchange(keys, server, head).startswith(b"HTTP/1.1 413")
    server.push({0: b"work"})
    with keys.line(server) as line:
        line.sendall(post(4, b"Expect: 100-continue\r\n", request_id(b"work")))
        assert line.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        line.sendall(b"done")
        assert line.recv(100).startswith(b"HTTP/1.1 204")
    assert [one for one in server.pull(5.0) if one.content] == [Arrived(0, b"done", current=True)]


def test_what_follows_a_refused_head_is_discarded_for_a_moment_alone(keys, server):
    """Trap 8."""
    start = time.monotonic()
    with keys.line(server) as line:
        line.sendall(post(2**40))
        with pytest.raises(OSError):  # noqa: PT011 - reset or broken pipe
            drip(line, bytes(2**16), 0.01)
    assert time.monotonic() - start < 10


def test_a_large_answer_of_ours_is_not_even_sent(server, client):
    with pytest.raises(Refused, match="at most are agreed on"):
        client.answer(b"work", bytes(LARGEST + 1))


def test_an_upload_that_is_on_its_way_is_taken_when_the_server_ends(keys):
    """Trap 7; calls that are held end at once, with no work."""
    with keys.server() as server:
        client, other = keys.connection(server), keys.connection(server, 1)
        client.ask(wait=0)
        server.push({0: b"work"})
        line = keys.line(server)
        line.sendall(post(2**19, key=request_id(b"work")) + bytes(2**18))
        with ThreadPoolExecutor(2) as pool:
            asking = pool.submit(other.ask)
            until(lambda: server.present() == {0, 1})
            start = time.monotonic()
            ending = pool.submit(server.__exit__)
            assert asking.result(5) is None
            time.sleep(0.5)
            assert not ending.done()
            line.sendall(bytes(2**18))
            assert line.recv(100).startswith(b"HTTP/1.1 204")
            ending.result(10)
            assert time.monotonic() - start < 5
        line.close()
        assert server.pull(1.0) == [Arrived(0, bytes(2**19), current=False)]
        with pytest.raises(Unreachable):
            client.ask()


def test_an_upload_that_broke_off_may_be_begun_again(keys, server, client):
    server.push({0: b"work"})
    line = keys.line(server)
    line.sendall(post(2**19, key=request_id(b"work")) + bytes(1000))
    until(lambda: server._clients[0].upload is not None)
    client.answer(b"work", b"done")
    assert server.pull(5.0) == [Arrived(0, b"done", current=True)]
    with pytest.raises(OSError):  # noqa: PT011 - the old one is cut
        drip(line, bytes(2**16), 0.0)
    line.close()


def test_dripped_bodies_and_stalled_readers_are_cut(keys, told, monkeypatch):
    monkeypatch.setattr(calls_module.wire, "transfer_seconds", lambda size: 0.5)
    with keys.server(log=told.append) as server:
        client = keys.connection(server, largest=2**26)
        client.ask(wait=0)
        server.push({0: bytes(2**25)})
        with keys.line(server) as line:
            line.sendall(post(1000, key=request_id(bytes(2**25))))
            with pytest.raises(OSError):  # noqa: PT011
                drip(line, b"x", 0.05)
        client.close()
        until(lambda: server.present() == set())
        with keys.line(server) as line:
            line.sendall(b"GET /v1/work HTTP/1.1\r\nHost: x\r\n" + FORMAT + b"\r\n")
            until(lambda: any("does not read" in one for one in told))
    assert any("arrives too slowly" in one for one in told)


@pytest.mark.parametrize(
    "text",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v1/work HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
        b"DELETE /v1/answer HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/work/../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/work HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/work HTTP/1.1\r\nHost: x\r\nProtonorm-Format: 2\r\n\r\n",
        b"GET /v1/work HTTP/1.1\r\nHost: x\r\nProtonorm-Format: 1\r\nContent-Length: 5\r\n\r\nhello",
        b"nonsense\r\n\r\n",
        b"GET /v1/work HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET /v1/work HTTP/1.1\r\nx: " + b"y" * 20_000 + b"\r\n\r\n",
        b"GET /v1/work HTTP/1.1\r\n" + b"x: y\r\n" * 1000 + b"\r\n",
        b"\x00\xff" * 100 + b"\r\n\r\n",
    ],
    ids=range(12),
)
def test_anything_else_is_refused_and_others_are_served(keys, server, client, told, text):
    said = exchange(keys, server, text)
    assert said.split()[1].startswith(b"4")
    assert len(told) == 1
    server.push({0: b"work"})
    assert client.ask() == b"work"


def test_versions_are_compared(keys, server, client, told, monkeypatch):
    from protonorm import __version__

    assert client.server_version == __version__
    other = keys.connection(server, 1)
    other._own["Protonorm-Version"] = "0.0.1"
    other.ask(wait=0)
    other.ask(wait=0)
    assert told == [f"client-1 has protonorm 0.0.1, the server has {__version__}: all parties should have the same."]
    other._own["Protonorm-Format"] = "2"
    with pytest.raises(Refused, match="speaks version 2 of the wire, the server version 1"):
        other.ask(wait=0)
    monkeypatch.setitem(calls_module.OWN_HEADERS, "Protonorm-Format", "7")
    with pytest.raises(Refused, match="The server speaks version 7 of the wire"):
        client.ask(wait=0)


def test_a_client_knows_its_server_by_the_federation_s_authority(keys, server, tmp_path):
    other = Keys(tmp_path)
    with pytest.raises(Refused, match="not from the federation's authority"):
        other.connection(server).ask()
    other.close()
    with pytest.raises(Refused, match="is not for localhost"):
        keys.connection(server, host="localhost").ask()
    client = Keys.tls(keys, 1)  # a client's certificate is no server's
    with keys.server(files=client) as posing, pytest.raises(Refused, match="not from the federation's authority"):
        keys.connection(posing).ask()


@pytest.mark.parametrize(("when", "said"), [(-3, "has expired"), (1, "is not valid yet")])
def test_a_certificate_has_its_time(keys, when, said):
    files = keys.certify(f"of {when}", ["127.0.0.1"], years(when))
    with keys.server(files=files) as server, pytest.raises(Refused, match=said):
        keys.connection(server).ask()


def test_nobody_there_and_something_else_there(keys):
    with pytest.raises(Unreachable, match="cannot be reached: Connection refused"):
        keys.connection(free_port()).ask()
    with socket.create_server(("127.0.0.1", 0)) as plain:

        def answer():
            with plain.accept()[0] as line:
                line.sendall(b"HTTP/1.1 400 No\r\n\r\n")
                line.recv(4096)

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises(Refused, match="does not speak TLS"):
            keys.connection(plain.getsockname()[1]).ask()
        answering.join()


def test_what_one_client_sends_under_another_s_request_reaches_nobody(keys, server, client, told):
    """A client that names what others were asked is told that nobody waits for it, and the others are served on."""
    other = keys.connection(server, 1)
    other.ask(wait=0)
    server.push({0: b"for one", 1: b"for the other"})
    for _ in range(3):
        with pytest.raises(Withdrawn):
            other.answer(b"for one", b"forged")
    assert client.ask() == b"for one"
    client.answer(b"for one", b"done")
    assert other.ask() == b"for the other"
    other.answer(b"for the other", b"done too")
    until(lambda: server._clients.arrived.qsize() == 2)
    assert sorted(server.pull(5.0)) == [Arrived(0, b"done", current=True), Arrived(1, b"done too", current=True)]


def test_a_port_in_use_and_files_that_cannot_be_used_are_told(keys, server):
    with pytest.raises(Failed, match=f"cannot listen at 127.0.0.1:{server.port}: Address already in use"):
        keys.server(server.port)
    with pytest.raises(Failed, match="certificate and key cannot be used"):
        keys.server(files=keys.certificate._replace(key=keys.folder / "authority.key"))


def test_keys_that_others_can_read_are_refused_at_the_start(tmp_path):
    own = Keys(tmp_path)
    for name in ("server.key", "0.key"):
        (tmp_path / name).chmod(0o640)
    with pytest.raises(ValueError, match=r"server\.key can be read by others than its owner"):
        own.server()
    with pytest.raises(ValueError, match=r"0\.key can be read by others than its owner"):
        own.connection(9)


ODD = {
    "other format": (b"HTTP/1.1 200 OK\r\nProtonorm-Format: 9\r\nContent-Length: 0\r\n\r\n", Refused),
    "no format": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", Refused),
    "too large": (b"HTTP/1.1 200 OK\r\nProtonorm-Format: 1\r\nContent-Length: 99999999999\r\n\r\n", Refused),
    "no length": (b"HTTP/1.1 200 OK\r\nProtonorm-Format: 1\r\n\r\nhello", Refused),
    "chunked": (b"HTTP/1.1 200 OK\r\nProtonorm-Format: 1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello", Refused),
    "large error": (b"HTTP/1.1 500 No\r\nProtonorm-Format: 1\r\nContent-Length: 5000\r\n\r\n", Refused),
    "error": (b"HTTP/1.1 503 No\r\nProtonorm-Format: 1\r\nContent-Length: 0\r\n\r\n", Unreachable),
    "redirect": (b"HTTP/1.1 302 No\r\nProtonorm-Format: 1\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", Unreachable),
    "cut short": (b"HTTP/1.1 200 OK\r\nProtonorm-Format: 1\r\nContent-Length: 9\r\n\r\nhello", Unreachable),
    "damaged": (b"HTTP/1.1 200 OK\r\nProtonorm-Format: 1\r\nContent-Length: 5\r\n\r\nhello", Unreachable),
    "another request": (
        b"HTTP/1.1 200 OK\r\nProtonorm-Format: 1\r\n"
        b"Protonorm-Request: %s\r\nContent-Length: 5\r\n\r\nhello" % request_id(b"hullo").encode(),
        Unreachable,
    ),
    "compressed": (
        b"HTTP/1.1 200 OK\r\nProtonorm-Format: 1\r\nContent-Encoding: gzip\r\n"
        b"Protonorm-Request: %s\r\nContent-Length: %d\r\n\r\n" % (request_id(BOMB).encode(), len(BOMB)) + BOMB,
        Refused,
    ),
    "no HTTP": (b"hello\r\n\r\n", Refused),
    "long lines": (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", Refused),
    "many lines": (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 200 + b"\r\n", Refused),
    "nothing": (b"", Unreachable),
}


@pytest.mark.parametrize("case", ODD)
def test_whatever_a_server_sends_ends_in_a_sentence_and_is_bounded(keys, case):
    text, kind = ODD[case]
    context = tls_context(ssl.PROTOCOL_TLS_SERVER, *keys.certificate)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            with context.wrap_socket(listening.accept()[0], server_side=True) as line:
                line.recv(4096)
                line.sendall(text)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(kind) as error:
            keys.connection(listening.getsockname()[1]).ask(wait=0)
        thread.join(10)
    assert str(error.value).endswith((".", ")."))
    assert len(str(error.value)) < 400


class Tunnel(http.server.BaseHTTPRequestHandler):
    """A proxy that only knows CONNECT."""

    seen: list = []

    def do_CONNECT(self):
        self.seen.append((self.path, self.headers.get("Proxy-Authorization")))
        host, port = self.path.split(":")
        with socket.create_connection((host, int(port))) as far:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=self.carry, args=(far, self.connection))
            back.start()
            self.carry(self.connection, far)
            far.shutdown(socket.SHUT_RDWR)
            back.join()

    @staticmethod
    def carry(one, other):
        try:
            while data := one.recv(65536):
                other.sendall(data)
        except OSError:
            pass

    def log_message(self, *_):
        pass


@pytest.fixture
def proxy(keys, monkeypatch):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Tunnel) as made:
        made.daemon_threads = False
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        for name in ("no_proxy", "NO_PROXY", "https_proxy"):
            monkeypatch.delenv(name, raising=False)
        Tunnel.seen.clear()
        yield made.server_address[1]
        keys.close()
        made.shutdown()
        thread.join()


def test_a_proxy_of_the_environment_is_used(keys, server, proxy, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:p%40ss@127.0.0.1:{proxy}")
    client = keys.connection(server)
    assert client.ask(wait=0) is None
    server.push({0: b"work"})
    assert client.ask() == b"work"
    client.answer(b"work", b"done")
    assert server.pull(5.0) == [Arrived(0, b"done", current=True)]
    client.close()
    assert Tunnel.seen == [(f"127.0.0.1:{server.port}", "Basic bWU6cEBzcw==")]
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert client.ask(wait=0) is None
    client.close()
    assert len(Tunnel.seen) == 1


def test_the_doctor_looks_through_the_proxy_too(keys, server, proxy, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy}")
    found = list(find_server("127.0.0.1", server.port, keys.authority, own=keys.tls()))
    assert [(one.what, one.ok) for one in found] == [
        ("port", True), ("certificate", True), ("identity", True), ("clock", True),
    ]  # fmt: skip
    assert Tunnel.seen == [(f"127.0.0.1:{server.port}", None)]
    assert server.present() == set()  # it takes no part


def test_a_member_s_doctor_is_not_counted_as_denied(keys, server, told):
    found = list(find_server("127.0.0.1", server.port, keys.authority, own=keys.tls()))
    assert all(one.ok for one in found)
    time.sleep(0.5)  # the server looks at its connections
    assert told == []


def test_the_doctor_says_who_is_not_let_in(keys, server):
    found = list(find_server("127.0.0.1", server.port, keys.authority, own=keys.tls(2)))
    assert [(one.what, one.ok) for one in found if not one.ok] == [("identity", False)]
    assert "does not know this client's key" in found[2].text


def test_a_proxy_that_refuses_is_told(keys, server, proxy, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{proxy}")
    monkeypatch.setattr(Tunnel, "do_CONNECT", lambda self: self.send_error(403))
    with pytest.raises(Unreachable, match="Tunnel connection failed: 403"):
        keys.connection(server).ask()
    (found,) = find_server("127.0.0.1", server.port, keys.authority, own=keys.tls())
    assert f"cannot be reached through the proxy 127.0.0.1:{proxy}, which HTTPS_PROXY names: tunnel" in found.text


def test_credentials_of_a_netrc_file_are_not_sent(keys, server, monkeypatch, tmp_path, told):
    (tmp_path / ".netrc").write_text("default login me password secret\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    seen = []
    monkeypatch.setattr(
        http.client.HTTPConnection, "putheader", lambda self, name, *values: seen.append(name), raising=True
    )
    with pytest.raises(Failed):
        keys.connection(server).ask(wait=0)
    assert seen
    assert "Authorization" not in seen


def test_a_damaged_roster_changes_nothing(keys, told):
    state = {"damaged": False}

    def roster():
        if state["damaged"]:
            raise ValueError("roster.json is damaged.")
        return keys.members

    with keys.server(roster=roster, log=told.append) as server:
        state["damaged"] = True
        until(lambda: "roster.json is damaged." in told)
        client = keys.connection(server)
        assert client.ask(wait=0) is None
        client.close()


def test_an_error_of_the_server_s_own_ends_in_a_sentence(keys, server, client, told, monkeypatch):
    def fail(*_):
        raise KeyError("secret")

    monkeypatch.setattr(server._calls, "_check_client", fail)
    with pytest.raises(Unreachable, match="HTTP status 500") as failure:
        client.ask(wait=0)
    logged, sent = told
    assert logged.startswith("An unexpected error: Traceback")
    assert "in fail" in logged
    assert logged.endswith("KeyError: 'secret'")
    assert sent == "client-0: The server met an error of its own."
    assert "secret" not in str(failure.value)
