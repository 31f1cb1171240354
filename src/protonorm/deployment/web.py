"""Status page of a federation: one HTML page, without scripts and other files, that reads itself anew. No torch.

It is for this machine alone, or behind a password: then the operator's own proxy gives it TLS.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from protonorm.deployment.settings import address_of, is_loopback
from protonorm.deployment.status import now
from protonorm.errors import Failed

VARIABLE = "PROTONORM_STATUS_PASSWORD"
SHORTEST = 12  # characters of a password
EVERY, LAST = 5, 20  # seconds between two reads of the page, and rounds that it shows
AT_ONCE, SILENCE, PENALTY = 16, 10.0, 1.0  # requests at a time; seconds of silence, and after a wrong password
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;margin:0;color:#1b1b1b;background:#fff}main{max-width:70rem;margin:auto;"
    "padding:1rem}h1{margin:.2em 0}dl{display:grid;grid-template-columns:max-content 1fr;gap:.2em 1em}dt{color:#555}dd{"
    "margin:0}table{border-collapse:collapse;display:block;overflow-x:auto}th,td{padding:.25em .7em;text-align:left;"
    "border-bottom:1px solid #ddd;white-space:nowrap}.wide,li{white-space:normal;overflow-wrap:anywhere}"
    ".bad{color:#a00}.small{color:#555;font-size:.85em}@media(prefers-color-scheme:dark){body{color:#eee;background:#161616}dt,.small{"
    "color:#aaa}th,td{border-color:#444}.bad{color:#f88}}"
)
STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; img-src data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def read_password(file: Path | None) -> str:
    """Read the password from a file's first line, or from the environment; "" if there is none."""
    if file is None:
        password = os.environ.get(VARIABLE, "")
    else:
        password = (file.read_text().splitlines() or [""])[0].strip()
        if not password:
            raise ValueError(f"{file} must hold a password in its first line; it is empty.")
        if os.name == "posix" and file.stat().st_mode & 0o077:
            raise ValueError(f"{file} can be read by others than its owner: chmod 600 it.")
    if password and len(password) < SHORTEST:
        raise ValueError(f"The password must have at least {SHORTEST} characters, got {len(password)}.")
    return password


def render(view: Callable[[], dict[str, Any]], standing: Callable[[dict[str, Any]], str]) -> tuple[int, bytes]:
    """Render the page: HTTP status and content."""
    loader = FileSystemLoader(Path(__file__).parent)
    jinja = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    jinja.filters["per_cent"] = lambda value: "–" if value is None else f"{100 * value:.2f}"
    values: dict[str, Any] = {"every": EVERY, "last": LAST, "style": STYLE, "now": now(), "problem": ""}
    try:
        seen = view()
        values |= {"seen": seen, "standing": standing(seen)}
    except (ValueError, OSError) as error:
        values |= {"seen": None, "problem": str(error)}
    return 200 if values["seen"] else 503, jinja.get_template("status.html.j2").render(values).encode()


@contextmanager
def serve_page(page: Callable[[], tuple[int, bytes]], host: str, port: int, password: str = "") -> Iterator[str]:
    """Serve a page within the context; yield its address. Without a password it is for this machine alone."""
    if not password and not is_loopback(host):
        raise ValueError(
            f"The page needs a password at {host}, which others can reach: --password-file FILE, or {VARIABLE}."
        )
    expected = f"Basic {base64.b64encode(f'protonorm:{password}'.encode()).decode()}"
    slots = threading.Semaphore(AT_ONCE)

    class Handler(BaseHTTPRequestHandler):
        timeout = SILENCE
        server_version, sys_version = "protonorm", ""

        def do_GET(self) -> None:
            """Answer with the page."""
            with slots:
                self._answer()

        do_HEAD = do_GET  # noqa: N815

        def _answer(self) -> None:
            authorization = self.headers.get("Authorization", "").encode(errors="replace")
            if password and not hmac.compare_digest(hashed(authorization), hashed(expected.encode())):
                if authorization:
                    time.sleep(PENALTY)
                self._send(401, b"A password is needed; the name is protonorm.\n", {"WWW-Authenticate": "Basic"})
            elif not password and not is_local(self.headers.get("Host", "")):
                self._send(403, b"This page is for this machine alone.\n", {})  # a page elsewhere may not read it
            elif self.path != "/":
                self._send(404, b"There is one page here: /\n", {})
            else:
                self._send(*page(), {})

        def _send(self, status: int, content: bytes, more: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**HEADERS, **more, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Log nothing: addresses of readers are nobody's business."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def handle_error(self, *_: object) -> None:
            """Ignore a reader that went away."""

    try:
        server = Server((host, port), Handler)
    except OSError as error:
        raise Failed(f"The page cannot be served at {address_of(host, port)}: {error.strerror or error}.") from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{address_of(host, server.server_port)}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def hashed(text: bytes) -> bytes:
    """Return a hash, so that a comparison takes as long for passwords of any length."""
    return hashlib.sha256(text).digest()


def is_local(host: str) -> bool:
    """Return whether a Host header names this machine, with or without a port."""
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    return is_loopback(name)
