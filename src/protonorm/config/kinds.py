"""Table of the component kinds that are chosen by name, and the import of bundled packages.

Listing, parsing, experiments, workers and docs read this table. It imports neither torch nor pydantic, and the table
of a kind only on demand.
"""

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

PACKAGE = Path(__file__).resolve().parent.parent
CHECKOUT = PACKAGE.parent.parent  # of src/protonorm; meaningless if the package is installed


class Kind(NamedTuple):
    """Kind of component that is chosen by name."""

    plural: str
    place: str  # location of the table: "package:NAME"
    default: str | None = None  # for kinds that are settings of an experiment with nested settings
    needs: str = ""  # method that an object of this kind must have
    article: str = "a"

    def table(self) -> Mapping[str, Any]:
        """Import the table of this kind, without the targets of its entries."""
        module, _, name = self.place.partition(":")
        entries: Mapping[str, Any] = getattr(import_module(module), name)
        return entries


KINDS: dict[str, Kind] = {
    "algorithm": Kind("algorithms", "protonorm.algorithms:ALGORITHMS", "protonorm", "local_update", "an"),
    "dataset": Kind("datasets", "protonorm.data:DATASETS", "fashion", "load"),
    "partition": Kind("partitions", "protonorm.data:PARTITIONS", "dirichlet", "assign"),
    "model": Kind("models", "protonorm.models:MODELS"),
    "family": Kind("families", "protonorm.models:FAMILIES"),
    "engine": Kind("engines", "protonorm.engines:ENGINES", article="an"),
    "tracker": Kind("trackers", "protonorm.trackers:TRACKERS"),
}

COMPONENTS = tuple(name for name, kind in KINDS.items() if kind.default)  # settings with nested settings


def bundled(name: str) -> ModuleType:
    """Import `experiments` or `benchmarks`: inside the package in a wheel, beside `src` in a checkout."""
    if find_spec(f"protonorm.{name}"):
        return import_module(f"protonorm.{name}")
    if PACKAGE.parent.name != "src" or not (CHECKOUT / name / "__init__.py").is_file():
        raise ValueError(
            f"The folder {name!r} is neither in {PACKAGE} nor beside its sources; "
            "install the package again, or use a checkout of the repository."
        )
    if str(CHECKOUT) not in sys.path:
        sys.path.insert(0, str(CHECKOUT))
    package = import_module(name)
    if Path(package.__file__ or "").resolve().parent != CHECKOUT / name:  # shadowed by another library of that name
        raise ValueError(f"Another package named {name!r} is in the way: {package.__file__}.")
    return package
