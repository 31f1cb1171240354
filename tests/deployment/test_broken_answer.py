"""A client that ends while it sends its answer: it is asked again as soon as it is back, not after minutes."""

import threading

import pytest

from protonorm.deployment.engine import Arrived
from tests.deployment.test_link import Keys


class Cut(Exception):
    """The client's process ends here."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return Keys(tmp_path_factory.mktemp("keys"))


def collect(transport, calls):
    """Take what comes while a client makes its calls in a thread of its own."""
    found, errors = [], []

    def work():
        try:
            calls()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        found += transport.pull(0.05)
    thread.join()
    return [*found, *transport.pull(0.05)], errors


@pytest.mark.parametrize("parts", [0, 1])
def test_who_ended_while_it_sent_its_answer_is_asked_again(keys, parts, monkeypatch):
    with keys.link() as link:
        transport, first = keys.transport(link), keys.fleet(link)
        first.activate()
        assert transport.push({0: b"request"}) == {}
        letter = first.ask()
        assert letter.content == b"request"
        push, pushed = first._client.PushObject, []

        def cut(part):
            if len(pushed) == parts:
                raise Cut
            pushed.append(part)
            return push(part)

        monkeypatch.setattr(first._client, "PushObject", cut)
        found, errors = collect(transport, lambda: first.answer(letter, b"answer", 0.1))
        assert (found, [type(one) for one in errors]) == ([], [Cut])
        first.close()
        second = keys.fleet(link)
        second.activate()

        def come_back():
            for _ in range(5):  # the server sees that it is back once it has asked
                again = second.ask()
                if again is not None and again.content:
                    assert again.content == b"request"
                    second.answer(again, b"answer", 0.1)
                    return
            raise AssertionError("It is not asked again.")

        found, errors = collect(transport, come_back)
        assert errors == []
        assert found == [Arrived(0, b"answer")]
        assert transport._carrier._coming == {}
        second.close()


def test_an_answer_that_is_on_its_way_is_waited_for(keys, monkeypatch):
    with keys.link() as link:
        transport, client = keys.transport(link), keys.fleet(link)
        client.activate()
        transport.push({0: b"request"})
        letter = client.ask()
        push, wait = client._client.PushObject, threading.Event()

        def slowly(part):
            wait.wait(1.0)  # longer than the transport looks once
            return push(part)

        monkeypatch.setattr(client._client, "PushObject", slowly)
        found, errors = collect(transport, lambda: client.answer(letter, b"answer", 0.1))
        assert (found, errors) == ([Arrived(0, b"answer")], [])
        client.close()
