"""Who is connected, also while no round is on."""

import threading

from protonorm.deployment.federation_folder import Member
from protonorm.deployment.https.serving import report_presence
from tests.deployment.keyring import until

PATIENCE = 60  # seconds that a test waits at most


def test_clients_are_known_by_their_keys_and_gone_once_they_close_their_connection(keys):
    """The roster has them in another order than their keys were made."""
    roster = [Member(0, "b", keys.lines[1]), Member(1, "a", keys.lines[0])]
    with keys.server(roster=lambda: roster) as server:
        assert server.present() == set()
        first, second = keys.connection(server, 0), keys.connection(server, 1)
        first.ask(wait=0)
        assert server.present() == {1}
        second.ask(wait=0)
        assert server.present() == {0, 1}
        first.close()
        until(lambda: server.present() == {0})
        second.close()


def test_it_is_told_again_and_again_and_no_more_after_the_end(keys):
    seen, twice = [], threading.Event()

    def tell(found):
        seen.append(found)
        if len(seen) == 1:
            raise OSError("The disk is full.")  # whoever listens may fail; it is told again
        twice.set()

    with keys.server() as server, report_presence(server, tell, every=0.01):
        assert twice.wait(PATIENCE)
        assert any(one.name == "presence" for one in threading.enumerate())
    assert seen == [set()] * len(seen)
    assert not any(one.name == "presence" for one in threading.enumerate())
