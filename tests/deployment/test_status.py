"""How a federation stands: what the server writes down as things happen, and what others read of it."""

import json
import os
import stat
import subprocess
import sys
import threading

import pytest

from protonorm.cli.deploy_status import client_lines, federation_tables, standing
from protonorm.deployment.client_folder import ClientFolder
from protonorm.deployment.events import Event, Log, read_events
from protonorm.deployment.keys import make_client_key
from protonorm.deployment.process_lock import end_owner, is_alive, is_locked, lock_owner, process_began, process_lock
from protonorm.deployment.status import Status, StatusWriter, seconds_since, view_client, view_federation
from protonorm.deployment.web import render
from protonorm.errors import Failed

TERMS = {"algorithm": "protonorm", "classes": ["a", "b"], "feature_dim": 8, "rounds": 3, "seed": 0}


def told(board):
    """Run one round in which berlin answers, and kyoto is refused, late and away."""
    board(Event("started", "0 of 3 rounds are done.", numbers={"rounds": 3, "done": 0, "clients": 2}))
    board(Event("round", "Round 1 of 3 begins.", 1, numbers={"clients": 2, "needed": 1}))
    for client in (0, 1):
        board(Event("asked", "asked", 1, client, numbers={"bytes": 10}))
    board(Event("answered", "answered", 1, 0, numbers={"bytes": 5, "seconds": 0.1}))
    board(Event("refused", "The answer of client 1 is refused: NaN.", 1, 1, "content"))
    board(Event("late", "Client kyoto is late.", 1, 1))
    numbers = {"replied": 1, "lost": 1, "seconds": 2.5, "bytes_up": 5, "bytes_down": 20}
    board(Event("committed", "Round 1 is done.", 1, numbers=numbers))
    board(Event("evaluated", "Round 1, evaluated", 1, numbers={"clients": 1, "test.nearest-global": 0.75}))


def test_a_round_shows_in_the_status_file(folder):
    board = StatusWriter(folder)
    told(board)
    found = Status.read(folder.status_file)
    assert found == board.status
    assert (found.state, found.round, found.done, found.needed, found.rounds) == ("running", 1, 1, 1, 3)
    assert (found.last_seconds, found.bytes_up, found.bytes_down) == (2.5, 5, 20)
    assert (found.evaluated, found.accuracies) == (1, {"test.nearest-global": 0.75})
    berlin, kyoto = found.clients
    assert (berlin.state, berlin.answered, berlin.answers, berlin.late, berlin.refused) == ("answered", 1, 1, 0, 0)
    assert (kyoto.state, kyoto.answered, kyoto.answers, kyoto.late, kyoto.refused) == ("late", 0, 0, 1, 1)
    assert found.refused["content"] == 1
    assert sum(found.refused.values()) == 1
    assert kyoto.said == "Client kyoto is late."
    assert stat.S_IMODE(folder.status_file.stat().st_mode) == 0o600


def test_what_was_wrong_with_a_client_is_shown_until_it_answers_again(folder):
    board = StatusWriter(folder)
    told(board)
    board(Event("away", "Client kyoto is away.", 2, 1))
    assert (board.status.clients[1].state, board.status.clients[1].said) == ("absent", "Client kyoto is away.")
    board(Event("answered", "answered", 2, 1))
    kyoto = board.status.clients[1]
    assert (kyoto.state, kyoto.said, kyoto.late, kyoto.refused) == ("answered", "", 1, 1)


def test_the_reason_of_a_decline_is_shown_until_the_next_answer(folder):
    """Also when the client is late, refused for another reason, set aside, or away."""
    board = StatusWriter(folder)
    told(board)
    reason = "Another message would bring its privacy loss to ε = 4.1; its owner allows 4."
    board(Event("refused", f"Round 1: The answer of client 1 is refused: it declines: {reason}", 1, 1, "declined"))
    assert board.status.clients[1].said.endswith(f"it declines: {reason}")
    for what in ("late", "refused", "aside", "away"):
        board(Event(what, f"Client kyoto is {what}.", 2, 1, "round" if what == "refused" else ""))
        assert board.status.clients[1].said == f"Client kyoto is {what}. It declined before: {reason}"
    assert Status.read(folder.status_file).clients[1].declined == reason
    board(Event("answered", "answered", 3, 1))
    board(Event("away", "Client kyoto is away.", 4, 1))
    assert board.status.clients[1].said == "Client kyoto is away."


def test_the_accuracy_that_an_owner_told_last_stays(folder):
    board = StatusWriter(folder)
    told(board)
    board(Event("answered", "answered", 1, 0, numbers={"accuracy": 0.75}))
    board(Event("answered", "answered", 2, 0))
    assert (board.status.clients[0].answered, board.status.clients[0].accuracy) == (2, 0.75)


def test_figures_go_on_when_the_server_is_started_again(folder):
    told(StatusWriter(folder))
    board = StatusWriter(folder)
    board(Event("committed", "Round 2 is done.", 2, numbers={"seconds": 1.5, "bytes_up": 1, "bytes_down": 2}))
    assert (board.status.done, board.status.seconds) == (2, 4.0)
    assert (board.status.bytes_up, board.status.bytes_down) == (6, 22)
    assert board.status.refused["content"] == 1


@pytest.mark.parametrize("what", ["started", "members"])
def test_amended_rounds_are_shown(folder, what):
    told(StatusWriter(folder))
    board = StatusWriter(folder)
    board(Event(what, "From round 2 on", 2, numbers={"rounds": 8, "done": 1}))
    board(Event("finished", "All 8 rounds are done.", 8, numbers={"rounds": 8}))
    assert (board.status.rounds, board.status.done) == (8, 8)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"format": 1}', b'{"format": 2}'])
def test_a_status_that_cannot_be_read_is_begun_anew(folder, content):
    folder.status_file.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        Status.read(folder.status_file)
    assert StatusWriter(folder).status.done == 0


def test_figures_of_another_agreement_are_not_taken_over(folder):
    told(StatusWriter(folder))
    other = folder.status_file.read_text().replace(folder.agreement.digest, "0" * 64)
    folder.status_file.write_text(other)
    assert StatusWriter(folder).status.bytes_up == 0


@pytest.mark.parametrize(
    ("event", "state"),
    [("waiting", "waiting"), ("finished", "done"), ("failed", "failed"), ("round", "running")],
)
def test_the_state_is_that_of_the_last_event(folder, event, state):
    board = StatusWriter(folder)
    told(board)
    board(Event(event, "A sentence.", 2))
    assert (Status.read(folder.status_file).state, board.status.text) == (state, "A sentence.")
    assert (board.status.done == 3) == (event == "finished")


def test_who_is_connected_is_told_once_until_it_changes(folder):
    board = StatusWriter(folder)
    board.open()
    board.update_presence({0})
    board.update_presence({0})
    assert [one.here for one in Status.read(folder.status_file).clients] == [True, False]
    board.update_presence({1})
    events = [(one["event"], one["name"]) for one in read_events(folder.log_folder / "server.jsonl")]
    assert events == [("connected", "berlin"), ("disconnected", "berlin"), ("connected", "kyoto")]
    board.close()
    assert not any(one.here for one in Status.read(folder.status_file).clients)


def test_a_client_that_is_added_while_the_server_runs_is_met(folder, tmp_path):
    board = StatusWriter(folder)
    board.open()
    folder.add("lima", make_client_key(tmp_path / "lima.key"))
    board.update_presence({2})
    assert [(one.name, one.here) for one in board.status.clients][2] == ("lima", True)


def test_an_event_of_a_number_that_nobody_has_changes_no_client(folder):
    board = StatusWriter(folder)
    board.open()
    board(Event("refused", "Somebody.", 1, 7, "unknown client"))
    assert board.status.refused["unknown client"] == 1
    assert [one.refused for one in board.status.clients] == [0, 0]


def test_the_same_denial_is_counted_each_time_and_logged_once(folder):
    board = StatusWriter(folder)
    for _ in range(5):
        board.deny("The key is not known.")
    board.deny("The request is too large.")
    assert board.status.denied == 6
    texts = [one["text"] for one in read_events(folder.log_folder / "server.jsonl")]
    assert texts == ["The key is not known.", "The request is too large."]
    board.update_presence(())
    assert Status.read(folder.status_file).denied == 6


def test_denials_of_many_kinds_fill_no_log(folder):
    """A stranger may come from many addresses."""
    board = StatusWriter(folder)
    for number in range(1000):
        board.deny(f"The handshake with {number} failed.")
    assert board.status.denied == 1000
    assert len(read_events(folder.log_folder / "server.jsonl", 1000)) == len(board._denials) == 20


def test_every_event_is_a_line_for_machines_and_one_for_people(folder, tmp_path):
    shown = []
    board = StatusWriter(folder, Log(tmp_path / "logs", "server", shown.append))
    told(board)
    lines = [json.loads(line) for line in (tmp_path / "logs" / "server.jsonl").read_text().splitlines()]
    texts = (tmp_path / "logs" / "server.log").read_text().splitlines()
    assert len(lines) == len(texts) == 9
    assert texts == shown
    refused = next(one for one in lines if one["event"] == "refused")
    assert {name: refused[name] for name in ("level", "round", "client", "name", "why")} == {
        "level": "warning", "round": 1, "client": 1, "name": "kyoto", "why": "content",
    }  # fmt: skip
    assert lines[-2]["numbers"] == {"replied": 1, "lost": 1, "seconds": 2.5, "bytes_up": 5, "bytes_down": 20}
    assert seconds_since(refused["time"]) < 3600


def test_what_a_client_says_cannot_write_lines_of_its_own_into_a_log(tmp_path):
    log = Log(tmp_path, "server")
    log.write("refused", 'It declines: x\n2026-01-01 error   All is lost.\x1b[2J"}' + "y" * 5000)
    (line,) = (tmp_path / "server.log").read_bytes().splitlines()
    assert b"\x1b" not in line
    assert len(line) < 1100
    (event,) = read_events(tmp_path / "server.jsonl")
    assert event["event"] == "refused"
    assert "\n" not in event["text"]
    assert stat.S_IMODE((tmp_path / "server.log").stat().st_mode) == 0o600


def test_a_log_that_has_grown_large_is_moved_aside(tmp_path, monkeypatch):
    monkeypatch.setattr("protonorm.deployment.events.LARGEST", 1000)
    log = Log(tmp_path, "server")
    for number in range(100):
        log.write("round", f"Round {number}.")
    names = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert names.keys() == {"server.log", "server.log.1", "server.jsonl", "server.jsonl.1"}
    assert max(names.values()) < 1200
    assert read_events(tmp_path / "server.jsonl", 1)[0]["text"] == "Round 99."


def test_lines_that_a_kill_has_cut_short_are_left_out(tmp_path):
    log = Log(tmp_path, "server")
    log.write("one", "One.")
    with log.machine.open("ab") as file:
        file.write(b'{"time": "20')
    assert [one["event"] for one in read_events(log.machine)] == ["one"]
    assert read_events(tmp_path / "nothing.jsonl") == []


def test_a_second_server_is_refused_and_told_who_is_first(tmp_path):
    path = tmp_path / "server.lock"
    with process_lock(path, "The server"):
        assert lock_owner(path) == os.getpid()
        said = []

        def second():
            try:
                with process_lock(path, "The server"):
                    pass
            except BlockingIOError as error:
                said.append(str(error))

        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
        assert said == [f"The server is running already, as process {os.getpid()}."]
    assert not is_locked(path)
    assert lock_owner(path) is None
    with process_lock(path, "The server"):
        pass


HOLDER = """
import sys, time
from pathlib import Path
from protonorm.deployment.process_lock import Ended, ended_by_signal, process_lock
try:
    with process_lock(Path(sys.argv[1]), "It"), ended_by_signal():
        print("ready", flush=True)
        time.sleep(600)
except Ended:
    sys.exit(7)
"""


def start_holder(path, code=HOLDER):
    made = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert made.stdout.readline() == "ready\n"
    return made


def test_who_holds_a_folder_can_be_asked_to_end(tmp_path):
    path = tmp_path / "server.lock"
    with start_holder(path) as process:
        assert lock_owner(path) == process.pid
        assert end_owner(path, "The server")
        assert process.wait() == 7
    assert not end_owner(path, "The server")


def test_who_was_killed_holds_nothing_and_nobody_else_is_taken_for_it(tmp_path):
    path = tmp_path / "server.lock"
    with start_holder(path) as process:
        process.kill()
        process.wait()
    assert path.with_suffix(".process").exists()
    assert not is_locked(path)
    assert not end_owner(path, "The server")
    with process_lock(path, "The server"):
        note = path.with_suffix(".process")
        note.write_text(json.dumps({"process": os.getpid(), "began": "0"}))
        assert lock_owner(path) is None
        with pytest.raises(Failed, match="does not say as which process"):
            end_owner(path, "The server")


def test_one_that_does_not_end_is_told(tmp_path):
    stubborn = HOLDER.replace("import sys, time", "import sys, time, signal").replace(
        "        time.sleep", "        signal.signal(signal.SIGTERM, signal.SIG_IGN)\n        time.sleep"
    )
    stubborn = stubborn.replace('        print("ready", flush=True)\n', "").replace(
        "        time.sleep", '        print("ready", flush=True)\n        time.sleep'
    )
    path = tmp_path / "server.lock"
    with start_holder(path, stubborn) as process:
        with pytest.raises(Failed, match=r"has not ended after 0\.3 seconds"):
            end_owner(path, "The server", 0.3)
        process.kill()


def test_a_server_that_was_killed_is_not_shown_as_running(folder):
    told(StatusWriter(folder))
    found = Status.read(folder.status_file)
    board = StatusWriter(folder)
    board.open()
    assert Status.read(folder.status_file).state_now == "running"
    found.process, found.process_began = os.getpid(), "0"
    assert found.state_now == "stopped"
    board.close()
    assert Status.read(folder.status_file).state == "stopped"
    assert is_alive(os.getpid(), process_began(os.getpid()))
    assert not is_alive(1, process_began(1))


def test_a_view_before_anything_has_begun(folder):
    seen = view_federation(folder)
    assert (seen["state"], seen["rounds"], seen["done"], seen["history"]) == ("ready", 3, 0, [])
    assert [(one["name"], one["here"]) for one in seen["clients"]] == [("berlin", False), ("kyoto", False)]
    assert seen["server"]["running"] is False


def text_of(seen):
    from io import StringIO

    from rich.console import Console

    console = Console(file=StringIO(), width=200)
    for part in federation_tables(seen):
        console.print(part)
    return console.file.getvalue()


def test_a_view_tells_rounds_clients_and_problems(folder):
    board = StatusWriter(folder)
    with process_lock(folder.server_lock, "The server"):
        board.open()
        told(board)
        board.update_presence({0})
        seen = view_federation(folder)
    assert seen["server"] == {"running": True, "process": os.getpid(), "address": "localhost"}
    assert [one["here"] for one in seen["clients"]] == [True, False]
    assert [one["event"] for one in seen["problems"]] == ["refused", "late"]
    text = text_of(seen)
    for said in ("hospitals: the server is running", "round 1 of 3, 1 of 2 must answer", "1 of 3 are done", "kyoto"):
        assert said in text
    assert "1 content" in text
    assert json.dumps(seen)
    assert not view_federation(folder)["clients"][0]["here"]  # the server is gone, and with it who was connected


def test_who_has_confirmed_amended_terms_is_shown_until_all_have(folder):
    """Before the rounds are requested, while they wait, and while they run without a member; both are named."""
    board = StatusWriter(folder)
    board.open()
    board(Event("started", "0 of 3 rounds are done.", numbers={"rounds": 3, "done": 0, "clients": 2}))
    board(Event("finished", "All 3 rounds are done.", 3, numbers={"rounds": 3}))
    terms = folder.amend({"rounds": 9, "algorithm": {"lam": 2.0}}, 4)
    change = "algorithm.lam (2.0 instead of 1.0), rounds (9 instead of 3)"
    said = f"Terms from round 4 on, {change}: 0 of 2 have confirmed them; not yet: berlin, kyoto."
    assert said in text_of(view_federation(folder))
    folder.change(0, confirmed=terms.digest)
    board(Event("waiting", "Round 4 waits.", 4, numbers={"needed": 2, "rounds": 9}))
    seen = view_federation(folder)
    assert "round 4 of 9, 2 of 2 must answer" in text_of(seen)
    assert [one["standing"] for one in seen["clients"]] == ["", "unconfirmed"]
    assert seen["clients"][1]["said"] == "It is not asked until its owner confirms the terms from round 4 on."
    assert [(one["confirmed"], one["missing"]) for one in seen["terms"]] == [(["berlin"], ["kyoto"])]
    assert "1 of 2 have confirmed them; not yet: kyoto." in text_of(seen)
    assert b"not yet: kyoto" in render(lambda: view_federation(folder), standing)[1]
    folder.change(1, confirmed=terms.digest)
    assert "2 of 2 have confirmed them." in text_of(view_federation(folder))
    board(Event("committed", "Round 4 is done.", 4, numbers={}))
    assert view_federation(folder)["terms"] == []


def test_accuracy_so_far_is_read_from_the_record(folder):
    history = [{"round": 1, "test": 0.5, "pooled": 0.25, "validation": None}]
    text = text_of(view_federation(folder) | {"done": 1, "rule": "nearest-global", "history": history})
    assert "50.00" in text
    assert "25.00" in text
    assert "Rule nearest-global" in text
    assert "No accuracy yet" in text_of(view_federation(folder) | {"done": 1})


def test_an_accuracy_that_an_owner_told_has_a_column_and_the_rule_is_in_the_head(folder):
    board = StatusWriter(folder)
    told(board)
    text = text_of(view_federation(folder))
    assert "accuracy" not in text.split("Rounds:")[0]
    assert text.startswith(f"Messages are combined by the rule {folder.agreement.combine}.")
    board(Event("answered", "answered", 1, 0, numbers={"accuracy": 0.755}))
    board.close()
    text = text_of(view_federation(folder)).split("Rounds:")[0]
    assert "accuracy" in text
    assert "75.50" in text


def test_a_client_sees_itself(tmp_path):
    client = ClientFolder.create(tmp_path / "berlin", "berlin")
    Log(client.log_folder, "client").write("connected", "The client is connected.")
    seen = view_client(client)
    assert (seen["joined"], seen["running"], seen["allowed"]) == (False, False, "off")
    text = client_lines(seen)
    assert "not running; no agreement is confirmed yet" in text
    assert "The client is connected." in text
