import pytest
import torch

from protonorm import tensors


def test_prefixed_and_under_are_inverse():
    state = {"a": torch.ones(2), "b.c": torch.zeros(1)}
    assert tensors.strip_prefix(tensors.prefixed("model", state) | {"classes": torch.ones(1)}, "model") == state


def test_under_does_not_take_a_name_that_only_begins_alike():
    assert tensors.strip_prefix({"model2.a": torch.ones(1), "model.a": torch.zeros(1)}, "model").keys() == {"a"}


def test_nbytes_counts_each_type_by_its_size():
    """3 float32 = 12 bytes, 2 int64 = 16 bytes."""
    assert tensors.nbytes({"a": torch.ones(3), "b": torch.ones(2, dtype=torch.int64)}) == 28


def test_a_file_comes_back_as_it_was_and_equal_states_give_equal_bytes(tmp_path):
    state = {"w": torch.randn(3, 2).t(), "n": torch.tensor(7)}
    for name in ("a", "b"):
        tensors.save(tmp_path / name, dict(reversed(state.items())) if name == "b" else state, "key client-0 3")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    found = tensors.load(tmp_path / "a", "key client-0 3")
    assert torch.equal(found["w"], state["w"])
    assert torch.equal(found["n"], state["n"])


def test_another_files_stamp_is_refused(tmp_path):
    tensors.save(tmp_path / "a", {"w": torch.ones(1)}, "key client-0 3")
    with pytest.raises(ValueError, match="stamped 'key client-0 3'"):
        tensors.load(tmp_path / "a", "key client-1 3")


def test_a_truncated_or_missing_file_is_refused(tmp_path):
    path = tmp_path / "a"
    tensors.save(path, {"w": torch.ones(100)}, "key server 1")
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match="damaged"):
        tensors.load(path, "key server 1")
    with pytest.raises(ValueError, match="missing"):
        tensors.load(tmp_path / "b", "key server 1")


def test_a_failed_write_leaves_the_file_before(tmp_path, monkeypatch):
    path = tmp_path / "a"
    tensors.save(path, {"w": torch.ones(1)}, "old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("protonorm.files.os.fsync", full)
    said = rf"No space left on device: {path} could not be written\. Make space on the disk of {tmp_path}, and give"
    with pytest.raises(OSError, match=said) as raised:
        tensors.save(path, {"w": torch.zeros(1)}, "new")
    assert raised.value.errno == 28
    assert tensors.load(path, "old")["w"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_floats_and_integers_are_all_there_is():
    state = {"w": torch.ones(2), "n": torch.tensor(7), "b": torch.tensor(True)}
    assert tensors.floats(state).keys() == {"w"}
    assert tensors.integers(state).keys() == {"n", "b"}


@pytest.mark.parametrize("place", [0, 9, 40, -1, -30])
def test_a_flipped_bit_anywhere_is_noticed_and_the_file_named(tmp_path, place):
    path = tmp_path / "a"
    tensors.save(path, {"w": torch.ones(10)}, "key client-0 3")
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path} is (damaged|not the right file)"):
        tensors.load(path, "key client-0 3")


@pytest.mark.parametrize("values", [[], [1.0, -3e38], [torch.nan, 0.0], [0.0, torch.inf], [-torch.inf]])
def test_all_finite_agrees_with_torch(values):
    assert tensors.all_finite(torch.tensor(values)) == bool(torch.tensor(values).isfinite().all())


class Versioned(torch.nn.Linear):
    """A layer that asks for the version of its weights, as some of torchvision's do."""

    _version = 2

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *others):
        if local_metadata.get("version") != 2:
            raise ValueError("which version?")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *others)


def test_weights_go_back_into_layers_that_ask_for_their_version():
    network, other = torch.nn.Sequential(Versioned(2, 2)), torch.nn.Sequential(Versioned(2, 2))
    tensors.restore("model", other, tensors.snapshot("model", network))
    assert torch.equal(other[0].weight, network[0].weight)
    with pytest.raises(ValueError, match="The weights of the model do not fit the network"):
        tensors.restore("model", other, {})
