"""Files of one's own: imported when they are named, and never where own code is forbidden."""

import pytest
from typer.testing import CliRunner

from protonorm.cli.app import app
from protonorm.core.own_code import VARIABLE, fingerprint, load_file, load_own, without_own_code
from tests.support import run, spiral

TRAP = """
from pathlib import Path

Path(__file__).with_suffix(".ran").touch()


class Mine:
    pass


def network(shape, feature_dim, num_classes):
    raise SystemExit("it was called")
"""


@pytest.fixture
def trap(tmp_path):
    """A file that leaves a trace when it is executed."""
    path = tmp_path / "trap.py"
    path.write_text(TRAP)
    return path


def test_a_file_is_imported_once_and_what_it_holds_is_found(trap):
    assert load_own(f"{trap}:Mine", "algorithm") is load_file(trap).Mine
    with pytest.raises(ValueError, match="has no algorithm 'Mein'; did you mean 'Mine'"):
        load_own(f"{trap}:Mein", "algorithm")


def test_all_names_are_listed_where_none_is_near(tmp_path):
    """What the file defines; what it has imported only where it defines nothing."""
    for text, listed in (
        (
            "from math import tau, floor\n\ndef one():\n    pass\n\nclass Two:\n    pass\n\ndef _three(): pass\n",
            "Two, one",
        ),
        ("from math import floor, ceil\nimport os\nx = 3\n", "ceil, floor"),
    ):
        path = tmp_path / f"names{len(listed)}.py"
        path.write_text(text)
        with pytest.raises(ValueError, match=f"has no network 'zzzz'; known: {listed}\\.$"):
            load_own(f"{path}:zzzz", "network")


def test_a_file_that_failed_is_imported_anew(tmp_path):
    path = tmp_path / "half_done.py"
    path.write_text("x = 1\nimport no_such_library_at_all\n")
    with pytest.raises(ValueError, match=r"half_done\.py, line 2: it imports 'no_such_library_at_all'"):
        load_file(path)
    path.write_text("import math\nx = math.floor(7.5)\n")
    assert load_file(path).x == 7


def test_an_interrupt_goes_through(tmp_path):
    path = tmp_path / "stopped.py"
    path.write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load_file(path)


@pytest.mark.parametrize("name", ["nowhere.py", "\0.py", "x" * 5000 + ".py", ".", "trap.ran"])
def test_what_is_no_file_is_refused_in_a_short_sentence(tmp_path, name):
    with pytest.raises(ValueError, match="There is no Python file") as refused:
        load_file(tmp_path / name)
    assert len(str(refused.value)) < 300


def test_forbidden_files_are_refused_even_if_they_were_imported_before(trap):
    load_file(trap)
    with without_own_code(), without_own_code(False), pytest.raises(ValueError, match=r"trap\.py must not be imported"):
        load_file(trap)
    with without_own_code(False):
        load_file(trap)


@pytest.mark.parametrize(("value", "allowed"), [("1", False), ("yes", False), ("0", True), ("", True)])
def test_the_environment_forbids_too(trap, monkeypatch, value, allowed):
    monkeypatch.setenv(VARIABLE, value)
    if allowed:
        assert load_file(trap).Mine
    else:
        with pytest.raises(ValueError, match=VARIABLE):
            load_file(trap)


COMMANDS = {
    "an algorithm": ["run", "algorithm={trap}:Mine"],
    "data": ["run", "dataset={trap}:Mine"],
    "a partition": ["run", "partition={trap}:Mine"],
    "networks": ["run", "models=[mlp,{trap}:network]"],
    "a second network": ["run", "algorithm=fml", "auxiliary={trap}:network"],
    "a tracker": ["run", "tracker={trap}:Mine"],
    "a method": ["compare", "{trap}:Mine"],
    "a method with settings": ["compare", "{trap}:Mine:x=1"],
    "a tracker of a comparison": ["compare", "local", "tracker={trap}:Mine"],
    "a table": ["reproduce", "{trap}", "--render-only"],
    "a listed table": ["reproduce", "--list", "{trap}"],
    "an inspected network": ["inspect", "{trap}:network"],
    "an exported network": ["export", "RUN", "x", "--client", "0", "--network", "{trap}:network"],
    "an exported method": ["export", "RUN", "x", "--client", "0", "--algorithm", "{trap}:Mine"],
    "a predicting network": ["predict", "RUN", "x.png", "--client", "0", "--network", "{trap}:network"],
    "a predicting method": ["predict", "RUN", "x.png", "--client", "0", "--algorithm", "{trap}:Mine"],
    "a file of settings": ["run", "{settings}"],
}


@pytest.mark.parametrize("by", ["option", "environment"])
@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_no_command_executes_a_forbidden_file(trap, tmp_path, monkeypatch, words, by):
    if "RUN" in words:
        run(spiral(rounds=1), out=tmp_path / "runs")
    settings = tmp_path / "settings.yaml"
    settings.write_text(f"algorithm: {{name: '{trap}:Mine'}}\n")
    words = [word.format(trap=trap, settings=settings).replace("RUN", "protonorm") for word in words]
    if by == "environment":
        monkeypatch.setenv(VARIABLE, "1")
    else:
        words.append("--no-own-code")
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2, result.output
    assert "trap.py must not be imported: importing it would execute it" in result.stderr
    assert not trap.with_suffix(".ran").exists()


def test_without_the_option_the_file_is_executed(trap):
    CliRunner().invoke(app, ["run", f"tracker={trap}:Mine"])
    assert trap.with_suffix(".ran").exists()


def test_a_file_that_was_edited_is_imported_anew(tmp_path):
    """Else a run would have the key of the new text and the results of the old one."""
    file = tmp_path / "edited.py"
    file.write_text("def width():\n    return 8\n")
    before = load_own(f"{file}:width", "network")
    assert load_own(f"{file}:width", "network") is before
    seen = fingerprint(before)
    file.write_text("def width():\n    return 9\n")
    after = load_own(f"{file}:width", "network")
    assert (before(), after()) == (8, 9)
    assert fingerprint(after) != seen
