"""One's own pictures by one setting; what cannot be used is refused with a sentence."""

import re
import shutil
import warnings

import numpy as np
import pytest
from PIL import Image

import protonorm as pn
from protonorm.core.progress import listening
from protonorm.data.own.datasets import Clients, Folder, Npz, Text
from protonorm.data.partitions import IID, Given
from protonorm.data.splits import parts_of

RANDOM = np.random.default_rng(0)

pytestmark = pytest.mark.filterwarnings("ignore:In .* left out")  # of the pets: see test_bad_pictures


def draw(path, size=(20, 24), grey=False, value=None):
    """Write one picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = size if grey else (*size, 3)
    pixels = RANDOM.integers(0, 256, shape, dtype=np.uint8) if value is None else np.full(shape, value, np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


@pytest.fixture
def pets(tmp_path):
    """Two classes of three pictures, and things that are no pictures."""
    root = tmp_path / "My pets"
    for kind in ("dog", "cat"):
        for number in (10, 9, 1):
            draw(root / kind / f"{kind}{number}.png", value=number)
    (root / "cat" / "notes.txt").write_text("no picture")
    (root / "cat" / ".hidden.png").write_text("no picture")
    (root / ".git").mkdir()
    (root / "readme.md").write_text("")
    return root


def test_a_folder(pets):
    data = Folder(pets).load()
    assert data.classes == ("cat", "dog")
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.inputs.shape == (6, 20, 24, 3)
    assert data.inputs[:, 0, 0, 0].tolist() == [1, 9, 10, 1, 9, 10]  # numbers in names count as numbers
    assert isinstance(data.inputs, np.memmap)
    assert data.name == "folder:My-pets"
    assert data.owner is None


def test_progress_is_reported_while_pictures_are_read(pets):
    """Six headers, then six pictures; the mapped copy is opened without reading any."""
    events = []
    with listening(lambda *event: events.append(event)):
        Folder(pets).load()
        Folder(pets).load()
    assert events == [(what, done, 6) for what in ("Reading picture headers", "Reading pictures") for done in range(7)]


def test_one_setting_is_enough(pets):
    experiment = pn.Experiment.of({"dataset": f"folder:{pets}", "clients": 3})
    assert experiment.models == "light"
    assert experiment.feature_dim == 128
    assert experiment.key.startswith("protonorm-my-pets-seed0-")
    assert str(pets) not in str(experiment.model_dump(mode="json"))


def test_the_key_follows_the_pictures_and_not_the_place(pets, tmp_path):
    shutil.copytree(pets, tmp_path / "elsewhere" / "My pets")
    before = Folder(pets).description()
    assert Folder(tmp_path / "elsewhere" / "My pets").description() == before
    draw(pets / "dog" / "dog1.png", value=99)
    assert Folder(pets).description() != before
    assert Folder(pets, size=16).description()["size"] == [16, 16, 3]


def test_train_and_test_folders_are_put_together(tmp_path):
    for part in ("train", "test"):
        for kind in ("a", "b"):
            draw(tmp_path / "set" / part / kind / "1.png")
    data = Folder(tmp_path / "set").load()
    assert data.classes == ("a", "b")
    assert len(data.labels) == 4


def test_different_sizes_become_one(pets):
    draw(pets / "cat" / "large.png", size=(90, 30))
    with pytest.warns(UserWarning, match=r"differ in size .* all are resized to 64×64; dataset.size"):
        assert Folder(pets).load().shape == (3, 64, 64)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "The pictures differ in size")
        assert Folder(pets, size=32).load().shape == (3, 32, 32)


def test_grey_and_coloured(pets):
    draw(pets / "cat" / "grey.png", grey=True)
    with pytest.raises(ValueError, match=r"Some pictures are coloured .* dataset.channels=3"):
        Folder(pets).load()
    assert Folder(pets, channels=1).load().shape == (1, 20, 24)
    assert Folder(pets, channels=3).load().shape == (3, 20, 24)


def test_photographs_are_turned_as_their_camera_says(tmp_path):
    for kind in ("a", "b"):
        draw(tmp_path / "set" / kind / "1.png", size=(20, 30))
    pixels = draw(tmp_path / "set" / "a" / "1.png", size=(30, 20))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° clockwise
    Image.fromarray(pixels).save(tmp_path / "set" / "a" / "1.png", exif=exif)
    data = Folder(tmp_path / "set").load()
    assert data.shape == (3, 20, 30)
    np.testing.assert_array_equal(data.inputs[0], np.rot90(pixels, -1))


def unreadable(pets):
    (pets / "cat" / "broken.png").write_text("hello")


def truncated(pets):
    draw(pets / "cat" / "cut.png", size=(200, 200))
    path = pets / "cat" / "cut.png"
    path.write_bytes(path.read_bytes()[:2000])


def huge(pets):
    Image.new("1", (14000, 14000)).save(pets / "cat" / "huge.png")


def sixteen_bits(pets):
    Image.fromarray(np.zeros((20, 24), np.uint16)).save(pets / "cat" / "deep.png")


def capitals(pets):
    draw(pets / "Cat" / "1.png")


BROKEN = {
    "no folder": (shutil.rmtree, "There is no folder"),
    "no class folders": (lambda pets: [shutil.rmtree(pets / one) for one in ("cat", "dog")], "no folders in it"),
    "folders in a class": (
        lambda pets: (pets / "bird" / "east").mkdir(parents=True),
        "expected a folder of class fold",
    ),
    "an empty class": (lambda pets: (pets / "bird").mkdir(), "bird has no pictures in it"),
    "one class only": (lambda pets: shutil.rmtree(pets / "dog"), "one class only (cat)"),
    "an unreadable picture": (unreadable, "broken.png is not a picture that can be read"),
    "a truncated picture": (truncated, "cut.png cannot be read"),
    "a huge picture": (huge, "huge.png cannot be read"),
    "sixteen bits": (sixteen_bits, "deep.png cannot be read: its pixels have more than eight bits"),
    "capitals": (capitals, "has the classes Cat and cat"),
}


@pytest.mark.parametrize(("damage", "said"), BROKEN.values(), ids=BROKEN)
def test_what_cannot_be_used(pets, damage, said):
    damage(pets)
    with pytest.raises(ValueError, match=re.escape(said)):
        Folder(pets, size=16).load()


def test_too_many_bytes(pets, monkeypatch):
    monkeypatch.setattr("protonorm.data.access.LIMIT", 1000)
    with pytest.raises(ValueError, match=r"6 pictures of 20×24 would take .* dataset.size"):
        Folder(pets).load()


def save(path, labels, classes=("a", "b"), split=None, side=16):
    path.parent.mkdir(parents=True, exist_ok=True)
    images = RANDOM.integers(0, 256, (len(labels), side, side, 3), dtype=np.uint8)
    more = {} if split is None else {"split": np.array(split, np.uint8)}
    np.savez(path, images=images, labels=np.array(labels), classes=np.array(classes), **more)
    return images


def test_a_file(tmp_path):
    images = save(tmp_path / "mine.npz", [0, 1, 1], split=[0, 1, 0])
    data = Npz(tmp_path / "mine.npz").load()
    np.testing.assert_array_equal(data.inputs, images)
    assert data.name == "npz:mine"
    experiment = pn.Experiment.of({"dataset": f"npz:{tmp_path / 'mine.npz'}", "clients": 2})
    assert experiment.model_dump(mode="json")["dataset"] == Npz(tmp_path / "mine.npz").description()
    save(tmp_path / "one.npz", [0, 0], classes=("a",))
    with pytest.raises(ValueError, match="one class only"):
        Npz(tmp_path / "one.npz").load()
    with pytest.raises(ValueError, match="no file"):
        Npz(tmp_path / "none.npz").load()


def test_client_folders(tmp_path):
    """Three clients: one with a split of its own, one with a class that the others lack, one with an empty class."""
    root = tmp_path / "hospitals"
    for part, count in (("train", 3), ("test", 2)):
        for number in range(count):
            draw(root / "client1" / part / "a" / f"{number}.png", value=10)
    for kind in ("a", "c"):
        for number in range(4):
            draw(root / "client2" / kind / f"{number}.png", value=20)
    draw(root / "client10" / "b" / "0.png", value=30)
    (root / "client10" / "a").mkdir()
    data = Clients(root).load()
    assert data.classes == ("a", "b", "c")
    assert data.clients == Clients(root).clients == 3
    assert [int(data.inputs[data.owner == id][0, 0, 0, 0]) for id in range(3)] == [10, 20, 30]
    first, second, third = parts_of(data, 3, IID(), 0.75)
    assert (len(first.train), len(first.test)) == (3, 2)
    assert set(data.split[first.test]) == {1}
    assert (len(second.train), len(second.test)) == (6, 2)
    assert (len(third.train), len(third.test)) == (1, 0)


def test_a_client_folder_with_train_alone_is_split_as_files_are(tmp_path):
    """Eight pictures to train on and none to test: three quarters train; an empty test folder changes nothing."""
    root = tmp_path / "hospitals"
    for client in ("north", "south"):
        for number in range(8):
            draw(root / client / "train" / "ab"[number % 2] / f"{number}.png", value=number)
    (root / "south" / "test" / "a").mkdir(parents=True)
    data = Clients(root).load()
    assert set(data.split) == {-1}
    assert [(len(one.train), len(one.test)) for one in parts_of(data, 2, IID(), 0.75)] == [(6, 2), (6, 2)]


def test_each_kind_has_a_copy_of_its_own(tmp_path, monkeypatch):
    """One file that is read in two ways, and one folder: none takes or removes the other's copy."""
    monkeypatch.setenv("PROTONORM_DATA", str(tmp_path / "data"))
    images = RANDOM.integers(0, 256, (4, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "both.npz", images=images, tokens=np.arange(8).reshape(4, 2), labels=np.array([0, 1, 0, 1]))
    assert Npz(tmp_path / "both.npz").load().shape == (3, 16, 16)
    assert Text(tmp_path / "both.npz").load().inputs.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    for client in ("train", "test"):  # parts of one folder, or clients
        for kind in ("a", "b"):
            draw(tmp_path / "many" / client / kind / "0.png", value=7)
    assert Folder(tmp_path / "many").load().owner is None
    assert Clients(tmp_path / "many").load().client_names == ("test", "train")
    names = sorted(path.name.split("-")[0] for path in (tmp_path / "data" / "mapped").iterdir())
    assert names == ["clients", "folder", "npz", "text"]


def test_client_files(tmp_path):
    root = tmp_path / "clients"
    one = save(root / "1.npz", [0, 0, 1, 1], split=[0, 0, 1, 2])
    other = save(root / "2.npz", [1, 1, 1, 1])
    data = Clients(root).load()
    np.testing.assert_array_equal(data.inputs, np.concatenate([one, other]))
    first, second = parts_of(data, 2, IID(), 0.75)
    assert sorted(first.train) == [0, 1]
    assert sorted(first.test) == [2, 3]
    assert (len(second.train), len(second.test)) == (3, 1)
    assert min(*second.train, *second.test) == 4
    events = []
    with listening(lambda *event: events.append(event)):
        save(root / "3.npz", [0, 1])
        assert Clients(root).load().clients == 3
    assert events == [("Reading clients", done, 3) for done in range(4)]


def test_only_data_with_owners_are_given():
    with pytest.raises(ValueError, match="partition=given needs data that clients own already"):
        Given().assign(np.zeros(3, np.int64), 1)


def test_the_parts_of_ten_thousand_owners():
    """Each owns two samples far apart; the first of them trains where the data say so, and a draw decides elsewhere."""
    owner = np.tile(np.arange(10_000), 2)
    split = np.repeat(np.array([0, 1], np.int8), 10_000)
    split[[1, 10_001]] = -1
    data = pn.Dataset("mine", np.zeros((20_000, 1), np.float32), np.zeros(20_000, np.int64), ("a",), owner, split)
    parts = parts_of(data, 10_000, IID(), 0.75)
    assert parts.sizes().tolist() == [[1, 1]] * 10_000
    train = parts.index[::2]
    assert np.delete(train, 1).tolist() == np.delete(np.arange(10_000), 1).tolist()
    assert train[1] in (1, 10_001)


def test_clients_follow_from_the_data(tmp_path):
    root = tmp_path / "clients"
    for name in "xyz":
        save(root / f"{name}.npz", [0, 1, 0, 1])
    experiment = pn.Experiment.of({"dataset": f"clients:{root}"})
    assert experiment.clients == 3
    plain = experiment.model_dump(mode="json")
    assert plain["partition"] == {"name": "given", "seed": 1}
    assert pn.Experiment.of({"dataset": f"clients:{root}", "clients": 3}).key == experiment.key
    with pytest.raises(ValueError, match="clients must be 3, to whom the data belong already, got 4"):
        pn.Experiment.of({"dataset": f"clients:{root}", "clients": 4})
    with pytest.warns(UserWarning, match="only the seed counts"):
        other = pn.Experiment.of({"dataset": f"clients:{root}", "partition": {"name": "iid", "seed": 7}})
    assert other.partition.seed == 7
    assert other.key != experiment.key


def test_a_data_set_with_owners(tmp_path):
    owner = np.array([0, 0, 1, 1, 1])
    data = pn.Dataset("mine", np.zeros((5, 2), np.float32), np.array([0, 1, 0, 1, 1]), ("a", "b"), owner)
    assert pn.Experiment(dataset=data, models="mlp").clients == 2
    assert data.description() != pn.Dataset("mine", data.inputs, data.labels, data.classes).description()


@pytest.mark.parametrize(
    ("owner", "split", "said"),
    [
        ([0, 0, 2], None, "some client has no sample"),
        ([0, -1, 0], None, "some client has no sample"),
        ([0, 0], None, "the owners have shape"),
        ([0, 0, 1], [0, 0, 1], "client 1 has no sample to train on"),
        ([0, 0, 1], [0, 0], "the split has shape"),
        (None, [0, 0, 0], "a split without owners"),
    ],
)
def test_owners_that_do_not_fit(owner, split, said):
    owners = None if owner is None else np.array(owner, np.int64)
    splits = None if split is None else np.array(split, np.int8)
    with pytest.raises(ValueError, match=said):
        pn.Dataset("mine", np.zeros((3, 2), np.float32), np.array([0, 1, 1]), ("a", "b"), owners, splits)


def other_classes(root):
    save(root / "b.npz", [0, 1], classes=("a", "x"))


def other_order(root):
    save(root / "b.npz", [0, 1], classes=("b", "a"))


def other_size(root):
    save(root / "b.npz", [0, 1], side=20)


def only_tests(root):
    save(root / "b.npz", [0, 1], split=[1, 1])


def both_kinds(root):
    draw(root / "c" / "a" / "1.png")


def nobody(root):
    (root / "a.npz").unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (other_classes, "they differ in b, x"),
        (other_order, "they are in another order"),
        (other_size, "are 20×20×3, those of"),
        (only_tests, "no training pictures"),
        (both_kinds, "expected one kind only"),
        (nobody, "has no clients in it"),
    ],
)
def test_clients_that_do_not_fit(tmp_path, damage, said):
    root = tmp_path / "clients"
    save(root / "a.npz", [0, 1])
    damage(root)
    with pytest.raises(ValueError, match=said):
        Clients(root).load()


def test_a_client_without_pictures(tmp_path):
    draw(tmp_path / "set" / "one" / "a" / "1.png")
    (tmp_path / "set" / "two" / "a").mkdir(parents=True)
    with pytest.raises(ValueError, match="two has no pictures in it"):
        Clients(tmp_path / "set").load()


def test_sizes_are_for_picture_files(tmp_path):
    save(tmp_path / "set" / "a.npz", [0, 1])
    with pytest.raises(ValueError, match="dataset.size is for picture files"):
        Clients(tmp_path / "set", size=16).load()
