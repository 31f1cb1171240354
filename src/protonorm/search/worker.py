"""A process that does whole runs: `python -m protonorm.search.worker`, frames in and frames out."""

from __future__ import annotations

import sys
import traceback
import warnings
from pathlib import Path
from typing import IO, Any

from protonorm.config.experiment import Experiment
from protonorm.core.own_code import without_own_code
from protonorm.core.own_failures import runtime_failure
from protonorm.engines.processes.wire import write_frame
from protonorm.engines.processes.worker import Frames, obey_parent
from protonorm.errors import Failed
from protonorm.session.running import run

KNOWN = (Failed, ValueError, OSError)  # errors that come with a sentence for people


def serve(frames: Frames, answers: IO[bytes]) -> None:
    """Do one run after the other, and tell of its rounds and how it ended."""
    while True:
        told, _ = frames.get()
        sys.path[:], sys.argv[:] = told["path"], told["argv"]  # the parent's: a record says which command made it
        write_frame(answers, {"ended": _do(told, answers)})


def _do(told: dict[str, Any], answers: IO[bytes]) -> str:
    """Do a run in this process alone; say why it did not come to its end, or nothing."""

    def warn(message: Warning | str, *_: Any, **__: Any) -> None:
        write_frame(answers, {"warning": str(message)})

    with warnings.catch_warnings(), without_own_code(told["no_own_code"]):
        warnings.showwarning = warn
        return attempt(
            told["settings"],
            Path(told["out"]),
            engine="serial",
            watch=lambda round: write_frame(answers, {"round": round.number}),
        )


def attempt(settings: dict[str, Any], out: Path, **options: Any) -> str:
    """Run an experiment; say why it did not come to its end, or nothing."""
    try:
        run(Experiment.of(settings), out=out, **options)
    except BrokenPipeError:
        raise  # there is nobody to tell
    except KNOWN as error:
        return runtime_failure(error) or str(error) or type(error).__name__
    except Exception as error:  # whatever it is, the other runs go on
        return runtime_failure(error) or f"it failed unexpectedly:\n{traceback.format_exc()}"
    return ""


def main() -> None:
    """Do runs until the parent closes the line."""
    obey_parent(serve)


if __name__ == "__main__":
    main()
