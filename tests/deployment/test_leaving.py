"""A client goes after the last round, also if the server is gone by then."""

import pytest

from protonorm.core.frames import join
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.https.client import Unreachable
from protonorm.deployment.worker import Patience, Worker

AGREEMENT = Agreement.of(
    {
        "algorithm": "fedproto",
        "classes": ["cat", "dog"],
        "feature_dim": 4,
        "rounds": 2,
        "seed": 0,
        "evaluated": ["test"],
    }
)


def letter(**change):
    about = {"format": 1, "agreement": AGREEMENT.digest, "client": 0, "round": 2, "kind": "keep", "trained": 2}
    return join({**about, **change}, b"")


class Server:
    """It has some requests, and is gone then."""

    def __init__(self, *letters):
        self.letters, self.answers, self.server_version = list(letters), [], ""
        self.address = self.server_certificate = ""

    def ask(self, wait=20):
        if not self.letters:
            raise Unreachable("Nobody answers.")
        return self.letters.pop(0)

    def answer(self, request, content):
        self.answers.append(content)

    def close(self):
        pass


class Echo:
    """A client that answers with nothing."""

    def answer(self, content):
        return join({"format": 1, "agreement": AGREEMENT.digest, "client": 0, "round": 2, "kind": "keep"}, b"")


def test_it_goes_after_the_last_round_though_the_server_is_gone():
    server, told = Server(letter()), []
    Worker(server, Echo(), AGREEMENT, lambda *said: told.append(said[0])).run(linger=0.05)
    assert len(server.answers) == 1
    assert told[-1] == "finished"


def test_it_waits_for_a_server_that_is_gone_before_the_last_round():
    server = Server(letter(kind="evaluate+train", trained=1))
    worker = Worker(server, Echo(), AGREEMENT, lambda *_: None, Patience(unreachable=0.3))
    with pytest.raises(Unreachable):
        worker.run(linger=0.0)
