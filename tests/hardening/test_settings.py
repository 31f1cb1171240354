"""Hostile settings: a sentence, quickly, or an experiment; never another error, never a long wait.

What is asked of every case is the same: whoever reads the settings raises ValueError with a sentence, or makes an
experiment that has a key.
"""

import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import protonorm as pn
from protonorm.cli.app import app
from protonorm.config.experiment import Experiment
from protonorm.config.parsing import read_settings
from protonorm.errors import Failed
from tests.hardening.mutations import STRANGE, damage_bytes
from tests.support import experiments_of

SETTINGS = int(os.environ.get("PROTONORM_SETTINGS", "12000"))  # in the long form
SHORT = 500
QUICKLY = 20  # seconds; more is a hang

pytestmark = [pytest.mark.usefixtures("bounded_memory"), pytest.mark.filterwarnings("ignore")]


class Slow(BaseException):
    """It takes too long."""


@contextmanager
def quickly(what):
    """Stop what takes too long."""

    def stop(*_):
        raise Slow(f"it takes more than {QUICKLY} seconds: {what!r:.300}")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, QUICKLY)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fault(make, what):
    """Tell what is wrong with how settings are taken; None if they are refused in a sentence, or make an experiment."""
    try:
        with quickly(what):
            found = make()
            for one in found if isinstance(found, list) else [found]:
                assert isinstance(one, Experiment)
                assert one.key == Path(one.key).name
                assert one.changed is not None
    except ValueError as error:
        return (
            None if str(error).strip() and len(str(error)) < 5000 else f"{what!r:.200}: a sentence of {len(str(error))}"
        )
    except (Slow, Exception) as error:
        return f"{what!r:.300}: {type(error).__name__}: {str(error)[:200]}"
    return None


FIELDS = [*Experiment.model_fields, "tracker", "seeds"]
INSIDE = ["algorithm.lam", "algorithm.gamma", "algorithm.schedule", "algorithm.schedule.epsilon", "algorithm.name"]
INSIDE += ["dataset.points", "dataset.path", "dataset.size", "dataset.name", "partition.alpha", "partition.seed"]
INSIDE += ["partition.least", "partition.name", "partition.classes_per_client"]
ODD_KEYS = [
    "",
    ".",
    "..",
    "algorithm.",
    ".algorithm",
    "algorithm..x",
    "a.b.c",
    "__class__",
    "_changed",
    "key",
    "of",
    "self",
]
ODD_KEYS += [
    "model_config",
    "\x00",
    "\n",
    "\x1b[31m",
    "ключ",
    "x" * 5000,
    "rounds ",
    " rounds",
    "algorithm.__init__",
    "1",
]
ODD_KEYS += ["algorithm" + ".x" * 2000, "%s", "{}", "$HOME", "algorithm.lam.x", "cls", "settings", "copy"]

WORDS = ["protonorm", "fedavg", "fedproto", "fml", "local", "spiral", "fashion", "iid", "dirichlet", "pathological"]
WORDS += ["light", "mlp", "plain", "mlp,mlp", "timm:x", "torchvision:x", "timm:", ":", "folder:", "npz:", "clients:"]
WORDS += ["folder:~nosuchuser/x", "folder:~nosuchuser", "npz:~nosuchuser", "folder:nowhere", "npz:nowhere.npz"]
WORDS += ["folder:\x00", "npz:\x00.npz", "folder:" + "x" * 5000, "nowhere.py:Evil", ".py:", "x.py:", ".py:.py:"]
WORDS += [
    "meta",
    "cuda:99999",
    "cuda:-1",
    "cpu:0",
    "cpu\n",
    "CPU",
    "mps",
    "xla",
    "cohort",
    "all",
    "float32",
    "bfloat16",
]
WORDS += [
    "1e11",
    "9" * 31,
    "9" * 400,
    "-" + "9" * 31,
    "1e400",
    ".nan",
    ".inf",
    "-.inf",
    "0x" + "f" * 99,
    "1_000",
    "0o17",
]
WORDS += [
    "1:30:00",
    "2024-01-01",
    "2024-99-99",
    "2024-01-01 10:00:00",
    "yes",
    "null",
    "~",
    "true",
    "[]",
    "{}",
    "[[[]]]",
]
WORDS += [
    "[1, 2]",
    "{a: 1}",
    "{name: spiral}",
    "{name: {}}",
    "&a [*a]",
    "*a",
    "!!set {a}",
    "!!binary aGk=",
    "!!python/none",
]
WORDS += [
    "[" * 500 + "]" * 500,
    "[" * 20000,
    "{a: " * 3000,
    "- " * 3000,
    "'",
    '"',
    "|",
    ">",
    "%",
    "@",
    "`",
    "? [a]",
    "\t",
    "---",
]
WORDS += [
    "a\x00b",
    "\ud800",
    "\u202e",
    "\x1b[2J",
    "0",
    "-1",
    "1",
    "2",
    "3",
    "0.5",
    "1.5",
    "x" * 100_000,
    "!x y",
    "=",
    "<<",
]


def random_words(chance):
    """Give the words of a command line."""
    names = [*FIELDS, *INSIDE, *INSIDE, *ODD_KEYS]
    count = int(chance.integers(1, 5))
    return [f"{names[chance.integers(len(names))]}={WORDS[chance.integers(len(WORDS))]}" for _ in range(count)]


OBJECTS = [
    *STRANGE,
    b"bytes",
    bytearray(b"x"),
    {1, 2},
    frozenset(),
    (1, 2),
    object(),
    object,
    pn,
    len,
    lambda: 0,
    1j,
    np.float32(0.5),
    np.int64(3),
    np.zeros(3),
    np.array(["a"]),
    range(3),
    iter([1]),
    Path("nowhere"),
    Ellipsis,
    10**5000,
    {1: 2},
    {"name": "protonorm", "lam": {}},
    {"name": "spiral", "points": 10**30},
    {"name": ["spiral"]},
    {"name": None},
    [["mlp"]],
    "mlp",
    "light",
    Experiment,
    Exception("x"),
]


def ring():
    """Make a list that holds itself."""
    found: list = []
    found.append(found)
    return found


def nest(depth):
    found: list = []
    for _ in range(depth):
        found = [found]
    return found


def random_plain(chance):
    """Give settings as a program would."""
    odd = [*OBJECTS, ring(), nest(500), nest(5000), {"name": ring()}, {"name": "protonorm", "lam": ring()}]
    names = [*FIELDS, "algorithm", "dataset", "partition", "models", *ODD_KEYS]
    found = {names[chance.integers(len(names))]: odd[chance.integers(len(odd))] for _ in range(chance.integers(1, 4))}
    return found if chance.integers(40) else {**found, 3: 4}


DOCUMENT = """\
algorithm:
  name: protonorm
  lam: 1.0
  schedule: {epsilon: 0.001}
dataset: {name: spiral, points: 60}
partition: &part
  name: dirichlet
  alpha: 0.3
models: [mlp, mlp]
rounds: 3   # some
lr: 0.05
"""

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{one}: &{one} [{', '.join([f'*{before}'] * 9)}]\n" for before, one in zip("abcdefghi", "bcdefghij", strict=True)
)

HOSTILE = {
    "an alias bomb": BOMB + "models: *j\n",
    "an alias bomb as a component": BOMB + "algorithm: {name: *j}\n",
    "an alias bomb as a value inside": BOMB + "algorithm: {name: protonorm, lam: *j}\n",
    "a bomb of merges": "a: &a {x: 1}\n"
    + "".join(
        f"m{n}: &m{n} {{<<: [{', '.join([f'*{prev}'] * 9)}]}}\n"
        for n, prev in zip(range(1, 9), ["a", *(f"m{n}" for n in range(1, 8))], strict=True)
    ),
    "a ring": "models: &a [*a]\n",
    "a ring of maps": "algorithm: &a {name: protonorm, lam: *a}\n",
    "a ring as a key": "? &a [*a]\n: 1\n",
    "a ring of everything": "&a {rounds: *a}\n",
    "deep brackets": "models: " + "[" * 10_000 + "]" * 10_000 + "\n",
    "deeper brackets": "models: " + "[" * 1_000_000,
    "deep braces": "models: " + "{a: " * 10_000 + "1" + "}" * 10_000 + "\n",
    "deep dashes": "models: \n" + "- " * 20_000 + "x\n",
    "deep indents": "".join(" " * n + f"k{n}:\n" for n in range(2000)),
    "a long number": f"rounds: {'9' * 31}\n",
    "a longer number": f"rounds: {'9' * 10_000}\n",
    "a number without end": f"feature_dim: {'9' * 1_000_000}\n",
    "a long hexadecimal number": f"rounds: 0x{'f' * 20_000}\n",
    "a long number in base 60": "rounds: " + ":".join(["1"] * 5000) + "\n",
    "a number beyond floats": "lr: 1e99999\n",
    "no number": "lr: .nan\n",
    "a wide network": "feature_dim: 1e11\n",
    "a wider network": "feature_dim: 100000000000\n",
    "a date": "rounds: 2024-01-01\n",
    "a date that is none": "rounds: 2024-13-45\n",
    "a set": "models: !!set {mlp}\n",
    "an ordered map": "algorithm: !!omap [name: protonorm]\n",
    "pairs": "algorithm: !!pairs [name: protonorm]\n",
    "binary": "models: !!binary gIGC\n",
    "bad binary": "models: !!binary '%%%'\n",
    "python": "rounds: !!python/object/apply:os.system ['true']\n",
    "a python name": "algorithm: !!python/name:os.system\n",
    "an unknown tag": "rounds: !mine 3\n",
    "a merge of a number": "<<: 3\n",
    "a merge of itself": "&a\n<<: *a\n",
    "an unknown alias": "rounds: *nowhere\n",
    "a key that is a list": "? [a, b]\n: 3\n",
    "a key that is a map": "? {a: b}\n: 3\n",
    "a key that is nothing": "~: 3\n",
    "a key that is a number": "3: 3\n",
    "a key twice": "rounds: 1\nrounds: 2\n",
    "two documents": "rounds: 1\n---\nrounds: 2\n",
    "a document that ends": "rounds: 1\n...\nrounds: 2\n",
    "another version": "%YAML 9.9\n---\nrounds: 1\n",
    "a strange directive": "%TAG ! x\n---\nrounds: 1\n",
    "a control character": "rounds: \x01\n",
    "an escape": 'models: "\\x1b[31m"\n',
    "a surrogate": 'models: "\\ud800"\n',
    "a null byte in a name": 'algorithm: "a\\0b"\n',
    "many keys": "".join(f"k{n}: {n}\n" for n in range(20_000)),
    "a long key": "x" * 100_000 + ": 1\n",
    "a long word": "models: " + "x" * 1_000_000 + "\n",
    "many networks": f"models: [{', '.join(['mlp'] * 20_000)}]\n",
    "many learning rates": f"lr: [{', '.join(['0.1'] * 20_000)}]\n",
    "nothing": "",
    "a comment": "# nothing\n",
    "a text": "rounds\n",
    "a list": "- rounds\n",
}

BYTES = {
    "UTF-16": DOCUMENT.encode("utf-16"),
    "UTF-32": DOCUMENT.encode("utf-32"),
    "a byte order mark": b"\xef\xbb\xbf" + DOCUMENT.encode(),
    "no text": bytes(range(256)),
    "zeros": bytes(10_000),
    "Latin-1": "models: é\n".encode("latin-1"),
}


def from_file(path):
    return lambda: Experiment.of(read_settings([str(path)]))


@pytest.mark.parametrize("name", [*HOSTILE, *BYTES])
def test_a_hostile_file(tmp_path, name):
    path = tmp_path / "a.yaml"
    path.write_bytes(BYTES[name] if name in BYTES else HOSTILE[name].encode())
    assert fault(from_file(path), name) is None


@pytest.mark.parametrize("kind", ["folder", "pipe", "zeros", "loop", "itself"])
def test_a_file_that_is_none(tmp_path, kind):
    path = tmp_path / "a.yaml"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to({"zeros": "/dev/zero", "loop": "b.yaml", "itself": "a.yaml"}[kind])
    assert fault(from_file(path), kind) is None


def random_document(chance):
    """Damage a file of settings: its bytes, its lines, or a value."""
    way = int(chance.integers(4))
    if way == 0:
        return damage_bytes(DOCUMENT.encode(), chance)[1] or b""
    if way == 1:
        lines = DOCUMENT.splitlines(keepends=True)
        chance.shuffle(lines)
        return "".join(lines).encode()
    if way == 2:
        parts = DOCUMENT.split()
        parts[chance.integers(len(parts))] = WORDS[chance.integers(len(WORDS))][:3000]
        return " ".join(parts).replace(" algorithm", "\nalgorithm").encode("utf-8", "surrogatepass")
    value = yaml.safe_load(DOCUMENT)
    key = [*value][chance.integers(len(value))]
    value[key] = WORDS[chance.integers(len(WORDS))]
    return yaml.dump(value).encode("utf-8", "surrogatepass")


def fuzz(tmp_path, count, chance):
    """Attack in four ways; list the faults."""
    bad = []
    path = tmp_path / "fuzz.yaml"
    for number in range(count):
        if number % 4 == 0:
            path.write_bytes(document := random_document(chance))
            bad.append(fault(from_file(path), document))
        elif number % 4 == 1:
            plain = random_plain(chance)
            bad.append(fault(lambda plain=plain: Experiment.of(plain), _types(plain)))
        elif number % 4 == 2:
            words = random_words(chance)
            bad.append(fault(lambda words=words: Experiment.of(read_settings(words)), words))
        else:
            words = [*random_words(chance), "fedproto", f"protonorm:lam={WORDS[chance.integers(len(WORDS))]}"]
            bad.append(
                fault(lambda words=words: [one for made in experiments_of(words).values() for one in made], words)
            )
    return [one for one in bad if one]


def _types(plain):
    return {str(name)[:30]: type(value).__name__ for name, value in plain.items()}


def test_random_settings(tmp_path):
    bad = fuzz(tmp_path, SHORT, np.random.default_rng(0))
    assert not bad, "\n".join(bad)


@pytest.mark.long
@pytest.mark.parametrize("piece", range(4))
def test_long_random_settings(tmp_path, piece):
    count = SETTINGS // 4
    bad = fuzz(tmp_path, count, np.random.default_rng(100 + piece))
    sys.stdout.write(f"\n{count} settings\n")
    assert not bad, f"{len(bad)} faults\n" + "\n".join(sorted(set(bad)))


def commands(count, chance, monkeypatch):
    """Give random words to the command itself, which goes no further than the run; list the faults."""

    def stop(*_, **__):
        raise Failed("So far.")

    monkeypatch.setattr("protonorm.session.running.run", stop)
    bad = []
    for _ in range(count):
        words = [word for word in random_words(chance) if "\ud800" not in word]
        with quickly(words):
            result = CliRunner().invoke(app, ["run", "--engine", "serial", "--", *words])
        if result.exit_code not in (1, 2) or not isinstance(result.exception, SystemExit):
            bad.append(f"{words!r:.300}: {result.exit_code} {result.exception!r:.200}")
        elif "Traceback" in result.stderr or not result.stderr.strip():
            bad.append(f"{words!r:.300}: {result.stderr[:200]}")
    return bad


def test_random_words_of_a_command(monkeypatch):
    bad = commands(60, np.random.default_rng(0), monkeypatch)
    assert not bad, "\n".join(bad)


@pytest.mark.long
def test_long_random_words_of_a_command(monkeypatch):
    bad = commands(SETTINGS // 12, np.random.default_rng(1), monkeypatch)
    sys.stdout.write(f"\n{SETTINGS // 12} commands\n")
    assert not bad, "\n".join(sorted(set(bad)))
