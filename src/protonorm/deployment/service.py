"""Server and client processes with lock, logs, status file and Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from protonorm.deployment.events import Event, Log, tell_all
from protonorm.deployment.folders import ClientFolder, FederationFolder
from protonorm.deployment.process_lock import ended_by_signal, process_lock
from protonorm.deployment.settings import address_of
from protonorm.deployment.status import Presence, State, Status, StatusWriter, seconds_since
from protonorm.errors import Failed
from protonorm.files import make_folder

if TYPE_CHECKING:
    from protonorm.deployment.https.server import Server

LOOPBACK = "127.0.0.1"
WARNINGS = ("waiting", "unreachable", "declined", "dropped", "version")  # of a client
PAGE = "report.html"  # in the run folder
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
            found = Status.read(self._path)
        except (ValueError, OSError):
            found = None
        yield _gauge("up", "Whether there is a status to be read.", float(found is not None))
        yield _labelled(_gauge, "version", "The version of protonorm.", "version", {self._version: 1})
        if found is not None:
            yield from _figures(found)


def _figures(status: Status) -> Iterator[Metric]:
    connected = sum(one.here for one in status.clients)
    states = {state: float(status.state_now == state) for state in get_args(State)}
    clients = {presence: status.count(presence) for presence in get_args(Presence)}
    yield _gauge("rounds", "Rounds that are agreed on.", status.rounds)
    yield _gauge("round", "The round that is on.", status.round)
    yield _gauge("rounds_done", "Rounds that are committed.", status.done)
    yield _gauge("quorum_clients", "Clients that must answer in a round.", status.needed)
    yield _gauge("clients_connected", "Clients that are connected.", connected)
    yield _gauge("last_round_seconds", "Seconds of the last round.", status.last_seconds)
    if (age := seconds_since(status.updated)) is not None:
        yield _gauge("status_age_seconds", "Seconds since something changed.", max(0.0, age))
    yield _labelled(_gauge, "state", "1 for the state that the federation is in.", "state", states)
    yield _labelled(_gauge, "clients", "Clients by how they stand.", "state", clients)
    yield _labelled(_gauge, "accuracy", "Accuracies of the last evaluated round.", "rule", status.accuracies)
    yield _counter("denied_requests", "Requests that were not let in.", status.denied)
    yield _counter("round_seconds", "Seconds of all committed rounds.", status.seconds)
    carried = {"up": status.bytes_up, "down": status.bytes_down}
    yield _labelled(_counter, "bytes", "Bytes of tensors that were carried.", "direction", carried)
    yield _labelled(_counter, "refused_messages", "Answers that did not count, by why.", "why", status.refused)
    for name, text in OF_CLIENTS.items():
        counts = {one.name: getattr(one, name) for one in status.clients}
        yield _labelled(_counter, f"client_{name}", text, "client", counts)


def _gauge(name: str, text: str, value: float | None = None, labels: Sequence[str] | None = None) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"protonorm_{name}", text, value=value, labels=labels)


def _counter(
    name: str, text: str, value: float | None = None, labels: Sequence[str] | None = None
) -> CounterMetricFamily:
    return CounterMetricFamily(f"protonorm_{name}", text, value=value, labels=labels)


def _labelled(
    kind: Callable[..., GaugeMetricFamily | CounterMetricFamily],
    name: str,
    text: str,
    label: str,
    values: Mapping[str, float],
) -> Metric:
    family = kind(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


@contextmanager
def serve_metrics(path: Path, port: int, version: str, host: str = LOOPBACK) -> Iterator[int]:
    """Serve a status file's metrics at http://127.0.0.1:PORT/metrics within the context; yield the port."""
    registry = CollectorRegistry()
    registry.register(Figures(path, version))
    try:
        server, thread = start_http_server(port, host, registry)
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

    log = Log(folder.log_folder, "client", show)

    def tell(event: str, sentence: str) -> None:
        log.write(event, sentence, "warning" if event in WARNINGS else "info")

    try:
        run_client(folder, tell)
    except KeyboardInterrupt:
        log.write("ended", "The client was asked to end.")
        raise
    except (Failed, ValueError, OSError) as error:
        quiet = Log(folder.log_folder, "client")  # without `show`: the command prints the error itself
        quiet.write("refused", str(error), "error")
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
        if folder.settings.metrics_port is not None:
            stack.enter_context(serve_metrics(folder.status_file, folder.settings.metrics_port, __version__))
        writer.open()
        stack.callback(writer.close)

        def ready(server: Server) -> None:
            log.write("ready", f"The server listens at {address_of(folder.settings.bind, server.port)}.")
            stack.enter_context(serving.report_presence(server, writer.update_presence))

        try:
            tell = tell_all(writer, _page_at_the_end(folder, log))
            with ended_by_signal():
                serving.serve(folder, tell, denied=writer.deny, ready=ready, once=once)
        except KeyboardInterrupt:
            log.write("ended", "The server was asked to end.")
            raise
        except (Failed, ValueError, OSError) as error:
            if writer.status.state == "failed":
                folder.wanted.unlink(missing_ok=True)  # a restart would fail the same way
            with suppress(OSError):  # the disk may be full
                log.write("ended", str(error), "error")
            raise


def _page_at_the_end(folder: FederationFolder, log: Log) -> Callable[[Event], None]:
    """Return an observer that writes the HTML report once all rounds are done."""

    def tell(event: Event) -> None:
        if event.what != "finished":
            return
        from protonorm.report.page import write_page
        from protonorm.runs.run import read_whole

        try:
            place = write_page([read_whole(folder.run_folder)], folder.run_folder / PAGE)
        except (ValueError, OSError) as error:  # the record is complete; the report can be written later
            log.write("report", f"The report could not be written: {error}", "warning")
        else:
            log.write("report", f"Report: {place}")

    return tell
