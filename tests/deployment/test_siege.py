"""A server under siege: strangers, idle and slow connections, malformed requests, beside four clients that go on."""

import json
import random
import socket
import ssl
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from protonorm.deployment.federation_folder import Member
from protonorm.deployment.https.listener import Limits
from protonorm.deployment.https.protocol import request_id, tls_context
from protonorm.deployment.keys import make_client_certificate, make_client_key
from tests.deployment.keyring import Keys, until

ROOT = Path(__file__).parents[2]
HONEST = 4
PATIENCE = 0.1  # seconds
ATTACKERS = 8  # threads
PACE = Limits().pace
WORK = b"GET /v1/work HTTP/1.1\r\nHost: x\r\nProtonorm-Format: 1\r\n\r\n"

SERVER = """
import json, resource, sys, time
from pathlib import Path
from protonorm.deployment.federation_folder import Member
from protonorm.deployment.settings import TlsFiles
from protonorm.deployment.https.server import Server
from protonorm.deployment.https.listener import Limits
folder, files, pace = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
if files:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
members = [Member(**one) for one in json.loads((folder / "members.json").read_text())]
files = TlsFiles(folder / "authority.crt", folder / "server.crt", folder / "server.key")
told = {}
def tell(sentence):
    kind = " ".join(word for word in sentence.split() if not any(map(str.isdigit, word)))[:60]
    told[kind] = told.get(kind, 0) + 1
with Server("127.0.0.1", 0, files, lambda: members, 2**20, log=tell, limits=Limits(pace=pace)) as server:
    print(json.dumps({"port": server.port}), flush=True)
    number = 0
    while True:
        number += 1
        begun, waiting = time.monotonic(), set(range(4))
        content = b"%d" % number * 20_000
        while waiting:
            away = server.push({id: content for id in waiting})
            for one in server.pull(1.0):
                waiting.discard(one.client) if one.content == content else None
        rss = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        seconds, present = time.monotonic() - begun, len(server.present())
        about = {"at": time.monotonic(), "seconds": seconds, "rss": rss, "present": present, "told": told}
        print(json.dumps(about), flush=True)
        time.sleep(0.05)
"""

CLIENTS = """
import sys, threading
from pathlib import Path
from protonorm.deployment.https.client import Connection, Unreachable
folder, port = Path(sys.argv[1]), int(sys.argv[2])
def work(id):
    own = (folder / "authority.crt", folder / f"{id}.crt", folder / f"{id}.key")
    connection = Connection("127.0.0.1", port, *own, 2**20, 2**20)
    while True:
        try:
            if content := connection.ask():
                connection.answer(content, content)
        except Unreachable as error:
            print(error, flush=True)
threads = [threading.Thread(target=work, args=(id,), daemon=True) for id in range(4)]
for one in threads:
    one.start()
threads[0].join()
"""


class Siege:
    """A server and four honest clients in processes of their own; whoever attacks is in this one."""

    def __init__(self, folder, members=HONEST, files=0, pace=PACE):
        self.folder, self.files, self.pace, self.processes = folder, files, pace, []
        self.keys = Keys(folder)
        lines = [*self.keys.lines, *(make_client_key(folder / f"{id}.key") for id in range(3, members))]
        for id in range(3, members):
            text = make_client_certificate(self.keys.signer, lines[id], f"client-{id}")
            (folder / f"{id}.crt").write_text(text)
        listed = [Member(id, f"client-{id}", line)._asdict() for id, line in enumerate(lines)]
        (folder / "members.json").write_text(json.dumps(listed))
        self.anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without a key
        self.anybody.check_hostname, self.anybody.verify_mode = False, ssl.CERT_NONE

    def __enter__(self):
        try:
            self._start(SERVER, "server", self.files, self.pace)
            until(lambda: self.said(), 120)
            self.port = self.said()[0]["port"]
            self._start(CLIENTS, "clients", self.port)
            until(lambda: len(self.said()) > 10, 120)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, code, name, *words):
        with (self.folder / f"{name}.out").open("wb") as out:
            words = [sys.executable, "-c", code, str(self.folder), *map(str, words)]
            self.processes.append(subprocess.Popen(words, stdout=out, stderr=out, cwd=ROOT))

    def said(self):
        """Return what the server has printed: its port, and a line for each round."""
        lines = (self.folder / "server.out").read_text().rpartition("\n")[0].splitlines()
        return [json.loads(line) for line in lines]

    def rounds(self, since):
        return [one for one in self.said()[1:] if one["at"] >= since]

    def connect(self, number=0, context=None):
        """Connect from one of many addresses of this machine, of which none has too many connections."""
        where = f"127.0.{1 + number // 100}.{1 + number % 5}"
        plain = socket.create_connection(("127.0.0.1", self.port), 20, source_address=(where, 0))
        if context is None:
            return plain
        try:
            return context.wrap_socket(plain, server_hostname="127.0.0.1")
        except OSError:
            plain.close()
            raise

    def context(self, id):
        own = (self.folder / "authority.crt", self.folder / f"{id}.crt", self.folder / f"{id}.key")
        return tls_context(ssl.PROTOCOL_TLS_CLIENT, *own)

    def hold(self, count, seconds, drip, of=lambda number: None):
        """Keep so many connections open for a while, each reopened as soon as it is cut; return how often they were."""
        lines, opened, end = {}, 0, time.monotonic() + seconds

        def open_one(number):
            with suppress(OSError):
                line = self.connect(number, of(number))
                line.setblocking(False)
                return line

        with ThreadPoolExecutor(8) as pool:
            while time.monotonic() < end:
                missing = [number for number in range(count) if number not in lines]
                found = dict(zip(missing, pool.map(open_one, missing), strict=True))
                lines |= {number: line for number, line in found.items() if line is not None}
                opened += len(missing)
                for number, line in list(lines.items()):
                    try:
                        if drip:
                            line.send(drip)
                        if line.recv(4096) == b"":
                            raise ConnectionResetError
                    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                        continue
                    except OSError:
                        lines.pop(number).close()
                time.sleep(0.25)
        for line in lines.values():
            line.close()
        return opened

    def __exit__(self, *_):
        for one in reversed(self.processes):
            one.kill()
            one.wait()


@pytest.fixture
def report(record_property):
    """Compare rounds before with rounds during a siege: they go on, in bounded memory; the pace is only recorded."""

    def compare(siege, before, since, growth):
        during = siege.rounds(since)
        assert len(during) > 10
        assert all(process.poll() is None for process in siege.processes)
        assert siege.folder.joinpath("clients.out").read_text() == ""  # no honest client lost its connection
        calm = [one["rss"] for one in before]
        most = max(one["rss"] for one in during) - max(calm)
        assert most < growth
        paces = [statistics.median(one["seconds"] for one in part) for part in (before, during)]
        record_property("ratio", paces[1] / paces[0])
        about = f"{len(during)} rounds; {paces[0]:.4f} s before, {paces[1]:.4f} s during; {most / 2**20:.0f} MiB more"
        sys.stdout.write(f"{about}\n{during[-1]['told']}\n")
        return during

    return compare


def calm(siege, seconds):
    start = time.monotonic()
    time.sleep(seconds)
    return siege.rounds(start)


def test_connections_without_a_key_do_not_end_a_server_that_may_have_few_files(tmp_path, report):
    """Strangers open more than it has descriptors for: handshakes end, and the oldest make room."""
    with Siege(tmp_path, files=256, pace=50) as siege:  # so many handshakes that the oldest make room
        before, start = calm(siege, 0.5), time.monotonic()
        stranger = lambda number: siege.anybody if number % 2 else None  # noqa: E731
        siege.hold(300, 4, b"", stranger)
        told = report(siege, before, start, 200 * 2**20)[-1]["told"]
    assert any("peer did not return a certificate" in one for one in told)
    assert any("it took long, and others wait" in one for one in told)
    assert not any("unexpected" in one for one in told)


@pytest.mark.long
def test_a_thousand_connections_without_a_key_do_not_end_a_server_of_1024_files(tmp_path, report):
    with Siege(tmp_path, files=1024) as siege:
        before, start = calm(siege, 3), time.monotonic()
        assert siege.hold(1008, 20, b"", lambda number: siege.anybody if number % 2 else None) > 1008
        report(siege, before, start, 400 * 2**20)


@pytest.mark.long
def test_five_hundred_idle_clients(tmp_path, report):
    """Each has a call held; the server's memory grows by the buffers of asyncio, 0.3 MB each."""
    with Siege(tmp_path, HONEST + 500) as siege:
        before = calm(siege, 3)
        contexts = [siege.context(HONEST + number) for number in range(500)]
        lines = []
        for number, context in enumerate(contexts):
            lines.append(siege.connect(number, context))
            lines[-1].sendall(WORK)  # at once: a connection without a request is cut
        start = time.monotonic()
        time.sleep(12)
        during = report(siege, before, start + 2, 300 * 2**20)
        assert during[-1]["present"] == HONEST + 500
        for line in lines:
            line.close()


@pytest.mark.long
def test_two_hundred_half_open_handshakes(tmp_path, report):
    with Siege(tmp_path) as siege:
        before, start = calm(siege, 3), time.monotonic()
        assert siege.hold(200, 20, b"") > 400  # each is cut after five seconds, and comes again: 20 handshakes a second
        report(siege, before, start, 200 * 2**20)


@pytest.mark.long
def test_a_thousand_slow_connections(tmp_path, report):
    """Half of them drip a handshake, half the head of a request, with the key of a client; another client comes in."""
    with Siege(tmp_path, HONEST + 2) as siege:
        own, newcomer, waited = siege.context(HONEST), siege.context(HONEST + 1), []

        def arrive():
            for _ in range(10):
                time.sleep(1)
                start = time.monotonic()
                with suppress(OSError), siege.connect(1000, newcomer) as line:
                    line.sendall(WORK.replace(b"\r\n\r\n", b"\r\nPrefer: wait=0\r\n\r\n"))
                    if line.recv(4096).startswith(b"HTTP/1.1 204"):
                        waited.append(time.monotonic() - start)

        for _ in range(2):
            before, start = calm(siege, 10), time.monotonic()
            with ThreadPoolExecutor(1) as pool:
                arriving = pool.submit(arrive)
                assert siege.hold(1000, 20, b"G", lambda number: own if number % 2 else None) >= 1000
                arriving.result()
            report(siege, before, start, 100 * 2**20)
        sys.stdout.write(f"another client gets in after {statistics.median(waited):.2f} s, {len(waited)} of 20 times\n")
        assert len(waited) == 20


HEADS = [
    WORK,
    WORK.replace(b"\r\n\r\n", b"\r\nPrefer: wait=0\r\nProtonorm-Instance: me\r\n\r\n"),
    b"POST /v1/answer HTTP/1.1\r\nHost: x\r\nProtonorm-Format: 1\r\nProtonorm-Request: "
    + request_id(b"1").encode()
    + b"\r\nContent-Length: 4\r\n\r\nPNFL",
]
PIECES = [
    b"",
    b"\r\n",
    b"\r\n\r\n",
    b"\0",
    b"\xff" * 9,
    b":",
    b" ",
    b"Content-Length: -1\r\n",
    b"Expect: 100-continue\r\n",
]
PIECES += [b"Transfer-Encoding: chunked\r\n", b"Content-Length: 99999999999999999999\r\n", b"Content-Encoding: br\r\n"]
PIECES += [b"Upgrade: websocket\r\nConnection: Upgrade\r\n", b"x" * 9000, b"HTTP/2.0", b"Content-Length: 4\r\n"]


def malformed(draw):
    """Make a request that is wrong somewhere, or that nobody waits for."""
    head = bytearray(draw.choice(HEADS))
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(head) + 1)
        head[place : place + draw.choice([0, 0, 1, 5, 40])] = draw.choice(PIECES)
    return bytes(head)


@pytest.mark.parametrize("count", [200, pytest.param(100_000, marks=pytest.mark.long)])
def test_malformed_requests_are_refused_and_the_others_served(tmp_path, report, count):
    """None is taken, none ends in an error of the server's own, and the four go on."""
    statuses, lock = {}, threading.Lock()
    with Siege(tmp_path, HONEST + ATTACKERS, pace=1e9) as siege:  # each request has a connection of its own
        before, start = calm(siege, 0.5), time.monotonic()

        def attack(number):
            draw, context = random.Random(number), siege.context(HONEST + number)
            for _ in range(count // ATTACKERS):
                status = b"none"
                with suppress(OSError), siege.connect(number, context) as line:
                    line.sendall(malformed(draw))
                    line.settimeout(PATIENCE)  # what is cut short, or is good, is not answered at once
                    status = line.recv(4096)[9:12]
                with lock:
                    statuses[status] = statuses.get(status, 0) + 1

        with ThreadPoolExecutor(ATTACKERS) as pool:
            list(pool.map(attack, range(ATTACKERS)))
        time.sleep(1)
        during = report(siege, before, start, 200 * 2**20)
        sys.stdout.write(f"{statuses}\n")
    assert sum(statuses.values()) == count
    assert not any("unexpected" in one.lower() for one in during[-1]["told"]), during[-1]["told"]
    assert not {status for status in statuses if status.startswith(b"5")}
