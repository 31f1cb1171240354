"""From nothing, by the documented commands: a server and four organisations on hosts of their own, over TLS."""

import signal
import time

import pytest

from protonorm.deployment.audit import verify
from protonorm.deployment.client_folder import ClientFolder
from protonorm.deployment.federation_folder import FederationFolder
from protonorm.runs.run import read_run
from tests.deployment.hosts import namespaces
from tests.deployment.organisations import LABELS, PATIENCE, ROUNDS, Organisations
from tests.deployment.test_processes import assert_exported_as_measured

SERVER = ("server", "--folder", "server", "--run")


@pytest.mark.long
def test_four_organisations_train_five_rounds_and_have_the_bits_of_the_simulation(tmp_path):
    with namespaces(4, net=1) as hosts, Organisations(tmp_path, hosts) as parties:
        parties.found()
        server = parties.start("server", parties.hosts.server, *SERVER)
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


@pytest.mark.long
def test_members_come_and_go_on_hosts_of_their_own(tmp_path, monkeypatch, record_property):
    """The third takes its time, and is stopped where a round must wait. The second is revoked in round 3, the fourth
    joins from round 4 on, the first gets a new key, the server is killed, rounds become 8; in round 6 the third is
    killed, and the cable of the fourth is cut. Each exported network has the accuracy that is on record.
    """
    monkeypatch.chdir(tmp_path)
    names = list(LABELS)
    with namespaces(4, net=3) as hosts, Organisations(tmp_path, hosts) as parties:
        parties.found(members=3, deadline=1200)
        server = parties.start("server", hosts.server, *SERVER)
        running = {number: parties.start_client(number) for number in range(2)}
        running[2] = parties.start_client(2, "--epochs", "200")
        parties.wait_until(lambda: parties.seen().round == 3)
        running[2].send_signal(signal.SIGSTOP)
        parties.do(hosts.server, "revoke", "kyoto", "--folder", "server")
        begun = time.monotonic()
        parties.wait_until(lambda: not parties.seen().clients[1].here)
        record_property("seconds until it was out", time.monotonic() - begun)
        assert running.pop(1).wait(PATIENCE) == 1, parties.output()
        parties.add(3)
        running[3] = parties.start_client(3)
        parties.wait_until(lambda: parties.seen().clients[-1].here)
        running[2].send_signal(signal.SIGCONT)
        parties.wait_until(lambda: parties.seen().round == 4)
        running[2].send_signal(signal.SIGSTOP)
        line = parties.do(hosts.clients[0], "rekey", "--folder", "berlin").strip().splitlines()[-1]
        parties.do(hosts.server, "rekey", "berlin", line, "--folder", "server")
        assert running[0].wait(PATIENCE) == 1, parties.output()
        parties.do(hosts.clients[0], "client", "server/bundles/berlin.json", "--yes", "--check")
        running[0] = parties.start("berlin", hosts.clients[0], "client", "--folder", "berlin")
        server.kill()
        server.wait(10)
        server = parties.start("server", hosts.server, *SERVER)
        parties.do(hosts.server, "amend", "rounds=8", "--folder", "server")
        running[2].send_signal(signal.SIGCONT)
        for number in (0, 2, 3):
            own = ClientFolder.open(tmp_path / names[number])
            parties.wait_until(lambda own=own: own.offered is not None)
            parties.do(hosts.clients[number], "accept", "--folder", names[number], "--yes")
        parties.wait_until(lambda: parties.seen().round == 6)
        running[2].kill()
        running[2].wait(10)
        parties.hosts.set_cable(hosts.clients[3], "down")
        running[2] = parties.start("lima", hosts.clients[2], "client", "--folder", "lima")
        time.sleep(10)
        parties.hosts.set_cable(hosts.clients[3], "up")
        for one in (server, *running.values()):
            parties.wait(one)
        parties.server = FederationFolder.open(tmp_path / "server")
        run = read_run(parties.server.run_folder)
        assert run.finished
        cohorts = {one.round: one.cohort for one in run.rounds}
        assert [cohorts[round] for round in range(1, 9)] == ["all"] * 3 + [[0, 2, 3]] * 5
        assert {id for one in run.rounds for id in one.lost} <= {"1"}  # it may have answered before it was revoked
        parties.clients = [ClientFolder.open(tmp_path / names[number]) for number in (0, 2, 3)]
        assert_exported_as_measured(parties, tmp_path / "exported")
        assert [verify(one.trail.path).problems for one in (parties.server, *parties.clients)] == [[]] * 4
