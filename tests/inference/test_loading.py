"""Clients that leave their run predict as they did in it; nothing in their files is executed."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic.dataclasses import dataclass

import protonorm as pn
from protonorm.files import sealed
from protonorm.inference import loading
from protonorm.inference.loading import load_from_run
from protonorm.models.light import mlp
from protonorm.runs.run import read_run
from protonorm.runs.writer import RunWriter
from tests.runs.records import commit, describe
from tests.support import pictures, run, spiral


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return run(spiral(rounds=2), tmp_path_factory.mktemp("runs"))


def some(result):
    return result.population.dataset.inputs[::7]


def test_lists_of_numbers_are_inputs(result):
    client, x = result.clients[3], some(result)
    np.testing.assert_array_equal(client.predict(x.tolist()), client.predict(x))
    assert client.answers([[1, 2]]).classes.shape == (1,)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([1.0, 2.0], r"have shape \(2,\) and type float32; expected \(n, 2\) of type float32"),
        ([[1.0, 2.0, 3.0]], r"have shape \(1, 3\)"),
        ([], r"have shape \(0,\)"),
        ([[1.0], [1.0, 2.0]], "cannot be made an array of numbers"),
        ([["a", "b"]], "they are not numbers"),
        ([[1.0, 1e300]], "1e\\+300 does not fit the type float32"),
        (None, "The inputs None cannot be made an array of numbers"),
        ("x", "The inputs 'x' cannot be made an array of numbers"),
    ],
)
def test_other_lists_are_refused_in_a_sentence(result, given, sentence):
    with pytest.raises(ValueError, match=sentence):
        result.clients[3].predict(given)


def test_saved_and_loaded(result, tmp_path):
    client, x = result.clients[3], some(result)
    loaded = pn.load_client(client.save(tmp_path / "three"))
    for rule in ("nearest-global", "nearest-local", "logits", None):
        np.testing.assert_array_equal(loaded.predict(x, rule), client.predict(x, rule))
    assert loaded.classes == result.population.dataset.classes
    assert torch.equal(loaded.state["prototypes"], client.state["prototypes"])  # local
    assert torch.equal(loaded.message["prototypes"], client.message["prototypes"])  # global
    np.testing.assert_allclose(loaded.confidence(x)["nearest-global"].sum(1), 1)
    names = ["README.md", "client.json", "client.safetensors"]
    assert sorted(one.name for one in (tmp_path / "three").iterdir()) == names
    about = json.loads((tmp_path / "three" / "client.json").read_text())
    assert (about["network"], about["feature_dim"], about["input"]["shape"]) == ("mlp", 2, [2])
    assert about["headline"] == "nearest-global"
    loaded.save(tmp_path / "again")
    for name in names:
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "three" / name).read_bytes()


def test_the_weights_of_another_client_are_refused(result, tmp_path):
    for id in (3, 4):
        result.clients[id].save(tmp_path / str(id))
    (tmp_path / "3" / "client.safetensors").write_bytes((tmp_path / "4" / "client.safetensors").read_bytes())
    with pytest.raises(ValueError, match=r"client\.safetensors is damaged: it is not the file that client\.json"):
        pn.load_client(tmp_path / "3")


def test_from_the_runs_folder_without_its_data(result):
    x = some(result)
    found = load_from_run(result.run, 5)
    np.testing.assert_array_equal(found.predict(x), result.clients[5].predict(x))


@pytest.mark.parametrize(("checkpoint", "round"), [("chosen", 2), ("last", 4)])
def test_the_chosen_round_is_the_best_by_validation_and_the_last_is_the_last(tmp_path, checkpoint, round):
    """Validation 0.5, 0.8, 0.6, 0.7: round 2 is the best. A server's state and message are its round and minus that."""
    with RunWriter(tmp_path / "run", "key") as writer:
        describe(writer, 4)
        writer.resume()
        for number, validation in enumerate((0.5, 0.8, 0.6, 0.7), 1):
            commit(writer, number, [number, number], validation=validation)
    held, _, found = loading.load_server(read_run(tmp_path / "run"), checkpoint)
    assert found == round
    assert (int(held["state.s"]), int(held["message.m"]), held["trained"].tolist()) == (round, -round, [round, round])


def test_loading_draws_nothing_from_the_callers_randomness(result, tmp_path):
    result.clients[0].save(tmp_path / "zero")
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    pn.load_client(tmp_path / "zero")
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize("algorithm", ["fedavg", "fednh", "lgfedavg", "fedkd"])
def test_methods_that_share_models(algorithm, tmp_path):
    data = pictures(list(range(3)) * 12, 3)
    settings = {"dataset": data, "models": "plain", "feature_dim": 8, "partition": "iid", "clients": 2, "rounds": 1}
    result = run(pn.Experiment.of(settings | {"algorithm": algorithm, "batch_size": 8}), tmp_path)
    client = result.clients[1]
    loaded = pn.load_client(client.save(tmp_path / "one"))
    scores = loaded.scores(data.inputs)
    assert set(result.run.info.rules) <= set(scores)
    for rule in scores:
        np.testing.assert_array_equal(loaded.predict(data.inputs, rule), client.predict(data.inputs, rule))


def own_network(shape, feature_dim, num_classes):
    return mlp(shape, feature_dim, num_classes)


@dataclass(frozen=True)
class OwnMethod(pn.Local):
    """A method of one's own."""


def test_networks_and_methods_of_ones_own_are_given_again(tmp_path):
    result = run(spiral(models=[own_network], feature_dim=2, rounds=1, algorithm=OwnMethod()), tmp_path)
    folder = result.clients[0].save(tmp_path / "own")
    with pytest.raises(ValueError, match=r"OwnMethod is not one of the package: give it by --algorithm"):
        pn.load_client(folder, network=own_network)
    with pytest.raises(ValueError, match=r"own_network is not one of the package: give it by --network"):
        pn.load_client(folder, algorithm=OwnMethod)
    loaded = pn.load_client(folder, network=own_network, algorithm=OwnMethod)
    np.testing.assert_array_equal(loaded.predict(some(result)), result.clients[0].predict(some(result)))
    with pytest.raises(ValueError, match="do not fit the network"):
        pn.load_client(folder, network=lambda shape, d, classes: mlp(shape, d + 1, classes), algorithm=OwnMethod())


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


def flip(path, place=-40):
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


def without(folder, name):
    about = json.loads((folder / "client.json").read_text())
    del about[name], about["checksum"]
    (folder / "client.json").write_bytes(sealed(about, pretty=True))


DAMAGE = {
    "no folder": (lambda f: (f / "client.json").unlink(), "is not a saved client"),
    "no JSON": (lambda f: cut(f / "client.json"), "not valid JSON"),
    "a lost entry": (lambda f: without(f, "classes"), "client.json is damaged: classes"),
    "cut weights": (lambda f: cut(f / "client.safetensors"), "is damaged"),
    "no weights": (lambda f: (f / "client.safetensors").unlink(), "client.safetensors is missing"),
    "a flipped bit in the weights": (lambda f: flip(f / "client.safetensors"), "client.safetensors is damaged"),
    "a flipped bit in the text": (lambda f: flip(f / "client.json", 60), "client.json is damaged|is of format"),
    "other weights": (lambda f: (f / "client.safetensors").write_bytes(b"x"), "is damaged"),
}


@pytest.mark.parametrize(("damage", "said"), DAMAGE.values(), ids=DAMAGE)
def test_damaged_files(result, tmp_path, damage, said):
    folder = result.clients[0].save(tmp_path / "zero")
    damage(folder)
    with pytest.raises(ValueError, match=said):
        pn.load_client(folder)


def test_what_cannot_be_predicted(result, tmp_path):
    loaded = pn.load_client(result.clients[0].save(tmp_path / "zero"))
    with pytest.raises(ValueError, match=r"expected \(n, 2\) of type float32"):
        loaded.predict(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="no rule 'nearest'"):
        loaded.predict(np.zeros((3, 2), np.float32), "nearest")
    with pytest.raises(ValueError, match="There is no client 6"):
        load_from_run(result.run, 6)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        loaded.save(tmp_path / "file")


def test_a_client_that_never_trained(tmp_path):
    result = run(spiral(rounds=1, participation=0.2), tmp_path)
    trained = set(result.history[0].cohort)
    absent = next(id for id in range(6) if id not in trained)
    with pytest.raises(ValueError, match="has not trained yet"):
        load_from_run(result.run, absent)


@pytest.mark.parametrize("name", ["client.json", "client.safetensors"])
def test_what_is_not_a_client_is_not_overwritten(result, tmp_path, name):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text('{"format": "of my own"}')
    with pytest.raises(ValueError, match=f"{name} exists and is not of an exported client; it is left as it is"):
        result.clients[0].save(tmp_path / "mine")
    assert (tmp_path / "mine" / name).read_text() == '{"format": "of my own"}'
    assert len(list((tmp_path / "mine").iterdir())) == 1
    folder = result.clients[0].save(tmp_path / "ours")
    result.clients[1].save(folder)  # a client in a client's place is fine
    assert pn.load_client(folder).id == 1


def test_weights_that_do_not_fit_what_is_said_of_them(result, tmp_path):
    """The record says that inputs have three numbers, and the first layer's weights are for two."""
    folder = result.clients[0].save(tmp_path / "zero")
    plain = json.loads((folder / "client.json").read_text())
    plain.pop("checksum")
    plain["input"]["shape"] = [3]
    (folder / "client.json").write_bytes(sealed(plain, pretty=True))
    with pytest.raises(ValueError, match=r"client\.json is damaged: The weights of client 0 do not fit"):
        pn.load_client(folder)


def test_a_method_that_fails_on_what_is_remembered_says_so(result):
    """Prototypes of a method of one's own that are a list of something else."""

    class Odd(pn.FedProto):
        def scores(self, client, state, message, x):
            return {"nearest-global": state["nowhere"]}

    found = result.clients[0]
    odd = replace(found, algorithm=Odd())
    with pytest.raises(ValueError, match="Client 0 cannot predict with its state .*: KeyError: 'nowhere'"):
        odd.scores(some(result))
