"""Ways to damage files: their bytes, what their JSON says, and what their arrays hold."""

import json

import numpy as np
import safetensors.numpy

from protonorm.files import BLANK, CHECKSUM, checksum, seal

DEPTHS = (300, 600, 900, 990, 3000)  # of nesting

STRANGE = [  # values in the place of other ones
    None,
    True,
    -1,
    0,
    7,
    2**63,
    10**30,
    -(10**30),
    1e308,
    0.5,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\x1b[31m\u202e",
    "\x00",
    "\ud800",
    "[bold]$%{}",
    "../../etc/passwd",
    "nowhere.py:Evil",
    "long " * 20_000,
    [],
    [[]],
    [None] * 5,
    [1, "a", {}],
    {},
    {"name": {}},
    {"": ""},
    {"name": "x", "path": "/nowhere"},
    *(f"a nest {depth} deep" for depth in DEPTHS),
]


def damage_bytes(content, chance, other=None):
    """Return a name and damaged bytes; None for a file that is removed."""
    size = max(len(content), 1)
    ways = ["flip"] * 6 + ["cut"] * 4 + ["empty", "remove", "zeros", "garbage", "longer", "twice"]
    ways += ["swap"] * 2 if other is not None and other != content else []
    way = ways[chance.integers(len(ways))]
    place = int(chance.integers(size))
    if way == "flip":
        found = bytearray(content)
        found[place] ^= 1 << int(chance.integers(8))
        return f"flip at {place}", bytes(found)
    if way == "zeros":
        return f"zeros from {place}", content[:place] + bytes(min(512, size - place)) + content[place + 512 :]
    if way == "garbage":
        return "garbage", chance.bytes(size)
    return {
        "cut": (f"cut at {place}", content[:place]),
        "empty": ("empty", b""),
        "remove": ("removed", None),
        "longer": ("longer", content + b"\x00" * (1 + place % 40)),
        "twice": ("twice", content + content),
        "swap": ("swapped with another run's", other),
    }[way]


def damage_lines(content, chance):
    """Damage a file of lines as a whole: a line is lost, doubled, or two change places."""
    lines = content.splitlines(keepends=True)
    one, two = (int(chance.integers(len(lines))) for _ in range(2))
    way = int(chance.integers(3))
    if way == 0:
        return f"line {one} lost", b"".join(lines[:one] + lines[one + 1 :])
    if way == 1:
        return f"line {one} twice", b"".join(lines[: one + 1] + lines[one:])
    lines[one], lines[two] = lines[two], lines[one]
    return f"lines {one} and {two} changed", b"".join(lines)


def places(value, at=()):
    """List the places in a JSON value, from the whole to the leaves."""
    found = [at] if at else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        found += places(one, (*at, key))
    return found


def damage_json(value, chance):
    """Return a name and a copy of a JSON object in which one thing is changed, lost or new."""
    value = json.loads(json.dumps(value))
    known = places(value)
    at = known[chance.integers(len(known))]
    owner = value
    for key in at[:-1]:
        owner = owner[key]
    name = ".".join(map(str, at))
    way = int(chance.integers(6))
    if way == 0:
        del owner[at[-1]]
        return f"{name} lost", value
    if way == 1:
        new = STRANGE[chance.integers(len(STRANGE))]
        if isinstance(owner, dict):
            owner[f"new {chance.integers(9)}"] = new
        else:
            owner.append(new)
        return f"new beside {name}", value
    new = STRANGE[chance.integers(len(STRANGE))]
    owner[at[-1]] = new
    return f"{name} = {str(new)[:30]!r}", value


def sealed_again(value, *, pretty, owner=""):
    """Write a JSON object with the right checksum, whatever it holds."""
    indent = 2 if pretty else None

    def text(held):
        found = json.dumps(held, indent=indent)
        for depth in DEPTHS:
            found = found.replace(f'"a nest {depth} deep"', "[" * depth + "]" * depth)
        return found

    return text({**value, CHECKSUM: checksum((owner + text(value)).encode())}).encode() + b"\n"


def unsealed_again(content):
    """Read a sealed JSON object without a check."""
    value = json.loads(content)
    value.pop(CHECKSUM)
    return value


def damage_arrays(content, chance):
    """Return a name and the bytes of a tensor file with a right checksum, and an array changed, lost or new."""
    size = int.from_bytes(content[:8], "little")
    stamp = json.loads(content[8 : 8 + size])["__metadata__"]["stamp"].rpartition(" ")[0]
    arrays = dict(safetensors.numpy.load(content))
    names = sorted(arrays)
    name = names[chance.integers(len(names))] if names else ""
    way = int(chance.integers(12)) if names else 1
    array = arrays.get(name, np.zeros(1))
    numbers = np.issubdtype(array.dtype, np.floating)
    changed = [
        None,
        None,
        array.astype(np.float64 if array.dtype != np.float64 else np.int8),
        array.astype(np.uint8),
        array.reshape(-1)[:-1],
        np.concatenate([array.reshape(-1), array.reshape(-1)]),
        array[None],
        array.T.copy() if array.ndim > 1 else array[:, None] if array.ndim else array.reshape(1, 1),
        np.full_like(array, np.nan if numbers else -1 if array.dtype.kind == "i" else np.iinfo(array.dtype).max),
        np.full_like(array, np.inf if numbers else 0),
        np.zeros(0, array.dtype),
        np.full(array.shape, 2**62, np.int64),
    ][way]
    if way == 0:
        del arrays[name]
    elif way == 1:
        arrays["new"] = np.ones(3)
    else:
        arrays[name] = changed
    written = safetensors.numpy.save(arrays, {"stamp": f"{stamp} {BLANK}"})
    told = ["lost", "beside a new one"][way] if way < 2 else f"{changed.dtype}{changed.shape}"
    return f"{name} {told}", bytes(seal(written, stamp))
