"""Server and client processes with lock, logs, status file and Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from protonorm.deployment.events import Event, Level, Log, tell_all
from protonorm.deployment.folders import ClientFolder, FederationFolder
from protonorm.deployment.process_lock import ended_by_signal, process_lock
from protonorm.deployment.settings import address_of
from protonorm.deployment.status import Presence, State, Status, StatusWriter, seconds_since
from protonorm.errors import Failed
from protonorm.files import make_folder

if TYPE_CHECKING:
    from protonorm.deployment.https.server import Server

LOOPBACK = "127.0.0.1"
LEVELS: dict[str, Level] = {"waiting": "warning", "unreachable": "warning", "declined": "warning", "dropped": "warning"}
LEVELS |= {"version": "warning"}
PAGE = "report.html"  # in the run folder


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
        yield GaugeMetricFamily("protonorm_up", "Whether there is a status to be read.", value=float(found is not None))
        info = GaugeMetricFamily("protonorm_version", "The version of protonorm.", labels=["version"])
        info.add_metric([self._version], 1)
        yield info
        if found is not None:
            yield from _figures(found)


def _figures(status: Status) -> Iterator[Metric]:
    yield GaugeMetricFamily("protonorm_rounds", "Rounds that are agreed on.", value=status.rounds)
    yield GaugeMetricFamily("protonorm_round", "The round that is on.", value=status.round)
    yield GaugeMetricFamily("protonorm_rounds_done", "Rounds that are committed.", value=status.done)
    yield GaugeMetricFamily("protonorm_quorum_clients", "Clients that must answer in a round.", value=status.needed)
    states = GaugeMetricFamily("protonorm_state", "1 for the state that the federation is in.", labels=["state"])
    for state in get_args(State):
        states.add_metric([state], float(status.state_now == state))
    yield states
    clients = GaugeMetricFamily("protonorm_clients", "Clients by how they stand.", labels=["state"])
    for presence in get_args(Presence):
        clients.add_metric([presence], status.count(presence))
    yield clients
    here = sum(one.here for one in status.clients)
    yield GaugeMetricFamily("protonorm_clients_connected", "Clients that are connected.", value=here)
    yield from _of_clients(status)
    refused = CounterMetricFamily("protonorm_refused_messages", "Answers that did not count, by why.", labels=["why"])
    for why, times in sorted(status.refused.items()):
        refused.add_metric([why], times)
    yield refused
    yield CounterMetricFamily("protonorm_denied_requests", "Requests that were not let in.", value=status.denied)
    yield CounterMetricFamily("protonorm_round_seconds", "Seconds of all committed rounds.", value=status.seconds)
    yield GaugeMetricFamily("protonorm_last_round_seconds", "Seconds of the last round.", value=status.last_seconds)
    carried = CounterMetricFamily("protonorm_bytes", "Bytes of tensors that were carried.", labels=["direction"])
    carried.add_metric(["up"], status.bytes_up)
    carried.add_metric(["down"], status.bytes_down)
    yield carried
    accuracy = GaugeMetricFamily("protonorm_accuracy", "Accuracies of the last evaluated round.", labels=["rule"])
    for name, value in status.accuracies.items():
        accuracy.add_metric([name], value)
    yield accuracy
    if (age := seconds_since(status.updated)) is not None:
        yield GaugeMetricFamily("protonorm_status_age_seconds", "Seconds since something changed.", value=max(0.0, age))


def _of_clients(status: Status) -> Iterator[Metric]:
    kinds: tuple[tuple[str, str, Callable[..., int]], ...] = (
        ("answers", "Answers of a client that counted.", lambda one: one.answers),
        ("late", "Rounds that a client was lost for.", lambda one: one.late),
        ("refused", "Answers of a client that did not count.", lambda one: one.refused),
    )
    for name, text, value in kinds:
        figures = CounterMetricFamily(f"protonorm_client_{name}", text, labels=["client"])
        for one in status.clients:
            figures.add_metric([one.name], value(one))
        yield figures


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
        log.write(event, sentence, LEVELS.get(event, "info"))

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
