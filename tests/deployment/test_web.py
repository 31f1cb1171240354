"""The status page: what it shows, who may see it, and that it works in a real browser."""

import base64
import http.client
import re
import socket
import subprocess
import sys

import pytest

from protonorm.cli.deploy_status import standing
from protonorm.deployment import web
from protonorm.deployment.events import Event
from protonorm.deployment.status import StatusWriter, view_federation
from protonorm.deployment.web import read_password, render, serve_page
from protonorm.errors import Failed
from tests.deployment.processes import free_port
from tests.report.test_browser import FLAGS, browser  # noqa: F401

NASTY = '<script>alert("x")</script><img src=x onerror=alert(1)>'
PASSWORD = "correct horse battery"


@pytest.fixture
def writer(folder):
    made = StatusWriter(folder)
    made(Event("started", "0 of 3 rounds are done.", numbers={"rounds": 3, "done": 0}))
    made(Event("round", "Round 1 of 3 begins.", 1, numbers={"clients": 2, "needed": 2}))
    made(Event("answered", "answered", 1, 0, numbers={"bytes": 5, "accuracy": 0.8125}))
    made(Event("refused", f"It declines: {NASTY}", 1, 1, "declined"))
    made(Event("late", f"Late: {NASTY}", 1, 1))
    made(Event("committed", "Round 1 is done.", 1, numbers={"seconds": 2.5}))
    return made


@pytest.fixture
def page(folder, writer):
    return lambda: render(lambda: view_federation(folder), standing)


def get(address, path="/", method="GET", **headers):
    host, port = re.fullmatch(r"http://(.*):(\d+)/", address).groups()
    line = http.client.HTTPConnection(host, int(port), timeout=20)
    line.request(method, path, headers=headers)
    answer = line.getresponse()
    found = answer.status, answer.read().decode(), answer.headers
    line.close()
    return found


def test_the_page_shows_how_the_federation_stands(page):
    with serve_page(page, "127.0.0.1", 0) as address:
        status, text, headers = get(address)
    plain = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))
    assert status == 200
    assert "1 of 3" in plain
    assert "2 of 2 clients must answer" in plain
    assert "0 of 2" in plain
    assert "Combined by trust" in plain
    assert "1 declined; 0 requests were not let in" in plain
    assert "berlin no answered round 1 1 0 0 81.25" in plain
    assert "kyoto no late – 0 1 1 –" in plain
    assert headers["Cache-Control"] == "no-store"


def test_nothing_is_loaded_and_no_text_of_others_is_markup(page):
    with serve_page(page, "127.0.0.1", 0) as address:
        _, text, headers = get(address)
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;script&gt;" in text
    assert set(re.findall(r'(?:src|href)="([^"]*)"', text)) == {"data:,"}
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'sha256-")


def test_it_is_read_anew_each_time_and_damage_is_a_sentence(page, folder, writer):
    with serve_page(page, "127.0.0.1", 0) as address:
        writer(Event("committed", "Round 2 is done.", 2, numbers={"seconds": 2.5}))
        assert 'id="rounds">2 of 3' in get(address)[1]
        folder.status_file.write_text("{")
        status, text, _ = get(address)
        assert status == 503
        assert "is damaged" in text


def test_another_path_method_or_host_is_refused(page):
    with serve_page(page, "127.0.0.1", 0) as address:
        assert get(address, "/../etc/passwd")[0] == 404
        assert get(address, method="HEAD")[:2] == (200, "")
        assert get(address, method="POST")[0] == 501
        assert get(address, Host="evil.example")[0] == 403  # a page elsewhere that names this address
        assert get(address, Host="127.0.0.1.evil.example")[0] == 403
        assert get(address, Host="localhost:1")[0] == 200
        assert get(address, Host="[::1]:1")[0] == 200


def test_others_need_the_password_which_is_compared_in_constant_time(page, monkeypatch):
    monkeypatch.setattr(web, "PENALTY", 0.0)
    compared = []
    real = web.hmac.compare_digest
    monkeypatch.setattr(web.hmac, "compare_digest", lambda *both: compared.append(both) or real(*both))
    with pytest.raises(ValueError, match=r"needs a password at 0\.0\.0\.0"), serve_page(page, "0.0.0.0", 0):
        pass
    with serve_page(page, "0.0.0.0", 0, PASSWORD) as address:
        address = address.replace("0.0.0.0", "127.0.0.1")
        status, text, headers = get(address)
        assert (status, headers["WWW-Authenticate"]) == (401, "Basic")
        assert "berlin" not in text
        for given, expected in ((f"protonorm:{PASSWORD}", 200), (f"protonorm:{PASSWORD}x", 401), ("\xff", 401)):
            own = base64.b64encode(given.encode()).decode()
            assert get(address, Authorization=f"Basic {own}", Host="proxy.example")[0] == expected
        assert get(address, Authorization="\xff\xfe")[0] == 401
    assert len(compared) == 5
    assert {len(one) for both in compared for one in both} == {32}


def test_the_password_comes_from_a_private_file_or_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv(web.VARIABLE, raising=False)
    assert read_password(None) == ""
    monkeypatch.setenv(web.VARIABLE, PASSWORD)
    assert read_password(None) == PASSWORD
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD} two\nmore\n")
    file.chmod(0o644)
    with pytest.raises(ValueError, match="can be read by others"):
        read_password(file)
    file.chmod(0o600)
    assert read_password(file) == f"{PASSWORD} two"
    file.write_text("")
    with pytest.raises(ValueError, match="first line; it is empty"):
        read_password(file)
    file.write_text("short")
    with pytest.raises(ValueError, match="at least 12 characters, got 5"):
        read_password(file)


def test_a_port_in_use_is_told_and_silent_readers_stop_nobody(page, monkeypatch):
    monkeypatch.setattr(web, "SILENCE", 0.5)
    with serve_page(page, "127.0.0.1", 0) as address:
        port = int(address.rsplit(":", 1)[1].rstrip("/"))
        with pytest.raises(Failed, match="Address already in use"), serve_page(page, "127.0.0.1", port):
            pass
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(30)]
        assert get(address)[0] == 200
        silent[0].settimeout(20)
        assert silent[0].recv(1) == b""  # it is cut
        for one in silent:
            one.close()


def test_the_command_serves_until_it_is_ended(folder, writer):
    port = free_port()
    words = ["status", "--web", "--folder", str(folder.path), "--port", str(port)]
    with subprocess.Popen(
        [sys.executable, "-m", "protonorm", "deploy", *words], stdout=subprocess.PIPE, text=True
    ) as process:
        assert f"http://127.0.0.1:{port}/" in process.stdout.readline()
        assert get(f"http://127.0.0.1:{port}/")[0] == 200
        process.terminate()
        assert process.wait(30) in (0, -15, 143)


def test_a_real_browser_shows_it_and_reads_it_anew(browser, page, writer, monkeypatch):  # noqa: F811
    monkeypatch.setattr(web, "EVERY", 1)
    complaints, asked = [], []
    with serve_page(page, "127.0.0.1", 0) as address:
        context = browser.new_context(viewport={"width": 800, "height": 600})
        opened = context.new_page()
        opened.on("console", lambda message: complaints.append(message.text))
        opened.on("pageerror", lambda error: complaints.append(str(error)))
        opened.on("dialog", lambda dialog: complaints.append("dialog"))
        opened.on("request", lambda request: asked.append(request.url))
        opened.goto(address)
        assert opened.locator("#clients tbody tr").count() == 2
        assert opened.locator("#rounds").inner_text() == "1 of 3"
        assert NASTY in opened.locator("#clients tbody tr").nth(1).inner_text()
        assert opened.locator("dl").evaluate("one => getComputedStyle(one).display") == "grid"  # its style is let in
        wide = opened.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert wide
        writer(Event("committed", "Round 2 is done.", 2, numbers={"seconds": 2.5}))
        opened.locator("#rounds", has_text="2 of 3").wait_for(timeout=20_000)
        context.close()
    assert not complaints
    assert set(asked) == {address}
