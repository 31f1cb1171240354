"""Partitions in the form in which PFLlib and HtFLlib ship them are read, and nothing in them is executed.

The counts are those of the MNIST partition that both libraries ship: of its clients 0 and 16.
"""

import io
import json
import os
import pickle
import zipfile

import numpy as np
import pytest

import protonorm as pn
from protonorm.data.own.datasets import PFLlib
from protonorm.data.partitions import Dirichlet, partition
from protonorm.session.build import build

MNIST = ({0: 140, 1: 890, 4: 1, 5: 319, 7: 29, 8: 1067, 9: 184}, {0: 3628})  # label: samples


def pickled(held, protocol=4):
    """Pickle an array () of an object: protocol 3 as numpy 1 wrote it, protocol 4 as numpy 2 does."""
    array = np.empty((), object)
    array[()] = held
    content = pickle.dumps(array, protocol)
    return content.replace(b"numpy._core", b"numpy.core") if protocol == 3 else content


def write(path, content, shape="()"):
    """Write an .npz file of one array of objects, whose pickle is given."""
    header = f"{{'descr': '|O', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("data.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + content)


def clients(folder, samples, protocol=4):
    """Write clients, each of whose first ⌊0.75n⌋ samples train, as their programs do."""
    for id, (x, y) in enumerate(samples):
        cut = int(0.75 * len(y))
        for part, rows in (("train", slice(None, cut)), ("test", slice(cut, None))):
            write(folder / part / f"{id}.npz", pickled({"x": x[rows], "y": y[rows]}, protocol))
    return folder


def digits(counts, seed=0):
    """Draw bytes (n, 1, 16, 16), scale them to −1 … 1 as torchvision does, and label them."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(list(counts), list(counts.values())))
    pixels = random.integers(0, 256, (len(labels), 1, 16, 16), np.uint8)
    return (np.float32(pixels) / np.float32(255) - np.float32(0.5)) / np.float32(0.5), labels.astype(np.int64), pixels


@pytest.mark.parametrize("protocol", [3, 4])
def test_the_shipped_form(tmp_path, protocol):
    """⌊0.75 · 2630⌋ = 1972 train and 658 test, ⌊0.75 · 3628⌋ = 2721 and 907; bytes come back exactly."""
    made = [digits(counts, seed) for seed, counts in enumerate(MNIST)]
    folder = clients(tmp_path / "MNIST", [(x, y) for x, y, _ in made], protocol)
    listed = [sorted(map(list, counts.items())) for counts in MNIST]
    config = {"num_clients": 2, "alpha": 0.1, "Size of samples for labels in clients": listed}
    (folder / "config.json").write_text(json.dumps(config))
    experiment = pn.Experiment.of({"dataset": f"pfllib:{folder}", "models": "light", "validation": 0})
    task, population = build(experiment)
    assert experiment.clients == 2
    assert task.num_classes == 10
    assert population.parts.sizes().tolist() == [[1972, 658], [2721, 907]]
    facts = population.facts()
    assert [dict(enumerate(row)) for row in (facts.train + facts.test).tolist()] == [
        {k: counts.get(k, 0) for k in range(10)} for counts in MNIST
    ]
    np.testing.assert_array_equal(
        population.dataset.inputs, np.concatenate([pixels for *_, pixels in made]).transpose(0, 2, 3, 1)
    )


def test_dirichlet_draws_the_partition_that_they_ship():
    """With seed 1 and α = 0.1, from the 70,000 labels of MNIST."""
    labels = np.repeat(np.arange(10), [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958])
    train, test = partition(labels, 20, Dirichlet(alpha=0.1)).class_counts(labels, 10)
    for id, counts in ((0, MNIST[0]), (16, MNIST[1])):
        assert {k: count for k, count in enumerate((train + test)[id].tolist()) if count} == counts


def test_clients_are_in_the_order_of_their_numbers(tmp_path):
    samples = [(np.full((4, 3), id, np.float32), np.array([0, 1, 0, 1])) for id in range(11)]
    data = PFLlib(clients(tmp_path, samples)).load()
    assert [data.inputs[data.owner == id].mean() for id in range(11)] == list(range(11))
    assert data.split.tolist() == [0, 0, 0, 1] * 11


def test_tokens_signals_and_other_scales(tmp_path):
    """Rows [tokens, how many count]; vectors of signals (9, 1, 4); bytes scaled to 0 … 1; Fortran order."""
    rows = np.empty((4, 2), object)
    rows[:, 0], rows[:, 1] = [[5, 6, 7]] * 4, [3, 2, 1, 3]
    y = np.array([0, 1, 0, 1])
    data = PFLlib(clients(tmp_path / "text", [(rows, y)])).load()
    assert data.inputs.tolist() == [[5, 6, 7], [5, 6, 0], [5, 0, 0], [5, 6, 7]]
    assert data.vocabulary == 8
    signals = np.asfortranarray(np.arange(4 * 36, dtype=">f8").reshape(4, 9, 1, 4))
    data = PFLlib(clients(tmp_path / "signals", [(signals, y)])).load()
    np.testing.assert_array_equal(data.inputs, np.arange(4 * 36).reshape(4, 36))
    pixels = np.arange(4 * 75, dtype=np.uint8).reshape(4, 3, 5, 5)
    data = PFLlib(clients(tmp_path / "unit", [(pixels / np.float32(255), y)])).load()
    np.testing.assert_array_equal(data.inputs, pixels.transpose(0, 2, 3, 1))


class Payload:
    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        (Payload(), "must hold plain data only, but it asks for .*system; nothing was executed"),
        ({"x": Payload(), "y": np.zeros(4, np.int64)}, "nothing was executed"),
        ([1], "it holds a list where a dict was expected"),
        ({"x": np.zeros((4, 2))}, r"must hold x \(n, …\) and y \(n,\)"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(4, np.int64)}, "must hold x"),
        ({"x": np.zeros((4, 2)), "y": np.full(4, -1)}, "expected whole numbers from 0"),
        ({"x": np.zeros((4, 2), complex), "y": np.zeros(4, np.int64)}, "something else than numbers"),
        ({"x": np.array([[1, 2]] * 4, object), "y": np.zeros(4, np.int64)}, "a list of tokens and their number"),
    ],
)
def test_other_contents_are_refused(tmp_path, held, reason):
    for part in ("train", "test"):
        write(tmp_path / part / "0.npz", pickled(held))
    with pytest.raises(ValueError, match=reason):
        PFLlib(tmp_path).load()


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    x, y, _ = digits({0: 8, 1: 8})
    folder = clients(tmp_path, [(x, y), (x, y)])
    (folder / "config.json").write_text(json.dumps({"Size of samples for labels in clients": [[[0, 8], [1, 7]]]}))
    with pytest.raises(ValueError, match="config.json counts is not what the clients' files have"):
        PFLlib(folder).load()
    (folder / "config.json").unlink()
    assert PFLlib(folder).load().clients == 2
    write(folder / "test" / "1.npz", pickled({"x": x * 3, "y": y}))
    with pytest.raises(ValueError, match="must be bytes scaled to"):
        PFLlib(folder).load()
    write(folder / "test" / "1.npz", pickled({"x": x}), shape="(1,)")
    with pytest.raises(ValueError, match=r"data has shape \(1,\)"):
        PFLlib(folder).load()
    (folder / "test" / "1.npz").unlink()
    with pytest.raises(ValueError, match="a file in test for each of them"):
        PFLlib(folder).load()


def test_what_numpy_writes_itself(tmp_path):
    """`np.savez_compressed(file, data=dict)`, the call of both programs."""
    buffer = io.BytesIO()
    x, y, pixels = digits({0: 3, 1: 3})
    np.savez_compressed(buffer, data={"x": x, "y": y})
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "0.npz").write_bytes(buffer.getvalue())
    assert PFLlib(tmp_path).load().inputs[:6].tobytes() == pixels.transpose(0, 2, 3, 1).tobytes()
