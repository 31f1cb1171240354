"""A watchdog for what hangs, and a bound on memory."""

import faulthandler
import resource
import sys
from pathlib import Path

import pytest

PATIENCE = 3000.0  # seconds that a test may take at all, on a machine that others use too
ROOM = 6 * 2**30  # bytes of addresses that a test may ask for


@pytest.fixture(autouse=True)
def _watchdog():
    """End what hangs, and show where all threads stand."""
    faulthandler.dump_traceback_later(PATIENCE, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def bounded_memory():
    """Fail allocations of too much memory, as a smaller machine does."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("there is no way to bound memory here")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
