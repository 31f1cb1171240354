"""Flower's server and a client's connection to it, over TLS on this machine: who is let in, and what is refused."""

import base64
import contextlib
import datetime as dt
import socket
import ssl
import threading
import time

import httpx
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import SubStatus
from flwr.supercore.primitives.asymmetric import generate_key_pairs
from flwr.supernode import node_auth_http_interceptor
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from protonorm.deployment.engine import Arrived
from protonorm.deployment.flower import fleet as fleet_module
from protonorm.deployment.flower.fleet import Fleet, Refused, Restarted, Taken, Unreachable, Withdrawn
from protonorm.deployment.flower.superlink import Certificate, LinkCarrier, SuperLink
from protonorm.deployment.flower.transport import FlowerTransport, by_key, key_bytes
from protonorm.deployment.keys import make_authority, make_client_key, make_server_certificate
from protonorm.errors import Failed
from tests.deployment.processes import free_port

LARGEST = 2**20


class Keys:
    """An authority, a server's certificate and the keys of three clients; the last is on no roster."""

    def __init__(self, folder):
        self.folder = folder
        self.authority = folder / "authority.crt"
        make_authority(folder / "authority.key", self.authority, "test")
        self.certificate = self.certify("server", ["127.0.0.1"])
        self.lines = [make_client_key(self.key(id)) for id in range(3)]

    def key(self, id):
        return self.folder / f"{id}.key"

    def certify(self, name, hosts, now=None):
        made = Certificate(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        make_server_certificate(
            (self.folder / "authority.key", self.authority), made.key, made.certificate, hosts, now=now
        )
        return made

    def link(self, port=0, certificate="usual", **options):
        found = self.certificate if certificate == "usual" else certificate
        made = SuperLink("127.0.0.1", port, found, LARGEST, **options)
        made.admit(self.lines[:2])
        return made

    def fleet(self, link, id=0, authority="usual", host="127.0.0.1"):
        found = self.authority if authority == "usual" else authority
        return Fleet(f"{host}:{link.port}", found, self.key(id), LARGEST)

    def transport(self, link):
        return FlowerTransport(LinkCarrier(link), by_key(dict(enumerate(self.lines[:2]))))


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return Keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def link(keys):
    with keys.link() as made:
        yield made


def test_bytes_go_to_a_client_and_back(keys, link):
    fleet, transport = keys.fleet(link), keys.transport(link)
    assert transport.push({0: b"early"}) == {0: "it is not connected"}
    fleet.activate()
    try:
        content = bytes(range(256)) * 4000  # 1,024,000 bytes, just below what is allowed
        assert transport.push({0: content, 1: b""}) == {1: "it is not connected"}
        letter = fleet.ask()
        assert letter.content == content
        fleet.answer(letter, content[::-1], 0.1)
        assert transport.pull(10.0) == [Arrived(0, content[::-1])]
        assert len(link.state.object_store) == 0  # nothing is left behind
    finally:
        fleet.close()
    assert transport.present() == set()


def test_a_question_is_held_until_there_is_work(keys, link):
    """The client asks first; the request is sent later, and the question that is held already gets it."""
    fleet, transport = keys.fleet(link), keys.transport(link)
    fleet.activate()
    found = []
    asking = threading.Thread(target=lambda: found.append(fleet.ask()))
    try:
        before = dict(link.gate.asked)
        asking.start()
        while link.gate.asked == before:
            time.sleep(0.01)
        begun = dict(link.gate.asked)
        transport.push({0: b"work"})
        asking.join(30)
        assert found[0].content == b"work"
        assert link.gate.asked == begun  # one question was enough
    finally:
        transport.close()
        fleet.close()


def test_a_question_whose_client_is_gone_gets_no_work(keys, link):
    """The client gives its question up; what comes then waits for the next one."""
    fleet, transport = keys.fleet(link), keys.transport(link)
    fleet.activate()
    try:
        fleet._client._client.timeout = httpx.Timeout(0.5)
        with pytest.raises(Unreachable, match="takes too long"):
            fleet.ask()
        fleet._client._client.timeout = httpx.Timeout(20.0)
        fleet.beat()  # what the server hears later than the end of the line
        transport.push({0: b"work"})
        fleet.beat()
        (message,) = [link.state.message_ins_store[one.id] for one in transport._asked.values()]
        assert message.metadata.delivered_at == ""
        assert fleet.ask().content == b"work"
    finally:
        transport.close()
        fleet.close()


def test_a_request_that_nobody_got_is_sent_again(keys, link):
    """The client fetches a request and is killed before it answers; it comes back and asks for work."""
    link.gate._hold = 0.0
    fleet, transport = keys.fleet(link), keys.transport(link)
    fleet.activate()
    try:
        transport.push({0: b"work"})
        assert fleet.ask().content == b"work"
        assert fleet.ask() is None
        assert transport.pull(0.3) == []
        letter = fleet.ask()
        assert letter.content == b"work"
        fleet.answer(letter, b"done", 0.0)
        assert transport.pull(10.0) == [Arrived(0, b"done")]
    finally:
        link.gate._hold = 10.0
        fleet.close()


def test_a_request_that_was_replaced_before_it_was_fetched_is_never_seen(keys, link):
    fleet, transport = keys.fleet(link), keys.transport(link)
    before = link.state.num_message_ins()
    fleet.activate()
    try:
        transport.push({0: b"old"})
        transport.push({0: b"new"})
        letter = fleet.ask()
        assert letter.content == b"new"
        transport.push({0: b"newer"})  # too late for the one that was fetched: its answer is late
        fleet.answer(letter, b"late", 0.0)
        assert transport.pull(10.0) == [Arrived(0, b"late")]
        letter = fleet.ask()
        assert letter.content == b"newer"
        fleet.answer(letter, b"done", 0.0)
        assert transport.pull(10.0) == [Arrived(0, b"done")]
        assert len(link.state.object_store) == 0
        assert link.state.num_message_ins() == before  # nothing is left behind
    finally:
        fleet.close()


def test_an_answer_that_was_cut_off_is_completed(keys, link, monkeypatch):
    """The line fails after one of its parts; the same client sends it again, while the server waits for the rest."""
    fleet, transport = keys.fleet(link), keys.transport(link)
    fleet.activate()
    push, pushed = fleet._client.PushObject, []

    def fail_once(part):
        pushed.append(part.object_id)
        if len(pushed) == 2:
            raise httpx.ReadError("cut")
        return push(part)

    monkeypatch.setattr(fleet._client, "PushObject", fail_once)
    try:
        transport.push({0: b"work"})
        letter, answer = fleet.ask(), b"done" * 100
        with pytest.raises(Unreachable):
            fleet.answer(letter, answer, 0.0)
        assert transport.pull(0.3) == []  # it has seen that something comes
        fleet.answer(letter, answer, 0.0)
        assert transport.pull(10.0) == [Arrived(0, answer)]
        assert len(pushed) == 4  # the first part is not sent twice
        assert len(link.state.object_store) == 0
    finally:
        fleet.close()


def test_a_run_that_flower_has_ended_is_begun_anew(keys, link):
    """Flower ends a run whose server was asleep for a minute, as a laptop may be."""
    fleet, transport = keys.fleet(link), keys.transport(link)
    fleet.activate()
    try:
        before = link.run
        link.state.finish_task(link._task, SubStatus.FAILED, "No heartbeat received from the task")
        transport.push({0: b"work"})
        assert link.run != before
        letter = fleet.ask()
        fleet.answer(letter, b"done", 0.0)
        assert transport.pull(10.0) == [Arrived(0, b"done")]
    finally:
        fleet.close()


def test_who_works_when_flower_ends_the_run_is_asked_again(keys, link):
    """One client works, the other was asked twice and sends its late answer: the server was asleep for a minute."""
    one, two, transport = keys.fleet(link, 0), keys.fleet(link, 1), keys.transport(link)
    one.activate()
    two.activate()
    try:
        transport.push({0: b"work", 1: b"old"})
        letter, late = one.ask(), two.ask()
        transport.push({1: b"new"})
        link.state.finish_task(link._task, SubStatus.FAILED, "No heartbeat received from the task")
        assert transport.pull(0.6) == []
        for fleet, held in ((one, letter), (two, late)):
            with pytest.raises(Withdrawn):
                fleet.answer(held, b"done", 0.0)
        for client, fleet, asked in ((0, one, b"work"), (1, two, b"new")):
            again = fleet.ask()
            assert again.content == asked
            fleet.answer(again, b"done", 0.0)
            assert transport.pull(10.0) == [Arrived(client, b"done")]
        assert len(link.state.object_store) == link.state.num_message_ins() == 0
    finally:
        transport.close()
        one.close()
        two.close()


def half_sent(keys, link, transport, monkeypatch):
    """Let a client send the first part of its answer; the line is so slow that the rest is still to come."""
    fleet, parts = keys.fleet(link), []
    fleet.activate()
    push = fleet._client.PushObject

    def first(part):
        parts.append(part)
        return push(part) if len(parts) == 1 else type("Stored", (), {"stored": True})

    monkeypatch.setattr(fleet._client, "PushObject", first)
    transport.push({0: b"work"})
    fleet.answer(fleet.ask(), b"done", 0.0)
    assert transport.pull(0.3) == []
    return fleet, lambda: [push(part) for part in parts[1:]]


def age(link, seconds):
    for session in link.state._object_push_sessions.values():
        session.expires_at -= dt.timedelta(seconds=seconds)


def test_an_answer_may_take_hours(keys, link, monkeypatch):
    transport = keys.transport(link)
    fleet, rest = half_sent(keys, link, transport, monkeypatch)
    try:
        age(link, 20 * 3600)
        assert transport.pull(0.3) == []
        assert all(one.stored for one in rest())
        assert transport.pull(10.0) == [Arrived(0, b"done")]
    finally:
        fleet.close()


def test_an_answer_that_flower_drops_is_asked_for_again(keys, link, monkeypatch):
    transport = keys.transport(link)
    fleet, _ = half_sent(keys, link, transport, monkeypatch)
    try:
        age(link, 25 * 3600)
        assert transport.pull(0.6) == []
        assert fleet.ask().content == b"work"
    finally:
        transport.close()
        fleet.close()


def killed(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("replaced", [False, True], ids=["lost", "replaced"])
def test_a_request_that_was_fetched_in_part_leaves_nothing_behind(keys, link, monkeypatch, replaced):
    """The client is killed before it has all parts of a request; it comes back, or the next round begins without it."""
    link.gate._hold, before = 0.0, link.state.num_message_ins()
    fleet, transport = keys.fleet(link), keys.transport(link)
    fleet.activate()
    try:
        transport.push({0: b"work"})
        with monkeypatch.context() as patch:
            patch.setattr(fleet._client, "PullObject", killed)
            with pytest.raises(KeyboardInterrupt):
                fleet.ask()
        if replaced:
            transport.push({0: b"next"})
        else:
            assert fleet.ask() is None
            assert transport.pull(0.6) == []
        letter = fleet.ask()
        fleet.answer(letter, b"done", 0.0)
        assert transport.pull(10.0) == [Arrived(0, b"done")]
        assert len(link.state.object_store) == 0
        assert link.state.num_message_ins() == before
    finally:
        link.gate._hold = 10.0
        fleet.close()


def test_an_answer_counts_as_that_of_the_client_it_was_asked_from(keys, link, monkeypatch):
    """The second client answers the first one's request, under its own number and under the first one's."""
    one, two, transport = keys.fleet(link, 0), keys.fleet(link, 1), keys.transport(link)
    one.activate()
    two.activate()
    try:
        transport.push({0: b"for one"})
        letter = one.ask()
        letter.message.metadata.__dict__["_dst_node_id"] = two._node.node_id
        two.answer(letter, b"forged", 0.0)  # Flower drops it
        push = two._client.PushMessages

        def forge(request):  # signed by the second client, in the name of the first
            request.messages_list[0].metadata.src_node_id = one._node.node_id
            return push(request)

        monkeypatch.setattr(two._client, "PushMessages", forge)
        with pytest.raises(Refused, match="the client that was asked"):
            two.answer(letter, b"forged again", 0.0)
        assert transport.pull(0.3) == []
    finally:
        transport.close()
        one.close()
        two.close()


@pytest.mark.parametrize(
    "content",
    [RecordDict({"other": ConfigRecord({"frame": b"x"})}), RecordDict({"protonorm": ConfigRecord({"frame": "text"})})],
    ids=["another record", "no bytes"],
)
def test_an_answer_that_holds_something_else_arrives_empty(keys, link, monkeypatch, content):
    fleet, transport = keys.fleet(link), keys.transport(link)
    fleet.activate()
    try:
        transport.push({0: b"work"})
        letter = fleet.ask()
        monkeypatch.setattr(fleet_module, "reply", lambda bytes, to: Message(content, reply_to=to))
        fleet.answer(letter, b"", 0.0)
        assert transport.pull(10.0) == [Arrived(0, b"")]
    finally:
        fleet.close()


def test_unknown_keys_are_refused_and_nothing_else_is_served(keys, link):
    """Flower's server would answer anybody at these addresses, and start programs for them."""
    with pytest.raises(Refused, match="does not know this client's key"):
        keys.fleet(link, 2).activate()
    context = ssl.create_default_context(cafile=keys.authority)
    with httpx.Client(base_url=f"https://127.0.0.1:{link.port}", verify=context) as anybody:
        for path in ("/", "/docs", "/openapi.json", "/v1/control/start-run", "/v1/control/register-node"):
            assert anybody.post(path, content=b"").status_code == 404
            assert anybody.get(path).status_code == 404
        for path in ("/v1/runtime/acquire-task", "/v1/fleet/get-fab", "/v1/fleet/register-node", "/health"):
            assert anybody.post(path, content=b"").status_code == 404
        assert anybody.post("/v1/fleet/pull-messages", content=b"").status_code == 401
        assert anybody.get("/v1/fleet/pull-messages").status_code == 404


def test_first_lines_without_an_end_are_cut_short(keys, link):
    """A megabyte of headers is never held: the server answers, or closes the line, long before."""
    context = ssl.create_default_context(cafile=keys.authority)
    raw = socket.create_connection(("127.0.0.1", link.port), 10)
    with context.wrap_socket(raw, server_hostname="127.0.0.1") as line:
        line.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\n")
        sent = 0
        with contextlib.suppress(OSError):
            while sent < 2**24:
                line.sendall(b"x: " + b"y" * 4000 + b"\r\n")
                sent += 4005
        assert sent < 2**24


class Forger:
    """Change the headers that say who a client is."""

    def __init__(self, **headers):
        self.headers = headers

    def intercept(self, context, call_next):
        for name, value in self.headers.items():
            context.request.headers[f"flwr-{name}"] = value
        return call_next(context)


def test_a_key_without_its_private_half_is_of_no_use(keys, link):
    fleet = keys.fleet(link)
    other = NodeAuthHttpInterceptor(*generate_key_pairs())
    other._public_key_bytes = fleet._public
    fleet._client._interceptors = (other,)
    with pytest.raises(Refused, match="not signed with the client's key"):
        fleet.activate()


@pytest.mark.parametrize(("hours", "said"), [(1, "3600 seconds behind"), (-1, "3600 seconds ahead of")])
def test_a_wrong_clock_is_told(keys, link, hours, said):
    fleet = keys.fleet(link)
    when = (dt.datetime.now(dt.UTC) - dt.timedelta(hours=hours)).isoformat()
    fleet._client._interceptors += (Forger(timestamp=when),)
    with pytest.raises(Refused, match=said):
        fleet.activate()


@pytest.mark.parametrize("minutes", [-4.9, 4.9])
def test_a_clock_may_be_wrong_by_minutes(keys, link, monkeypatch, minutes):
    clock = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=minutes)
    monkeypatch.setattr(node_auth_http_interceptor, "now", lambda: clock)
    fleet, transport = keys.fleet(link), keys.transport(link)
    fleet.activate()
    try:
        transport.push({0: b"work"})
        fleet.answer(fleet.ask(), b"done", 0.0)
        assert transport.pull(10.0) == [Arrived(0, b"done")]
    finally:
        fleet.close()


def test_a_number_belongs_to_a_key(keys, link):
    """The second client uses the first one's number, and both keys at once, of which it has one."""
    one, two = keys.fleet(link, 0), keys.fleet(link, 1)
    one.activate()
    two.activate()
    try:
        two._node = one._node
        for step in (two.beat, two.ask):
            with pytest.raises(Restarted):
                step()
        both = Twice(key_bytes(keys.lines[0]))
        two._client._interceptors += (both,)
        with pytest.raises((Refused, Restarted)):
            two.beat()
        assert both.sent == 2
    finally:
        two._client._interceptors = two._client._interceptors[:-1]
        one.close()
        two.close()


class Twice:
    """Put another key before the one that signs."""

    def __init__(self, key):
        self.key = base64.b64encode(key).decode()

    def intercept(self, context, call_next):
        name = "flwr-public-key"
        own = [(key, value) for key, value in context.request.headers.items() if key != name]
        keys = [(name, self.key), (name, context.request.headers[name])]
        context.request.headers = httpx.Headers([*own, *keys])
        self.sent = len(context.request.headers.get_list(name))
        return call_next(context)


@pytest.mark.parametrize("header", ["timestamp", "signature", "public-key"])
@pytest.mark.parametrize("value", ["", "x", "\u00e9" * 9, "=" * 5000], ids=["none", "short", "strange", "long"])
def test_headers_may_be_anything(keys, link, header, value):
    fleet = keys.fleet(link)
    fleet._client._interceptors += (Forger(**{header: value}),)
    with pytest.raises(Refused):
        fleet.activate()


def test_too_much_is_refused_before_it_is_read(keys, link):
    """What says that it is large is refused by its first line; what does not say how large it is as well."""
    fleet, transport = keys.fleet(link), keys.transport(link)
    fleet.activate()
    try:
        transport.push({0: b"work"})
        letter = fleet.ask()
        with pytest.raises(Refused, match="too large"):
            fleet.answer(letter, bytes(2 * LARGEST), 0.0)
        signed = fleet._client._interceptors[1]
        request = httpx.Request("POST", f"https://127.0.0.1:{link.port}/v1/fleet/push-object", content=iter([b"x"]))
        context = type("Context", (), {"request": request})
        answer = signed.intercept(context, lambda found: fleet._client._client.send(found.request))
        assert answer.status_code == 411
        head = [f"{name}: {value}" for name, value in request.headers.items() if name.startswith("flwr")]
        head = ["POST /v1/fleet/push-object HTTP/1.1", "host: x", f"content-length: {2 * LARGEST}", *head, "", ""]
        raw = socket.create_connection(("127.0.0.1", link.port), 10)
        trusted = ssl.create_default_context(cafile=keys.authority)
        with trusted.wrap_socket(raw, server_hostname="127.0.0.1") as line:
            line.sendall("\r\n".join(head).encode())  # and not a byte more
            assert line.recv(100).startswith(b"HTTP/1.1 413")
    finally:
        transport.close()
        fleet.close()


def test_a_client_takes_no_more_than_the_agreement_allows(keys, link):
    fleet, transport = keys.fleet(link), keys.transport(link)
    fleet._largest = 1000
    fleet.activate()
    try:
        transport.push({0: bytes(2000)})
        with pytest.raises(Refused, match="1000 at most are expected"):
            fleet.ask()
    finally:
        transport.close()
        fleet.close()


def test_a_second_client_with_the_same_key_is_refused_and_the_first_goes_on(keys, link, monkeypatch):
    one, two, told = keys.fleet(link), keys.fleet(link), []
    monkeypatch.setattr(link.gate, "_tell", told.append)
    one.activate()
    try:
        with pytest.raises(Taken, match="same key is connected already"):
            two.activate()
        one.beat()
        assert len(told) == 1
        one.activate(after=0)  # another thread has done so meanwhile
        with pytest.raises(Taken):
            one.activate(after=1)
        assert "a key that is in use" in told[0]
    finally:
        one.close()
    two.activate()
    two.close()


def test_a_client_knows_its_server_by_the_federation_s_authority(keys, link, tmp_path):
    other = Keys(tmp_path)
    with pytest.raises(Refused, match="not from the federation's authority"):
        keys.fleet(link, authority=other.authority).activate()
    with pytest.raises(Refused, match="is not for localhost"):
        keys.fleet(link, host="localhost").activate()


@pytest.mark.parametrize(("years", "said"), [(-3, "has expired"), (1, "is not valid yet")])
def test_a_certificate_has_its_time(keys, years, said):
    now = dt.datetime.now(dt.UTC) + dt.timedelta(days=366 * years)
    certificate = keys.certify(f"of {years}", ["127.0.0.1"], now)
    with keys.link(certificate=certificate) as link, pytest.raises(Refused, match=said):
        keys.fleet(link).activate()


def test_plaintext_and_tls_do_not_mix(keys, link):
    with pytest.raises(Refused, match="does not answer in plaintext"):
        keys.fleet(link, authority=None).activate()
    with keys.link(certificate=None) as plain:
        with pytest.raises(Refused, match="does not speak TLS"):
            keys.fleet(plain).activate()
        fleet = keys.fleet(plain, authority=None)
        fleet.activate()
        fleet.close()


def test_nobody_there_and_something_else_there(keys):
    gone = type("Link", (), {"port": free_port()})
    with pytest.raises(Unreachable, match="cannot be reached"):
        keys.fleet(gone).activate()


def test_a_port_that_is_in_use_and_a_key_of_another_certificate_are_told(keys, link):
    with pytest.raises(Failed, match=f"cannot listen at 127.0.0.1:{link.port}: Address already in use"):
        keys.link(link.port)
    with pytest.raises(Failed, match="certificate and key cannot be used"):
        keys.link(certificate=Certificate(keys.certificate.certificate, keys.folder / "authority.key"))


def test_a_server_that_was_started_again_knows_nobody_until_clients_come_back(keys):
    with keys.link() as first:
        port = first.port
        fleet = keys.fleet(first)
        fleet.activate()
        keys.transport(first).push({0: b"old"})
        letter = fleet.ask()
    with pytest.raises(Unreachable):
        fleet.beat()
    with keys.link(port) as second:
        second.gate._hold = 60.0  # a question is not held for a client that is to be told
        for step in (fleet.beat, fleet.ask, lambda: fleet.answer(letter, b"late", 0.0)):
            with pytest.raises(Restarted):
                step()
        fleet.activate()
        transport = keys.transport(second)
        transport.push({0: b"new"})
        assert fleet.ask().content == b"new"
        fleet.close()
