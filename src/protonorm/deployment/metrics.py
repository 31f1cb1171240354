"""Figures for Prometheus, on this machine alone: what stands in the status file, in the form that it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from protonorm.deployment.status import Presence, State, Status, seconds_since
from protonorm.errors import Failed

LOOPBACK = "127.0.0.1"


class Figures(Collector):
    """Read the status file whenever somebody asks; a file that cannot be read gives `protonorm_up 0`."""

    def __init__(self, path: Path, version: str) -> None:
        self._path, self._version = path, version

    def collect(self) -> Iterable[Metric]:
        """Give all figures."""
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
def serving(path: Path, port: int, version: str, host: str = LOOPBACK) -> Iterator[int]:
    """Serve the figures of a status file at http://127.0.0.1:PORT/metrics while something runs; give the port."""
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
