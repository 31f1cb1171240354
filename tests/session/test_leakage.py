"""Attacks on a client's own message find what is there, and no more where nothing is sent."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import protonorm as pn
from protonorm.cli.app import app
from protonorm.core import Client, Samples
from protonorm.core.training import make_outgoing
from protonorm.report.page.write import is_page
from protonorm.session import leakage
from protonorm.session.leakage import Scene, area, attack, audit_run, decoder_of, ratio
from protonorm.session.leakage_page import verdict, write_page
from tests.support import Given, pictures, run, spiral

COUNTS = ([20, 20, 1], [20, 1, 20], [30, 30, 30])  # samples of three clients by class


def one_picture_classes(**settings):
    """Make three clients; the first two have a class with a single picture each, in their training part."""
    labels = np.concatenate([np.repeat(range(3), counts) for counts in COUNTS])
    starts = np.cumsum([0, *map(sum, COUNTS)])
    shares = [list(range(start, end)) for start, end in pairwise(starts)]
    usual = {"algorithm": "protonorm", "models": "plain", "feature_dim": 16, "rounds": 1, "batch_size": 8, "lr": 0.05}
    data = pictures(labels, 3, side=16)
    return pn.Experiment.of(
        usual | {"dataset": data, "partition": Given(shares), "clients": 3, "train": 0.99, "validation": 0} | settings
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return run(one_picture_classes(), tmp_path_factory.mktemp("runs"))


def audits(result, protect="none", **settings):
    return audit_run(result.run, result.experiment, make_outgoing(protect), 3, [], **settings)


def test_the_picture_of_a_class_with_one_is_found_without_a_policy_and_not_with_one(trained):
    found = audits(trained, {"name": "minimum_count", "least": 5})
    single = {(one.client, search.name) for one in found for search in one.before.searches if search.samples == 1}
    assert single == {("0", "class 2"), ("1", "class 1")}
    for one in found:
        for before, after in zip(one.before.searches, one.after.searches, strict=True):
            if before.samples == 1:
                assert before.found
                assert not after.found
                assert after.psnr is None
                assert not len(after.inverted)
            else:
                assert after.rank == before.rank
    assert [one.before.classes for one in found] == [3, 3, 3]
    assert [one.after.classes for one in found] == [2, 2, 3]
    sentence = verdict(found, "minimum_count least=5")
    assert "can pick 2 of 9 pictures" in sentence or int(sentence.split("pick ")[1].split()[0]) >= 2
    assert sentence.endswith(f"{sum(s.found for one in found for s in one.after.searches)}.")


def test_a_sum_of_few_vectors_tells_its_members_and_noise_hides_them(tmp_path):
    """The sum of two of 64 random directions has a cosine of about 0.7 to each, and of 0 ± 1/8 to others."""
    random = np.random.default_rng(0)
    inputs, labels = random.normal(size=(240, 64)).astype(np.float32), np.tile([0, 1], 120)
    shares = [list(range(6)), list(range(6, 240))]
    settings = {"algorithm": {"name": "choir", "public": False}, "models": "frozen:identity", "clients": 2, "rounds": 2}
    data = pn.Dataset("directions", inputs, labels)
    experiment = pn.Experiment.of(settings | {"dataset": data, "partition": Given(shares), "train": 0.99})
    result = run(experiment, tmp_path)
    one = audit_run(result.run, experiment, make_outgoing({"name": "gaussian", "epsilon": 1.0}), 1, ["0"])[0]
    assert one.before.membership > 0.99
    assert one.after.membership < 0.9
    assert one.before.presence is None  # it has all classes
    assert all(search.psnr is None for search in one.before.searches)  # vectors are no pictures


def test_a_member_is_compared_with_strangers_of_its_own_class():
    """Vectors (1, 0) and (0, 1) of classes 0 and 1. Members (1, 0) of class 0 and (1, 1) of class 1 have the cosines 1
    and 0.71, strangers (2, 1) of class 0 and (4, 3) of class 1 have 0.89 and 0.6: each is above that of its class."""

    def samples(rows):
        return Samples(torch.tensor(rows), torch.tensor([0, 1]), torch.arange(2))

    inside, outside = samples([[1.0, 0.0], [1.0, 1.0]]), samples([[2.0, 1.0], [4.0, 3.0]])
    model = pn.SplitModel(torch.nn.Identity(), torch.nn.Linear(2, 2))
    client = Client(0, 1, 1, model, None, inside, inside, inside, num_classes=2, feature_dim=2)
    both = torch.arange(2)
    scene = Scene(("a", "b"), outside, outside.inputs, both, both, [0], [both[:1]])
    found = attack(client, {"classes": both, "prototypes": torch.eye(2)}, model.features, scene)
    assert found.membership == 1.0
    assert [(search.rank, search.candidates) for search in found.searches] == [(1, 2)]


def test_clients_with_the_smallest_classes_are_attacked_first(tmp_path, monkeypatch):
    """A class that a client lacks is none of its own: client 0 has 20 and 20 samples, client 1 a class with one."""
    labels = np.concatenate([np.repeat(range(3), counts) for counts in ([20, 20, 0], [20, 1, 20], [30, 30, 30])])
    shares = [list(range(40)), list(range(40, 81)), list(range(81, 171))]
    result = run(one_picture_classes(dataset=pictures(labels, 3, side=16), partition=Given(shares)), tmp_path)
    monkeypatch.setattr(leakage, "examine", lambda task, site, *others: site.id)
    assert audit_run(result.run, result.experiment, make_outgoing("none"), 2, []) == [1, 0]


def test_the_area_under_the_curve_by_hand():
    """Of (3, 1) and (2, 1, 0): 3 is above all, 1 above 0 and equal to 1, (3 + 1.5)/6; of equal classes (1 + 0.5)/2."""
    inside, outside = torch.tensor([3.0, 1.0]), torch.tensor([2.0, 1.0, 0.0])
    assert area(inside, outside) == 0.75
    same = torch.tensor([[True, False, False], [False, True, False]])
    assert area(inside, outside, same) == 0.75
    assert area(inside, outside, ~same & torch.tensor([[True, True, True], [True, False, False]])) == pytest.approx(
        2 / 3
    )
    assert area(inside, outside[:0]) == 0.5


def test_the_signal_to_noise_ratio_by_hand():
    """A difference of 0.1 everywhere is 20 dB."""
    picture = torch.full((4, 4, 1), 0.5)
    assert ratio(picture, picture + 0.1) == pytest.approx(20)
    assert ratio(picture, picture) == 99


def test_pictures_that_are_linear_in_their_features_are_inverted_exactly():
    """Features z = Ax + b of pictures with four pixels: regression on 50 others gives x from z."""
    generator = torch.Generator().manual_seed(0)
    x, matrix = torch.rand(51, 2, 2, 1, generator=generator), torch.randn(4, 6, generator=generator)
    z = x.flatten(1) @ matrix + 1
    inverted = decoder_of(z[1:].double(), x[1:])(z[:1].double())
    assert ratio(x[0], inverted[0]) > 50


def test_methods_with_other_messages_are_refused(tmp_path):
    result = run(spiral(algorithm="lgfedavg", rounds=1), tmp_path)
    with pytest.raises(ValueError, match="LGFedAvg send head.weight, num_examples, to which other attacks apply"):
        audits(result)
    with pytest.raises(ValueError, match="minimum_count is for methods whose clients send vectors by class"):
        audits(result, "minimum_count")


def test_the_page_has_the_sentence_and_the_pictures_that_are_sent(trained, tmp_path):
    found = audits(trained, "minimum_count")
    page = write_page(found, "minimum_count", "<b>three</b>", tmp_path / "leakage.html")
    text = page.read_text("utf-8")
    assert is_page(page)
    assert verdict(found, "minimum_count") in text
    assert "&lt;b&gt;three" in text
    sent = sum(search.psnr is not None for one in found for part in (one.before, one.after) for search in part.searches)
    assert text.count('src="data:image/png') == sent + sum(len(one.before.searches) for one in found)
    assert "script-src" not in text
    assert text.count("nothing is sent") == 2


def test_the_command_reads_a_run_and_writes_beside_it(tmp_path):
    settings = ["dataset.points=60", "clients=3", "rounds=1", "batch_size=8"]

    def call(*words):
        done = CliRunner().invoke(app, list(map(str, words)))
        assert not done.exit_code, done.output
        return done.stdout

    call("run", "dataset=spiral", *settings, "--out", tmp_path, "--quiet")
    words = ["protect=minimum_count", "protect.least=3", "--clients", 2]
    plain = json.loads(call("audit", "protonorm-spiral", *words, "--out", tmp_path, "--json"))
    assert plain["policy"] == "minimum_count least=3"
    assert len(plain["clients"]) == 2
    assert all(0 <= one["before"]["membership"] <= 1 for one in plain["clients"])
    folder = next(path for path in tmp_path.iterdir() if path.is_dir())
    assert is_page(folder / "leakage.html")
    assert "no policy is set" in call("audit", folder, "--client", "1")
