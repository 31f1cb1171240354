"""Where data rest on this machine. Nothing here needs numpy."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def data_root(given: Path | None = None) -> Path:
    """Find the folder of prepared data: the one given, PROTONORM_DATA, or the user's cache folder."""
    named = given or os.environ.get("PROTONORM_DATA")
    return Path(named).expanduser() if named else cache_folder()


def cache_folder() -> Path:
    """Find the user's own folder for what can be made again."""
    if sys.platform == "win32":
        usual = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        usual = Path.home() / "Library" / "Caches"
    else:
        usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return usual / "protonorm"
