"""Figures for Prometheus: what stands in the status file, in the form that Prometheus reads."""

import re
import socket
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from protonorm.deployment.service import serve_metrics
from protonorm.deployment.status import ClientStatus, Status
from protonorm.errors import Failed


@pytest.fixture
def status(tmp_path):
    clients = [
        ClientStatus(id=0, name="berlin", here=True, state="answered", answers=7, late=1, accuracy=0.625),
        ClientStatus(id=1, name="kyoto", state="late", answers=5, late=3, refused=2),
    ]
    made = Status(
        federation="hospitals",
        agreement="0" * 64,
        rounds=10,
        state="failed",
        round=8,
        done=7,
        needed=1,
        seconds=21.5,
        last_seconds=2.5,
        bytes_up=1000,
        bytes_down=2000,
        refused={"content": 2, "late": 0},
        denied=4,
        accuracies={"test.nearest-global": 0.75},
        clients=clients,
    )
    made.write(tmp_path / "status.json")
    return tmp_path / "status.json"


def read(port, path="/metrics"):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return answer.read().decode()


def figures(path):
    """Return each figure by its name and labels, as a reader of Prometheus' own parses it."""
    with serve_metrics(path, 0, "1.2.3") as port:
        text = read(port)
    return {
        (one.name, *sorted(one.labels.values())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_all_that_is_asked_for_is_there(status):
    found = figures(status)
    expected = {
        ("protonorm_up",): 1,
        ("protonorm_version", "1.2.3"): 1,
        ("protonorm_rounds",): 10,
        ("protonorm_round",): 8,
        ("protonorm_rounds_done",): 7,
        ("protonorm_quorum_clients",): 1,
        ("protonorm_state", "failed"): 1,
        ("protonorm_state", "running"): 0,
        ("protonorm_clients", "answered"): 1,
        ("protonorm_clients", "late"): 1,
        ("protonorm_clients", "absent"): 0,
        ("protonorm_clients_connected",): 1,
        ("protonorm_client_answers_total", "berlin"): 7,
        ("protonorm_client_late_total", "kyoto"): 3,
        ("protonorm_client_refused_total", "kyoto"): 2,
        ("protonorm_client_connected", "berlin"): 1,
        ("protonorm_client_connected", "kyoto"): 0,
        ("protonorm_client_accuracy", "berlin"): 0.625,
        ("protonorm_client_accuracy", "kyoto"): None,  # its owner does not tell it
        ("protonorm_refused_messages_total", "content"): 2,
        ("protonorm_refused_messages_total", "late"): 0,
        ("protonorm_denied_requests_total",): 4,
        ("protonorm_round_seconds_total",): 21.5,
        ("protonorm_last_round_seconds",): 2.5,
        ("protonorm_bytes_total", "up"): 1000,
        ("protonorm_bytes_total", "down"): 2000,
        ("protonorm_accuracy", "test.nearest-global"): 0.75,
    }
    assert {name: found.get(name) for name in expected} == expected


def test_every_figure_says_what_it_is(status):
    with serve_metrics(status, 0, "1") as port:
        text = read(port)
    families = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M)
    assert {kind for _, kind in families} == {"gauge", "counter"}
    assert len(re.findall(r"^# HELP \S+ [A-Z1].*\.$", text, re.M)) == len(families)


def test_figures_are_read_anew_each_time(status):
    with serve_metrics(status, 0, "1") as port:
        changed = Status.read(status)
        changed.done = 8
        changed.write(status)
        assert "protonorm_rounds_done 8.0" in read(port)


@pytest.mark.parametrize("content", [None, b"{"])
def test_without_a_status_that_can_be_read_the_figures_say_so(tmp_path, content):
    path = tmp_path / "status.json"
    if content is not None:
        path.write_bytes(content)
    assert figures(path) == {("protonorm_up",): 0, ("protonorm_version", "1.2.3"): 1}


def test_figures_are_for_this_machine_alone_and_their_port_is_given_back(status):
    with serve_metrics(status, 0, "1") as port:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), 5)  # another address of this machine
        with (
            pytest.raises(Failed, match=f"The port {port} for figures cannot be used"),
            serve_metrics(status, port, "1"),
        ):
            pass
    with serve_metrics(status, port, "1"):
        pass
