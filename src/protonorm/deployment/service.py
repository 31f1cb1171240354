"""Server and client processes with lock, logs, status file and Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from protonorm.deployment.audit import ServerTrail
from protonorm.deployment.client_folder import ClientFolder
from protonorm.deployment.events import Event, Log
from protonorm.deployment.federation_folder import FederationFolder
from protonorm.deployment.process_lock import ended_by_signal, process_lock
from protonorm.deployment.settings import address_of
from protonorm.deployment.status import Presence, State, Status, StatusWriter, seconds_since
from protonorm.errors import Failed
from protonorm.files import make_folder

if TYPE_CHECKING:
    from protonorm.deployment.https.server import Server

LOOPBACK = "127.0.0.1"
Value = float | Mapping[str, float]  # of a metric; by label, if it has one
WARNINGS = ("waiting", "unreachable", "declined", "dropped", "version")  # of a client
PAGE = "report.html"  # in the run folder
COUNTERS = ("denied_requests", "round_seconds", "bytes", "refused_messages")  # apart from those of clients
OF_CLIENTS = {
    "answers": "Answers of a client that counted.",
    "late": "Rounds that a client was lost for.",
    "refused": "Answers of a client that did not count.",
}


class Figures(Collector):
    """Prometheus collector that reads the status file on each scrape; `protonorm_up 0` if it is unreadable."""

    def __init__(self, path: Path, version: str) -> None:
        self._path, self._version = path, version

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics."""
        try:
            status = Status.read(self._path)
        except (ValueError, OSError):
            status = None
        yield _metric("up", "Whether there is a status to be read.", float(status is not None))
        yield _metric("version", "The version of protonorm.", {self._version: 1}, "version")
        yield from starmap(_metric, _figures(status) if status else ())


def _figures(status: Status) -> Iterator[tuple[str, str, Value] | tuple[str, str, Value, str]]:
    """Yield name, description and value of each metric; values by label with the label's name."""
    yield "rounds", "Rounds that are agreed on.", status.rounds
    yield "round", "The round that is on.", status.round
    yield "rounds_done", "Rounds that are committed.", status.done
    yield "quorum_clients", "Clients that must answer in a round.", status.needed
    yield "clients_connected", "Clients that are connected.", sum(client.here for client in status.clients)
    yield "last_round_seconds", "Seconds of the last round.", status.last_seconds
    if (age := seconds_since(status.updated)) is not None:
        yield "status_age_seconds", "Seconds since something changed.", max(0.0, age)
    states = {state: float(status.state_now == state) for state in get_args(State)}
    yield "state", "1 for the state that the federation is in.", states, "state"
    clients = {presence: status.count(presence) for presence in get_args(Presence)}
    yield "clients", "Clients by how they stand.", clients, "state"
    yield "accuracy", "Accuracies of the last evaluated round.", status.accuracies, "rule"
    yield "denied_requests", "Requests that were not let in.", status.denied
    yield "round_seconds", "Seconds of all committed rounds.", status.seconds
    carried = {"up": status.bytes_up, "down": status.bytes_down}
    yield "bytes", "Bytes of tensors that were carried.", carried, "direction"
    yield "refused_messages", "Answers that did not count, by why.", status.refused, "why"
    for name, text in OF_CLIENTS.items():
        counts = {client.name: getattr(client, name) for client in status.clients}
        yield f"client_{name}", text, counts, "client"
    here = {client.name: float(client.here) for client in status.clients}
    yield "client_connected", "Whether a client is connected.", here, "client"
    accuracies = {client.name: client.accuracy for client in status.clients if client.accuracy is not None}
    yield "client_accuracy", "Last accuracy of a client, as far as its owner tells it.", accuracies, "client"


def _metric(name: str, text: str, value: Value, label: str = "") -> Metric:
    counted = name in COUNTERS or name.removeprefix("client_") in OF_CLIENTS
    kind = CounterMetricFamily if counted else GaugeMetricFamily
    if not isinstance(value, Mapping):
        return kind(f"protonorm_{name}", text, value=value)
    family = kind(f"protonorm_{name}", text, labels=[label])
    for key, number in value.items():
        family.add_metric([key], number)
    return family


@contextmanager
def serve_metrics(path: Path, port: int, version: str) -> Iterator[int]:
    """Serve a status file's metrics at http://127.0.0.1:PORT/metrics within the context; yield the port."""
    registry = CollectorRegistry()
    registry.register(Figures(path, version))
    try:
        server, thread = start_http_server(port, LOOPBACK, registry)
    except OSError as error:
        raise Failed(f"The port {port} for figures cannot be used: {error.strerror or error}.") from None
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def serve_client(folder: ClientFolder, show: Callable[[str], None] | None = None) -> None:
    """Run and log a client until the rounds are done or a signal arrives."""
    from protonorm.deployment.worker import run_client

    folder.show, log = show, Log(folder.log_folder, "client", show)

    def notify(event: str, sentence: str) -> None:
        log.write(event, sentence, "warning" if event in WARNINGS else "info")

    try:
        run_client(folder, notify)
    except KeyboardInterrupt:
        log.write("ended", "The client was asked to end.")
        raise
    except (Failed, ValueError, OSError) as error:
        silent = Log(folder.log_folder, "client")  # without `show`: the command prints the error itself
        silent.write("refused", str(error), "error", by="server" if isinstance(error, Failed) else "client")
        raise


def serve_folder(folder: FederationFolder, show: Callable[[str], None] | None = None, *, once: bool = False) -> None:
    """Serve a federation until a signal arrives; with `once` run its rounds and return when they are done."""
    with ExitStack() as stack:
        stack.enter_context(process_lock(folder.server_lock, f"The server of {folder.path}"))
        if once:
            folder.wanted.touch(mode=0o600)
        from protonorm import __version__  # slow imports, after the lock: the server already counts as running
        from protonorm.deployment.https import serving

        make_folder(folder.run_folder)
        log = Log(folder.log_folder, "server", show)
        writer = StatusWriter(folder, log)
        trail = ServerTrail(folder.trail, lambda id: folder.roster[id].name)
        if folder.settings.metrics_port is not None:
            stack.enter_context(serve_metrics(folder.status_file, folder.settings.metrics_port, __version__))
        writer.open()
        stack.callback(writer.close)

        def on_ready(server: Server) -> None:
            address = address_of(folder.settings.bind, server.port)
            log.write("ready", f"The server listens at {address}.")
            folder.trail.write("listening", address=address, version=__version__, agreement=folder.agreement.digest)
            stack.enter_context(serving.report_presence(server, writer.update_presence))

        def notify(event: Event) -> None:
            writer(event)
            trail(event)
            if event.what == "finished":
                _write_report(folder, log)

        def deny(sentence: str) -> None:
            writer.deny(sentence)
            trail.deny(sentence)

        try:
            with ended_by_signal():
                connected = trail.record_connection
                serving.serve(folder, notify, on_denied=deny, on_connect=connected, on_ready=on_ready, once=once)
        except KeyboardInterrupt:
            log.write("ended", "The server was asked to end.")
            raise
        except (Failed, ValueError, OSError) as error:
            if writer.status.state == "failed":
                folder.wanted.unlink(missing_ok=True)  # a restart would fail the same way
            with suppress(OSError):  # the disk may be full
                log.write("ended", str(error), "error")
            raise


def _write_report(folder: FederationFolder, log: Log) -> None:
    """Write the HTML report of a finished run."""
    from protonorm.report.page import write_page
    from protonorm.runs.run import read_whole

    try:
        page = write_page([read_whole(folder.run_folder)], folder.run_folder / PAGE)
    except (ValueError, OSError) as error:  # the record is complete; the report can be written later
        log.write("report", f"The report could not be written: {error}", "warning")
    else:
        log.write("report", f"Report: {page}")
