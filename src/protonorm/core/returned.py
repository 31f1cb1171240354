"""What an algorithm returned, looked at before anything is done with it: one of a user's own may return anything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from torch import Tensor

from protonorm.core.algorithm import Algorithm, Step
from protonorm.core.schema import Schema
from protonorm.core.types import shown
from protonorm.errors import Failed
from protonorm.tensors import Tensors


def checked_step(algorithm: Algorithm, method: str, found: Any) -> Step:
    """Give a step that a method returned, or say what it is instead."""
    where = _place(algorithm, method)
    if not isinstance(found, Step):
        raise Failed(f"{where} must return pn.Step(state, message), but returned {_kind(found)}.")
    for name in ("state", "message", "figures"):
        _check_tensors(where, f"the {name}", getattr(found, name))
    if not isinstance(found.metrics, Mapping):
        raise Failed(f"{where} must return the metrics as a dict of numbers, but they are {_kind(found.metrics)}.")
    for name, value in found.metrics.items():
        if not isinstance(name, str) or not isinstance(value, Real):
            raise Failed(f"{where} must return metrics that are numbers, but {name!r} is {_kind(value)}.")
        if not _is_finite(value):
            held = shown(value) if isinstance(value, int) else value
            raise Failed(f"{where} must return metrics that are finite numbers, but {name!r} is {held}.")
    return found._replace(metrics={name: float(value) for name, value in found.metrics.items()})


def _is_finite(value: Real) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


def checked_state(algorithm: Algorithm, method: str, found: Any) -> Tensors:
    """Give a state that a method returned, or say what it is instead."""
    where = _place(algorithm, method)
    _check_tensors(where, "the state", found)
    state: Tensors = found
    return state


def checked_scores(algorithm: Algorithm, found: Any, shape: tuple[int, int]) -> Tensors:
    """Give scores (B, K) by rule that a method returned, or say what they are instead."""
    where = _place(algorithm, "scores")
    _check_tensors(where, "the scores", found)
    for rule, scores in found.items():
        if scores.shape != shape:
            raise Failed(
                f"{where} must return scores of shape {shape}, samples and classes, but those of {rule!r} have shape "
                f"{tuple(scores.shape)}."
            )
    return dict(found)


def checked_schema(algorithm: Algorithm, found: Any) -> Schema:
    """Give the schema of an algorithm, or say what it is instead."""
    if not isinstance(found, Schema):
        raise Failed(f"{_place(algorithm, 'schema')} must return a pn.Schema, but returned {_kind(found)}.")
    return found


def _check_tensors(where: str, what: str, found: Any) -> None:
    if not isinstance(found, dict):
        raise Failed(f"{where} must return {what} as a dict of tensors, but it is {_kind(found)}.")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise Failed(f"{where} must return {what} as a dict of tensors, but {name!r} in it is {_kind(value)}.")


def _place(algorithm: Algorithm, method: str) -> str:
    return f"{type(algorithm).__name__}.{method}"


def _kind(found: Any) -> str:
    """Say what something is, in a word or two."""
    if found is None:
        return "nothing"
    name = type(found).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
