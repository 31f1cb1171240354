"""What is called the same and what has the same text, however it was given; and what has another text."""

import hashlib
import importlib.util
import linecache
import runpy
import sys

import pytest

from protonorm.core.own_code import fingerprint, load_own, own_name, reference, resolve

FILE = """
import math
from dataclasses import dataclass
from functools import wraps

WIDTH = 8
UNUSED = 1


def helper(x):
    return WIDTH * x


def small(shape, d, classes):
    result = helper(d)
    return result


class Mine:
    def forward(self, x):
        return math.sqrt(helper(x))


@dataclass(frozen=True)
class Plain:
    width: int = WIDTH


def make(depth):
    def inner(shape, d, classes):
        return depth * d

    return inner


def told(function):
    @wraps(function)
    def wrapper(*values):
        return function(*values)

    return wrapper


@told
def wrapped(shape, d, classes):
    return d


result = 3
"""


def load(path, name):
    """Import a file under any name of a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(FILE)
    yield path
    for name in [name for name in sys.modules if name.startswith(("own_text_", "protonorm_own_"))]:
        del sys.modules[name]


def both(thing):
    return own_name(thing), fingerprint(thing)


@pytest.mark.parametrize("name", ["small", "Mine", "wrapped"])
def test_a_thing_is_the_same_however_it_was_given(file, name):
    """By its file, imported under two names, and as the main script it has one name and one text."""
    named = both(load_own(f"{file}:{name}", "network"))
    assert named[0] == f"net.py:{name}"
    assert named == both(getattr(load(file, "own_text_a"), name))
    assert named == both(getattr(load(file, "own_text_b.net"), name))
    main = runpy.run_path(str(file), run_name="__main__")
    if name != "Mine":  # the module of a class of that script is gone when it has ended; its functions tell the file
        assert main[name].__module__ == "__main__"
    assert named == both(main[name])
    assert named[1] != "unknown"


def test_a_class_without_functions_of_its_own_is_the_same_too(file):
    """A dataclass has functions that another module wrote."""
    named = both(load_own(f"{file}:Plain", "algorithm"))
    assert named[0] == "net.py:Plain"
    assert named == both(load(file, "own_text_a").Plain)
    file.write_text(FILE.replace("WIDTH = 8", "WIDTH = 9"))
    assert fingerprint(load(file, "own_text_b").Plain) != named[1]


def test_a_fingerprint_is_the_beginning_of_the_files_sha256(file):
    """As `sha256sum net.py` prints it: whatever is edited in the file, what stands in it is another thing."""
    wanted = hashlib.sha256(FILE.encode()).hexdigest()[:16]
    module = load(file, "own_text_before")
    assert fingerprint(module.small) == fingerprint(module.Mine) == fingerprint(module.wrapped) == wanted
    file.write_text(FILE.replace("UNUSED = 1", "UNUSED = 2"))
    assert fingerprint(load(file, "own_text_after").small) != wanted


def test_functions_that_a_function_makes_differ_by_the_values_they_keep(file):
    module = load(file, "own_text_made")
    assert fingerprint(module.make(3)) == fingerprint(module.make(3))
    assert fingerprint(module.make(3)) != fingerprint(module.make(4))
    assert own_name(module.make(3)) == "net.py:make.<locals>.inner"


def test_a_function_behind_another_counts(file):
    """The decorator does not say what it wraps; it keeps it."""
    text = FILE.replace("    @wraps(function)\n", "")
    file.write_text(text)
    before = fingerprint(load(file, "own_text_before").wrapped)
    file.write_text(
        text.replace("def wrapped(shape, d, classes):\n    return d", "def wrapped(shape, d, classes):\n    return 2")
    )
    assert fingerprint(load(file, "own_text_after").wrapped) != before


def test_a_function_that_calls_itself_ends(file):
    file.write_text("def make():\n    def again(x):\n        return again(x)\n    return again\n")
    assert len(fingerprint(load(file, "own_text_again").make())) == 16


def test_two_files_of_one_name_are_not_mixed_up(tmp_path):
    found = []
    for place, number in (("a", 1), ("b", 2)):
        (tmp_path / place).mkdir()
        path = tmp_path / place / "net.py"
        path.write_text(f"class Mine:\n    def f(self):\n        return {number}\n")
        found.append(load_own(f"{path}:Mine", "network"))
    assert fingerprint(found[0]) != fingerprint(found[1])


def test_a_library_is_named_by_its_module():
    assert own_name(pytest.raises).endswith(":raises")
    assert own_name(pytest.raises).startswith("_pytest.")


def test_what_has_no_file_is_named_by_its_module():
    """A cell of a notebook is no file."""
    space = {"__name__": "cell"}
    exec(compile("def small(shape, d, classes):\n    return d\n", "<cell 1>", "exec"), space)
    assert own_name(space["small"]) == "cell:small"
    assert fingerprint(space["small"]) == "unknown"


def test_an_old_import_of_a_file_that_was_edited_is_not_sent_elsewhere_and_a_new_one_is(tmp_path):
    """Here the old text is executed, and so its fingerprint stays; another process would import the new one."""
    path = tmp_path / "own_twice.py"
    path.write_text("class Mine:\n    def size(self):\n        return 1\n\n\ndef make():\n    return 1\n")
    old = [load_own(f"{path}:{name}", "thing") for name in ("Mine", "make")]
    places, texts = [reference(one) for one in old], [fingerprint(one) for one in old]
    path.write_text(path.read_text().replace("return 1", "return 2"))
    for one in old:
        with pytest.raises(ValueError, match=r"^own_twice\.py was changed since it was imported here"):
            reference(one)
    new = [load_own(f"{path}:{name}", "thing") for name in ("Mine", "make")]
    assert [fingerprint(one) for one in old] == texts  # though a module of that name has the new text
    assert all(fingerprint(one) != before for one, before in zip(new, texts, strict=True))
    for place, one in zip(places, new, strict=True):
        with pytest.raises(ValueError, match="was changed"):
            resolve(place)
        assert resolve(reference(one)) is one


def test_any_edit_of_the_file_counts(tmp_path):
    """A comment too, while something long is at work; what is executed here keeps its fingerprint."""
    path = tmp_path / "own_comment.py"
    path.write_text("def make():\n    return 1\n")
    made = load_own(f"{path}:make", "thing")
    text = fingerprint(made)
    for edit in ("# said later\ndef make():\n    return 1\n", "def make(:\n"):
        path.write_text(edit)
        assert fingerprint(made) == text
        with pytest.raises(ValueError, match="was changed"):
            reference(made)


def test_a_cell_of_a_notebook_counts_by_its_source(monkeypatch):
    """Notebooks put their cells where Python looks for lines."""

    def cell(text):
        name = f"<cell {len(linecache.cache)}>"
        monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(True), name))
        space = {"__name__": "cell"}
        exec(compile(text, name, "exec"), space)
        return space["small"]

    one = "def small(shape, d, classes):\n    return d\n"
    assert fingerprint(cell(one)) == fingerprint(cell(one)) == hashlib.sha256(one.encode()).hexdigest()[:16]
    assert fingerprint(cell(one.replace("return d", "return 2 * d"))) != fingerprint(cell(one))
