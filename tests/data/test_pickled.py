"""Pickles are read as plain data; whatever else they ask for is refused, and nothing of it is executed."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protonorm.data.pickled import read_pickle
from tests.data import archives

ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"  # an array without its bytes
BYTES = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR"  # its type
GOOD = archives.python2_pickle({"data": archives.planes(1)[:, :6], "labels": [7], "names": ["a"]})


def array(state: bytes) -> bytes:
    """Pickle a dict of one array that is filled with a state."""
    return b"}U\x01a" + ARRAY + state + b"bs."


@pytest.mark.parametrize("protocol", range(6))
def test_plain_data_of_any_protocol(protocol):
    held = {
        b"data": archives.planes(3),
        "labels": [1, 2, 300],
        b"names": ["é", b"x"],
        "fortran": np.asfortranarray(archives.planes(2)),
    }
    found = read_pickle(pickle.dumps(held, protocol), "it")
    assert list(found) == ["data", "labels", "names", "fortran"]
    np.testing.assert_array_equal(found["data"], held[b"data"])
    np.testing.assert_array_equal(found["fortran"], held["fortran"])
    assert found["labels"] == [1, 2, 300]
    assert found["names"] == ["é", "x"]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        *(("os", "system"), ("posix", "system"), ("subprocess", "Popen")),
        *(("builtins", "eval"), ("builtins", "exec"), ("builtins", "getattr"), ("__builtin__", "eval")),
        *(("numpy", "load"), ("numpy", "fromfile"), ("numpy", "memmap"), ("numpy.lib.npyio", "load")),
        *(("numpy.core.multiarray", "scalar"), ("numpy._core.multiarray", "fromfile")),
        *(("numpy.testing._private.utils", "runstring"), ("numpy.core.multiarray", "_reconstruct.__globals__")),
        *(("numpy.f2py.diagnose", "run_command"), ("copyreg", "_reconstructor"), ("codecs", "encode")),
    ],
)
def test_names_of_functions_are_refused(module, name):
    """Called at once, inside an argument of an allowed function, by protocol 0 and by protocol 4."""
    called = f"c{module}\n{name}\n(S'true'\ntR".encode()
    by_stack = (
        b"\x80\x04\x8c"
        + bytes([len(module)])
        + module.encode()
        + b"\x8c"
        + bytes([len(name)])
        + name.encode()
        + b"\x93"
    )
    for harmful in (called + b".", b"c_codecs\nencode\n(" + called + b"tR.", by_stack + b"(S'true'\ntR."):
        with pytest.raises(
            ValueError, match=f"it must hold plain data only, but it asks for {module}.{name}; nothing was executed"
        ):
            read_pickle(harmful, "it")


@pytest.mark.parametrize(
    "harmful",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"(ios\nsystem\nS'true'\no.",
        b"(S'true'\nios\nsystem\n.",
        b"c__builtin__\ngetattr\n.",
        b"cnumpy.core.multiarray\n_reconstruct\n(cbuiltins\nint\nK\x00\x85U\x01btR.",
        b"cnumpy\nndarray\n)R.",
        b"cnumpy\nndarray\n)\x81.",
        b"\x80\x02cnumpy\nndarray\n}b.",
        b"\x80\x02]P1\n.",
        b"\x80\x02\x82\x01.",
    ],
)
def test_other_ways_to_harm_are_refused(harmful):
    with pytest.raises(ValueError, match="must hold plain data|is damaged"):
        read_pickle(harmful, "it")


@pytest.mark.parametrize(
    "harmful",
    [
        ARRAY + b")R.",  # an array is called
        BYTES + b")R.",
        b"c_codecs\nencode\n(K\x01tR.",  # a number is no text
        b"c_codecs\nencode\n}S'__call__'\nK\x01sb.",  # an allowed function is changed
        b"c_codecs\nencode\nN}S'_call'\nK\x01s\x86b.",
        b"cnumpy\ndtype\n(S'O'\ntR.",  # a type of objects
        b"cnumpy\ndtype\n(S'V8'\ntR.",
    ],
)
def test_allowed_functions_do_nothing_but_make_bytes(harmful):
    with pytest.raises(ValueError, match="it must hold plain data|it is damaged"):
        read_pickle(harmful, "it")
    assert read_pickle(GOOD, "it")["labels"] == [7]


@pytest.mark.parametrize(
    "state",
    [
        b"N",
        b"}",
        b")",
        b"(K\x01K\x02t",
        b"(K\x01(K\x02t" + BYTES + b"\x89U\x03abct",  # three bytes for a shape of two
        b"(K\x01(J\xff\xff\xff\xffJ\xfd\xff\xff\xfft" + BYTES + b"\x89U\x03abct",  # (−1) · (−3) = 3
        b"(K\x01(J\xff\xff\xff\x7fJ\xff\xff\xff\x7ft" + BYTES + b"\x89U\x03abct",
        b"(K\x01N" + BYTES + b"\x89U\x03abct",
        b"(K\x01(U\x01xt" + BYTES + b"\x89U\x01at",
        b"(K\x01(K\x01tU\x02u1\x89U\x01at",  # a name in place of a type
        b"(K\x01(K\x01t" + BYTES + b"\x89(K\x01tt",  # a tuple in place of bytes
        b"(K\x01(K\x01t" + BYTES + b"\x89]K\x01at",
    ],
)
def test_arrays_that_are_filled_with_something_else(state):
    with pytest.raises(ValueError, match="it is damaged: it is not a whole pickle of plain data"):
        read_pickle(array(state), "it")


def test_an_array_is_filled_with_bytes():
    state = b"(K\x01(K\x01K\x03t" + BYTES + b"\x89U\x03abct"
    assert read_pickle(array(state), "it")["a"].tolist() == [[97, 98, 99]]


@pytest.mark.parametrize(
    "held",
    [
        [1, 2],
        7,
        {"a": (1, 2)},
        {"a": {"b": 1}},
        {"a": [[1]]},
        {"a": [np.zeros(2, np.uint8)]},
        {"a": {1, 2}},
        {7: "a"},
        {(1, 2): "a"},
        {None: "a"},
    ],
)
def test_other_things_than_flat_data_are_refused(held):
    with pytest.raises(ValueError, match="it is damaged"):
        read_pickle(pickle.dumps(held, 4), "it")


def test_arrays_of_other_types_are_refused():
    for kind in (np.float32, np.int8, "S3", object, [("a", "u1")]):
        with pytest.raises(ValueError, match="it must hold plain data|it is damaged"):
            read_pickle(pickle.dumps({"data": np.zeros(3, kind)}, 2), "it")


BOMBS = {
    "nested lists": b"](" * 5000 + b"e" * 5000,
    "a list that holds itself": b"]q\x01h\x01a",
    "lists that hold the one before twice": b"]q\x00" + b"](h\x00h\x00eq\x00" * 100,
    "nested tuples as a key": b"})" + b"\x85" * 1_000_000 + b"K\x01s",
    "a memory of four thousand million places": b"]r\xff\xff\xff\xff",
    "a memory in letters": b"]p99999999999\n",
    "a thousand thousand million bytes": b"\x96" + (10**12).to_bytes(8, "little") + b"abc",
}


@pytest.mark.skipif(sys.platform == "win32", reason="limits of memory are set as on Unix")
@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_bombs_are_refused(bomb):
    """In a process of its own with 3 GiB of memory, for some of them would end it."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30,) * 2)\n"
        "from protonorm.data.pickled import read_pickle\n"
        "try: read_pickle(sys.stdin.buffer.read(), 'it')\n"
        "except ValueError as error: print(error)"
    )
    pickled = b"\x80\x02" + bomb + b"."
    done = subprocess.run([sys.executable, "-c", code], input=pickled, capture_output=True, check=True)
    assert b"it is damaged" in done.stdout
    assert b"()" not in done.stdout  # which a MemoryError would say


def test_a_truncated_pickle_is_refused_wherever_it_ends():
    for end in range(len(GOOD)):
        with pytest.raises(ValueError, match="it is damaged"):
            read_pickle(GOOD[:end], "it")


@given(place=st.integers(0, len(GOOD) - 1), byte=st.integers(0, 255))
def test_a_changed_byte_gives_plain_data_or_a_sentence(place, byte):
    try:
        found = read_pickle(GOOD[:place] + bytes([byte]) + GOOD[place + 1 :], "it")
    except ValueError as error:
        assert "it must hold plain data" in str(error) or "it is damaged" in str(error)
    else:
        assert all(isinstance(value, np.ndarray | list | int | str | bool | float | None) for value in found.values())
