"""Partitions by quantity, feature, group, index file and partitioners of flwr-datasets; wrong labels."""

import json

import numpy as np
import pytest

import protonorm as pn
from protonorm.data.assignments import Feature, Index, Natural, Quantity
from protonorm.data.own.datasets import Domains, Table
from protonorm.data.partitions import IID, partition
from protonorm.data.splits import noisy_labels, parts_of
from protonorm.session.build import build
from tests.support import spiral

LABELS = np.arange(600) % 3


def data(groups=None, seed=0):
    """Six hundred vectors of three classes; the first column is noise."""
    points = np.random.default_rng(seed).normal(size=(600, 2)).astype(np.float32)
    return pn.Dataset("points", points, LABELS, groups=groups)


def whole(parts, id):
    return np.sort(np.concatenate(parts[id]))


def test_quantities_have_the_moments_of_a_dirichlet_distribution():
    """Shares of Dir(α·1_M) have mean 1/M and variance (M − 1)/(M²(αM + 1)): for α = 2, M = 5 it is 4/275."""
    sizes = np.array(
        [
            [len(share) for share in Quantity(alpha=2, least=1, seed=seed).assign(np.zeros(1000), 5)]
            for seed in range(400)
        ]
    )
    assert (sizes.sum(1) == 1000).all()
    assert np.abs(sizes.mean(0) / 1000 - 0.2).max() < 0.03
    assert np.abs((sizes / 1000).var(0).mean() - 4 / 275) < 0.002


def test_quantities_are_unequal_whatever_the_class():
    parts = partition(LABELS, 4, Quantity(alpha=0.5))
    train, test = parts.class_counts(LABELS, 3)
    sizes = (train + test).sum(1)
    assert sizes.sum() == 600
    assert sizes.min() >= 40
    assert sizes.max() > 2 * sizes.min()
    with pytest.raises(ValueError, match=r"partition.alpha=0.001 gave each of 4 clients at least 40 samples in none"):
        partition(LABELS, 4, Quantity(alpha=0.001, retries=3))


def test_features_are_ordered_within_each_class():
    """Of each class, no value of a client is above one of the next; every client has the same classes."""
    points = data()
    parts = parts_of(points, 4, Feature(), 0.75)
    for k in range(3):
        values = [points.inputs[whole(parts, id), 0][LABELS[whole(parts, id)] == k] for id in range(4)]
        assert [len(one) for one in values] == [50] * 4
        assert all(values[id].max() <= values[id + 1].min() for id in range(3))
    loose = parts_of(points, 4, Feature(strictness=0.5), 0.75)
    means = [points.inputs[whole(loose, id), 0].mean() for id in range(4)]
    assert means == sorted(means)
    assert points.inputs[whole(loose, 0), 0].max() > points.inputs[whole(loose, 1), 0].min()
    other = parts_of(points, 4, Feature(column=1), 0.75)
    assert points.inputs[whole(other, 0), 1].max() < points.inputs[whole(other, 3), 1].min()
    with pytest.raises(ValueError, match="vectors with column 2, but they have columns 0 to 1"):
        parts_of(points, 4, Feature(column=2), 0.75)


def test_brightness_is_the_feature_of_pictures():
    pixels = np.repeat(np.arange(60, dtype=np.uint8), 16).reshape(60, 4, 4, 1)
    parts = parts_of(pn.Dataset("grey", pixels, np.zeros(60, np.int64), ("a", "b")), 3, Feature(), 0.75)
    assert [whole(parts, id).tolist() for id in range(3)] == [list(range(s, s + 20)) for s in (0, 20, 40)]


def test_natural_groups_are_never_mixed():
    """Groups of 300, 200 and 100 samples: 7 clients are 3 and 2 and 2; 2 clients have 2 and 1 groups."""
    groups = np.repeat(["sea", "air", "land"], [300, 200, 100])
    parts = parts_of(data(groups), 7, Natural(), 0.75)
    held = [set(groups[whole(parts, id)]) for id in range(7)]
    assert [len(whole(parts, id)) for id in range(7)] == [100, 100, 50, 50, 100, 100, 100]  # air, land, sea
    assert held == [{"air"}] * 2 + [{"land"}] * 2 + [{"sea"}] * 3
    parts = parts_of(data(groups), 2, Natural(), 0.75)
    held = [set(groups[whole(parts, id)]) for id in range(2)]
    assert sorted(map(len, held)) == [1, 2]
    assert not held[0] & held[1]
    with pytest.raises(ValueError, match="partition=natural needs data with groups"):
        parts_of(data(), 2, Natural(), 0.75)
    with pytest.raises(ValueError, match="The group 'few' has 1 samples for 2 clients"):
        parts_of(data(np.repeat(["few", "many"], [1, 599])), 4, Natural(), 0.75)


def test_groups_change_the_key_and_come_from_tables_and_domains(tmp_path):
    keys = {pn.Experiment(dataset=data(groups)).key for groups in (None, LABELS, LABELS[::-1].copy())}
    assert len(keys) == 3
    rows = "".join(f"{i},{i % 2},{'north' if i < 8 else 'south'}\n" for i in range(20))
    (tmp_path / "patients.csv").write_text(f"size,label,site\n{rows}")
    table = Table(tmp_path / "patients.csv", group="site").load()
    assert table.inputs.shape == (20, 1)
    assert table.groups.tolist() == ["north"] * 8 + ["south"] * 12
    with pytest.raises(ValueError, match="dataset.label, dataset.group, dataset.text and dataset.drop must name diff"):
        Table(tmp_path / "patients.csv", group="site", drop="site").load()
    (tmp_path / "digits").mkdir()
    for seed, name in enumerate(("mnist", "svhn")):
        pixels = np.random.default_rng(seed).integers(0, 255, (20 + seed, 16, 16, 1), np.uint8)
        np.savez(tmp_path / "digits" / f"{name}.npz", images=pixels, labels=np.arange(20 + seed) % 2)
    domains = Domains(tmp_path / "digits")
    assert domains.load().groups.tolist() == ["mnist"] * 20 + ["svhn"] * 21
    experiment = pn.Experiment(dataset=domains, partition="natural", clients=4, rounds=0)
    _, population = build(experiment)
    assert [len(whole(population.parts, id)) for id in range(4)] == [10, 10, 11, 10]


def test_an_index_file_is_followed(tmp_path):
    """Positions and split are those of the file, samples may be left out, and the content is in the key."""
    owner = np.r_[np.full(200, -1), np.repeat([0, 1], 200)]
    split = (np.arange(600) % 4 == 0).astype(np.int8)
    np.savez(tmp_path / "a.npz", owner=owner, split=split)
    lists = [np.flatnonzero(owner == id).tolist() for id in range(2)]
    (tmp_path / "b.json").write_text(json.dumps(lists))
    halves = [{"train": [i for i in one if i % 4], "test": [i for i in one if not i % 4]} for one in lists]
    (tmp_path / "c.json").write_text(json.dumps(halves))
    for name in ("a.npz", "c.json"):
        parts = parts_of(data(), 2, Index(tmp_path / name), 0.5)
        assert [sorted(half) for id in range(2) for half in parts[id]] == [
            half for one in halves for half in (one["train"], one["test"])
        ]
    parts = parts_of(data(), 2, Index(tmp_path / "b.json"), 0.5)
    assert [whole(parts, id).tolist() for id in range(2)] == lists
    assert parts.sizes().tolist() == [[100, 100]] * 2
    keys = [pn.Experiment(partition=Index(tmp_path / name), clients=2).key for name in ("a.npz", "b.json", "c.json")]
    (tmp_path / "d.json").write_text(json.dumps(lists))
    assert len({*keys, pn.Experiment(partition=Index(tmp_path / "d.json"), clients=2).key}) == 3
    with pytest.raises(ValueError, match=r"clients must be 2, as many as .*a.npz has, got 3"):
        parts_of(data(), 3, Index(tmp_path / "a.npz"), 0.5)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{}", "clients must be 0"),
        ("[[0, 1], [1, 2]]", "none of them twice"),
        ("[[0], [600]]", "positions from 0 to 599"),
        ('[{"train": [0], "test": [600]}, [1]]', "cannot be read so: index 600"),
        ('[{"train": [-1], "test": [2]}, [1]]', "positions from 0 to 599"),
        ('[{"train": [], "test": [2]}, [1]]', "Client 0 has no sample to train on"),
        ("[[0], [1.5]]", "a position is no whole number"),
        ("[[0], [true]]", "a position is no whole number"),
        ("[[0], 3]", "must hold a list with, for each client"),
        ("[" * 100_000, "must hold a list"),
        ("[[0], [9999999999999999999999]]", "must hold a list"),
    ],
)
def test_other_index_files_are_refused(tmp_path, content, reason):
    (tmp_path / "mine.json").write_text(content)
    with pytest.raises(ValueError, match=reason):
        parts_of(data(), 2, Index(tmp_path / "mine.json"), 0.5)


class EveryOther:
    """A partitioner with the interface of flwr-datasets: its dataset is assigned once."""

    def __init__(self, num_partitions, partition_by="label"):
        self._num_partitions, self._by, self._held = num_partitions, partition_by, None

    @property
    def num_partitions(self):
        return self._num_partitions

    @property
    def dataset(self):
        return self._held

    @dataset.setter
    def dataset(self, value):
        assert self._held is None
        self._held = value

    def load_partition(self, partition_id):
        order = np.argsort(self.dataset[self._by], kind="stable")
        return self.dataset.select(np.array_split(order, self.num_partitions)[partition_id])


def test_a_partitioner_of_flwr_datasets(tmp_path):
    """Sorted by label and cut in three, each client has a class of its own; in a run on any engine."""
    pytest.importorskip("datasets")
    experiment = pn.Experiment(dataset=data(), partition=EveryOther(3), clients=3, rounds=1, feature_dim=4)
    for _ in range(2):  # it may be used again
        _, population = build(experiment)
        assert (population.facts().train > 0).tolist() == np.eye(3, dtype=bool).tolist()
    assert experiment.model_dump()["partition"] == {"num_partitions": 3, "by": "label", "name": "EveryOther", "seed": 1}
    assert experiment.key != experiment.model_copy(update={"partition": EveryOther(3, "position")}).key
    assert len(pn.run(experiment, out=tmp_path).rounds) == 1
    with pytest.raises(ValueError, match="clients must be 4, as many as EveryOther has partitions, got 3"):
        build(experiment.model_copy(update={"partition": EveryOther(4)}))


@pytest.mark.parametrize(
    ("noise", "share", "moved"),
    [("symmetric:0.3", 0.3, {1, 2, 3, 4}), ("pair:0.3", 0.3, {1}), ("pair:1:0.5", 0.5, {1}), ("none", 0, set())],
)
def test_wrong_labels(noise, share, moved):
    """Of 15,000 training labels a share is wrong (deviation 0.004); test labels are right."""
    labels = np.arange(20_000) % 5
    parts = partition(labels, 4, IID())
    noisy = noisy_labels(labels, 5, parts, noise, seed=1)
    train, test = (np.concatenate([part[at] for part in parts]) for at in (0, 1))
    assert np.abs((noisy != labels)[train].mean() - share) < 0.015
    assert (noisy == labels)[test].all()
    assert set(((noisy - labels) % 5)[noisy != labels].tolist()) == moved
    assert np.array_equal(noisy, noisy_labels(labels, 5, parts, noise, seed=1))


def test_label_noise_is_a_setting(tmp_path):
    clean, noisy = spiral(rounds=1), spiral(rounds=1, label_noise="pair:1")
    assert "label_noise" not in clean.model_dump()
    assert noisy.key != clean.key
    assert noisy.changed["label_noise"] == "pair:1"
    counts = [build(experiment)[1].facts() for experiment in (clean, noisy)]
    np.testing.assert_array_equal(np.roll(counts[0].train, 1, axis=1), counts[1].train)
    np.testing.assert_array_equal(counts[0].test, counts[1].test)
    for value in ("symmetric", "pair:1.5", "other:0.1", "symmetric:0.2:2"):
        with pytest.raises(ValueError, match="label_noise must be none, symmetric:RATE or pair:RATE"):
            spiral(label_noise=value)
