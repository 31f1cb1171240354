"""Private pictures stay with their owner: whatever happens to a run, nobody else's folder and nobody else's eyes.

Every picture has forty-eight bytes in it that are found nowhere else, and the classes have names that are found nowhere
else. Runs are processes of their own, with a home folder, a folder for temporary files and a current folder that are
searched afterwards, file by file.
"""

import os
import random
import signal
import stat
import subprocess
import sys
import time

import numpy as np
import pytest

from protonorm.files import Scratch

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes and groups of processes are those of POSIX")

RANDOM = np.random.default_rng(20240101)
MARK = RANDOM.integers(0, 256, 48, dtype=np.uint8)
CLASSES = ("lumbago-Xq7", "sciatica-Xq7")
SIDE = 16
EACH = 12  # pictures of a class

# What must not be found: the mark as bytes and as a network gets it, and the names as text and as numpy writes text.
SECRETS = [
    MARK.tobytes(),
    ((MARK.astype(np.float32) / 255 - 0.5) / 0.5).tobytes()[:64],
    *(name.encode(code) for name in CLASSES for code in ("utf-8", "utf-32-le")),
]

# The command line, in a process that ends with all its workers after so many arrays were saved.
DYING = """
import os, signal, sys
import numpy as np

usual, left = np.save, [int(sys.argv.pop(1))]

def save(*arguments, **settings):
    usual(*arguments, **settings)
    left[0] -= 1
    if not left[0]:
        os.killpg(0, signal.SIGKILL)

np.save = save
from protonorm.cli.app import main
main()
"""


class Owner:
    """Somebody with private pictures, folders of their own, and a computer that others use, too."""

    def __init__(self, root):
        self.root = root
        self.own = root / "own"  # runs and prepared data; it is not there yet
        self.watched = [root / name for name in ("home", "tmp", "here")]
        for folder in self.watched:
            folder.mkdir()

    def start(self, dataset, dies_after=None):
        """Start a run on two workers, as the leader of a group of processes."""
        home, temporary, here = self.watched
        gone = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "TEMP", "TMP")
        environment = {name: value for name, value in os.environ.items() if name not in gone} | {
            "HOME": str(home),
            "TMPDIR": str(temporary),
            "PROTONORM_RUNS": str(self.own / "runs"),
            "PROTONORM_DATA": str(self.own / "data"),
        }
        program = ["-m", "protonorm"] if dies_after is None else ["-c", DYING, str(dies_after)]
        settings = ["clients=2", "rounds=2", "models=plain", "batch_size=8", "feature_dim=8"]
        command = [sys.executable, "-P", *program, "run", f"dataset={dataset}", *settings, "--workers", "2"]
        return subprocess.Popen(
            [*command, "--engine", "processes", "--json"],
            env=environment,
            cwd=here,
            umask=0o022,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, dataset):
        """Run to the end."""
        with self.start(dataset) as started:
            said, _ = started.communicate()
        assert started.returncode == 0, said.decode()

    def kill(self, dataset, seconds):
        """Run for so many seconds, then kill the run with all its workers."""
        with self.start(dataset) as started:
            try:
                started.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                os.killpg(started.pid, signal.SIGKILL)
            started.communicate()  # until the last worker has gone, too

    def leaks(self):
        """List the files outside the owner's folders that hold a secret."""
        files = [path for folder in self.watched for path in folder.rglob("*") if path.is_file()]
        names = [path for folder in self.watched for path in folder.rglob("*") if any(c in path.name for c in CLASSES)]
        return names + [path for path in files if any(secret in path.read_bytes() for secret in SECRETS)]

    def open_to_others(self):
        """List what was made and has other modes than 0600 and 0700."""
        roots = [self.own, *self.temporary()] if self.own.exists() else self.temporary()
        made = [path for root in roots for path in (root, *root.rglob("*"))]
        return [(str(path), oct(mode)) for path in made if (mode := permissions(path)) != usual_mode(path)]

    def temporary(self):
        """List our temporary folders; torch has some of its own."""
        return list(self.watched[1].glob("protonorm-*"))

    def check(self):
        """Nobody else has a secret, or could read one."""
        assert self.leaks() == []
        assert self.open_to_others() == []
        assert self.temporary() == []  # no temporary file is left
        assert not [path for path in self.own.rglob(".*") if path.is_dir()]  # nor a copy in the making
        mine = [path for path in (self.own / "data").rglob("*") if path.is_file()]
        assert any(SECRETS[0] in path.read_bytes() for path in mine)  # the search finds what is there


def permissions(path):
    return stat.S_IMODE(path.lstat().st_mode)


def usual_mode(path):
    return 0o700 if path.is_dir() else 0o600


def draw(seed):
    """Draw a grey picture of noise with the mark somewhere in it."""
    random = np.random.default_rng(seed)
    picture = random.integers(0, 256, SIDE * SIDE, dtype=np.uint8)
    start = int(random.integers(0, SIDE * SIDE - len(MARK)))
    picture[start : start + len(MARK)] = MARK
    return picture.reshape(SIDE, SIDE)


def folder(root):
    """Write raw pictures, a folder for each class."""
    for label, name in enumerate(CLASSES):
        (root / "private" / name).mkdir(parents=True)
        for number in range(EACH):
            header = f"P5 {SIDE} {SIDE} 255\n".encode()
            (root / "private" / name / f"{number}.pgm").write_bytes(header + draw(100 * label + number).tobytes())
    return f"folder:{root / 'private'}"


def clients(root):
    """Write an .npz file for each of two clients."""
    (root / "private").mkdir()
    for client in range(2):
        pictures = np.stack([draw(1000 * client + number) for number in range(2 * EACH)])[..., None]
        labels = np.arange(2 * EACH) % 2
        np.savez(root / "private" / f"{client}.npz", images=pictures, labels=labels, classes=np.array(CLASSES))
    return f"clients:{root / 'private'}"


SETS = {"folder": folder, "clients": clients}
sets = pytest.mark.parametrize("write", SETS.values(), ids=SETS)


@pytest.fixture
def owner(tmp_path):
    return Owner(tmp_path)


@sets
def test_a_run_leaves_nothing_to_others(owner, write):
    owner.run(write(owner.root))
    owner.check()


@sets
def test_a_run_that_is_killed_at_a_random_moment(owner, write):
    dataset = write(owner.root)
    owner.kill(dataset, random.Random(write.__name__).uniform(0, 5))
    owner.run(dataset)
    owner.check()


@pytest.mark.parametrize("saved", [1, 4])
def test_a_run_that_is_killed_while_it_hands_its_arrays_over(owner, saved):
    """First the copy to be mapped is written, then labels, positions and cuts for the workers."""
    dataset = folder(owner.root)
    started = owner.start(dataset, dies_after=saved)
    said, _ = started.communicate()
    assert started.returncode == -signal.SIGKILL, said.decode()
    owner.run(dataset)
    owner.check()


def test_pictures_that_stay_in_memory_do_not_stay_in_temporary_files(owner):
    """Where no copy can be kept the workers get the pictures from a temporary file, which a kill leaves behind."""
    dataset = folder(owner.root)
    (owner.own / "data").mkdir(parents=True, mode=0o700)
    owner.own.chmod(0o700)
    (owner.own / "data" / "mapped").write_text("a file in the way")
    (owner.own / "data" / "mapped").chmod(0o600)
    started = owner.start(dataset, dies_after=1)
    started.communicate()
    assert started.returncode == -signal.SIGKILL
    (left,) = owner.leaks()
    assert permissions(left.parent) == 0o700
    owner.run(dataset)
    assert owner.leaks() == []
    assert owner.temporary() == []
    assert owner.open_to_others() == []


KILLED_WHILE_TIDYING = """
import os, signal
from protonorm.files import LOCK, Scratch

scratch, usual = Scratch(), os.unlink
for name in ("inputs.npy", "labels.npy"):
    (scratch.folder / name).write_bytes(b"private")

def unlink(path, *arguments, **settings):
    usual(path, *arguments, **settings)
    if os.path.basename(path) == LOCK:
        os.kill(os.getpid(), signal.SIGKILL)

os.unlink = unlink
scratch.remove()
"""


def test_a_temporary_folder_whose_removal_was_cut_short_is_removed_at_the_next_start(tmp_path):
    """The lock goes last: as long as a file is left, the folder is known as ours."""
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-P", "-c", KILLED_WHILE_TIDYING], env=environment, check=False)
    assert ended.returncode == -signal.SIGKILL
    Scratch(tmp_path).remove()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
@sets
def test_many_runs_that_are_killed(owner, write, seed):
    """Three times, each at up to three other moments of a run that goes on from where the one before was killed."""
    dataset = write(owner.root)
    begun = time.monotonic()
    owner.run(dataset)
    usual = time.monotonic() - begun
    moments = random.Random(f"{write.__name__} {seed}")
    for _ in range(3):
        for path in sorted(owner.own.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        for _ in range(moments.randint(1, 3)):
            owner.kill(dataset, moments.uniform(0, usual))
        owner.run(dataset)
        owner.check()
