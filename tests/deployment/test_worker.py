"""A client's process at work, with a node that only echoes: cuts, restarts and refusals, over TLS on this machine."""

import select
import socket
import threading
import time

import pytest

from protonorm.deployment.agreement import Agreement
from protonorm.deployment.engine import REPAIR, Arrived
from protonorm.deployment.flower import client as client_module
from protonorm.deployment.flower.client import Patience, Worker
from protonorm.deployment.flower.fleet import Fleet, Refused, Taken, Unreachable
from protonorm.deployment.messages import FORMAT, Answer, AnswerHeader, RequestHeader, read_request, write_answer
from protonorm.deployment.messages import write_request as write
from tests.deployment.processes import free_port
from tests.deployment.test_link import LARGEST, Keys

TERMS = Agreement.of({"algorithm": "fedproto", "classes": ["a", "b"], "feature_dim": 4, "rounds": 3, "seed": 0})


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return Keys(tmp_path_factory.mktemp("keys"))


def request(round, kind="train", agreement=TERMS.digest):
    header = {"format": FORMAT, "agreement": agreement, "client": 0, "round": round, "kind": kind, "trained": 0}
    return write(RequestHeader(**header), b"")


class Echo:
    """Answer each request with its own header; decline what is of another agreement."""

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
        fleet = Fleet(f"127.0.0.1:{port}", keys.authority, keys.key(id), LARGEST)
        tell = lambda event, sentence: self.told.append(event)  # noqa: E731
        self.worker = Worker(fleet, self.node, TERMS, tell, patience or Patience())
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


def ask(transport, content):
    """Ask the first client once it is there; give its answers."""
    end = time.monotonic() + 60
    while transport.push({0: content}):
        assert time.monotonic() < end
        time.sleep(0.01)
    return transport.pull(60.0)


def test_a_client_answers_and_ends_after_the_last_round(keys):
    with keys.link() as link:
        running, transport = Running(keys, link.port), keys.transport(link)
        for round, kind in ((1, "train"), (2, "evaluate+train"), (3, "evaluate+train"), (3, "evaluate")):
            content = request(round, kind)
            assert ask(transport, content) == [Arrived(0, running.node.answer(content))]
        running.join()
        assert running.error is None
        assert running.told == ["connected", *["answered"] * 4, "finished"]
        assert transport.present() == set()  # it said goodbye


def test_a_client_that_may_not_be_evaluated_ends_after_its_last_training(keys):
    with keys.link() as link:
        running, transport = Running(keys, link.port), keys.transport(link)
        running.worker._agreement = TERMS.model_copy(update={"evaluated": []})
        ask(transport, request(3, "train"))
        running.join()
        assert running.told[-1] == "finished"


def test_a_client_that_declines_the_last_request_ends_too(keys):
    """In an earlier round it stays, for it may be able to train in the next one."""
    with keys.link() as link:
        running, transport = Running(keys, link.port, Echo(["train", "evaluate"])), keys.transport(link)
        for round, kind in ((2, "train"), (3, "evaluate+train"), (3, "evaluate")):
            assert len(ask(transport, request(round, kind))) == 1
        running.join()
        assert running.told == ["connected", "declined", "answered", "declined", "finished"]


def test_a_client_stays_until_the_server_would_ask_again():
    assert client_module.LINGER >= REPAIR + 10


def test_a_cut_line_costs_nothing_but_time(keys):
    """The line is cut while the client works; its answer is sent when it is back."""
    with keys.link() as link, Proxy(link.port) as proxy:
        running, transport = Running(keys, proxy.port), keys.transport(link)

        def cut():
            proxy.open = False
            time.sleep(0.2)
            threading.Timer(1.0, lambda: setattr(proxy, "open", True)).start()

        running.node.before = cut
        assert len(ask(transport, request(1))) == 1
        running.node.before = lambda: None
        assert "unreachable" in running.told
        running.wait_for("reached")
        assert len(ask(transport, request(3, "evaluate"))) == 1
        running.join()
        assert running.error is None


def test_a_server_that_is_started_again_while_the_client_works_gets_its_answer_on_asking_again(keys, monkeypatch):
    """The thread that gives signs of life tells the new server who is there, before the old request is answered."""
    monkeypatch.setattr(client_module, "INTERVAL", 0.4)
    port, working, go_on = free_port(), threading.Event(), threading.Event()
    running = Running(keys, port)

    def work():
        working.set()
        assert go_on.wait(60)

    running.node.before = work
    with keys.link(port) as link:
        transport = keys.transport(link)
        while transport.push({0: request(1)}):
            time.sleep(0.01)
        assert working.wait(60)
    with keys.link(port) as link:
        transport = keys.transport(link)
        while running.worker._fleet.activated < 2:
            time.sleep(0.01)
        assert transport.present() == {0}
        running.node.before = lambda: None
        transport.push({0: request(3, "evaluate")})
        go_on.set()
        assert len(transport.pull(60.0)) == 1
        running.join()
        assert running.error is None
        assert "dropped" in running.told
        assert running.told.count("connected") == 1


def test_a_second_client_waits_a_while_and_is_refused(keys):
    with keys.link() as link:
        first = Running(keys, link.port)
        first.wait_for("connected")
        second = Running(keys, link.port, patience=Patience(taken=0.1))
        second.join()
        assert isinstance(second.error, Taken)
        assert second.told == ["waiting"]
        ask(keys.transport(link), request(3, "evaluate"))
        first.join()
        assert first.error is None


def test_an_unknown_client_and_one_that_nobody_answers_end_with_a_sentence(keys):
    with keys.link() as link:
        running = Running(keys, link.port, id=2)
        running.join()
        assert isinstance(running.error, Refused)
    running = Running(keys, free_port(), patience=Patience(unreachable=0.1))
    running.join()
    assert isinstance(running.error, Unreachable)
    assert running.told == ["unreachable"]


def test_a_client_of_another_agreement_tells_the_server_and_ends(keys):
    with keys.link() as link:
        running, transport = Running(keys, link.port), keys.transport(link)
        (arrived,) = ask(transport, request(1, agreement="0" * 64))
        assert b"Another agreement." in arrived.content
        running.join()
        assert isinstance(running.error, Refused)
        assert str(running.error) == "Another agreement."


def test_a_client_that_was_taken_off_the_roster_ends(keys, monkeypatch):
    monkeypatch.setattr(client_module, "INTERVAL", 0.2)
    with keys.link() as link:
        running = Running(keys, link.port)
        running.wait_for("connected")
        link.gate.keys = frozenset()
        link.notify(list(link.gate.asked))
        running.join()
        assert isinstance(running.error, Refused)
        assert "does not know" in str(running.error)
