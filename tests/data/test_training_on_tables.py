"""Tables and texts train from the command line, and trained clients read them again."""

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_digits
from typer.testing import CliRunner

import protonorm as pn
from protonorm.cli.app import app
from protonorm.runs.run import read_run
from tests.support import contents, run, run_folder


def command(*words):
    done = CliRunner().invoke(app, ["run", *words, "--engine", "serial"])
    assert done.exit_code == 0, done.output
    return done


def majority(run):
    """Count what guessing each client's most frequent training class gives, pooled over the test parts."""
    held = run.population
    guess = held.train.argmax(1)
    return held.test[np.arange(len(guess)), guess].sum() / held.test.sum()


def only_run(tmp_path):
    (folder,) = (tmp_path / "runs").iterdir()
    return read_run(folder)


@pytest.mark.parametrize(
    ("load", "words"),
    [(load_digits, []), (load_breast_cancer, ["clients=6", "partition.alpha=1"])],
    ids=["digits", "breast cancer"],
)
def test_a_real_table_trains_with_one_setting(load, words, tmp_path):
    """A federation of small and wide perceptrons beats guessing each client's majority."""
    found = load(as_frame=True)
    path = tmp_path / "real.csv"
    found.data.assign(answer=pd.Series(found.target_names)[found.target].to_numpy()).to_csv(path, index=False)
    command(f"dataset=table:{path}", "dataset.label=answer", "rounds=5", *words)
    record = only_run(tmp_path)
    assert record.info.networks == ["mlp_small", "mlp_wide"]
    assert record.info.classes == sorted(map(str, found.target_names))
    assert record.rounds[-1].rules["nearest-global"].pooled > majority(record) + 0.02


THEMES = {
    "sport": "ball goal team match coach",
    "food": "bread cheese soup oven salt",
    "sky": "star moon orbit comet dust",
}


def texts(count):
    """Write short texts: of every three words two are anybody's, and one is of the text's theme."""
    chance = np.random.default_rng(0)
    common = ["the", "a", "of", "and", "in", "to", "is", "was", "it", "on"]
    for number in range(count):
        theme = list(THEMES)[number % 3]
        kinds = [THEMES[theme].split() if place % 3 == 0 else common for place in range(chance.integers(6, 15))]
        yield theme, " ".join(chance.choice(words) for words in kinds)


def test_texts_train_with_one_setting(tmp_path):
    path = tmp_path / "texts.csv"
    pd.DataFrame(texts(600), columns=["theme", "body"]).to_csv(path, index=False)
    settings = ["dataset.label=theme", "dataset.text=body", "partition=iid", "clients=4", "rounds=6"]
    command(f"dataset=table:{path}", *settings)
    record = only_run(tmp_path)
    assert record.info.networks == ["text_mean", "text_cnn"]
    assert record.info.input.vocabulary == 4096
    assert record.rounds[-1].rules["nearest-global"].pooled > majority(record) + 0.2


def test_a_trained_client_reads_texts_again(tmp_path):
    """Out of the run's folder and out of a folder of its own it gives the same answers to tokens."""
    path = tmp_path / "texts.csv"
    pd.DataFrame(texts(120), columns=["label", "body"]).to_csv(path, index=False)
    dataset = {"name": f"table:{path}", "text": "body", "vocabulary": 500}
    result = run(
        pn.Experiment.of({"dataset": dataset, "partition": "iid", "clients": 2, "rounds": 1}), tmp_path / "out"
    )
    tokens = result.experiment.dataset.load().inputs[:20]
    client = result.clients[1]
    loaded = pn.load_client(client.save(tmp_path / "client"))
    assert loaded.info.input.network_shape == (tokens.shape[1], 500)
    np.testing.assert_array_equal(loaded.predict(tokens), client.predict(tokens))


def test_tokens_give_the_same_bytes_on_every_engine(tmp_path):
    tokens = np.random.default_rng(0).integers(0, 30, (80, 5))
    data = pn.Dataset("tokens", tokens, np.arange(80) % 2, ("a", "b"), vocabulary=40)
    experiment = pn.Experiment(dataset=data, partition="iid", clients=2, rounds=1)
    one, other = tmp_path / "serial", tmp_path / "processes"
    run(experiment, one)
    run(experiment, other, engine="processes", workers=2)
    assert contents(run_folder(experiment, one)) == contents(run_folder(experiment, other))
