"""What is called the same and what has the same text, however it was given; and what has another text."""

import importlib.util
import runpy
import sys

import pytest

from protonorm.core.own_code import load_own, reference, resolve
from protonorm.core.own_text import fingerprint, own_name

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


CHANGES = {
    "its own text": ("result = helper(d)", "result = 2 * helper(d)", True),
    "what it calls": ("return WIDTH * x", "return WIDTH + x", True),
    "a number that what it calls uses": ("WIDTH = 8", "WIDTH = 9", True),
    "a number that nobody uses": ("UNUSED = 1", "UNUSED = 2", False),
    "another class": ("math.sqrt(", "math.cbrt(", False),
    "a global of a local's name": ("\nresult = 3", "\nresult = 4", False),
    "the main part": ("\nresult = 3", '\nif __name__ == "__main__":\n    d = print("hello")', False),
    "a blank line": ("import math\n", "\n\nimport math\n", False),
}


@pytest.mark.parametrize(("old", "new", "matters"), CHANGES.values(), ids=CHANGES)
def test_a_fingerprint_follows_what_a_function_uses_and_nothing_else(file, old, new, matters):
    before = fingerprint(load(file, "own_text_before").small)
    assert old in FILE
    file.write_text(FILE.replace(old, new))
    assert (fingerprint(load(file, "own_text_after").small) != before) is matters


def test_a_change_from_outside_counts_for_what_is_changed(file):
    before = load(file, "own_text_before")
    prints = fingerprint(before.Mine), fingerprint(before.small)
    file.write_text(f"{FILE}\nMine.factor = 2\n")
    after = load(file, "own_text_after")
    assert fingerprint(after.Mine) != prints[0]
    assert fingerprint(after.small) == prints[1]


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


def test_an_edit_elsewhere_in_the_file_changes_nothing(tmp_path):
    """A comment, and a function that it does not use, while something long is at work."""
    path = tmp_path / "own_comment.py"
    path.write_text("def make():\n    return 1\n\n\ndef other():\n    return 1\n")
    made = load_own(f"{path}:make", "thing")
    place, text = reference(made), fingerprint(made)
    path.write_text("# said later\ndef make():\n    return 1\n\n\ndef other():\n    return 2\n")
    assert reference(made) == place
    assert fingerprint(made) == text
    assert resolve(place)() == 1
    path.write_text("def make(:\n")
    assert fingerprint(made) == text
    with pytest.raises(ValueError, match="was changed"):
        reference(made)
