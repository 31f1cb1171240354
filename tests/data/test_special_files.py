"""What is no plain file is refused by name and never opened; paths that mean nothing are a sentence."""

import os
import shutil
import socket
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import protonorm as pn
from protonorm.data.access import require_file
from protonorm.data.builtin import Spiral
from protonorm.data.own.datasets import Clients, Folder, Npz
from protonorm.data.own.folders import sort_by_name
from protonorm.data.pictures import read_header, read_picture
from protonorm.data.prepared import data_root, read_prepared, read_shape
from protonorm.data.published.datasets import CIFAR10
from protonorm.data.published.prepare import download, find_files, prepare, require_md5
from tests.data import archives

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes, devices and modes are those of POSIX")


def pipe(path):
    os.mkfifo(path)


def link_to_pipe(path):
    """The pipe itself lies elsewhere, so that it is not counted as something beside the pictures."""
    place = Path(tempfile.mkdtemp(dir=path.parents[3])) / "pipe"
    os.mkfifo(place)
    path.symlink_to(place)


def listening_socket(path):
    """Bind by a short name, for the length of a socket's path is limited."""
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


KINDS = {
    "a pipe": (pipe, "is a pipe, not a file; it was not opened"),
    "a link to a pipe": (link_to_pipe, "is a pipe, not a file; it was not opened"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "is a device, not a file; it was not opened"),
    "a socket": (listening_socket, "is a socket, not a file; it was not opened"),
    "a folder": (lambda path: path.mkdir(), "is a folder, not a file; it was not opened"),
    "a link to itself": (lambda path: path.symlink_to(path.name), "circle|symbolic links"),
    "a link to nothing": (lambda path: path.symlink_to("nothing"), "There is no"),
}
NO_FILES = {name: kind for name, kind in KINDS.items() if "not opened" in kind[1]}
kinds = pytest.mark.parametrize(("make", "said"), KINDS.values(), ids=KINDS)


def draw(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path)


def save(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, images=np.zeros((4, 8, 8, 1), np.uint8), labels=np.array([0, 1, 0, 1]), classes=["a", "b"])


@pytest.fixture
def pets(tmp_path):
    for kind in ("cat", "dog"):
        draw(tmp_path / "pets" / kind / "1.png")
    return tmp_path / "pets"


@kinds
def test_a_data_file(tmp_path, make, said):
    make(tmp_path / "a.npz")
    for use in (read_prepared, read_shape, lambda path: Npz(path).load(), lambda path: Npz(path).description()):
        with pytest.raises(ValueError, match=said):
            use(tmp_path / "a.npz")


@kinds
def test_a_picture_in_a_folder(pets, make, said):
    make(pets / "cat" / "2.png")
    for data in (Folder(pets), Folder(pets, size=4)):
        with pytest.raises(ValueError, match=said):
            data.load()
    for use in (read_header, lambda path: read_picture(path, str(path), (4, 4), 3)):
        with pytest.raises(ValueError, match=said):
            use(pets / "cat" / "2.png")


@kinds
def test_a_picture_of_a_client(pets, make, said):
    shutil.copytree(pets, pets.parent / "clients" / "one")
    make(pets.parent / "clients" / "one" / "cat" / "2.png")
    with pytest.raises(ValueError, match=said):
        Clients(pets.parent / "clients").load()


@kinds
def test_a_file_of_a_client(tmp_path, make, said):
    save(tmp_path / "clients" / "1.npz")
    make(tmp_path / "clients" / "2.npz")
    with pytest.raises(ValueError, match=f"{said}|expected one kind only"):
        Clients(tmp_path / "clients").load()


@kinds
def test_a_prepared_file(tmp_path, make, said):
    make(tmp_path / "cifar10.npz")
    with pytest.raises(ValueError, match=said):
        CIFAR10(root=tmp_path).load()


@kinds
def test_an_archive(tmp_path, make, said):
    make(tmp_path / "cifar-10-binary.tar.gz")
    missing = "does not hold cifar-10-binary.tar.gz"
    for checked in (True, False):
        with pytest.raises(ValueError, match=f"{said}|{missing}"):
            prepare("cifar10", tmp_path, tmp_path / "root", checked=checked)
    assert not (tmp_path / "root").exists()
    with pytest.raises(ValueError, match=said):
        require_md5(tmp_path / "cifar-10-binary.tar.gz", "0", unpacked=False)


@pytest.mark.parametrize(("make", "said"), NO_FILES.values(), ids=NO_FILES)
@pytest.mark.parametrize("suffix", ["", ".part"])
def test_a_file_in_the_place_of_a_download(tmp_path, make, said, suffix):
    make(tmp_path / f"cifar-10-binary.tar.gz{suffix}")
    with pytest.raises(ValueError, match=said):
        download("cifar10", tmp_path, mirror="http://127.0.0.1:9/")


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null"])
def test_devices_by_name(path):
    for data in (Npz(Path(path)), Folder(Path(path)), Clients(Path(path))):
        with pytest.raises(ValueError, match="is a device|There is no folder"):
            data.load()
    with pytest.raises(ValueError, match="There is no folder"):
        find_files("cifar10", Path(path))
    with pytest.raises(ValueError, match="is a device"):
        require_file(Path(path))


def test_other_things_beside_pictures_are_never_opened(pets):
    """A folder's pictures can be used although pipes and devices lie beside them."""
    pipe(pets / "readme")
    pipe(pets / "cat" / "notes.txt")
    (pets / "dog" / "endless").symlink_to("/dev/zero")
    (pets / "loop").symlink_to("loop")
    with pytest.warns(UserWarning, match="left out: 1 .txt, 3 without an ending"):
        assert len(Folder(pets).load().labels) == 2
    shutil.copytree(pets / "cat", pets.parent / "clients" / "one" / "cat", ignore=lambda *_: ["notes.txt"])
    shutil.copytree(pets / "cat", pets.parent / "clients" / "one" / "dog", ignore=lambda *_: ["notes.txt"])
    pipe(pets.parent / "clients" / "one" / "cat" / "notes.txt")
    (pets.parent / "clients" / "one" / "cat" / "up").symlink_to("..")
    with pytest.warns(UserWarning, match="left out"):
        assert Clients(pets.parent / "clients").load().clients == 1


def test_folders_that_hold_themselves(pets):
    (pets / "again").symlink_to(".")
    with pytest.raises(ValueError, match="again has no pictures in it"):
        Folder(pets).load()
    with pytest.raises(ValueError, match="cat has no folders in it"):
        Clients(pets).load()
    (pets.parent / "circle").symlink_to("circle")
    for data in (Folder(pets.parent / "circle"), Clients(pets.parent / "circle"), Npz(pets.parent / "circle" / "a")):
        with pytest.raises(ValueError, match="its links lead in a circle|symbolic links|There is no"):
            data.load()


def test_a_changed_picture_behind_a_linked_folder_is_noticed(pets):
    root = pets.parent / "clients" / "one"
    root.mkdir(parents=True)
    for kind in ("cat", "dog"):
        (root / kind).symlink_to(pets / kind)
    before = Clients(root.parent).description()
    Image.fromarray(np.full((8, 8, 3), 9, np.uint8)).save(pets / "cat" / "1.png")
    assert Clients(root.parent).description() != before


UNKNOWN = "~nosuchuser-of-protonorm/pictures"
BAD_PATHS = {
    "nobody's home": (UNKNOWN, "the home folder that ~nosuchuser-of-protonorm means is unknown"),
    "a NUL": ("pic\0tures", r"'pic\\x00tures' cannot be the path of a file"),
    "a NUL after ~": ("~\0/pictures", "cannot be the path of a file"),
    "a lone surrogate": ("pic\ud800tures", r"'pic\\ud800tures' cannot be the path of a file"),
    "too long": ("x" * 5000, "too long|There is no"),
}


@pytest.mark.parametrize(("path", "said"), BAD_PATHS.values(), ids=BAD_PATHS)
def test_paths_that_mean_nothing(path, said):
    for kind in (Folder, Npz, Clients):
        for use in ("load", "description"):
            with pytest.raises(ValueError, match=said):
                getattr(kind(Path(path)), use)()
    with pytest.raises(ValueError, match=said):
        _ = Clients(Path(path)).clients
    for use in (
        lambda path: CIFAR10(root=path).load(),
        lambda path: prepare("cifar10", path),
        lambda path: read_header(path),
        lambda path: read_prepared(path),
    ):
        with pytest.raises(ValueError, match=f"{said}|There is no"):
            use(Path(path))


def test_a_data_folder_that_means_nothing(monkeypatch):
    monkeypatch.setenv("PROTONORM_DATA", UNKNOWN)
    with pytest.raises(ValueError, match="cannot be found: the home folder"):
        data_root()


@contextmanager
def ordinary_user():
    """Be nobody for a while, if we are the one to whom modes do not apply."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_files_and_folders_that_may_not_be_read():
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        for kind in ("cat", "dog"):
            draw(root / "pets" / kind / "1.png")
            draw(root / "closed" / kind / "1.png")
        save(root / "a.npz")
        save(root / "clients" / "a.npz")
        path, *_ = archives.cifar10_binary(root)
        for closed in (root / "pets" / "cat" / "1.png", root / "a.npz", root / "clients" / "a.npz", path):
            closed.chmod(0)
        (root / "closed" / "cat").chmod(0)
        (root / "data").mkdir(mode=0o777)
        uses = (
            Folder(root / "pets").load,
            Folder(root / "closed").load,
            Npz(root / "a.npz").load,
            Clients(root / "clients").load,
            Folder(root / "closed" / "cat").load,
            Npz(root / "closed" / "cat" / "1.png").load,
            lambda: prepare("cifar10", root, root / "data"),
            lambda: prepare("cifar10", root, root / "data", checked=False),
            lambda: prepare("cifar10", root / "closed" / "cat", root / "data"),
            lambda: download("cifar10", root, mirror="http://127.0.0.1:9/"),
        )
        with ordinary_user():
            for use in uses:
                with pytest.raises(ValueError, match="Permission denied|does not hold"):
                    use()
        assert path.exists()  # what could not be read was not taken for a wrong download
        (root / "closed" / "cat").chmod(0o700)


def test_names_with_signs_that_look_like_numbers():
    """² counts as a digit for str.isdigit, but int does not read it."""
    assert [path.name for path in sort_by_name(map(Path, ["²", "10", "9", "٣", "a²"]))] == ["٣", "9", "10", "a²", "²"]


def test_more_points_than_fit_into_memory():
    with pytest.raises(ValueError, match="dataset.points=1000000000 would take .* fewer points are needed"):
        Spiral(points=10**9).load()


def test_owners_that_no_memory_would_hold():
    inputs, labels = np.zeros((3, 2), np.float32), np.array([0, 1, 1])
    with pytest.raises(ValueError, match="some client has no sample"):
        pn.Dataset("mine", inputs, labels, ("a", "b"), np.array([0, 1, 10**15]))


def test_a_picture_that_is_no_file_is_listed_with_the_others_that_are_bad(pets):
    """All are looked at before anything is refused; the pipe would wait for ever if it were opened."""
    pipe(pets / "dog" / "2.png")
    (pets / "dog" / "3.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"(?s)2\.png.* is a pipe.*3\.png"):
        Folder(pets).load()
