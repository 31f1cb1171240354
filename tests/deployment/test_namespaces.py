"""From nothing, by the documented commands: a server and four organisations on hosts of their own, over TLS."""

import pytest

from tests.deployment.hosts import namespaces
from tests.deployment.organisations import ROUNDS, Organisations


@pytest.mark.long
def test_four_organisations_train_five_rounds_and_have_the_bits_of_the_simulation(tmp_path):
    with namespaces(4, net=1) as hosts, Organisations(tmp_path, hosts) as parties:
        parties.found()
        server = parties.start("server", parties.hosts.server, "server", "--folder", "server", "--run")
        clients = [parties.start_client(number) for number in range(3)]
        parties.wait_until(lambda: sum(one.here for one in parties.seen().clients) == 3)
        seen = parties.status()
        assert (seen["done"], seen["rounds"]) == (0, ROUNDS)
        assert [one["here"] for one in seen["clients"]] == [True, True, True, False]
        clients.append(parties.start_client(3))
        for one in (server, *clients):
            parties.wait(one)
        seen = parties.status()
        assert (seen["done"], seen["state"], len(seen["history"])) == (ROUNDS, "done", ROUNDS)
        parties.equals_serial()
