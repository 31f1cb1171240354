"""A watchdog: a pipe or a device that is opened after all would let a test wait for ever."""

import faulthandler
import sys

import pytest

PATIENCE = 570.0  # seconds that a test may take at all


@pytest.fixture(autouse=True)
def _watchdog():
    """End what hangs, and show where all threads stand."""
    faulthandler.dump_traceback_later(PATIENCE, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()
