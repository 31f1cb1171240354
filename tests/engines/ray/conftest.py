import sys
from importlib.util import find_spec

import pytest

if find_spec("ray") is None or sys.platform == "win32":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="module", autouse=True)
def _end_cluster():
    """One cluster of two cores for all tests of a file; nothing of it is left behind."""
    yield
    from protonorm.engines.ray.cluster import disconnect

    disconnect()
