"""The split by content: what a sample's hash decides, and that others that come or go do not move it."""

import hashlib
import subprocess

import numpy as np
import pytest
from PIL import Image

import protonorm as pn
from protonorm.config.experiment import LATER
from protonorm.data.own.datasets import Array
from protonorm.data.partitions import Parts
from protonorm.data.splits import count_validating, own_part, split_by_content
from protonorm.session.build import build

RANDOM = np.random.default_rng(0)


def split(keys, train=0.75, validation=0.2, given=None):
    """Split samples of these hashes; return the part of each hash."""
    keys = np.asarray(keys, np.uint64)
    part = split_by_content(np.arange(len(keys)), keys, train, validation, given)
    kept = len(part.train) - count_validating(part.train, keys, validation)
    named = {"train": part.train[:kept], "validation": part.train[kept:], "test": part.test}
    assert sorted(np.concatenate([part.train, part.test]).tolist()) == list(range(len(keys)))
    return {int(keys[position]): name for name, index in named.items() for position in index}


def at(first, second):
    """Make the hash whose two numbers are these."""
    return int(first * 2**32) << 32 | int(second * 2**32)


def test_two_numbers_from_the_hash_decide():
    """Below 0.75 it is for training, and of these below 0.2 in the second number for validation."""
    keys = [at(0.1, 0.5), at(0.7, 0.19), at(0.74, 0.25), at(0.75, 0.1), at(0.99, 0.9)]
    assert split(keys) == dict(zip(keys, ["train", "validation", "train", "test", "test"], strict=True))
    assert split(keys, train=0.5)[at(0.7, 0.19)] == "test"
    assert split(keys, validation=0.0)[at(0.7, 0.19)] == "train"


def test_one_more_sample_moves_no_other():
    keys = RANDOM.integers(0, 2**64, 200, np.uint64)
    before = split(keys)
    for new in RANDOM.integers(0, 2**64, 20, np.uint64):
        after = split(np.append(RANDOM.permutation(keys), new))
        assert {key: after[key] for key in before} == before
    for place in range(20):
        fewer = split(np.delete(keys, place))
        assert fewer == {key: before[key] for key in fewer}


def test_shares_are_kept_in_expectation():
    """Of 100,000 samples a share of 0.75 is 75,000 within four standard deviations, 4·√(10⁵·0.75·0.25) = 548."""
    parts = list(split(RANDOM.integers(0, 2**64, 100_000, np.uint64), 0.75, 0.2).values())
    assert abs(parts.count("test") - 25_000) < 548
    assert abs(parts.count("validation") - 15_000) < 452


@pytest.mark.parametrize("first", [0.1, 0.9])
@pytest.mark.parametrize("count", [2, 3, 10])
def test_each_part_has_a_sample_at_least(first, count):
    """All hashes are on one side of the limit: the largest tests, the smallest trains."""
    keys = [at(first + number / 1000, 0.0) for number in range(count)]
    found = split(keys)
    assert found[keys[0]] == "train"
    assert found[keys[-1]] == "test"
    assert split([keys[0]]) == {keys[0]: "train"}


def test_equal_samples_share_a_part_and_a_given_split_is_kept():
    assert set(split([at(0.9, 0)] * 3 + [at(0.1, 0.9)] * 3).values()) == {"test", "train"}
    given = np.array([1, 0, 0, 0, 1], np.int8)
    keys = [at(0.1, 0.5), at(0.9, 0.1), at(0.99, 0.9), at(0.2, 0.3), at(0.3, 0.1)]
    found = split_by_content(np.arange(5), np.array(keys, np.uint64), 0.75, 0.2, given)
    assert sorted(found.test.tolist()) == [0, 4]
    assert found.train.tolist() == [3, 2, 1]
    undecided = split_by_content(np.arange(5), np.array(keys, np.uint64), 0.75, 0.2, given - 1)
    assert sorted(undecided.test.tolist()) == [1, 2]


def pictures(folder, numbers, side=16):
    for number in numbers:
        place = folder / ("cat" if number % 2 else "dog") / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), np.uint8)
        Image.fromarray(pixels).save(place)


def parts_by_key(dataset, **settings):
    given = {"dataset": dataset, "split": "content", "partition": {"name": "iid"}, "clients": 1, "validation": 0.2}
    _, population = build(pn.Experiment.of(given | {"feature_dim": 8, "rounds": 1} | settings))
    data, part = population.dataset, population.parts[0]
    keys, held = data.content_keys(), int(population.parts.validating[0])
    kept = len(part.train) - held
    facts = population.facts()
    assert [int(one.sum()) for one in (facts.train, facts.validation, facts.test)] == [kept, held, len(part.test)]
    client = population.site(0).client(1)
    assert len(client.validation) == held
    named = {"train": part.train[:kept], "validation": part.train[kept:], "test": part.test}
    return {int(keys[place]): name for name, index in named.items() for place in index}


def test_a_folder_that_grows_keeps_its_parts_even_if_all_pictures_are_resized(tmp_path, monkeypatch):
    """A picture of another size makes all others be resized; the hash is of the file."""
    monkeypatch.setenv("PROTONORM_DATA", str(tmp_path / "cache"))
    folder = tmp_path / "own"
    pictures(folder, range(40))
    before = parts_by_key(f"folder:{folder}")
    pictures(folder, [40, 41])
    assert parts_by_key(f"folder:{folder}").items() >= before.items()
    pictures(folder, [42], side=19)
    with pytest.warns(UserWarning, match="differ in size"):
        after = parts_by_key(f"folder:{folder}")
    assert after.items() >= before.items()
    assert len(after) == 43
    file = folder / "dog" / "0.png"
    assert int.from_bytes(hashlib.blake2b(file.read_bytes(), digest_size=8).digest(), "big") in after
    shown = subprocess.run(["b2sum", "-l", "64", str(file)], capture_output=True, text=True, check=True)
    assert int(shown.stdout.split()[0], 16) in after  # as an owner can compute it


def test_a_table_that_grows_keeps_its_parts_though_its_columns_are_scaled_anew(tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    monkeypatch.setenv("PROTONORM_DATA", str(tmp_path / "cache"))
    rows = [f"{number},{number * 7 % 11},{'ab'[number % 2]},{'yes' if number % 3 else 'no'}" for number in range(60)]
    place = tmp_path / "own.csv"
    place.write_text("\n".join(["x,y,word,label", *rows]))
    before = parts_by_key(f"table:{place}")
    place.write_text("\n".join(["x,y,word,label", *rows[::-1], "1000.5,3,c,no"]))
    after = parts_by_key(f"table:{place}")
    assert len(before) == 60
    assert after.items() >= before.items()


def test_vectors_and_texts_are_hashed_before_they_are_scaled_and_padded(tmp_path, monkeypatch):
    monkeypatch.setenv("PROTONORM_DATA", str(tmp_path / "cache"))
    values, labels = RANDOM.normal(size=(30, 3)), np.arange(30) % 2
    np.savez(tmp_path / "v.npz", inputs=values, labels=labels)
    np.savez(tmp_path / "w.npz", inputs=np.append(values, [[50.0, 0, 0]], 0), labels=np.append(labels, 0))
    first, second = (Array(path=tmp_path / f"{name}.npz").load().content_keys() for name in "vw")
    assert (first == second[:30]).all()
    tokens = np.array([[3, 1, 0], [2, 2, 2]])
    wide = np.pad(tokens, ((0, 0), (0, 4)))
    one, two = (pn.Dataset("t", value, np.arange(2)).content_keys() for value in (tokens, wide))
    assert (one == two).all()


def test_simulations_split_at_random_unless_said_and_their_keys_are_as_before():
    assert LATER["split"] == "random"
    usual, other = pn.Experiment(dataset="spiral"), pn.Experiment(dataset="spiral", split="content")
    assert "split" not in usual.model_dump(mode="json")
    assert other.model_dump(mode="json")["split"] == "content"
    assert usual.key != other.key


def test_keys_must_fit_the_samples_and_parts_may_have_none(tmp_path):
    with pytest.raises(ValueError, match=r"the keys have shape \(2,\) and type int64; expected uint64"):
        pn.Dataset("d", np.zeros((3, 2), np.float32), np.arange(3), keys=np.arange(2))
    assert Parts.of([own_part(np.arange(8), None, 0.75, [1, 0])]).validating is None
