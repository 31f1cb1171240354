"""Read the few plain things that a pickle may hold, as data: opcodes are looked at one by one, and none is executed.

A pickle is a program. Of its operations only those are known here that make numbers, text, bytes, lists, dicts and
numpy arrays of bytes; an array is made by ourselves from the numbers that the pickle gives for it. A pickle that names
anything else, such as a function to call, is refused.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MARK = object()  # where a list, tuple or dict began


class Name(NamedTuple):
    """Something that a pickle names; it stands for itself and is never looked up."""

    module: str
    name: str


class Blank:
    """An array that a pickle is about to fill."""

    content: NDArray[np.uint8] | None = None


ENCODE = Name("_codecs", "encode")  # how Python 3 writes bytes for Python 2
DTYPE = Name("numpy", "dtype")
ARRAY = Name("numpy", "ndarray")
REBUILD = [Name("numpy.core.multiarray", "_reconstruct"), Name("numpy._core.multiarray", "_reconstruct")]
FILL = [Name("numpy.core.numeric", "_frombuffer"), Name("numpy._core.numeric", "_frombuffer")]
KNOWN = {ENCODE, DTYPE, ARRAY, *REBUILD, *FILL}


def read_pickle(content: bytes, what: str) -> Any:
    """Read a pickle's value; text of Python 2 becomes text, whatever letters it had."""
    machine = Machine(what)
    try:
        for opcode, argument, _ in pickletools.genops(content):
            machine.step(opcode.name, argument)
        (value,) = machine.stack
        return finished(value)
    except Refused:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{what} is damaged: it is not a whole pickle of plain data ({error}).") from error


class Refused(ValueError):
    """A pickle asks for more than plain data."""


class Machine:
    """The stack and the memory that a pickle's operations work on."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.stack: list[Any] = []
        self.memory: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        """Do one operation."""
        if name in ("PROTO", "FRAME", "STOP"):
            return
        if name in PUSHED:
            self.stack.append(PUSHED[name](argument))
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            self.push_name(argument)
        elif name in ("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"):
            self.memory[len(self.memory) if argument is None else int(argument)] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            self.stack.append(self.memory[int(argument)])
        elif name in COLLECTED:
            COLLECTED[name](self)
        else:
            raise Refused(f"{self.what} is refused: a pickle of plain data has no operation {name}.")

    def pop(self, count: int) -> list[Any]:
        """Take the last values."""
        values = self.stack[-count:] if count else []
        if len(values) < count or any(value is MARK for value in values):
            raise ValueError("an operation lacks its values")
        del self.stack[len(self.stack) - count :]
        return values

    def pop_mark(self) -> list[Any]:
        """Take the values since the last mark, and the mark."""
        values: list[Any] = []
        while (value := self.stack.pop()) is not MARK:
            values.append(value)
        return values[::-1]

    def push_name(self, argument: Any) -> None:
        """Take a name that data need; refuse every other one."""
        module, name = self.pop(2) if argument is None else argument.split(" ", 1)
        found = Name(str(module), str(name))
        if found not in KNOWN:
            raise Refused(f"{self.what} is refused: it asks for {found.module}.{found.name}; nothing was executed.")
        self.stack.append(found)

    def reduce(self) -> None:
        """Make bytes or an array of bytes where a pickle would call a function."""
        named, arguments = self.pop(2)
        if named == ENCODE:
            self.stack.append(str(arguments[0]).encode("latin-1"))
        elif named in REBUILD and arguments[0] == ARRAY:
            self.stack.append(Blank())
        elif named in FILL:
            filled = Blank()
            filled.content = array(arguments[0], arguments[1], arguments[2], arguments[3])
            self.stack.append(filled)
        elif named == DTYPE:
            self.stack.append(str(arguments[0]))
        else:
            raise Refused(f"{self.what} is refused: it asks for something to be called; nothing was executed.")

    def build(self) -> None:
        """Fill an array: (version, shape, type, whether columns come first, bytes)."""
        target, state = self.pop(2)
        if isinstance(target, Blank):
            _, shape, kind, columns, content = state
            target.content = array(content, kind, shape, "F" if columns else "C")
        elif not isinstance(target, str):  # a type's details do not matter for bytes
            raise Refused(f"{self.what} is refused: it asks for an object to be built; nothing was executed.")
        self.stack.append(target)

    def add(self, values: list[Any]) -> None:
        """Append to the list that lies on top."""
        top = self.stack[-1]
        if not isinstance(top, list):
            raise ValueError("there is no list to append to")
        top.extend(values)

    def put(self, values: list[Any]) -> None:
        """Set items of the dict that lies on top."""
        top = self.stack[-1]
        if not isinstance(top, dict):
            raise ValueError("there is no dict to set items of")
        top.update(paired(values))


PUSHED: dict[str, Callable[[Any], Any]] = {
    "MARK": lambda _: MARK,
    "NONE": lambda _: None,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "EMPTY_LIST": lambda _: [],
    "EMPTY_DICT": lambda _: {},
    "EMPTY_TUPLE": lambda _: (),
    **dict.fromkeys(("INT", "LONG", "LONG1", "BININT", "BININT1", "BININT2", "BINFLOAT"), lambda value: value),
    **dict.fromkeys(("STRING", "BINSTRING", "SHORT_BINSTRING"), lambda value: value),
    **dict.fromkeys(("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"), lambda value: value),
    **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"), bytes),
}

COLLECTED: dict[str, Callable[[Machine], None]] = {
    "TUPLE": lambda machine: machine.stack.append(tuple(machine.pop_mark())),
    "TUPLE1": lambda machine: machine.stack.append(tuple(machine.pop(1))),
    "TUPLE2": lambda machine: machine.stack.append(tuple(machine.pop(2))),
    "TUPLE3": lambda machine: machine.stack.append(tuple(machine.pop(3))),
    "LIST": lambda machine: machine.stack.append(machine.pop_mark()),
    "DICT": lambda machine: machine.stack.append(paired(machine.pop_mark())),
    "APPEND": lambda machine: machine.add(machine.pop(1)),
    "APPENDS": lambda machine: machine.add(machine.pop_mark()),
    "SETITEM": lambda machine: machine.put(machine.pop(2)),
    "SETITEMS": lambda machine: machine.put(machine.pop_mark()),
    "REDUCE": Machine.reduce,
    "BUILD": Machine.build,
}


def paired(values: list[Any]) -> dict[Any, Any]:
    """Make a dict of keys and values in turn."""
    return dict(zip(values[::2], values[1::2], strict=True))


def array(content: Any, kind: str, shape: Any, order: str) -> NDArray[np.uint8]:
    """Make an array of bytes."""
    if kind.lstrip("|") not in ("u1", "uint8"):
        raise ValueError(f"an array has type {kind}; expected bytes")
    raw = content.encode("latin-1") if isinstance(content, str) else bytes(content)
    size = tuple(int(side) for side in shape)
    return np.frombuffer(raw, np.uint8).reshape(size, order="F" if order == "F" else "C")


def finished(value: Any) -> Any:
    """Replace blanks by their arrays, and bytes that are keys or names by text."""
    if isinstance(value, Blank):
        return value.content
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, dict):
        return {finished(key): finished(one) for key, one in value.items()}
    return [finished(one) for one in value] if isinstance(value, list) else value
