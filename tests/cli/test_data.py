"""`protonorm data`, and data of one's own on the command line."""

import json

import numpy as np
import pytest
from PIL import Image, ImageDraw
from typer.testing import CliRunner

from protonorm.cli.app import app
from protonorm.runs.run import read_run
from tests.cli.commands import imported
from tests.data import archives

SERIAL = ["--engine", "serial"]


@pytest.fixture
def call():
    runner = CliRunner()

    def invoke(*words):
        result = runner.invoke(app, [str(word) for word in words])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke


def test_preparing_does_without_torch(tmp_path):
    archives.digits(tmp_path)
    assert "torch" not in imported("data", "prepare", "mnist", "--from", str(tmp_path), "--no-check")


def test_list_says_what_is_there_and_what_to_do(call, tmp_path):
    archives.digits(tmp_path)
    call("data", "prepare", "mnist", "--from", tmp_path, "--no-check")
    found = {one["name"]: one for one in json.loads(call("data", "list", "--json").output)["datasets"]}
    assert found["fashion"]["there"] is True
    assert found["mnist"] == {"name": "mnist", "there": True, "what": "6 pictures, 28×28×1"}
    assert found["cifar10"]["there"] is False
    assert "cifar-10-binary.tar.gz or cifar-10-python.tar.gz" in found["cifar10"]["what"]
    assert "folder" not in found
    (tmp_path / "data" / "mnist.npz").write_text("hello")
    shown = call("data", "list").output
    assert "cannot be used" in shown
    assert "data download NAME" in shown


def test_prepare_then_run(call, tmp_path):
    archives.digits(tmp_path)
    done = call("data", "prepare", "mnist", "--from", tmp_path, "--root", tmp_path / "root", "--no-check")
    assert "6 pictures, 28×28×1, 10 classes" in done.output
    words = ["dataset=mnist", f"dataset.root={tmp_path / 'root'}", "clients=2", "partition=iid", "rounds=1"]
    result = call("run", *words, *SERIAL)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data", "prepare", "mnits", "--from", "."], "did you mean 'mnist'"),
        (["data", "prepare", "mnist", "--from", "nowhere"], "There is no folder nowhere"),
        (["data", "download", "folder"], "'folder' cannot be prepared"),
        (["run", "dataset=cifar10"], "There is no cifar10.npz"),
        (["run", "dataset=cifar10", "dataset.rot=x"], "did you mean 'root'"),
        (["run", "dataset=tinyimagenet", "dataset.pool=some"], "dataset.pool must "),
        (["run", "dataset=folder"], "dataset folder needs the setting dataset.path"),
        (["run", "dataset=folder:nowhere"], "There is no folder"),
        (["run", "dataset=npz:nowhere.npz"], "There is no file"),
        (["run", "dataset=clients:nowhere"], "There is no folder"),
        (["run", "dataset=folder:.", "dataset.size=0"], "dataset.size must "),
        (["run", "dataset=folder:.", "dataset.channels=2"], "dataset.channels must "),
        (["run", "dataset=foldr:here"], "Unknown dataset 'foldr:here'"),
    ],
)
def test_bad_input(call, words, said):
    result = call(*words)
    assert result.exit_code == 2, result.output
    assert said in result.stderr


def test_a_wrong_archive_has_code_2_and_no_network_code_1(call, tmp_path):
    archives.digits(tmp_path)
    result = call("data", "prepare", "mnist", "--from", tmp_path)
    assert result.exit_code == 2
    assert "--no-check takes it all the same" in result.stderr
    assert not (tmp_path / "data").exists()
    result = call("data", "download", "mnist", "--mirror", "http://127.0.0.1:9/")
    assert result.exit_code == 1
    assert "is there a network?" in result.stderr
    assert "http://127.0.0.1:9/" in result.stderr


def draw_shapes(root, kinds=("disc", "bar"), count=30, seed=0):
    """Draw shapes in random places: pictures of a domain that nobody has trained on."""
    random = np.random.default_rng(seed)
    for kind in kinds:
        (root / kind).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            picture = Image.fromarray(random.integers(0, 60, (16, 16, 3), dtype=np.uint8))
            pen, (x, y) = ImageDraw.Draw(picture), random.integers(0, 6, 2).tolist()
            where = (x, y, x + 9, y + 9) if kind == "disc" else (0, y, 15, y + 2)
            (pen.ellipse if kind == "disc" else pen.rectangle)(
                where, fill=(250, 200, 90) if kind == "disc" else (60, 90, 250)
            )
            picture.save(root / kind / f"{number}.png")


def test_a_folder_of_pictures_trains_and_its_clients_predict(call, tmp_path):
    draw_shapes(tmp_path / "shapes")
    few = ["clients=2", "partition=iid", "rounds=4", "lr=0.05", "batch_size=8", "models=plain", "algorithm.gamma=10"]
    result = call("run", f"dataset=folder:{tmp_path / 'shapes'}", *few, "--json", *SERIAL)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["summary"]["nearest-global"]["best"]["pooled"] > 0.9
    pictures = [tmp_path / "shapes" / kind / f"{number}.png" for kind in ("bar", "disc") for number in range(3)]
    Image.open(pictures[0]).convert("RGBA").resize((40, 40)).save(tmp_path / "other.png")  # another size and kind
    answer = call("predict", found["key"], *pictures, tmp_path / "other.png", "--client", 1, "--json")
    assert answer.exit_code == 0, answer.output
    told = json.loads(answer.stdout)
    assert [one["class"] for one in told["pictures"]] == ["bar"] * 3 + ["disc"] * 3 + ["bar"]
    assert set(told["pictures"][0]["rules"]) == {"nearest-global", "nearest-local", "logits", "joint"}
    assert 0.5 < told["pictures"][0]["rules"]["logits"]["confidence"] <= 1
    shown = call("predict", found["key"], pictures[0], "--client", 0)
    assert "bar" in shown.output
    assert "softmax" in shown.output
    exported = call("export", found["key"], tmp_path / "mine", "--client", 1)
    assert exported.exit_code == 0, exported.output
    again = json.loads(call("predict", tmp_path / "mine", *pictures, tmp_path / "other.png", "--json").stdout)
    assert again == told
    refuse(call, found["key"], tmp_path, pictures[0])


def refuse(call, key, tmp_path, picture):
    (tmp_path / "text.png").write_text("hello")
    for words, said in [
        ([key, picture], "Which client? --client takes a number from 0 to 1"),
        ([key, picture, "--client", 2], "There is no client 2"),
        ([key, tmp_path / "text.png", "--client", 0], "text.png is not a picture"),
        ([key, tmp_path / "none.png", "--client", 0], "There is no picture"),
        (["nothing", picture, "--client", 0], "There is no run 'nothing'"),
        ([tmp_path / "mine", picture, "--client", 0], "holds client 1, not client 0"),
    ]:
        result = call("predict", *words)
        assert result.exit_code == 2
        assert said in result.stderr


def test_data_that_belong_to_clients_already(call, tmp_path):
    for client in range(3):
        for part, count in (("train", 8), ("test", 4)):
            draw_shapes(tmp_path / "split" / f"client{client}" / part, count=count, seed=client)
    words = [f"dataset=clients:{tmp_path / 'split'}", "rounds=1", "models=plain", "batch_size=8"]
    result = call("run", *words, "--json", *SERIAL)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["experiment"]
    assert found["clients"] == 3
    assert found["partition"] == {"name": "given", "seed": 1}
    population = read_run(tmp_path / "runs" / json.loads(result.stdout)["key"]).population
    assert (population.train + population.validation).tolist() == [[8, 8]] * 3
    assert population.validation.sum(1).tolist() == [2] * 3  # a tenth of 16, rounded up
    assert population.test.tolist() == [[4, 4]] * 3
    result = call("run", *words, "clients=5", *SERIAL)
    assert result.exit_code == 2
    assert "clients must be" in result.stderr
