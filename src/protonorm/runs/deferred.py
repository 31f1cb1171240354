"""Write the record of a run whose rounds are committed before they are evaluated, as in a real federation.

A round is final once it is aggregated; what is known of it by then waits in pending.json. Its evaluation comes with the
replies of the next round, and makes its line in the record. The finished record is that of any other run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from numpy.typing import NDArray

from protonorm.files import damaged, read_lines, replace, sealed, unsealed
from protonorm.runs import layout
from protonorm.runs.checkpoint import Checkpoint
from protonorm.runs.info import typed
from protonorm.runs.schema import PendingRound, RoundRecord
from protonorm.runs.writer import RoundOutcome, RunWriter
from protonorm.tensors import Tensors


class TrainedRound(NamedTuple):
    """What a round leaves behind for the record before it is evaluated."""

    record: Mapping[str, Any]  # of a PendingRound
    figures: Tensors  # arrays for the figures
    seconds: Mapping[str, float]


class DeferredWriter(RunWriter):
    """One run's folder; at most the last committed round waits for its evaluation."""

    pending: PendingRound | None = None  # the round that waits

    def resume(self) -> Checkpoint | None:
        """Bring the folder back to its last committed round; find out whether that is still to be evaluated."""
        point = super().resume()
        done = point.round if point else 0
        if len(read_lines(self.folder / layout.METRICS)) == done:
            self._forget_pending()  # it is of a round that is on record already, or that was not committed
        else:
            self.pending = self._read_pending(done)
        return point

    def commit_trained(self, point: Checkpoint, trained: TrainedRound) -> None:
        """Make a round final that is still to be evaluated; the one before must be on record."""
        if self.pending is not None:
            raise AssertionError(f"round {self.pending.round} has no line in the record yet")
        self._prepare(point, trained.figures)
        pending = PendingRound.model_validate({**trained.record, "seconds": dict(trained.seconds)})
        replace(self.folder / layout.PENDING, sealed(pending.model_dump(mode="json"), pretty=True, owner=self.key))
        self._finish(point)
        self.pending = pending

    def add_evaluation(self, evaluated: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> RoundRecord:
        """Put the round that waits on record."""
        assert self.pending is not None
        known = {name: getattr(self.pending, name) for name in PendingRound.model_fields if name != "seconds"}
        record = self._append(RoundOutcome(known | dict(evaluated), arrays, self.pending.seconds, {}))
        if self._standing:
            self._standing.add(record)
        self.pending = None
        return record

    def end(self) -> None:
        """Leave nothing behind that only an unfinished run has."""
        self._forget_pending()

    def _forget_pending(self) -> None:
        self.pending = None
        (self.folder / layout.PENDING).unlink(missing_ok=True)

    def _read_pending(self, done: int) -> PendingRound:
        path = self.folder / layout.PENDING
        found = typed(PendingRound, unsealed(path.read_bytes(), path, pretty=True, owner=self.key), path)
        if found.round != done:
            raise damaged(path, f"it is of round {found.round}, and round {done} waits for its evaluation")
        return found
