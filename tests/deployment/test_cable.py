"""A client whose network is cut for a while, in a federation on hosts of their own."""

import time

import pytest

from tests.deployment.hosts import namespaces
from tests.deployment.organisations import Organisations

CUT = 30.0  # seconds without a network


@pytest.mark.long
def test_a_cable_that_is_pulled_out_and_put_in_again_changes_nothing(tmp_path):
    """The round waits for the client, which comes back with its state."""
    with namespaces(4, net=2) as hosts, Organisations(tmp_path, hosts) as parties:
        parties.found()
        server = parties.start("server", parties.hosts.server, "server", "--folder", "server", "--run")
        clients = [parties.start_client(number) for number in range(4)]
        parties.wait_until(lambda: parties.seen().done >= 1)
        parties.hosts.set_cable(parties.hosts.clients[1], "down")
        time.sleep(CUT)
        assert server.poll() is None
        parties.hosts.set_cable(parties.hosts.clients[1], "up")
        parties.wait(server)
        for one in clients:
            one.terminate()
            parties.wait(one)
        parties.equals_serial()
