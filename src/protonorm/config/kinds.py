"""The one table of what can be chosen by name: listing, parsing, experiments, workers and pages all read it.

It imports neither torch nor pydantic, and a kind's own table only when it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """One kind of thing that is chosen by name."""

    plural: str
    place: str  # of its table: "package:NAME"
    default: str | None = None  # for kinds that are settings of an experiment with settings of their own
    needs: str = ""  # the method that an object of this kind has
    article: str = "a"

    def table(self) -> Mapping[str, Any]:
        """Import the table of this kind; what its lines point to is not imported."""
        module, _, name = self.place.partition(":")
        found: Mapping[str, Any] = getattr(import_module(module), name)
        return found


KINDS: dict[str, Kind] = {
    "algorithm": Kind("algorithms", "protonorm.algorithms:ALGORITHMS", "protonorm", "local_update", "an"),
    "dataset": Kind("datasets", "protonorm.data:DATASETS", "fashion", "load"),
    "partition": Kind("partitions", "protonorm.data:PARTITIONS", "dirichlet", "assign"),
    "model": Kind("models", "protonorm.models:MODELS"),
    "family": Kind("families", "protonorm.models:FAMILIES"),
    "engine": Kind("engines", "protonorm.engines:ENGINES", article="an"),
    "tracker": Kind("trackers", "protonorm.trackers:TRACKERS"),
}

COMPONENTS = tuple(name for name, kind in KINDS.items() if kind.default)  # settings that have settings of their own
