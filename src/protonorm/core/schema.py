"""Message schemas: names, types, shapes and bounds, and the validation of all received messages.

A message is a sequence of slots. Each slot has one or more forms, exactly one of which must be present: a prototype
message may be empty before the first round, and a matrix may be sent whole or in factors. Sizes of a shape are numbers
or symbols. A symbol has the same value everywhere in a message: `exact` is its value, `bounds` its maximum.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from protonorm.tensors import Tensors, all_finite

Size = int | str  # a number, or a symbol such as "K_i"


class Field(NamedTuple):
    """Named tensor of a message: its shape, dtype, and bounds of its values.

    ```python
    import protonorm as pn

    prototypes = pn.Field(("K_i", "d"))  # float32; K_i and d stand for the same numbers in the whole message
    ```
    """

    shape: tuple[Size, ...]  # numbers, or symbols such as "d"; () for a scalar
    dtype: torch.dtype = torch.float32  # required dtype
    least: int | None = None  # minimum of integers
    below: Size | None = None  # exclusive maximum of integers
    distinct: bool = False  # whether integers must be unique
    some: bool = False  # whether at least one integer must be non-zero
    up_to: bool = False  # whether axes may be shorter than in `shape`
    share: bool = False  # whether floats must be from 0 to 1


Form = Mapping[str, Field]
Slot = tuple[Form, ...]


@dataclass(frozen=True)
class Schema:
    """Schema of the messages of an algorithm's clients (up) and server (down); `pn.Schema()` if nothing is exchanged.

    A message is a sequence of slots. A slot is a tuple of forms, and a form maps names to fields; exactly one form of
    each slot must be present. The form `{}` makes a slot optional.
    """

    up: tuple[Slot, ...] = ()  # slots of a client's reply
    down: tuple[Slot, ...] = ()  # slots of the server's message
    exact: Mapping[str, int] = field(default_factory=dict)  # values of known symbols, such as K and d
    bounds: Mapping[str, int] = field(default_factory=dict)  # maximum of symbols that depend on data

    def check_up(self, message: Tensors, owner: str) -> None:
        """Raise ValueError, whose text begins with `owner`, if a client's reply does not match the schema."""
        self._check(self.up, message, owner)

    def check_down(self, message: Tensors, owner: str = "The server's message") -> None:
        """Raise ValueError, whose text begins with `owner`, if the server's message does not match the schema."""
        self._check(self.down, message, owner)

    def numbers(self, slots: Iterable[Slot], values: Mapping[str, int]) -> int:
        """Count the floats in the first form of each slot, given the values of the symbols."""
        known = {**self.exact, **values}
        return sum(
            prod(known[size] if isinstance(size, str) else size for size in field.shape)
            for slot in slots
            for field in slot[0].values()
            if field.dtype.is_floating_point
        )

    def _check(self, slots: tuple[Slot, ...], message: Tensors, owner: str) -> None:
        expected: dict[str, Field] = {}
        for slot in slots:
            expected |= _chosen(slot, message, owner)
        if extra := sorted(message.keys() - expected.keys()):
            raise ValueError(f"{owner} holds {', '.join(extra)}, which is not expected.")
        values = dict(self.exact)
        for name, wanted in expected.items():
            self._check_field(message[name], wanted, values, f"{owner} holds {name}")

    def _check_field(self, value: Tensor, field: Field, values: dict[str, int], where: str) -> None:
        shape = tuple(value.shape)
        if value.dtype != field.dtype or len(shape) != len(field.shape):
            raise ValueError(f"{where} as {value.dtype} of shape {shape}; expected {field.dtype} of {_text(field)}.")
        for length, size in zip(shape, field.shape, strict=True):
            expected = values.setdefault(size, length) if isinstance(size, str) else size
            fits = 0 < length <= expected if field.up_to else length == expected
            if not fits or length > self.bounds.get(str(size), length):
                limit = f" with {size} at most {self.bounds[str(size)]}" if str(size) in self.bounds else ""
                raise ValueError(f"{where} of shape {shape}; expected {_text(field)}{limit}.")
        if not value.numel():
            return
        if value.is_floating_point():
            if not all_finite(value):
                raise ValueError(f"{where} with numbers that are not finite.")
            smallest, largest = map(float, torch.aminmax(value)) if field.share else (0.0, 1.0)
            if smallest < 0 or largest > 1:
                raise ValueError(f"{where} from {smallest:.9g} to {largest:.9g}; expected numbers from 0 to 1.")
            return
        smallest, largest = map(int, torch.aminmax(value))
        bound = values[field.below] if isinstance(field.below, str) else field.below
        if (field.least is not None and smallest < field.least) or (bound is not None and largest >= bound):
            low = f" from {field.least}" if field.least is not None else ""
            high = f" to {bound - 1}" if bound is not None else " on"
            raise ValueError(f"{where} from {smallest} to {largest}; expected whole numbers{low}{high}.")
        if field.some and not smallest and not largest:
            raise ValueError(f"{where} with nothing but zeros.")
        if field.distinct and len(value.unique()) < value.numel():
            raise ValueError(f"{where} with a number that occurs more than once.")


def optional(form: Form) -> Slot:
    """Create an optional slot."""
    return (form, {})


def slots_like(tensors: Mapping[str, Tensor]) -> tuple[Slot, ...]:
    """Create a slot for each tensor, with its dtype and shape."""
    return tuple(({name: Field(tuple(value.shape), value.dtype)},) for name, value in tensors.items())


def _chosen(slot: Slot, message: Tensors, owner: str) -> Form:
    """Return the form of a slot that is present in a message; raise ValueError if none is."""
    for form in slot:
        if form and message.keys() >= form.keys():
            return form
    if {} in slot and not any(message.keys() & form.keys() for form in slot):
        return {}
    raise ValueError(f"{owner} lacks {', '.join(sorted(slot[0].keys() - message.keys()))}.")


def _text(field: Field) -> str:
    inside = ", ".join(map(str, field.shape)) + ("," if len(field.shape) == 1 else "")
    return f"({inside}) at most" if field.up_to else f"({inside})"
