"""The audit trail: what is in it, and that whatever is changed, removed or moved is named."""

import hashlib
import json
import stat
import subprocess
import sys
import threading

import numpy as np
import pytest
from typer.testing import CliRunner

from protonorm import __version__
from protonorm.cli.app import app
from protonorm.deployment import audit
from protonorm.deployment.audit import START, ServerTrail, Trail, details, verify
from protonorm.deployment.client_folder import ClientFolder
from protonorm.deployment.events import Event, read_events
from protonorm.deployment.https.client import Refused
from protonorm.deployment.keys import certificate_fingerprint, key_fingerprint
from tests.deployment.keyring import Keys
from tests.deployment.processes import RealFederation

SERVER = """
import sys
from protonorm.deployment.federation_folder import FederationFolder
from protonorm.deployment.service import serve_folder
serve_folder(FederationFolder.open(sys.argv[1]), print, once=True)
"""


class Clock:
    now = 1_000_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def trail(tmp_path):
    made = Trail(tmp_path, Clock())
    for number in range(1, 7):
        made.write("sent", round=number, text="", none=None)
    return made


def test_lines_are_chained_and_private(trail):
    """The hash is recomputed here from the description: SHA-256 of the other members, sorted, without spaces."""
    before = START
    for number, text in enumerate(trail.path.read_text().splitlines(), 1):
        line = json.loads(text)
        own = line.pop("hash")
        assert line == {
            "number": number, "time": "2001-09-09T01:46:40.000Z", "event": "sent", "round": number, "before": before,
        }  # fmt: skip
        before = hashlib.sha256(json.dumps(line, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
        assert own == before
    assert verify(trail.path) == (verify(trail.path).lines, [], before)
    assert stat.S_IMODE(trail.path.stat().st_mode) == 0o600
    assert verify(trail.path.with_name("none")) == ([], [], START)


def edit(change):
    def edited(lines):
        line = json.loads(lines[2])
        change(line)
        lines[2] = json.dumps(line)

    return edited


def rehashed(line):
    line["round"] = 9
    line.pop("hash")
    line["hash"] = audit._hash(line)


DAMAGE = {
    "changed": (edit(lambda line: line.update(round=9)), ["Line 3 was changed after it was written."]),
    "a name added": (edit(lambda line: line.update(more=1)), ["Line 3 was changed after it was written."]),
    "spaces": (lambda lines: lines.__setitem__(2, lines[2] + " "), ["Line 3 was changed after it was written."]),
    "changed with its hash": (
        edit(rehashed),
        ["Line 4 does not follow on the line before it: one of them was changed or replaced."],
    ),
    "removed": (lambda lines: lines.pop(2), ["Line 3 is not in its place: line 3 is missing."]),
    "two removed": (
        lambda lines: lines.__delitem__(slice(2, 4)),
        ["Line 3 is not in its place: lines 3 to 4 are missing."],
    ),
    "the first removed": (lambda lines: lines.pop(0), ["Line 1 is not in its place: line 1 is missing."]),
    "moved": (
        lambda lines: lines.insert(3, lines.pop(2)),
        [
            "Line 3 is not in its place: line 3 is missing.",
            "Line 4 is not in its place: it has the number 3 and follows on 4.",
            "Line 5 is not in its place: line 4 is missing.",
        ],
    ),
    "repeated": (
        lambda lines: lines.insert(3, lines[2]),
        ["Line 4 is not in its place: it has the number 3 and follows on 3."],
    ),
    "no JSON": (
        lambda lines: lines.__setitem__(2, "nonsense"),
        ["Line 3 was changed or cut short: it is not as it was written."],
    ),
    "nested": (
        lambda lines: lines.__setitem__(2, "[" * 9000),
        ["Line 3 was changed or cut short: it is not as it was written."],
    ),
    "no number": (
        edit(lambda line: line.pop("number")),
        ["Line 3 was changed or cut short: it is not as it was written."],
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_changed_removed_or_moved_line_is_named(trail, case):
    change, said = DAMAGE[case]
    lines = trail.path.read_text().splitlines()
    change(lines)
    trail.path.write_text("".join(f"{line}\n" for line in lines))
    assert verify(trail.path).problems == said
    trail.write("more")  # it goes on all the same, and what was wrong stays visible
    assert verify(trail.path).problems == said


def test_lines_missing_at_the_end_are_noticed_by_a_noted_hash(trail):
    noted = verify(trail.path).head
    trail.write("more")
    assert not verify(trail.path, noted).problems
    lines = trail.path.read_bytes().splitlines(keepends=True)
    trail.path.write_bytes(b"".join(lines[:4]))
    assert not verify(trail.path).problems
    assert verify(trail.path, noted).problems == [
        f"No line has the noted hash {noted}: lines were removed or replaced."
    ]


def test_a_line_cut_short_by_a_kill_is_removed_and_told(trail):
    content = trail.path.read_bytes()
    trail.path.write_bytes(content[:-20])
    assert verify(trail.path).problems == ["Line 6 was changed or cut short: it is not as it was written."]
    trail.write("more")
    found = verify(trail.path)
    assert not found.problems
    assert [line["event"] for line in found.lines[-3:]] == ["sent", "repaired", "more"]


def test_a_cut_line_is_told_in_the_client_s_log(tmp_path):
    client = ClientFolder.create(tmp_path / "berlin", "berlin")
    content = client.trail.path.read_bytes()
    client.trail.path.write_bytes(content[:-20])
    ClientFolder.open(client.path).trail.write("connected")
    (event,) = read_events(client.log_folder / "client.jsonl")
    assert (event["event"], event["level"]) == ("repaired", "warning")
    assert event["text"].startswith("The last line of audit.jsonl was cut short")


def test_several_threads_and_processes_append_to_one_chain(tmp_path):
    code = "import sys; from pathlib import Path; from protonorm.deployment.audit import Trail\n"
    code += "for n in range(20): Trail(Path(sys.argv[1])).write('other', n=n)"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) as other:
        made = Trail(tmp_path)
        threads = [threading.Thread(target=lambda: [made.write("own") for _ in range(20)]) for _ in range(3)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert other.wait(60) == 0
    found = verify(tmp_path / audit.FILE)
    assert (len(found.lines), found.problems) == (80, [])


def test_hostile_traffic_fills_no_disk(tmp_path, monkeypatch):
    """A hundred denials an hour are listed, the others counted in the next hour's first."""
    clock = Clock()
    made = ServerTrail(Trail(tmp_path, clock))
    for number in range(1500):
        made.deny(f"The handshake with 10.0.0.{number} failed.")
    made.deny("x" * 10_000)
    assert len(verify(tmp_path / audit.FILE).lines) == 100
    clock.now += 3600
    made.deny("y" * 10_000)
    last = verify(tmp_path / audit.FILE).lines[-1]
    assert last["unlisted"] == 1401
    assert len(last["text"]) == audit.LONGEST
    for _ in range(50):
        made.deny("y" * 10_000)  # the same one again
        made.record_connection(0, "10.0.0.1", "1.0", "abc")
    assert len(verify(tmp_path / audit.FILE).lines) == 102


def test_many_connections_leave_room_for_a_denial(tmp_path):
    """Each kind of event has its own number of lines an hour."""
    made = ServerTrail(Trail(tmp_path, Clock()))
    for number in range(120):
        made.record_connection(0, f"10.0.0.{number}", "1.0", "abc")
    made.deny("The handshake with 10.0.0.1 failed.")
    assert [line["event"] for line in verify(tmp_path / audit.FILE).lines] == ["connected"] * 120 + ["denied"]


def test_the_round_loop_s_events_are_recorded_with_digest_size_and_reason(tmp_path):
    made = ServerTrail(Trail(tmp_path), ["berlin", "kyoto"].__getitem__)
    made(Event("asked", "Round 1: berlin was asked.", 1, 0, numbers={"bytes": 10}, digest="ab"))
    made(Event("refused", "Round 1: NaN.", 1, 1, "content", digest="cd"))
    made(Event("evaluated", "Round 1, evaluated", 1))
    first, second = verify(tmp_path / audit.FILE).lines
    assert details(first) == "round 1, digest ab, client 0, name berlin, bytes 10"
    assert details(second) == "round 1, digest cd, why content, client 1, name kyoto, text Round 1: NaN."


def test_owners_acts_are_recorded_on_both_sides(folder, tmp_path):
    folder.revoke("berlin")
    member = folder.roster[0]
    lines = verify(folder.trail.path).lines
    assert [line["event"] for line in lines] == ["created", "member", "member", "member"]
    assert lines[1]["changed"]["public_key"] == key_fingerprint(member.public_key)
    assert lines[1]["changed"]["certificate"] == certificate_fingerprint(member.certificate)
    assert lines[3] | {"changed": {"revoked": True}} == lines[3]
    client = ClientFolder.create(tmp_path / "own", "lima")
    bundle = folder.bundle(folder.add("lima", client.public_key))
    client.change(allowed="accuracy")
    client.change(allowed="accuracy")
    client.confirm(bundle, "by checksum")
    made, settings, confirmed = verify(client.trail.path).lines
    assert made["public_key"] == key_fingerprint(client.public_key)
    assert settings["allowed"] == "accuracy"
    assert (confirmed["bundle"], confirmed["agreement"]) == (bundle.digest, folder.agreement.digest)
    assert (confirmed["allowed"], confirmed["how"]) == ("accuracy", "by checksum")


def test_a_client_s_connection_is_told_with_address_version_and_certificate(tmp_path):
    keys, met = Keys(tmp_path), []
    with keys.server(on_connect=lambda *about: met.append(about)) as server:
        client = keys.connection(server)
        client.ask(wait=0)
        client.ask(wait=0)
        assert met == [(0, "127.0.0.1", __version__, certificate_fingerprint((tmp_path / "0.crt").read_text()))]
        assert client.server_certificate == certificate_fingerprint((tmp_path / "server.crt").read_text())
        client.close()


def test_a_trail_that_cannot_be_written_does_not_stop_the_server(tmp_path):
    def full(*_):
        raise OSError(28, "No space left on device")

    keys = Keys(tmp_path)
    with keys.server(on_connect=full, log=full) as server:
        with pytest.raises(Refused, match="does not know this client's key"):
            keys.connection(server, 2).ask(wait=0)
        client = keys.connection(server)
        assert client.ask(wait=0) is None
        client.close()


def test_both_sides_record_the_same_digests(tmp_path):
    """What the server sent is what the client received, and the other way round, in a federation of processes."""
    with RealFederation(tmp_path, 2, rounds=1) as federation:
        server = federation._start(SERVER, federation.server.path, "server.out")
        clients = [federation.start_client(id) for id in range(2)]
        assert server.wait(120) == 0, federation.output("server.out")
        for one in clients:
            one.wait(60)
        ours = verify(federation.server.trail.path)
        assert not ours.problems
        assert {"created", "member", "listening", "connected", "started", "committed"} <= {
            line["event"] for line in ours.lines
        }
        for id, client in enumerate(federation.clients):
            theirs = verify(client.trail.path)
            assert not theirs.problems
            assert [line["event"] for line in theirs.lines][-7:] == ["connected", *["received", "sent"] * 3]
            pairs = (("asked", "received"), ("answered", "sent"))
            for here, there in pairs:
                found = [
                    [(line["round"], line["bytes"], line["digest"]) for line in side.lines if line["event"] == event]
                    for side, event in ((ours, here), (theirs, there))
                    for side in [side._replace(lines=[one for one in side.lines if one.get("client", id) == id])]
                ]
                assert found[0] == found[1]
                assert len(found[0]) == 3  # the round, its evaluation, and the message to keep


def test_the_command_shows_and_verifies(folder):
    def call(*words):
        return CliRunner().invoke(app, ["deploy", "audit", "--folder", str(folder.path), *words])

    shown = call()
    assert shown.exit_code == 0
    assert "3 lines; the chain is whole; hash of the last: " in shown.output
    assert "berlin" in shown.output
    plain = json.loads(call("--json", "--last", "1").output)
    assert (plain["count"], len(plain["lines"]), plain["problems"]) == (3, 1, [])
    assert call("--head", plain["hash"]).exit_code == 0
    folder.trail.path.write_text(folder.trail.path.read_text().replace("berlin", "\\u001b[31mparis", 1))
    broken = call()
    assert broken.exit_code != 0
    assert "Line 2 was changed after it was written." in broken.output
    assert "the chain is broken" in broken.output
    assert "\x1b" not in broken.output


def test_samples_that_come_and_go_are_recorded_and_the_others_keep_their_part(folder, tmp_path, monkeypatch):
    """Two of 24 samples are removed and one is added; their hashes are those of `b2sum -l 64` of their pixels."""
    monkeypatch.setenv("PROTONORM_DATA", str(tmp_path / "cache"))
    client = ClientFolder.create(tmp_path / "own", "lima")
    client.confirm(folder.bundle(folder.add("lima", client.public_key)))
    images = np.random.default_rng(0).integers(0, 256, (25, 16, 16, 1), np.uint8)
    labels, classes = np.arange(25) % 2, np.array(["a", "b"])

    def start(which):
        np.savez(tmp_path / "data.npz", images=images[which], labels=labels[which], classes=classes)
        client.change(data=str(tmp_path / "data.npz"), model="plain")
        site = client.node()._site
        part = site.parts[0]
        return {site.dataset.inputs[place].tobytes() for place in part.test}

    before = start(np.arange(24))
    assert start(np.arange(24)) == before
    after = start(np.arange(2, 25))
    kept = {image.tobytes() for image in images[2:24]}
    assert after & kept == before & kept
    first, second = [line for line in verify(client.trail.path).lines if line["event"] == "samples"]
    assert (first["added"], first["removed"]) == (24, 0)
    assert first["train"] + first["validation"] + first["test"] == 24
    assert (second["added"], second["removed"]) == (1, 2)
    gone = {hashlib.blake2b(image.tobytes(), digest_size=8).hexdigest() for image in images[:2]}
    assert set(second["removed_hashes"]) == gone
    assert stat.S_IMODE((client.path / "samples.bin").stat().st_mode) == 0o600
