"""What lies on a node: arrays that were found or sent, the user's files, and a folder that the last actor removes."""

import numpy as np
import pytest

from protonorm.core.own_code import load_own, without_own_code
from protonorm.engines.handover import NodeCode, refer_by_text
from protonorm.engines.ray.actor import NodeFolder, hash_array, sweep
from protonorm.engines.ray.crew import Supply, facts_of
from protonorm.files import Scratch
from protonorm.models.light import mlp


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """The node's temporary folder."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def join():
    """Join the folder of a run on this node; all leave it at the end."""
    joined = []
    yield lambda token="12345678": joined.append(NodeFolder(token)) or joined[-1]
    for one in joined:
        if not one._lock.closed:
            one.leave()


@pytest.fixture
def mapped(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(240, dtype=np.int16).reshape(10, 4, 6))
    return np.load(tmp_path / "a.npy", mmap_mode="r")


def test_the_last_actor_of_a_node_removes_the_folder_and_nobody_else_does(place, join):
    one, two = join(), join()
    assert one.folder.stat().st_mode & 0o077 == 0
    with Scratch():  # which removes what is abandoned
        assert one.folder.exists()
    one.leave()
    with Scratch():
        assert two.folder.exists()
    two.leave()
    assert not list(place.iterdir())


def test_a_folder_whose_actors_were_killed_is_removed_by_the_next_one_to_start(place, join):
    killed = join()
    killed._lock.close()
    with Scratch():
        assert not killed.folder.exists()
    other = join("abcdef01")
    assert not sweep([other.folder.name], 0.1)  # its actor lives
    other._lock.close()
    assert sweep([other.folder.name], 5.0)
    assert not list(place.iterdir())


def test_a_folder_that_others_could_have_made_is_refused(place):
    (place / "protonorm-12345678").mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="is not a folder for its owner only"):
        NodeFolder("12345678")


@pytest.mark.parametrize("part", [np.s_[:], np.s_[2:5]])
def test_an_array_is_found_at_its_path_if_its_bytes_are_the_same(mapped, part, tmp_path, join):
    facts = facts_of("inputs", mapped[part])
    node = join()
    assert node.find(facts) == "found"
    np.testing.assert_array_equal(node.open(facts), mapped[part])
    assert join().find(facts) == "found"
    content = bytearray((tmp_path / "a.npy").read_bytes())
    content[facts.offset] ^= 1
    (tmp_path / "b.npy").write_bytes(content)
    other = join("abcdef01")
    assert other.find(facts._replace(file=str(tmp_path / "b.npy"))) == ""
    assert other.find(facts._replace(file=str(tmp_path / "c.npy"))) == ""
    assert other.find(facts._replace(file=str(tmp_path / "a.npy"), nbytes=10**6)) == ""


def test_an_array_that_is_sent_in_pieces_is_whole_or_not_there(join):
    array = np.arange(100, dtype=np.float32).reshape(20, 5)
    facts = facts_of("inputs", array)
    assert (facts.file, facts.sha256) == ("", hash_array(array))
    node = join()
    assert node.find(facts) == ""
    content = array.tobytes()
    node.write(facts.sha256, 0, 400, content[:300])
    assert node.find(facts) == ""
    with pytest.raises(OSError, match="did not arrive whole"):
        node.write(facts.sha256, 300, 400, bytes(100))
    assert node.find(facts) == ""
    node.write(facts.sha256, 0, 400, content[:300])
    node.write(facts.sha256, 300, 400, content[300:])
    assert node.find(facts) == "sent"
    np.testing.assert_array_equal(node.open(facts), array)
    assert {path.stat().st_mode & 0o077 for path in node.folder.glob("*.array")} == {0}


class Recorder:
    """An actor that notes what it is sent."""

    def __init__(self, node):
        self.node, self.pieces = node, []
        self.write = self

    def remote(self, sha256, offset, whole, piece):
        self.pieces.append(len(piece))
        self.node.write(sha256, offset, whole, piece)
        return ""


class Store:
    """An object store, as far as sending needs one."""

    put = staticmethod(lambda content: content)
    get = staticmethod(lambda answers: answers)


def test_what_a_node_lacks_is_sent_once_and_in_pieces(mapped, monkeypatch, join):
    """Of two arrays the mapped one is found; 60 bytes of the other go in pieces of 32 and 28."""
    monkeypatch.setattr("protonorm.engines.ray.crew.PIECE", 32)
    supply = Supply({"inputs": mapped, "labels": np.arange(15, dtype=np.int32)[::-1]})
    actor = Recorder(join())
    lacking = supply.missing({facts.name: actor.node.find(facts) for facts in supply.facts})
    assert [facts.name for facts in lacking] == ["labels"]
    supply.send(Store, actor, "here", lacking)
    assert actor.pieces == [32, 28]
    assert supply.missing({facts.name: actor.node.find(facts) for facts in supply.facts}) == []
    np.testing.assert_array_equal(actor.node.open(supply.facts[1]), np.arange(15)[::-1])
    assert supply.nbytes == 480 + 60


def test_a_mapped_file_that_was_changed_is_condensed_anew(tmp_path):
    for value in (1, 2):
        np.save(tmp_path / f"{value}.npy", np.full(50, value))
        (tmp_path / f"{value}.npy").replace(tmp_path / "a.npy")
        array = np.load(tmp_path / "a.npy", mmap_mode="r")
        assert facts_of("x", array).sha256 == hash_array(np.full(50, value))


def test_code_is_found_by_its_text_where_no_file_is_and_by_its_name_where_it_is_installed(tmp_path):
    path = tmp_path / "own_thing.py"
    path.write_bytes("# coding: latin-1\nclass Outer:\n    class Inner:\n        word = 'caf\xe9'\n".encode("latin-1"))
    place = refer_by_text(load_own(f"{path}:Outer", "thing").Inner)
    path.unlink()
    code = NodeCode(tmp_path / "code")
    assert code.resolve(place).word == "caf\xe9"
    (file,) = (tmp_path / "code").rglob("*.py")
    assert code.translate(f"{file}, line 3") == f"{path}, line 3"
    with without_own_code(), pytest.raises(ValueError, match="own_thing.py must not be imported"):
        NodeCode(tmp_path / "other").resolve(place)
    installed = refer_by_text(mlp)
    assert installed == {"module": "protonorm.models.light", "name": "mlp"}
    assert code.resolve(installed) is mlp
    with pytest.raises(ValueError, match="nothing_like_it cannot be imported on this node"):
        code.resolve({"module": "nothing_like_it", "name": "mlp"})


def test_what_is_wrong_with_a_file_that_was_sent_is_told_by_the_users_path(tmp_path):
    place = {"name": "Thing", "file": "/home/ann/own_thing.py", "text": "import nothing_like_it\n"}
    with pytest.raises(ValueError, match="^/home/ann/own_thing.py, line 1: it imports 'nothing_like_it'"):
        NodeCode(tmp_path / "code").resolve(place)
