"""Who is connected, also while no round is on."""

import threading
from types import SimpleNamespace

import pytest

from protonorm.deployment.flower.server import present, report_presence
from protonorm.deployment.folders import Member
from tests.deployment.test_link import Keys

PATIENCE = 60  # seconds that a test waits at most


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return Keys(tmp_path_factory.mktemp("keys"))


def roster(keys):
    """Give what stands in a federation's folder, with the clients in another order than the link met them."""
    return SimpleNamespace(roster=[Member(0, "b", keys.lines[1]), Member(1, "a", keys.lines[0])])


def test_clients_are_known_by_their_keys_and_gone_once_they_say_so(keys):
    with keys.link() as link:
        assert present(roster(keys), link) == set()
        first = keys.fleet(link, 0)
        first.activate()
        assert present(roster(keys), link) == {1}
        second = keys.fleet(link, 1)
        second.activate()
        assert present(roster(keys), link) == {0, 1}
        first.close()
        assert present(roster(keys), link) == {0}
        second.close()


def test_it_is_told_again_and_again_and_no_more_after_the_end(keys):
    seen, twice = [], threading.Event()

    def tell(found):
        seen.append(found)
        if len(seen) == 1:
            raise OSError("The disk is full.")  # whoever listens may fail; it is told again
        twice.set()

    with keys.link() as link, report_presence(roster(keys), link, tell, every=0.01):
        assert twice.wait(PATIENCE)
        assert any(one.name == "presence" for one in threading.enumerate())
    assert seen == [set()] * len(seen)
    assert not any(one.name == "presence" for one in threading.enumerate())
