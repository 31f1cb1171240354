"""A client's process at work, with a node that only echoes: cuts, restarts and refusals, over TLS on this machine."""

import select
import socket
import struct
import threading
import time

import pytest

from protonorm import __version__
from protonorm.core.frames import join, split
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.call import REPAIR
from protonorm.deployment.engine import Arrived
from protonorm.deployment.https.calls import GONE
from protonorm.deployment.https.client import Refused, Taken, Unreachable
from protonorm.deployment.messages import (
    FORMAT,
    Answer,
    AnswerHeader,
    RequestHeader,
    read_answer_header,
    read_request,
    write_answer,
)
from protonorm.deployment.messages import write_request as write
from protonorm.deployment.worker import LINGER, Patience, Worker
from tests.deployment.federation import Federation, small
from tests.deployment.keyring import until
from tests.deployment.processes import free_port

TERMS = Agreement.of({"algorithm": "fedproto", "classes": ["a", "b"], "feature_dim": 4, "rounds": 3, "seed": 0})


def request(round, kind="train", agreement=TERMS.digest):
    header = {"format": FORMAT, "agreement": agreement, "client": 0, "round": round, "kind": kind, "trained": 0}
    return write(RequestHeader(**header), b"")


class Echo:
    """Answer each request with its own header; decline what is of another agreement."""

    agreement = TERMS

    def __init__(self, refused=()):
        self.before, self.refused = lambda: None, refused

    def answer(self, content):
        self.before()
        asked = read_request(content).header
        declined = "" if asked.agreement == TERMS.digest else "Another agreement."
        declined = "No." if asked.kind in self.refused else declined
        header = AnswerHeader(
            format=FORMAT, agreement=TERMS.digest, client=0, round=asked.round, kind=asked.kind, declined=declined
        )
        return write_answer(Answer(header, {}, {}))


class Proxy:
    """A line between client and server that can be cut."""

    def __init__(self, to):
        self.to, self.open, self.ended = to, True, False
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.pairs = []
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.ended:
            if not self.open:
                self.drop()
            ends = {one: pair for pair in self.pairs for one in pair}
            ready, _, _ = select.select([self.listening, *ends], [], [], 0.02)
            for one in ready:
                if one is self.listening:
                    self.accept()
                elif one.fileno() >= 0:
                    self.carry(one, ends[one])
        self.drop()
        self.listening.close()

    def accept(self):
        near, _ = self.listening.accept()
        if not self.open:
            near.close()
            return
        try:
            self.pairs.append((near, socket.create_connection(("127.0.0.1", self.to))))
        except OSError:
            near.close()

    def carry(self, one, pair):
        other = pair[1] if one is pair[0] else pair[0]
        try:
            data = one.recv(65536)
            other.sendall(data)
        except OSError:
            data = b""
        if not data:
            for end in pair:
                end.close()
            self.pairs = [held for held in self.pairs if held is not pair]

    def drop(self):
        for pair in self.pairs:
            for end in pair:
                end.close()
        self.pairs = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ended = True
        self.thread.join()


class Running:
    """A worker in a thread; what it says is kept."""

    def __init__(self, keys, port, node=None, patience=None, linger=0.0, id=0):
        self.told, self.error, self.node = [], None, node or Echo()
        tell = lambda event, sentence: self.told.append(event)  # noqa: E731
        self.worker = Worker(keys.connection(port, id), self.node, TERMS, tell, patience or Patience())
        self.thread = threading.Thread(target=self.run, args=(linger,))
        self.thread.start()

    def run(self, linger):
        try:
            self.worker.run(linger)
        except Exception as error:
            self.error = error

    def wait_for(self, event):
        end = time.monotonic() + 60
        while event not in self.told:
            assert time.monotonic() < end, self.told
            time.sleep(0.01)

    def join(self):
        self.thread.join(60)
        assert not self.thread.is_alive()


def ask(server, content):
    """Ask the first client once it is there; give its answers."""
    end = time.monotonic() + 60
    while server.push({0: content}):
        assert time.monotonic() < end
        time.sleep(0.01)
    return server.pull(60.0)


def test_a_client_answers_and_ends_after_the_last_round(keys):
    with keys.server() as server:
        running = Running(keys, server.port)
        for round, kind in ((1, "train"), (2, "evaluate+train"), (3, "evaluate+train"), (3, "keep")):
            content = request(round, kind)
            assert ask(server, content) == [Arrived(0, running.node.answer(content), current=True)]
        running.join()
        assert running.error is None
        assert running.told == ["connected", *["answered"] * 4, "finished"]
        until(lambda: server.present() == set())  # it closed its connection


def test_a_client_that_declines_the_last_request_ends_too(keys):
    """In an earlier round it stays, for it may be able to train in the next one."""
    with keys.server() as server:
        running = Running(keys, server.port, Echo(["train", "keep"]))
        for round, kind in ((2, "train"), (3, "evaluate+train"), (3, "keep")):
            assert len(ask(server, request(round, kind))) == 1
        running.join()
        assert running.told == ["connected", "declined", "answered", "declined", "finished"]


def test_the_same_reason_in_each_round_is_told_once(keys):
    with keys.server() as server:
        running = Running(keys, server.port, Echo(["train"]))
        for round, kind in ((1, "train"), (2, "train"), (3, "evaluate+train"), (3, "train"), (3, "keep")):
            assert len(ask(server, request(round, kind))) == 1
        running.join()
        assert running.told == ["connected", "declined", "answered", "declined", "answered", "finished"]


def test_a_server_that_asks_for_nonsense_gets_a_sentence_each_time_and_less_and_less_often(tmp_path, monkeypatch):
    """Malformed requests end in one line each, with longer and longer pauses; a good one is answered at once."""
    pauses, said, sent = [], [], []
    monkeypatch.setattr("protonorm.deployment.worker.time.sleep", pauses.append)
    federation = Federation(small(rounds=1), tmp_path)
    node, terms = federation.line.nodes[0], federation.agreement
    good = write(RequestHeader(format=1, agreement=terms.digest, client=0, round=1, kind="train", trained=0), b"")
    deep = b'{"a":' + b"[" * 20_000
    requests = [b"{}", b"PNFL" + bytes(12), b"PNFL" + b"\xff" * 12, good[:-1], bytes(4096), good + b"x"]
    requests += [join({"format": 10**30}, b""), join({"format": [[]] * 500}, b""), good.replace(b"train", b"tr\x00in")]
    requests += [struct.pack("<4sIQ", b"PNFL", len(deep), 0) + deep, join(split(good)[0], b"\xff" * 64)]
    bad = len(requests)
    requests.append(good)

    class Line:
        server_version, server_certificate, address = __version__, "", "here"

        def ask(self, wait=0):
            return requests.pop(0)

        def answer(self, asked, content):
            sent.append(read_answer_header(content)[0].declined)

        def close(self):
            pass

    with pytest.raises(IndexError):  # when there are no more
        Worker(Line(), node, terms, lambda event, sentence: said.append((event, sentence))).run()
    assert list(map(bool, sent)) == [True] * bad + [False]
    assert [event for event, _ in said] == ["connected", *["declined"] * bad, "answered"]
    assert all("Traceback" not in text and len(text) < 600 and "\n" not in text for _, text in said)
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, *[5.0] * (bad - 5)]


def test_a_client_stays_until_the_server_would_ask_again():
    assert LINGER >= REPAIR + 10


def test_a_cut_line_costs_nothing_but_time(keys):
    """The line is cut while the client works; its answer is sent when it is back."""
    with keys.server() as server, Proxy(server.port) as proxy:
        running = Running(keys, proxy.port)

        def cut():
            proxy.open = False
            time.sleep(0.2)
            threading.Timer(1.0, lambda: setattr(proxy, "open", True)).start()

        running.node.before = cut
        assert len(ask(server, request(1))) == 1
        running.node.before = lambda: None
        assert "unreachable" in running.told
        running.wait_for("reached")
        assert len(ask(server, request(3, "keep"))) == 1
        running.join()
        assert running.error is None


def test_a_server_that_is_started_again_while_the_client_works_takes_its_answer(keys):
    """The new server asks the same, and the answer is at hand; what the old one alone asked is dropped."""
    port, working, go_on = free_port(), threading.Event(), threading.Event()

    def work():
        working.set()
        assert go_on.wait(60)

    with keys.server(port) as server:
        running = Running(keys, port)
        running.wait_for("connected")
        running.node.before = work
        server.push({0: request(1)})
        assert working.wait(60)
    with keys.server(port) as server:
        running.node.before = lambda: None
        go_on.set()
        running.wait_for("dropped")
        assert len(ask(server, request(1))) == 1
        assert len(ask(server, request(3, "keep"))) == 1
        running.join()
        assert running.error is None
        assert running.told.count("connected") == 1


def test_a_second_client_waits_a_while_and_is_refused(keys):
    with keys.server() as server:
        first = Running(keys, server.port)
        first.wait_for("connected")
        second = Running(keys, server.port, patience=Patience(taken=1.0))
        second.join()
        assert isinstance(second.error, Taken)
        assert second.told == ["waiting"]
        ask(server, request(3, "keep"))
        first.join()
        assert first.error is None


def test_an_unknown_client_and_one_that_nobody_answers_end_with_a_sentence(keys):
    with keys.server() as server:
        running = Running(keys, server.port, id=2)
        running.join()
        assert isinstance(running.error, Refused)
    running = Running(keys, free_port(), patience=Patience(unreachable=0.1))
    running.join()
    assert isinstance(running.error, Unreachable)
    assert running.told == ["unreachable"]


def test_a_client_of_another_agreement_tells_the_server_and_ends(keys):
    with keys.server() as server:
        running = Running(keys, server.port)
        (arrived,) = ask(server, request(1, agreement="0" * 64))
        assert b"Another agreement." in arrived.content
        running.join()
        assert isinstance(running.error, Refused)
        assert str(running.error) == "Another agreement."


def test_a_client_that_declines_under_amended_terms_goes_on(keys):
    """Its node has adopted them, and declines for another reason, such as training that diverges."""
    with keys.server() as server:
        running = Running(keys, server.port)
        running.node.agreement = TERMS.amended({"rounds": 5}, 2)
        (arrived,) = ask(server, request(2, agreement=running.node.agreement.digest))
        assert b"Another agreement." in arrived.content
        assert not read_answer_header(ask(server, request(3))[0].content)[0].declined
        ask(server, request(3, "keep"))
        running.join()
        assert running.error is None


def test_a_client_that_was_revoked_ends(keys):
    members = list(keys.members)
    with keys.server(roster=lambda: members) as server:
        running = Running(keys, server.port)
        running.wait_for("connected")
        members[0] = members[0]._replace(revoked=True)
        running.join()
        assert isinstance(running.error, Refused)
        assert "does not know" in str(running.error)


def test_another_version_is_told(keys, monkeypatch):
    monkeypatch.setattr("protonorm.deployment.worker.__version__", "0.0.1")
    with keys.server() as server:
        running = Running(keys, server.port)
        running.wait_for("connected")
        ask(server, request(3, "keep"))
        running.join()
        assert running.told == ["connected", "version", "answered", "finished"]


def test_a_client_that_leaves_is_heard_of_and_no_longer_let_in(keys):
    members, left = list(keys.members), []

    def leave(id):
        left.append(id)
        members[id] = members[id]._replace(gone="it left")

    with keys.server(roster=lambda: members, on_leave=leave) as server:
        connection = keys.connection(server)
        connection.leave()
        assert left == [0]
        until(lambda: server.pull(0.1) == [Arrived(0, failure=GONE, gone=True)])
        with pytest.raises((Refused, Unreachable)):
            connection.ask(wait=0)
