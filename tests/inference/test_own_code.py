"""Clients with networks and methods of one's own: other texts are told of, and a recommended rule is there."""

import warnings

import numpy as np
import pytest
import torch
from pydantic.dataclasses import dataclass
from typer.testing import CliRunner

import protonorm as pn
from protonorm.cli.app import app
from protonorm.cli.predict import caption
from protonorm.core.own_code import load_own
from protonorm.inference.loading import load_from_run
from protonorm.inference.trained import answers_of
from protonorm.runs.run import Run
from tests.support import pictures, run, spiral

NET = """
import torch
from torch import nn

import protonorm as pn


def small(shape, feature_dim, num_classes):
    return pn.SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(256, feature_dim), nn.{layer}()), {head})


def other(shape, feature_dim, num_classes):
    return pn.SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(256, feature_dim)), {head})
"""
HEAD = "nn.Linear(feature_dim, num_classes)"
NAMES = ("small", "other")


def write(folder, layer="ReLU"):
    (folder / "net.py").write_text(NET.format(layer=layer, head=HEAD))
    return str(folder / "net.py")


def mutual(folder, models, **settings):
    """FML, whose clients answer by their own network, by the second one, and by both."""
    data = pictures(list(range(3)) * 16, 3)
    usual = {"dataset": data, "feature_dim": 4, "partition": "iid", "clients": 2, "rounds": 1, "validation": 0.3}
    usual |= {"batch_size": 8, "algorithm": "fml", "models": models}
    return run(pn.Experiment.of(usual | settings), folder / "runs")


def where_shared_is_best(found):
    """The same run with a record in which `shared` has won on validation."""
    run_ = found.run
    (record,) = run_.rounds
    best = record.validation["shared"].model_copy(update={"mean": 1.0})
    low = {rule: one.model_copy(update={"mean": 0.25}) for rule, one in record.validation.items()}
    changed = record.model_copy(update={"validation": low | {"shared": best}})
    return Run(run_.folder, run_.info, [changed], None)


def test_a_network_that_is_also_the_second_one_is_given_once(tmp_path):
    file = write(tmp_path)
    found = mutual(tmp_path, [f"{file}:small"])
    x = found.population.dataset.inputs[:6]
    again = load_from_run(found.run, 0, network=load_own(f"{file}:small", "network"))
    inside = found.clients[0]
    assert set(inside.scores(x)) == {"logits", "shared", "joint"}
    for rule, value in inside.scores(x).items():
        np.testing.assert_array_equal(again.scores(x)[rule], value)
    saved = pn.load_client(inside.save(tmp_path / "zero"), network=load_own(f"{file}:small", "network"))
    assert set(saved.scores(x)) == {"logits", "shared", "joint"}


def test_another_second_network_is_given_too(tmp_path):
    file = write(tmp_path)
    found = mutual(tmp_path, [f"{file}:small", f"{file}:other"])
    x, (small, other) = found.population.dataset.inputs[:6], (load_own(f"{file}:{n}", "network") for n in NAMES)
    inside = found.clients[1]
    assert set(inside.scores(x)) == {"logits", "shared", "joint"}
    folder = inside.save(tmp_path / "one")
    assert "network=make_network, auxiliary=make_second" in (folder / "README.md").read_text()
    again = pn.load_client(folder, network=other, auxiliary=small)
    np.testing.assert_array_equal(again.scores(x)["shared"], inside.scores(x)["shared"])


def test_a_rule_that_the_client_has_is_recommended(tmp_path):
    """Without the second network `shared` and `joint` are not there, and the record says that `logits` had 25 %."""
    pytest.importorskip("onnxruntime")
    file = write(tmp_path)
    found = mutual(tmp_path, [f"{file}:small", f"{file}:other"])
    x, other = found.population.dataset.inputs[:6], load_own(f"{file}:other", "network")
    client = load_from_run(where_shared_is_best(found), 1, network=other)
    advice = client.info.recommended
    assert (advice.rule, advice.by, advice.validation, advice.probability) == ("logits", "validation", 0.25, "logits")
    answers = client.answers(x)
    assert (answers.rule, set(answers.rules)) == ("logits", {"logits"})
    np.testing.assert_array_equal(client.predict(x), answers.classes)
    assert "rule logits: it was best on the clients' validation parts, 25.0 % right" in caption(client, answers)
    folder = client.save(tmp_path / "lacking", onnx=True)
    assert "Take that of `logits`" in (folder / "README.md").read_text()
    graph = pytest.importorskip("onnxruntime").InferenceSession(folder / "model.onnx")
    about = graph.get_modelmeta().custom_metadata_map
    assert [one.name for one in graph.get_outputs()] == ["logits"] == [about["rule"]] == [about["probability"]]


def test_an_exported_client_that_lacks_the_recommended_rule_claims_no_validation(tmp_path):
    file = write(tmp_path)
    found = mutual(tmp_path, [f"{file}:small", f"{file}:other"])
    other, small = (load_own(f"{file}:{name}", "network") for name in ("other", "small"))
    whole = load_from_run(where_shared_is_best(found), 1, network=other, auxiliary=small)
    assert whole.rule == "shared"
    client = pn.load_client(whole.save(tmp_path / "one"), network=other)
    assert (client.rule, client.info.recommended.by) == ("logits", "headline")
    told = caption(client, client.answers(found.population.dataset.inputs[:2]))
    assert "rule logits: it is the method's usual rule, which no validation has chosen" in told
    text = (client.save(tmp_path / "two") / "README.md").read_text()
    assert "Take that of `logits`, the largest output of this client's own network: it is the method's usual" in text


def test_the_caption_claims_nothing_of_a_rule_that_stands_in(tmp_path):
    client = run(spiral(rounds=1, validation=0.3), tmp_path).clients[0]
    scores = {"mine": np.array([[0.0, 1.0]])}
    told = caption(client, answers_of(client.rule, "logits", scores, scores, None))
    assert told.startswith(f"The answer is that of the rule mine: {client.rule}, which is recommended, is not at hand.")


def test_another_text_of_a_network_is_told_of(tmp_path):
    file = write(tmp_path)
    found = mutual(tmp_path, [f"{file}:small"], algorithm="local")
    folder = found.clients[0].save(tmp_path / "zero")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pn.load_client(folder, network=load_own(f"{file}:small", "network"))
    write(tmp_path, "Tanh")  # the weights fit as before
    edited = load_own(f"{file}:small", "network")
    said = r"The network net\.py:small has another text now than when client 0 was trained: its answers may be others"
    with pytest.warns(UserWarning, match=said):
        pn.load_client(folder, network=edited)
    with pytest.warns(UserWarning, match=said):
        load_from_run(found.run, 0, network=edited)


@dataclass(frozen=True)
class Mine(pn.Local):
    """A method of one's own."""

    nu: float = 1.0


@dataclass(frozen=True)
class Without(pn.Local):
    """The same without its field."""


class Nothing:
    """No method."""


def test_methods_that_do_not_fit_are_refused_in_a_sentence(tmp_path):
    folder = run(spiral(rounds=1, algorithm=Mine(nu=2.0)), tmp_path).clients[0].save(tmp_path / "zero")
    assert pn.load_client(folder, algorithm=Mine).algorithm == Mine(nu=2.0)
    with pytest.raises(ValueError, match=r"algorithm .*Mine has no setting .*nu"):
        pn.load_client(folder, algorithm=Without)
    for wrong in (Nothing(), len):
        with pytest.raises(ValueError, match="is not an algorithm: expected a class of pn.Algorithm, or an object"):
            pn.load_client(folder, algorithm=wrong)
    with pytest.warns(UserWarning, match="The algorithm .*Mine has another text now"):
        pn.load_client(folder, algorithm=pn.Local())  # of another file


def test_the_command_says_so_too(tmp_path):
    (tmp_path / "own.py").write_text(METHOD)
    method = load_own(f"{tmp_path}/own.py:Own", "algorithm")
    data = pictures(list(range(3)) * 12, 3)
    settings = {"dataset": data, "models": "plain", "feature_dim": 4, "partition": "iid", "clients": 2, "rounds": 1}
    found = run(pn.Experiment(algorithm=method(nu=2.0), **settings), tmp_path / "runs")
    (tmp_path / "own.py").write_text(METHOD.replace("nu", "mu"))
    words = ["export", found.run.folder, tmp_path / "out", "--client", 0, "--algorithm", f"{tmp_path}/own.py:Own"]
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code == 2
    assert "has no setting" in done.stderr
    assert "Traceback" not in done.stderr


METHOD = """
from dataclasses import dataclass

import protonorm as pn


@dataclass(frozen=True)
class Own(pn.Local):
    nu: float = 1.0
"""


def test_features_are_those_that_scores_are_made_of(tmp_path):
    """‖z‖² − ‖z − c‖² + ‖z − c‖² is ‖z‖² in the client's own precision: in bfloat16 features have eight bits."""
    data = pictures(list(range(3)) * 12, 3)
    settings = {"dataset": data, "models": "plain", "feature_dim": 4, "partition": "iid", "clients": 2, "rounds": 1}
    found = run(pn.Experiment(algorithm="fedproto", precision="bfloat16", **settings), tmp_path)
    z = found.clients[0].features(data.inputs[:5])
    assert torch.equal(torch.from_numpy(z), torch.from_numpy(z).bfloat16().double())


def test_features_without_test_samples(tmp_path):
    found = run(spiral(rounds=1), tmp_path)
    assert found.clients[0].features().shape[1] == 2
    with pytest.raises(ValueError, match="Client 0 has no test samples here; give inputs"):
        load_from_run(found.run, 0).features()
