"""Find what comes with the package but is not part of it: `experiments` and `benchmarks`."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).resolve().parent.parent
CHECKOUT = PACKAGE.parent.parent  # of src/protonorm; anything at all where the package is installed


def bundled(name: str) -> ModuleType:
    """Import such a folder: it is inside the package in a wheel, and beside `src` in a checkout."""
    if find_spec(f"protonorm.{name}"):
        return import_module(f"protonorm.{name}")
    if PACKAGE.parent.name != "src" or not (CHECKOUT / name / "__init__.py").is_file():
        raise ValueError(
            f"The folder {name!r} is neither in {PACKAGE} nor beside its sources; "
            "install the package again, or use a checkout of the repository."
        )
    if str(CHECKOUT) not in sys.path:
        sys.path.insert(0, str(CHECKOUT))
    found = import_module(name)
    if Path(found.__file__ or "").resolve().parent != CHECKOUT / name:  # another library with that name came first
        raise ValueError(f"Another package named {name!r} is in the way: {found.__file__}.")
    return found
