"""Wrong settings and broken files: a sentence that says what is wrong, exit code 2 or 1, and no run is damaged."""

import errno
import re
import shutil
import sys

import pytest
from typer.testing import CliRunner

import protonorm as pn
from protonorm.cli.app import app
from protonorm.config.methods import read_experiment
from tests.cli.own_files import OWN, RUNNING
from tests.cli.refused import SETTINGS, SPIRAL, check_error, check_sentence
from tests.support import contents, run, run_folder, spiral


@pytest.fixture
def call():
    runner = CliRunner()

    def invoke(*words):
        result = runner.invoke(app, list(words))
        assert "Traceback" not in result.output
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke


NAMES = [" ".join(words) for words, _ in SETTINGS]


def test_there_are_many_of_them():
    assert len(set(NAMES)) + len(OWN) >= 120


@pytest.mark.parametrize(("words", "said"), SETTINGS, ids=NAMES)
def test_a_wrong_setting(call, tmp_path, words, said):
    result = call("run", *SPIRAL, *words, "--out", str(tmp_path / "runs"))
    assert result.exit_code == 2
    assert said in result.stderr
    check_sentence(result.stderr)
    assert not (tmp_path / "runs").exists()  # nothing was begun


@pytest.mark.parametrize(("words", "said"), SETTINGS, ids=NAMES)
def test_a_wrong_setting_in_python(tmp_path, words, said):
    with pytest.raises(ValueError, match=re.escape(said)) as refused:
        pn.run(pn.Experiment(**read_experiment([*SPIRAL, *words])), out=tmp_path / "runs", engine="serial")
    check_error(refused.value)
    assert not (tmp_path / "runs").exists()


OPTIONS = {
    "an engine that there is not": (["--engine", "cloud"], "Unknown engine 'cloud'"),
    "a setting as an option": (["--rounds", "3"], "Settings are words without dashes: rounds=…"),
    "no number of workers": (["--workers", "many"], "'--workers'"),
    "a folder of no name": (["--out", ""], "expected the path of a file or folder"),
}


@pytest.mark.parametrize(("words", "said"), OPTIONS.values(), ids=OPTIONS)
def test_a_wrong_option(call, words, said):
    result = call("run", *SPIRAL, *words)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.replace("│", " ").split())


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write a file of one's own into the current folder; a neighbour lies beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two texts within a second would be taken for one
    (tmp_path / "beside.py").write_text("")

    def write(text):
        sys.modules.pop("protonorm_own_own", None)
        (tmp_path / "own.py").write_text(text)

    yield write
    sys.modules.pop("protonorm_own_own", None)


@pytest.mark.parametrize(("text", "words", "said"), OWN.values(), ids=OWN)
def test_a_wrong_file_of_ones_own(call, own, tmp_path, text, words, said):
    own(text)
    result = call("run", *SPIRAL[2:], *_data(words), *words, "--out", str(tmp_path / "runs"))
    assert result.exit_code == 2
    assert said in result.stderr
    check_sentence(result.stderr)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("text", "words", "said"), OWN.values(), ids=OWN)
def test_a_wrong_file_of_ones_own_in_python(own, tmp_path, text, words, said):
    own(text)
    with pytest.raises(ValueError, match=re.escape(said)) as refused:
        pn.run(pn.Experiment(**read_experiment([*SPIRAL[2:], *_data(words), *words])), out=tmp_path / "runs")
    check_error(refused.value)


def _data(words):
    return [] if any(word.startswith("dataset") for word in words) else SPIRAL[:2]


@pytest.mark.parametrize("engine", ["serial", "processes"])
@pytest.mark.parametrize(("text", "words", "said"), RUNNING.values(), ids=RUNNING)
def test_a_mistake_in_a_file_of_ones_own_is_told_with_its_line(call, own, tmp_path, text, words, said, engine):
    own(text)
    words = [*SPIRAL[2:], *_data(words), *words, "models=mlp", "--engine", engine, "--workers", "1"]
    result = call("run", *words, "--out", str(tmp_path / "runs"))
    assert result.exit_code in (1, 2)
    assert said in result.stderr
    check_sentence(result.stderr)


def test_an_unknown_setting_of_a_compared_method(call, own, tmp_path):
    own(OWN["an unknown setting of a method"][0])
    result = call("compare", "own.py:Mine:nu=2", *SPIRAL, "--out", str(tmp_path / "runs"))
    assert result.exit_code == 2
    assert "algorithm own.py:Mine has no setting 'algorithm.nu'; did you mean 'mu'?" in result.stderr


YAML = {
    "tabs": ("rounds:\n\t- 1\n", "tabs"),
    "a list": ("- rounds\n", "key: value"),
    "an open bracket": ("models: [plain\n", "not valid YAML"),
    "an unknown key": ("roundz: 1\n", "did you mean 'rounds'"),
    "a python object": ("rounds: !!python/object/apply:os.getcwd []\n", "not valid YAML"),
}


@pytest.mark.parametrize(("text", "said"), YAML.values(), ids=YAML)
def test_a_wrong_file(call, tmp_path, text, said):
    (tmp_path / "a.yaml").write_text(text)
    result = call("run", str(tmp_path / "a.yaml"))
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_file_that_is_not_text(call, tmp_path):
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe\x00rounds")
    result = call("run", str(tmp_path / "a.yaml"))
    assert result.exit_code == 2


def stop(_):
    raise KeyboardInterrupt


WORDS = ["dataset=spiral", "dataset.points=60", "partition=dirichlet", "partition.alpha=0.3", "partition.least=4"]
WORDS += ["clients=6", "rounds=3", "batch_size=8", "lr=0.05", "--engine", "serial"]


@pytest.fixture
def half_done(tmp_path):
    """A run that stopped after its first round, made by the command of WORDS."""
    with pytest.raises(KeyboardInterrupt):
        run(spiral(), out=tmp_path, watch=stop)
    return run_folder(spiral(), tmp_path)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


def swap(one, other):
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def flip(path, place=-3):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def rewrite(path):
    """Write a number of the first line in another way: it stays valid JSON, and of the same value."""
    path.write_bytes(path.read_bytes().replace(b'"round": 1,', b'"round": 1.0,'))


DAMAGE = {
    "a truncated experiment": (lambda f: truncate(f / "experiment.json"), "damaged"),
    "another name in the experiment": (
        lambda f: (f / "experiment.json").write_text((f / "experiment.json").read_text().replace("spiral", "fashio")),
        "experiment.json is damaged: it was changed after it was written",
    ),
    "an experiment that is a list": (lambda f: (f / "experiment.json").write_text("[]"), "damaged"),
    "an experiment of an older version": (lambda f: (f / "experiment.json").write_text("{}"), "format 1"),
    "lost metrics": (lambda f: (f / "metrics.jsonl").write_text(""), "0 lines for 1 committed"),
    "metrics that are not JSON": (lambda f: (f / "metrics.jsonl").write_text("{'round'\n"), "damaged"),
    "a rewritten line of metrics": (lambda f: rewrite(f / "metrics.jsonl"), "metrics.jsonl is damaged"),
    "a flipped bit in the server's state": (lambda f: flip(f / "server.safetensors"), "server.safetensors is damaged"),
    "a flipped bit in a client's state": (
        lambda f: flip(f / "clients" / "2.1.safetensors"),
        "clients/2.1.safetensors is damaged",
    ),
    "a truncated server state": (lambda f: truncate(f / "server.safetensors"), "damaged"),
    "a server state that is text": (lambda f: (f / "server.safetensors").write_text("hello"), "damaged"),
    "a truncated client state": (lambda f: truncate(f / "clients" / "2.1.safetensors"), "damaged"),
    "a missing client state": (lambda f: (f / "clients" / "2.1.safetensors").unlink(), "missing"),
    "swapped client states": (
        lambda f: swap(f / "clients" / "2.1.safetensors", f / "clients" / "3.1.safetensors"),
        "not the right file",
    ),
}


@pytest.mark.parametrize(("damage", "said"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_run_is_refused_and_left_as_it_is(call, half_done, damage, said):
    damage(half_done)
    before = contents(half_done)
    result = call("run", *WORDS, "--out", str(half_done.parent))
    assert result.exit_code == 2
    assert said in result.stderr
    after = contents(half_done)
    assert {name: after.get(name) for name in before} == before


@pytest.mark.parametrize("name", ["evaluations.bin", "population.safetensors"])
def test_damaged_arrays_are_noticed_when_a_run_is_looked_at(call, half_done, name):
    flip(half_done / name)
    result = call("show", half_done.name, "--out", str(half_done.parent))
    assert result.exit_code == 2
    assert f"{name} is damaged: it was changed after it was written" in result.stderr


def test_runs_of_an_older_version_are_refused_by_name(call, half_done, tmp_path):
    """Records before format 2 did not say their format."""
    old = tmp_path / "protonorm-spiral-seed0-0123456789"
    old.mkdir()
    (old / "experiment.json").write_text('{"experiment": {"rounds": 3}, "rules": ["logits"], "headline": "logits"}')
    listed = call("show", "--out", str(tmp_path))
    assert listed.exit_code == 0
    assert "1/3" in listed.stdout  # the other run is shown all the same
    told = f"{old} was written by another version of protonorm (format 1); this version reads format 3."
    assert told in listed.stderr
    for words in (["show", old.name], ["report", old.name], ["export", old.name, "x", "--client", "0"]):
        refused = call(*words, "--out", str(tmp_path))
        assert refused.exit_code == 2
        assert told in refused.stderr


def test_the_undamaged_run_goes_on(call, half_done):
    result = call("run", *WORDS, "--out", str(half_done.parent))
    assert result.exit_code == 0, result.output


def test_a_checkpoint_of_another_experiment(call, half_done, tmp_path):
    other = spiral(seed=5)
    with pytest.raises(KeyboardInterrupt):
        run(other, out=tmp_path, watch=stop)
    shutil.copy(run_folder(other, tmp_path) / "server.safetensors", half_done / "server.safetensors")
    result = call("run", *WORDS, "--out", str(half_done.parent))
    assert result.exit_code == 2
    assert "not the right file" in result.stderr


def test_a_folder_of_another_experiment(call, half_done, tmp_path):
    other = spiral(seed=5)
    half_done.rename(run_folder(other, tmp_path))
    result = call("run", *WORDS, "seed=5", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert "another experiment" in result.stderr


def test_a_full_disk(call, half_done, monkeypatch):
    before = contents(half_done)

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("protonorm.files.os.fsync", full)
        result = call("run", *WORDS, "--out", str(half_done.parent))
    assert result.exit_code == 1
    assert "No space left" in result.stderr
    assert contents(half_done) == before
    assert call("run", *WORDS, "--out", str(half_done.parent)).exit_code == 0  # and on it goes when there is space


def test_an_unwritable_place(call, tmp_path):
    (tmp_path / "file").write_text("")
    result = call("run", *SPIRAL, "--out", str(tmp_path / "file"))
    assert result.exit_code == 1
    assert "could not be used" in result.stderr


def test_a_run_that_is_not_there(call, tmp_path):
    result = call("show", "nothing", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert "There is no run 'nothing'" in result.stderr
