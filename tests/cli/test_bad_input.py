"""Wrong settings and broken files: a sentence that says what is wrong, exit code 2 or 1, and no run is damaged."""

import errno
import shutil

import pytest
from typer.testing import CliRunner

from protonorm.cli.app import app
from tests.support import contents, run, run_folder, spiral

SPIRAL = ["dataset=spiral", "dataset.points=60", "clients=3", "partition=iid", "rounds=1"]

SETTINGS = [  # words, what the sentence must hold
    (["roundz=3"], "did you mean 'rounds'"),
    (["rounds=-1"], "rounds=-1 is refused"),
    (["rounds=many"], "rounds='many' is refused"),
    (["rounds=1.5"], "rounds=1.5 is refused"),
    (["clients=0"], "clients=0 is refused"),
    (["clients=500"], "clients"),
    (["participation=0"], "participation=0 is refused"),
    (["participation=2"], "participation=2 is refused"),
    (["epochs=0"], "epochs=0 is refused"),
    (["epochs=[1,0]"], "epochs"),
    (["batch_size=1"], "batch_size=1 is refused"),
    (["lr=0"], "lr=0 is refused"),
    (["lr=.inf"], "lr=inf is refused"),
    (["lr=[]"], "lr=[] is refused"),
    (["momentum=1"], "momentum=1 is refused"),
    (["weight_decay=-1"], "weight_decay=-1 is refused"),
    (["train=1"], "train=1 is refused"),
    (["seed=-1"], "seed=-1 is refused"),
    (["shuffle=perhaps"], "shuffle='perhaps' is refused"),
    (["feature_dim=0"], "feature_dim=0 is refused"),
    (["device=quantum"], "device='quantum' is refused: expected cpu, cuda or cuda:1"),
    (["device=mps"], "device='mps' is refused: expected cpu, cuda or cuda:1"),
    (["precision=float16"], "precision='float16' is refused: input should be 'float32' or 'bfloat16'"),
    (["evaluate=some"], "evaluate='some' is refused: input should be 'all' or 'cohort'"),
    (["evaluate_every=0"], "evaluate_every=0 is refused"),
    (["evaluate_every=2.5"], "evaluate_every=2.5 is refused"),
    (["quorum=0"], "quorum=0 is refused"),
    (["quorum=1.5"], "quorum=1.5 is refused"),
    (["retries=-1"], "retries=-1 is refused"),
    (["deadline=0"], "deadline=0 is refused"),
    (["deadline=.inf"], "deadline=inf is refused"),
    (["deadline=soon"], "deadline='soon' is refused"),
    (["auxiliary=mlp"], "auxiliary='mlp' is refused: ProtoNorm has no second network"),
    (["algorithm=fml", "auxiliary=[mlp,mlp]"], "expected one network, not 2"),
    (["algorithm=fml", "auxiliary=mlq"], "did you mean 'mlp'"),
    (["algorithm=protnorm"], "did you mean 'protonorm'"),
    (["algorithm.gama=3"], "did you mean 'gamma'"),
    (["algorithm.gamma=0"], "algorithm.gamma=0 is refused"),
    (["algorithm.lam=-1"], "algorithm.lam=-1 is refused"),
    (["algorithm.alignment=best"], "algorithm.alignment='best' is refused"),
    (["algorithm.schedule.mu=1"], "algorithm.schedule.mu=1 is refused"),
    (["algorithm.schedule.epsilon=0"], "algorithm.schedule.epsilon=0 is refused"),
    (["algorithm.schedule.nope=1"], "algorithm protonorm has no setting 'algorithm.schedule.nope'"),
    (["algorithm.schedule.epsilom=1"], "did you mean 'schedule.epsilon'"),
    (["algorithm.schedule=3"], "algorithm.schedule=3 is refused"),
    (["algorithm.gamma.x=3"], "algorithm.gamma={'x': 3} is refused"),
    (["algorithm.=3"], "not a setting"),
    (["algorithm=[1,2]"], "not the name of an algorithm"),
    (["algorithm=nowhere.py:Mine"], "no Python file"),
    (["algorithm=fedavg", "models=light"], "averages whole models"),
    (["dataset=fasion"], "did you mean 'fashion'"),
    (["dataset.pints=3"], "did you mean 'points'"),
    (["dataset.points=0"], "dataset.points=0 is refused"),
    (["partition=dirichlett"], "did you mean 'dirichlet'"),
    (["partition=dirichlet", "partition.alpha=0"], "partition.alpha=0 is refused"),
    (["partition=dirichlet", "partition.alpha=.nan"], "partition.alpha=nan is refused"),
    (["partition=dirichlet", "partition.alpha=0.001", "partition.least=50", "clients=7"], "least"),
    (["partition=pathological", "partition.classes_per_client=7"], "classes"),
    (["partition=pathological", "partition.classes_per_client=0"], "classes_per_client=0 is refused"),
    (["partition=pathological", "partition.classes_per_client=1"], "clients"),
    (["models=lite"], "did you mean 'light'"),
    (["models=[]"], "expected a family"),
    (["models=[mlp"], "cannot be read"),
    (["models=plain"], "plain"),
    (["optimiser.lr=1"], "not a setting"),
    (["rounds"], "neither a setting"),
    (["nowhere.yaml"], "no file"),
    (["--engine", "cloud"], "Unknown engine 'cloud'"),
]


@pytest.fixture
def call():
    runner = CliRunner()

    def invoke(*words):
        result = runner.invoke(app, list(words))
        assert "Traceback" not in result.output
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke


@pytest.mark.parametrize(("words", "said"), SETTINGS, ids=[" ".join(words) for words, _ in SETTINGS])
def test_a_wrong_setting(call, tmp_path, words, said):
    result = call("run", *SPIRAL, *words, "--out", str(tmp_path / "runs"))
    assert result.exit_code == 2
    assert said in result.stderr
    assert not (tmp_path / "runs").exists()  # nothing was begun


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
