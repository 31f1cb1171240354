"""Hosts of one's own for tests: network namespaces that are joined by a bridge, each with an address of its own."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest


class Host(NamedTuple):
    """A machine, as far as its network goes; without a namespace it is this one."""

    address: str
    namespace: str = ""
    link: str = ""  # the end of its cable, in the namespace of the bridge

    def command(self, *words: str) -> list[str]:
        """Write a command so that it runs on this host."""
        return ["ip", "netns", "exec", self.namespace, *words] if self.namespace else list(words)


class Hosts(NamedTuple):
    """A server and some clients."""

    server: Host
    clients: list[Host]

    def set_cable(self, client: Host, state: str) -> None:
        """Pull a client's cable out, `down`, or put it in again, `up`."""
        _ip("-n", self.server.namespace, "link", "set", client.link, state)


@contextmanager
def namespaces(clients: int, net: int) -> Iterator[Hosts]:
    """Make a namespace for a server, which has the bridge, and one for each client, all in 10.77.net.0/24."""
    if not shutil.which("ip") or os.geteuid() != 0:
        pytest.skip("Network namespaces need `ip` and root: this test is left out.")
    word = f"pn{os.getpid() % 100_000}-{net}"  # names of links have 15 letters at most
    server = Host(f"10.77.{net}.1", f"{word}-s")
    made = [server.namespace]
    try:
        try:
            _ip("netns", "add", server.namespace)
            _ip("-n", server.namespace, "link", "add", "br0", "type", "bridge")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"No network namespace can be made here: {error.stderr.strip()}")
        _ip("-n", server.namespace, "addr", "add", f"{server.address}/24", "dev", "br0")
        for link in ("lo", "br0"):
            _ip("-n", server.namespace, "link", "set", link, "up")
        hosts = [Host(f"10.77.{net}.{10 + one}", f"{word}-{one}", f"c{one}") for one in range(clients)]
        for host in hosts:
            made.append(host.namespace)
            _ip("netns", "add", host.namespace)
            place = ("-n", server.namespace, "link", "add", host.link, "type", "veth")
            _ip(*place, "peer", "name", "eth0", "netns", host.namespace)
            _ip("-n", server.namespace, "link", "set", host.link, "master", "br0", "up")
            _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                _ip("-n", host.namespace, "link", "set", link, "up")
        yield Hosts(server, hosts)
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
