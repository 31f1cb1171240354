"""What is written for Weights & Biases and for MLflow, offline, read back with their own readers."""

import json

import pytest

from tests.support import contents, run, run_folder, spiral


@pytest.fixture(autouse=True)
def nothing_leaves(monkeypatch):
    """Settings of a user's environment do not count here."""
    for name in ("WANDB_MODE", "WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


def written(folder):
    """Return the bytes of the only offline run in a folder: records of names and of values as JSON."""
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    return path.read_bytes()


def test_wandb_offline_has_settings_rounds_and_result(tmp_path):
    pytest.importorskip("wandb", reason="needs wandb")
    experiment = spiral(rounds=2)
    result = run(experiment, out=tmp_path, tracker="wandb")
    before = contents(run_folder(experiment, tmp_path))
    for _ in range(2):
        content = written(tmp_path)
        for word in ("partition.alpha", "accuracy/reported/pooled", experiment.key, "accuracy/logits/clients"):
            assert word.encode() in content
        for record in result.history:
            for value in (record.rules["logits"].pooled, record.loss, record.bytes.up):
                assert json.dumps(value).encode() in content
        run(experiment, out=tmp_path, tracker="wandb")  # written anew, from the record: one run, not two
    assert contents(run_folder(experiment, tmp_path)) == before


def test_mlflow_in_a_folder_has_settings_rounds_and_result(tmp_path):
    tracking = pytest.importorskip("mlflow.tracking", reason="needs mlflow")
    experiment = spiral(rounds=2)
    result = run(experiment, out=tmp_path, tracker="mlflow")
    run(experiment, out=tmp_path, tracker="mlflow")  # written anew
    client = tracking.MlflowClient((tmp_path / "mlruns").as_uri())
    known = client.get_experiment_by_name("protonorm")
    (found,) = client.search_runs([known.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.info.run_name == experiment.key
    assert found.data.params["partition.alpha"] == "0.3"
    history = client.get_metric_history(found.info.run_id, "accuracy/logits/pooled")
    assert [(item.step, item.value) for item in history] == [
        (record.round, record.rules["logits"].pooled) for record in result.history
    ]
    assert found.data.metrics["accuracy/last/pooled"] == result.history[-1].rules["nearest-global"].pooled


@pytest.mark.parametrize(("word", "module"), [("wandb", "wandb"), ("mlflow", "mlflow.tracking")])
def test_without_the_package_one_sentence_says_so(tmp_path, monkeypatch, word, module):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(ValueError, match=rf"tracker={word} needs a package that is not installed"):
        run(spiral(rounds=1), out=tmp_path, tracker=word)
    assert not list(tmp_path.iterdir())
