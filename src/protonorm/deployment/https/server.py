"""Server of a federation in a background thread: holds requests for work, and takes answers.

All of its state belongs to one event loop, and is in memory: after a restart requests are repeated. Whatever a client
sends ends in a response or a cut connection of that client.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import ssl
import threading
import time
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from aiohttp import web

from protonorm.deployment.engine import Arrived
from protonorm.deployment.federation_folder import Member
from protonorm.deployment.https import protocol as wire
from protonorm.deployment.https.calls import Calls, Clients, LogLine, OnConnect
from protonorm.deployment.https.listener import Limits, Listener
from protonorm.deployment.settings import TlsFiles
from protonorm.errors import Failed

SWEEP = 0.25  # seconds between two looks at connections and at the roster
GRACE = 30.0  # seconds that a disconnected client has to come back before it is reported as lost
STARTING, DRAINING, CLOSING = 30.0, 10.0, 1.0  # seconds
LINGER = 1.0  # seconds in which the rest of a refused request is discarded

T = TypeVar("T")


def ignoring_disk_errors(callback: Callable[..., None]) -> Callable[..., None]:
    """Return a function that reports, and does nothing if that cannot be written, as on a full disk."""

    def report(*words: Any) -> None:
        with suppress(OSError):
            callback(*words)

    return report


class Server:
    """HTTPS server and transport of the round loop, used as a context manager."""

    def __init__(
        self,
        host: str,
        port: int,
        files: TlsFiles,
        roster: Callable[[], Sequence[Member]],
        largest: int,
        *,
        log: LogLine = lambda sentence: None,
        on_connect: OnConnect = lambda client, address, version, certificate: None,
        limits: Limits = Limits(),  # noqa: B008
        hold: float = wire.HOLD,
        grace: float = GRACE,
        on_leave: Callable[[int], None] = lambda id: None,  # a client wants to leave the federation
    ) -> None:
        try:
            context = wire.tls_context(ssl.PROTOCOL_TLS_SERVER, *files)
        except (ssl.SSLError, OSError) as error:
            raise Failed(f"The server's certificate and key cannot be used: {error.strerror or error}.") from None
        self._log, self._limits, self._grace = ignoring_disk_errors(log), limits, grace
        self._clients = Clients(roster, self._log)
        self._listener = Listener(host, port, context, limits, self._log)
        on_connect = ignoring_disk_errors(on_connect)
        self._calls = Calls(self._clients, self._listener, largest, hold, self._log, on_connect, on_leave)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started, self._ending = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="https", daemon=True)

    @property
    def port(self) -> int:
        """Port that the server listens at."""
        return self._listener.port

    def __enter__(self) -> Server:
        self._thread.start()
        if not self._started.wait(STARTING):
            raise Failed("The server could not be started.")
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(2 * DRAINING)

    # Transport of the round loop, called from its thread

    def push(self, requests: Mapping[int, bytes]) -> Mapping[int, str]:
        """Send requests; return the reasons for clients that cannot be reached."""
        return self._in_loop(lambda: self._push(requests))

    def pull(self, seconds: float) -> Sequence[Arrived]:
        """Return what has arrived, waiting at most so many seconds if nothing has."""
        arrived = []
        with suppress(queue.Empty):
            arrived.append(self._clients.arrived.get(timeout=max(0.0, seconds)))
            while True:
                arrived.append(self._clients.arrived.get_nowait())
        return arrived

    def close(self) -> None:
        """Withdraw all pending requests."""
        with suppress(Failed):  # the server has ended
            self._in_loop(self._clients.withdraw)

    def present(self) -> set[int]:
        """Return the ids of the connected clients."""
        return self._in_loop(self._present)

    def _in_loop(self, act: Callable[[], T]) -> T:
        """Call a function in the server's thread, and return its result."""

        async def call() -> T:
            return act()

        if self._loop is None or not self._thread.is_alive():
            raise Failed("The server is not running.")
        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(STARTING)

    def _push(self, requests: Mapping[int, bytes]) -> dict[int, str]:
        here = self._present(requests)
        for id in here:
            self._clients[id].push(requests[id])
        return {id: "it is not connected" for id in requests if id not in here}

    def _present(self, among: Container[int] | None = None) -> set[int]:
        """Return the clients with an open connection by which they have asked for work, also among few of many."""
        keys = [(key, id) for key, id in self._clients.ids.items() if among is None or id in among]
        return {id for key, id in keys if any(own.instance for own in self._listener.open_with(key))}

    # The server's thread

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        logger = logging.Logger("protonorm.https")
        logger.addFilter(self._forward)
        runner = web.AppRunner(
            self._calls.application(),
            handler_cancellation=True,  # a poll ends with its connection
            auto_decompress=False,  # a small body could become a large one
            lingering_time=LINGER,
            keepalive_timeout=self._limits.working,
            tcp_keepalive=False,  # the listener sets it
            access_log=None,
            logger=logger,
            shutdown_timeout=CLOSING,
        )
        await runner.setup()
        assert runner.server is not None
        duties = self._listener.accept(), self._listener.begin(runner.server), self._watch()
        tasks = [asyncio.create_task(duty) for duty in duties]
        self._started.set()
        await self._ending.wait()
        for task in tasks:
            task.cancel()
        self._calls.ending = True
        self._clients.withdraw()
        for client in self._clients:
            client.wake()
        end = time.monotonic() + DRAINING
        while self._calls.busy and time.monotonic() < end:  # answers that aiohttp's cleanup would cut
            await asyncio.sleep(0.01)
        await runner.cleanup()
        await self._listener.close()

    def _forward(self, record: logging.LogRecord) -> bool:
        """Report what aiohttp logs, such as a request that is no HTTP, without its traceback."""
        error = record.exc_info[0] if record.exc_info else None
        self._log(f"{record.getMessage()} ({error.__name__ if error else 'no details'}).")
        return False

    async def _watch(self) -> None:
        """Look after the roster, connections and disconnected clients again and again."""
        while True:
            await asyncio.sleep(SWEEP)
            self._clients.refresh()
            self._listener.sweep(self._clients.ids)
            here, now = self._present(), time.monotonic()
            for client in self._clients:
                if not client.request or client.id in here:
                    client.away = 0.0
                    continue
                client.away = client.away or now
                if now - client.away > self._grace:
                    self._clients.lose(client, "it went away and did not come back")
