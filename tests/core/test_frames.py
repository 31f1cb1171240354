"""Frames: their bytes by hand, and what is no frame is refused before anything is made of it."""

import json
import re
import struct

import numpy as np
import pytest
import torch

from protonorm.core.frames import MAX_HEADER, BadFrame, decode_body, encode_body, join, split


def body_of(index, data=b""):
    text = index if isinstance(index, bytes) else json.dumps(index).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_a_frame_is_made_and_read_without_the_package():
    """The layout by hand: mark, two lengths, JSON, then safetensors: a length, JSON, and the plain numbers."""
    numbers = np.arange(6, dtype="<f4").reshape(2, 3)
    index = json.dumps({"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
    body = len(index).to_bytes(8, "little") + index + numbers.tobytes()
    text = b'{"x":1}'
    frame = b"PNFL" + len(text).to_bytes(4, "little") + len(body).to_bytes(8, "little") + text + body
    header, rest = split(frame)
    assert header == {"x": 1}
    assert torch.equal(decode_body(rest)["a"], torch.from_numpy(numbers))
    assert join({"x": 1}, body) == frame


def test_tensors_of_all_kinds_come_back():
    tensors = {
        "float": torch.randn(2, 3),
        "double": torch.randn(2, dtype=torch.float64),
        "whole": torch.tensor(7),
        "none": torch.zeros(0, 5),
        "half": torch.ones(3, dtype=torch.float16),
    }
    found = decode_body(encode_body(tensors))
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) and found[name].dtype == tensors[name].dtype for name in found)
    assert encode_body({}) == b""
    assert decode_body(b"") == {}


def test_what_is_announced_is_compared_with_what_is_there_before_it_is_read():
    good = join({"x": 1}, body_of({}))
    for content, said in {
        good[:10]: "10 bytes, too few",
        b"PNFM" + good[4:]: "does not begin",
        good + b"x": "says that it has",
        struct.pack("<4sIQ", b"PNFL", MAX_HEADER + 1, 0): "header of 65537 bytes",
        struct.pack("<4sIQ", b"PNFL", 2, 2**60) + b"{}": "at most are expected",
        join({"x": 1}, b"").replace(b"x", b"\xff"): "header cannot be read",
        struct.pack("<4sIQ", b"PNFL", 3, 0) + b"[1]": "header is no object",
        struct.pack("<4sIQ", b"PNFL", 13, 0) + b'{"a":1,"a":2}': "stands twice",
        struct.pack("<4sIQ", b"PNFL", 9, 0) + b'{"a":NaN}': "NaN is not a number",
    }.items():
        with pytest.raises(BadFrame, match=re.escape(said)):
            split(content)
    with pytest.raises(BadFrame, match="at most are expected"):
        split(good, largest=1)


def tensor(**change):
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | change


@pytest.mark.parametrize(
    ("index", "data", "said"),
    [
        ({"a": tensor()}, bytes(7), "take 8 bytes, and 7 are there"),
        ({"a": tensor()}, bytes(9), "take 8 bytes, and 9 are there"),
        ({"a": tensor(shape=[3])}, bytes(8), "another size than its shape"),
        ({"a": tensor(shape=[-2])}, bytes(8), "no possible shape"),
        ({"a": tensor(shape=[2.0])}, bytes(8), "no possible shape"),
        ({"a": tensor(shape=[True, 2])}, bytes(8), "no possible shape"),
        ({"a": tensor(shape=[2**41, 0], data_offsets=[0, 0])}, b"", "no possible shape"),
        ({"a": tensor(shape=[1] * 9)}, bytes(4), "no possible shape"),
        ({"a": tensor(dtype="F8_E4M3")}, bytes(8), "the type F8_E4M3"),
        ({"a": tensor(dtype=["F32"])}, bytes(8), "which is not expected"),
        ({"a": tensor(), "b": tensor()}, bytes(8), "overlap, or leave gaps"),
        ({"a": tensor(), "b": tensor(data_offsets=[9, 17])}, bytes(17), "overlap, or leave gaps"),
        ({"a": tensor(more=1)}, bytes(8), "not described by type, shape and place"),
        ({"a": 3}, b"", "not described"),
        ({"a" * 300: tensor()}, bytes(8), "name has 300 characters"),
        ({"__metadata__": 3}, b"", "metadata that are no object"),
        ({str(n): tensor(shape=[0], data_offsets=[0, 0]) for n in range(10_001)}, b"", "10001 tensors"),
        (b"[" * 50_000, b"", "index of tensors cannot be read"),
    ],
    ids=range(18),
)
def test_tensors_that_are_not_what_they_claim_are_refused(index, data, said):
    with pytest.raises(BadFrame, match=re.escape(said)):
        decode_body(body_of(index, data))


def test_an_index_that_is_longer_than_the_body_is_refused():
    with pytest.raises(BadFrame, match="no index of a possible size"):
        decode_body(struct.pack("<Q", 2**63) + b"{}")
    with pytest.raises(BadFrame, match="no index of a possible size"):
        decode_body(b"\0" * 7)
