"""An exported graph runs in a process without protonorm and torch, and gives the same scores."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import protonorm as pn
from protonorm.data.pictures import read_usable
from tests.support import pictures, run, spiral

ALONE = """
import json, sys
sys.modules["torch"] = sys.modules["protonorm"] = None  # importing them fails
import numpy as np
import onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
about = session.get_modelmeta().custom_metadata_map
x = np.load(sys.argv[2])
rules = [one.name for one in session.get_outputs()]
scores = dict(zip(rules, session.run(None, {"inputs": x})))
np.savez(sys.argv[3], **scores)
print(json.dumps(dict(about)))
"""


def alone(folder, x, tmp_path):
    """Run the graph in a process of its own."""
    np.save(tmp_path / "x.npy", x)
    words = [sys.executable, "-c", ALONE, folder / "model.onnx", tmp_path / "x.npy", tmp_path / "scores.npz"]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return dict(np.load(tmp_path / "scores.npz")), json.loads(done.stdout)


def same(found, wanted):
    assert set(found) == set(wanted)
    for rule, value in wanted.items():
        finite = np.abs(value[np.isfinite(value)]).max()
        np.testing.assert_allclose(found[rule], value, rtol=0, atol=1e-4 * max(1.0, finite))


@pytest.mark.parametrize("algorithm", ["protonorm", "fednh", "fedavg", "fml"])
def test_pictures(algorithm, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    data = pictures([0, 1, 2] * 12, 3)
    settings = {"dataset": data, "models": "light", "feature_dim": 8, "partition": "iid", "clients": 2, "rounds": 1}
    settings |= {"models": "plain"} if algorithm != "protonorm" else {}
    result = run(pn.Experiment.of(settings | {"algorithm": algorithm, "batch_size": 8}), tmp_path / "runs")
    client = result.clients[1]
    folder = client.save(tmp_path / "one", onnx=True)
    found, about = alone(folder, data.inputs[:7], tmp_path)
    same(found, client.scores(data.inputs[:7]))
    assert "joint" in found
    assert json.loads(about["classes"]) == list(data.classes)
    assert about["rule"] == client.rule
    assert json.loads(about["preprocessing"])["size"] == [16, 16]
    client.save(folder)  # without a graph: that of before is not left behind
    assert not (folder / "model.onnx").exists()


def test_the_program_of_the_documentation_gives_the_recommended_answer(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    page = (Path(__file__).parents[2] / "docs" / "predict.md").read_text(encoding="utf-8")
    program = page.split('```python title="without_protonorm.py"\n')[1].split("```")[0]
    data = pictures([0, 1, 2] * 12, 3)
    settings = {"dataset": data, "models": "plain", "partition": "iid", "clients": 2, "rounds": 2, "batch_size": 8}
    client = run(pn.Experiment.of(settings), tmp_path / "runs").clients[1]
    client.save(tmp_path / "client3", onnx=True)
    for row in range(3):
        Image.fromarray(data.inputs[row, :, :, 0]).resize((40, 30)).save(tmp_path / "picture.png")
        x, _ = read_usable([tmp_path / "picture.png"], (16, 16), 1)
        words = [sys.executable, "-c", program, "picture.png"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == client.classes[client.predict(x)[0]]


def test_vectors(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    client = run(spiral(rounds=1), tmp_path / "runs").clients[0]
    x = np.random.default_rng(3).standard_normal((4, 2)).astype(np.float32)
    found, _ = alone(client.save(tmp_path / "one", onnx=True), x, tmp_path)
    same(found, client.scores(x))


def test_what_is_not_installed_is_named(tmp_path, monkeypatch):
    client = run(spiral(rounds=1), tmp_path / "runs").clients[0]
    monkeypatch.setattr("protonorm.inference.module.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"ONNX needs onnx, onnxscript, onnxruntime.*'\.\[onnx\]' in a checkout"):
        client.save(tmp_path / "one", onnx=True)
    assert not (tmp_path / "one").exists()


def test_the_preprocessing_is_that_of_reading(tmp_path):
    """The steps of client.json with Pillow alone give the bytes that `predict` reads, of a turned photograph too."""
    data = pictures([0, 1] * 12, 2)
    settings = {"dataset": data, "models": "plain", "partition": "iid", "clients": 2, "rounds": 1, "batch_size": 8}
    client = run(pn.Experiment.of(settings), tmp_path / "runs").clients[0]
    ready = client.info.preprocessing
    assert (ready.mode, ready.size, ready.interpolation) == ("L", [16, 16], "bilinear")
    pixels = np.random.default_rng(0).integers(0, 256, (30, 41, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    by_hand = Image.fromarray(np.rot90(pixels, -1)).convert("L").resize((16, 16), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(read_usable([tmp_path / "a.png"], (16, 16), 1)[0][0, :, :, 0], np.asarray(by_hand))
    half = np.full((1, 16, 16, 1), 255, np.uint8)
    assert (half[0, 0, 0, 0] / 255 - ready.mean) / ready.deviation == 1.0  # the largest byte becomes 1
