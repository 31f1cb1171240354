"""Frames and records of random and of damaged bytes: what is read is whole, or refused by the one error for it.

Nothing is allocated because somebody announces it, and nothing but the documented errors is raised.
"""

import io
import json
import os
import struct
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from protonorm import tensors
from protonorm.algorithms import ALGORITHMS
from protonorm.core.frames import MARK, SIZES, BadFrame, read_frame, write_frame
from protonorm.files import BLANK, checksum, seal, sealed, unsealed
from protonorm.runs.arrays import encode_arrays, read_arrays
from protonorm.session.build import build
from tests.hardening.mutations import STRANGE, damage_bytes, damage_json, sealed_again
from tests.support import spiral

FRAMES = int(os.environ.get("PROTONORM_FRAMES", "120000"))  # frames and records in the long form
SHORT = 2000
STAMP = "key what 1"
PLACE = Path("somewhere")


def attempt(read, errors):
    """Read; what is refused in the documented way is fine."""
    try:
        return read()
    except errors:
        return None


# Frames

HEADERS = [
    {"ready": True},
    {"call": 3, "id": 1, "metrics": {"loss": 0.5}, "seconds": 0.1},
    {"call": 3, "id": 1, "error": "refused", "text": "because"},
    {"verb": "train", "call": 1, "orders": [[0, 1, 0], [1, 1, 0]]},
]
BODIES = [
    {},
    {"classes": torch.arange(3), "prototypes": torch.ones(3, 2)},
    {"w": torch.zeros(0, 4), "b": torch.ones(())},
]


def frames():
    """Give valid frames."""
    found = []
    for header in HEADERS:
        for body in BODIES:
            stream = io.BytesIO()
            write_frame(stream, header, body)
            found.append(stream.getvalue())
    return found


def pack(text, body=b""):
    return SIZES.pack(MARK, len(text), len(body)) + text + body


def odd_safetensors(chance):
    """Write a tensor file whose header promises what its bytes do not hold."""
    kinds = ["F32", "I64", "BOOL", "F8_E4M3", "BF16", "X9", "", 3, None]
    sizes = [0, 1, 3, -1, 2**31, 2**62, 10**30, "3", None, [1]]
    offsets = [0, 4, 12, 24, -4, 2**62, 2**64, "0", None]
    header = {
        f"t{number}": {
            "dtype": kinds[chance.integers(len(kinds))],
            "shape": [sizes[chance.integers(len(sizes))] for _ in range(chance.integers(4))],
            "data_offsets": [offsets[chance.integers(len(offsets))] for _ in range(chance.integers(1, 4))],
        }
        for number in range(chance.integers(4))
    }
    if chance.integers(3) == 0:
        _, header = damage_json(
            {"t": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}, "__metadata__": {}}, chance
        )
    return header, chance.bytes(int(chance.choice([0, 4, 12, 24])))


def with_header(header, body, size=None):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + body


def attack_frame(known, chance):
    """Make one hostile stream."""
    way = int(chance.integers(6))
    frame = known[chance.integers(len(known))]
    if way == 0:
        return chance.bytes(int(chance.integers(80)))
    if way == 1:
        return damage_bytes(frame, chance)[1] or b""
    if way == 2:
        header = int(chance.choice([0, 1, 5, 2**20 + 1, 2**26, 2**26 + 1, 2**32 - 1]))
        body = int(chance.choice([0, 1, 5, 2**20 + 1, 2**26, 2**36, 2**36 + 1, 2**60, 2**63]))
        return SIZES.pack(MARK, header, body) + frame[SIZES.size :]
    if way == 3:
        return pack(json.dumps(STRANGE[chance.integers(len(STRANGE))]).encode(), chance.bytes(int(chance.integers(9))))
    if way == 4:
        return pack(b"{}", with_header(*odd_safetensors(chance), *([2**60] if chance.integers(9) == 0 else [])))
    _, header = damage_json(HEADERS[chance.integers(len(HEADERS))], chance)
    return pack(json.dumps(header).encode(), frame[SIZES.size :][: int(chance.integers(200))])


def fuzz_frames(count, chance):
    known = frames()
    for _ in range(count):
        content = attack_frame(known, chance)
        stream = io.BytesIO(content)
        while found := attempt(lambda stream=stream: read_frame(stream), BadFrame):
            assert isinstance(found[0], dict), content
            assert all(isinstance(value, torch.Tensor) for value in found[1].values()), content


def test_frames_come_back_as_they_were_sent():
    stream = io.BytesIO(b"".join(frames()))
    for header in HEADERS:
        for body in BODIES:
            found = read_frame(stream)
            assert found[0] == header
            assert found[1].keys() == body.keys()
            assert all(torch.equal(found[1][name], value) for name, value in body.items())
    assert read_frame(stream) is None


@pytest.mark.parametrize("header", [0, 2, 2**26, 2**26 + 1, 2**32 - 1])
@pytest.mark.parametrize("body", [0, 2**30, 2**36, 2**60, 2**64 - 1])
def test_nothing_is_allocated_for_what_is_only_announced(header, body):
    """Eight megabytes are more than two chunks, and less than anything announced here but the smallest."""
    stream = io.BytesIO(SIZES.pack(MARK, header, body) + b"{}" + b"x" * 1000)
    tracemalloc.start()
    try:
        attempt(lambda: read_frame(stream), BadFrame)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


def test_a_pipe_that_ends_in_the_middle_of_a_frame_is_one_whose_other_side_has_gone():
    reading, writing = os.pipe()
    os.write(writing, SIZES.pack(MARK, 2**25, 2**35) + b"{")
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        assert read_frame(stream) is None


# Records


class Held:
    """A file whose bytes are in memory."""

    def __init__(self, content):
        self.content = content

    def read_bytes(self):
        return self.content

    def __str__(self):
        return "held"


def forge_seal(header, body):
    """Give a tensor file with any header a right checksum."""
    if isinstance(header, dict):
        header = {**header, "__metadata__": {"stamp": f"{STAMP} {BLANK}"}}
    content = with_header(header, body)
    try:
        return bytes(seal(content, STAMP))
    except ValueError:  # there is no place for it
        return content


def attack_tensors(known, chance):
    way = int(chance.integers(4))
    if way == 0:
        return chance.bytes(int(chance.integers(120)))
    if way == 1:
        return damage_bytes(known[chance.integers(len(known))], chance)[1] or b""
    header, body = odd_safetensors(chance)
    if way == 2:
        return with_header({**header, "__metadata__": STRANGE[chance.integers(len(STRANGE))]}, body)
    return forge_seal(header, body)


def fuzz_tensors(count, chance):
    """Read tensor files in both ways: with torch, and without."""
    arrays = {"train": np.arange(6).reshape(2, 3), "margins": np.ones(3, np.float32)}
    known = [encode_arrays(arrays, STAMP), encode_arrays({}, STAMP)]
    for _ in range(count):
        content = attack_tensors(known, chance)
        found = attempt(lambda content=content: read_arrays(PLACE, STAMP, content), ValueError)
        assert found is None or all(isinstance(one, np.ndarray) for one in found.values()), content
        read = attempt(lambda content=content: tensors.load(Held(content), STAMP), ValueError)
        assert read is None or all(isinstance(one, torch.Tensor) for one in read.values()), content


def fuzz_lines(count, chance):
    value = {"round": 1, "rules": {"nearest-global": {"pooled": 0.5}}, "cohort": [0, 1], "lost": {"3": "it died"}}
    for _ in range(count):
        pretty = bool(chance.integers(2))
        way = int(chance.integers(4))
        if way == 0:
            content = chance.bytes(int(chance.integers(80)))
        elif way == 1:
            content = damage_bytes(sealed(value, pretty=pretty), chance)[1] or b""
            if content == sealed(value, pretty=pretty):
                continue
        elif way == 2:
            content = sealed_again(damage_json(value, chance)[1], pretty=pretty)
        else:
            text = json.dumps(STRANGE[chance.integers(len(STRANGE))])
            content = f'{{"a": {text}, "checksum": "{checksum(text.encode())}"}}\n'.encode()
        found = attempt(lambda content=content, pretty=pretty: unsealed(content, PLACE, pretty=pretty), ValueError)
        assert found is None or isinstance(found, dict), content
        assert way != 1 or found is None, f"a change was not noticed: {content!r}"


# Messages

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]
KINDS += [torch.complex64]


def random_tensor(chance, shape=None, kind=None):
    shape = [int(chance.integers(8)) for _ in range(chance.integers(4))] if shape is None else shape
    kind = KINDS[chance.integers(len(KINDS))] if kind is None else kind
    values = torch.from_numpy(chance.choice([0.0, 1.0, 2.0, -1.0, 5.0, 1e30, np.nan, np.inf], shape))
    if kind.is_floating_point or kind.is_complex:
        return values.to(kind)
    return values.nan_to_num(3.0, 4.0).clamp(-9, 9).to(kind)


def attack_message(schema, chance):
    """Make a message of the right and of wrong names, types and shapes."""
    fields = {name: one for slot in schema.up for form in slot for name, one in form.items()}
    names = [*fields, "strange", "", "classes", "prototypes"]
    found = {}
    for name in names:
        way = int(chance.integers(4))
        if way == 0 or (name not in fields and way < 3):
            continue
        one = fields.get(name)
        if one is None or way == 1:
            found[name] = random_tensor(chance)
        else:
            known = {**schema.exact, **schema.bounds}
            shape = [known.get(size, int(chance.integers(7))) if isinstance(size, str) else size for size in one.shape]
            shape = [size if chance.integers(9) else int(chance.integers(9)) for size in shape]
            found[name] = random_tensor(chance, shape, one.dtype if chance.integers(9) else None)
    return found


def fuzz_messages(count, chance, schemas):
    for number in range(count):
        schema = schemas[number % len(schemas)]
        message = attack_message(schema, chance)
        attempt(lambda schema=schema, message=message: schema.check_up(message, "The reply of client 0"), ValueError)
        attempt(lambda schema=schema, message=message: schema.check_down(message), ValueError)


@pytest.fixture(scope="module")
def schemas():
    return [build(spiral(algorithm=name))[0].schema for name in ALGORITHMS]


FUZZ = {"frames": fuzz_frames, "tensors": fuzz_tensors, "lines": fuzz_lines, "messages": fuzz_messages}
SHARES = {"frames": 0.4, "tensors": 0.25, "lines": 0.2, "messages": 0.15}


def fuzz(what, count, seed, schemas):
    more = [schemas] if what == "messages" else []
    FUZZ[what](count, np.random.default_rng(seed), *more)


@pytest.mark.parametrize("what", FUZZ)
def test_hostile_bytes_are_refused_in_the_one_way_there_is(what, schemas):
    fuzz(what, int(SHORT * SHARES[what]), 0, schemas)


@pytest.mark.long
@pytest.mark.parametrize("what", FUZZ)
def test_long_hostile_bytes(what, schemas):
    count = int(FRAMES * SHARES[what])
    fuzz(what, count, 1, schemas)
    sys.stdout.write(f"\n{count} {what}\n")
