"""The commands `predict` and `export`: one answer, how sure it is, and what the rules say; as text, CSV and JSON."""

import csv
import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import protonorm as pn
from protonorm.cli.app import app
from protonorm.data.pictures import read_picture
from tests.support import pictures, run

pytestmark = pytest.mark.filterwarnings("default")  # a warning is a line on the error stream, as for people


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Four clients with names that learn brightness, and a run that was validated."""
    data = pictures(np.arange(96) % 2, classes=2)
    owner, names = np.repeat(np.arange(4), 24), ("berlin", "rome", "oslo", "paris")
    mine = pn.Dataset("tiny", data.inputs, data.labels, ("dark", "=bright"), owner, client_names=names)
    settings = {"models": "plain", "feature_dim": 4, "rounds": 2, "lr": 0.02, "validation": 0.3, "batch_size": 8}
    return run(pn.Experiment(algorithm=pn.FedProto(lam=0.1), dataset=mine, **settings), tmp_path_factory.mktemp("runs"))


@pytest.fixture
def album(tmp_path, trained):
    """Four pictures, one of them in a folder inside, and a text that is none."""
    folder = tmp_path / "album"
    (folder / "in").mkdir(parents=True)
    for row, name in enumerate(("1.png", "2.png", "10.png", "in/0.png")):
        Image.fromarray(trained.population.dataset.inputs[row][:, :, 0]).save(folder / name)
    (folder / "notes.txt").write_text("")
    return folder


def call(*words, code=0):
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


def test_a_folder_as_json(trained, album):
    done = call("predict", trained.run.folder, album, "--client", "rome", "--json")
    assert "left out: 1 .txt" in done.stderr
    told = json.loads(done.stdout)
    client, x = trained.clients[1], trained.population.dataset.inputs[:4]
    answers = client.answers(x)
    assert [one["picture"] for one in told["pictures"]] == [
        str(album / name) for name in ("1.png", "2.png", "10.png", "in/0.png")
    ]
    assert (told["client"], told["name"], told["rule"]) == (1, "rome", client.rule)
    assert told["recommended"]["by"] == "validation"
    for row, one in enumerate(told["pictures"]):
        assert one["class"] == client.classes[answers.classes[row]]
        assert one["probability"] == pytest.approx(answers.probability[row], rel=1e-5)
        assert one["agree"] == answers.agree[row]
        assert set(one["rules"]) == {"nearest-global", "nearest-local", "logits", "joint"}
        assert one["rules"]["nearest-global"]["margin"] == pytest.approx(
            answers.rules["nearest-global"].margin[row], abs=1e-5
        )
        assert "margin" not in one["rules"]["logits"]
    assert told["skipped"] == []


def test_a_folder_as_csv(trained, album, tmp_path):
    """A name that a spreadsheet would take for a formula has an apostrophe before it."""
    target = tmp_path / "answers.csv"
    done = call("predict", trained.run.folder, album, "--client", 0, "--csv", target)
    assert f"Answers to 4 pictures: {target}" in done.stdout
    with target.open(newline="") as file:
        lines = list(csv.DictReader(file))
    answers = trained.clients[0].answers(trained.population.dataset.inputs[:4])
    assert [line["class"] for line in lines] == [("dark", "'=bright")[k] for k in answers.classes]
    assert [float(line["probability"]) for line in lines] == pytest.approx(answers.probability.tolist(), rel=1e-5)
    assert {line["rule"] for line in lines} == {trained.clients[0].rule}
    assert [line["agree"] for line in lines] == ["yes" if one else "no" for one in answers.agree]
    assert list(lines[0])[5:] == [
        "nearest-global class", "nearest-global confidence", "nearest-global margin",
        "nearest-local class", "nearest-local confidence", "nearest-local margin",
        "logits class", "logits confidence",
        "joint class", "joint confidence",
    ]  # fmt: skip
    call("predict", trained.run.folder, album / "1.png", "--client", 0, "--csv", target)  # over predictions: fine
    assert len(target.read_text().splitlines()) == 2


def test_nothing_else_is_overwritten(trained, album, tmp_path):
    before = (album / "1.png").read_bytes()
    for target, said in (
        (album / "1.png", "exists and does not hold predictions; it is left as it is"),
        (album, "is a folder"),
        (tmp_path / "none" / "a.csv", "There is no folder"),
    ):
        done = call("predict", trained.run.folder, album, "--client", 0, "--csv", target, code=2)
        assert said in " ".join(done.stderr.split())
    assert (album / "1.png").read_bytes() == before


def test_the_table_recommends_one_answer_and_says_why(trained, album):
    text = " ".join(call("predict", trained.run.folder, album, "--client", "berlin").stdout.split())
    client = trained.clients[0]
    share = 100 * client.info.recommended.validation
    assert "Client berlin of" in text
    assert (
        f"The answer is that of the rule {client.rule}: it was best on the clients' validation parts, {share:.1f} %"
        in text
    )
    off = 100 * trained.run.chosen.record.validation[client.info.recommended.probability].calibration
    assert f"on validation it was {off:.1f} points off" in text
    assert "Rules by prototypes give a margin, no probability" in text


def test_bad_pictures_are_listed_and_can_be_skipped(trained, album):
    for name in ("bad.png", "worse.png"):
        (album / name).write_text("hello")
    done = call("predict", trained.run.folder, album, "--client", 0, code=2)
    assert "2 of 6 pictures cannot be used" in done.stderr
    assert "bad.png is not a picture" in done.stderr
    assert "worse.png is not a picture" in done.stderr
    assert "--skip-bad goes on without them" in done.stderr
    done = call("predict", trained.run.folder, album, "--client", 0, "--skip-bad", "--json")
    told = json.loads(done.stdout)
    assert len(told["pictures"]) == 4
    assert [one["picture"] for one in told["skipped"]] == [str(album / "bad.png"), str(album / "worse.png")]
    assert "2 of 6 pictures cannot be used" in done.stderr
    done = call("predict", trained.run.folder, album / "bad.png", "--client", 0, "--skip-bad", code=2)
    assert "No picture is left" in done.stderr


def test_sixteen_bits_are_refused_as_in_training(trained, album):
    """Pillow's conversion clips 20000 and 30000 of 65535 to white, so that any answer would be about nothing."""
    deep = np.tile(np.array([[20000, 30000]], np.uint16), (8, 4))
    for name in ("deep.png", "deep.tif"):
        Image.fromarray(deep).save(album / name)
        done = call("predict", trained.run.folder, album / name, "--client", 0, code=2)
        assert f"{name} cannot be read: its pixels have more than eight bits" in " ".join(done.stderr.split())
    with pytest.raises(ValueError, match="more than eight bits"):
        read_picture(album / "deep.png", "deep.png", (8, 8), 3)


def test_an_empty_folder(trained, tmp_path):
    (tmp_path / "empty").mkdir()
    assert (
        "has no pictures in it" in call("predict", trained.run.folder, tmp_path / "empty", "--client", 0, code=2).stderr
    )


def test_clients_by_name(trained, album, tmp_path):
    folder = tmp_path / "mine"
    said = call("export", trained.run.folder, folder, "--client", "rome").stdout
    assert "Client rome of" in said
    about = json.loads((folder / "client.json").read_text())
    assert (about["client"], about["name"]) == (1, "rome")
    assert about["preprocessing"] | {"steps": []} == {
        "steps": [], "mode": "L", "size": [16, 16], "interpolation": "bilinear", "mean": 0.5, "deviation": 0.5,
    }  # fmt: skip
    assert "`rome` (number 1)" in (folder / "README.md").read_text()
    for name in ("rome", 1):
        call("predict", folder, album / "1.png", "--client", name)
    assert (
        "holds client rome, not client berlin"
        in call("predict", folder, album / "1.png", "--client", "berlin", code=2).stderr
    )
    assert "did you mean 'berlin'" in call("predict", trained.run.folder, album, "--client", "berlim", code=2).stderr
    asked = call("predict", trained.run.folder, album, code=2).stderr
    assert "--client takes one of berlin, rome, oslo, paris, or its number" in asked


def test_an_exported_graph(trained, album, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    call("export", trained.run.folder, tmp_path / "mine", "--client", "rome", "--onnx")
    session = runtime.InferenceSession(str(tmp_path / "mine" / "model.onnx"))
    x = trained.population.dataset.inputs[:4]
    rules = [one.name for one in session.get_outputs()]
    found = dict(zip(rules, session.run(None, {"inputs": x}), strict=True))
    for rule, wanted in trained.clients[1].scores(x).items():
        np.testing.assert_allclose(found[rule], wanted, rtol=1e-4, atol=1e-4)
    assert "## Without protonorm" in (tmp_path / "mine" / "README.md").read_text()


def test_a_damaged_note_of_the_origin_is_said(trained, tmp_path):
    path = trained.run.folder / "provenance.jsonl"
    before = path.read_bytes()
    try:
        path.write_bytes(b"nothing\n")
        done = call("export", trained.run.folder, tmp_path / "mine", "--client", 0)
    finally:
        path.write_bytes(before)
    assert "provenance.jsonl is missing or damaged" in done.stderr
    assert json.loads((tmp_path / "mine" / "client.json").read_text())["facts"]["commit"] is None


def test_pictures_with_other_channels_are_refused(tmp_path, album):
    data = pn.Dataset("odd", np.zeros((24, 16, 16, 2), np.uint8), np.arange(24) % 2, ("a", "b"))
    settings = {"models": "plain", "feature_dim": 4, "rounds": 1, "clients": 2, "partition": "iid", "batch_size": 8}
    result = run(pn.Experiment(dataset=data, **settings), tmp_path / "runs")
    said = call("predict", result.run.folder, album, "--client", 0, code=2).stderr
    assert "trained on pictures of 2 channels; files have 1 or 3" in said
