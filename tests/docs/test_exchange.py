"""The tool behind docs/exchange.md: what it compares, how it chooses, and what it shows. Nothing is trained."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from tools.exchange import jobs, tables
from tools.exchange.jobs import CENTRE, METHODS, Job, tuning
from tools.exchange.work import Work, accuracy

from protonorm.data.prepared import Arrays, read_prepared, write_prepared
from tests.reproduction.studies import Fake, write_record


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    images, labels = np.zeros((10_000, 8, 8, 3), np.uint8), np.arange(10_000) % 10
    names = tuple("abcdefghij")
    write_prepared(folder / "cifar10.npz", Arrays(images, labels, np.zeros(10_000, np.int8), names))
    return folder


@pytest.fixture
def work(tmp_path, data):
    return Work(tmp_path / "runs", data)


def put(work, job, tested, validated=None, diverged=None):
    """Write the record of a job: shares of right answers before the last round, and in it."""
    experiment = job.experiment(work.data)
    several = [[one] * (experiment.rounds - 1) + [last] for one, last in (tested, validated or tested)]
    done = diverged if diverged is None else diverged - 1
    write_record(work.runs, experiment, Fake(*map(tuple, several), done=done, diverged=diverged))


def test_methods_have_the_compute_of_duet():
    """Forward passes: light 3.6 and the second network 1.1 million; Duet's validation samples are 4 % beside them."""
    light, second = jobs._macs("light"), jobs._macs(jobs.SECOND)
    assert light / second == pytest.approx(3.6 / 1.1, rel=0.1)
    cost = 40 * (light + second) * (1 + 0.1 / 0.9 / 3)
    for (models, two), each in {
        ("light", False): light,
        ("light", True): light + second,
        ("plain@0.5", False): second,
    }.items():
        rounds = jobs.rounds_of(models, two)
        assert (rounds - 1) * each < cost <= rounds * each
    rounds = {name: Job(name, CENTRE, 0, 0.1).experiment(jobs.Path("x")).rounds for name in METHODS}
    one = {"Local", "ProtoNorm", "ProtoNorm, solo"}
    assert {name: 55 if name in one else 42 for name in METHODS} | {
        "Duet": 40,
        "Duet, solo": 40,
        "FedAvg of the second network": 174,
        "Duet without own networks": 174,
    } == rounds


def test_controls_are_their_methods_alone_and_seeds_are_those_of_partitions_too(data):
    for name in ("Duet", "FML", "ProtoNorm"):
        method, alone = (Job(one, CENTRE, 3, 0.1).experiment(data) for one in (name, f"{name}, solo"))
        assert method.partition.seed == method.seed == 3
        assert alone.model_dump() == method.model_dump() | {"control": "solo"}
    two = Job("Local, two networks", CENTRE, 0, 0.1).experiment(data)
    assert (two.control, two.auxiliary, two.algorithm.alpha, two.algorithm.beta) == ("solo", "plain@0.5", 1.0, 1.0)


def test_fresh_pictures_are_without_the_first_of_each_class(tmp_path, monkeypatch):
    monkeypatch.setenv("PROTONORM_DATA", str(tmp_path / "all"))
    monkeypatch.setattr(jobs, "SEEN", 2)
    labels = np.array([1, 0, 0, 1, 1, 0, 1, 0])
    images = np.arange(8, dtype=np.uint8)[:, None, None, None] * np.ones((1, 8, 8, 3), np.uint8)
    write_prepared(tmp_path / "all" / "cifar10.npz", Arrays(images, labels, np.zeros(8, np.int8), ("a", "b")))
    jobs.write_fresh_pictures(tmp_path / "fresh", "cifar10")
    found = read_prepared(tmp_path / "fresh" / "cifar10.npz")
    assert found.images[:, 0, 0, 0].tolist() == [4, 5, 6, 7]
    assert found.labels.tolist() == [1, 0, 1, 0]


def test_the_round_and_the_settings_are_chosen_by_validation(work):
    """Of a run the last round, with the best validation and the worst test accuracy; of both the better validated."""
    slow, fast = tuning("FML")
    put(work, slow, tested=(0.9, 0.8), validated=(0.5, 0.6))
    assert work.chosen("FML") is None
    put(work, fast, tested=(0.7, 0.3), validated=(0.5, 0.7))
    assert accuracy(work.done(slow), "logits") == pytest.approx((60, 80))
    assert work.chosen("FML").lr == fast.lr == 0.1
    assert work.job("FML", CENTRE, 1).lr == 0.1


def test_what_diverged_is_never_chosen_and_is_shown_as_that(work):
    slow, fast = tuning("FML")
    put(work, slow, tested=(0.5, 0.5))
    put(work, fast, tested=(0.9, 0.9), diverged=7)
    assert work.chosen("FML").lr == slow.lr
    assert tables._entry(work, [slow, fast], "logits") == "diverged"


def test_tables_are_of_what_is_there_also_without_the_pictures(work, tmp_path):
    for job in tuning("Local"):
        put(work, job, tested=(0.5, 0.5))
    seeds = [work.job("Local", CENTRE, seed) for seed in (0, 1, 2)]
    put(work, seeds[0], tested=(0.5, 0.4))
    put(work, seeds[2], tested=(0.5, 0.6), validated=(0.1, 0.9))
    for held in (work, Work(work.runs, tmp_path / "no-pictures")):
        assert "| Local | 0.03 |  | `logits` |" in tables.settings(held)
        assert "| FML | not chosen yet |  |  |" in tables.settings(held)
        told = "55.00 ± 63.53 (2 of 3 seeds)"
        assert f"| Local | {told} (`logits`) |  | {told} |  |  | – |" in tables.table(held)
        assert re.search(r"\| 100 × 100, 0.5 \| \d+\.\d\d \| 50.00 \| – \| – \|", tables.whole_map(held))
        assert "| 20 × 50, 0.1 | – | – | – | – |" in tables.whole_map(held)
        assert "| Duet | – | – | – | – |" in tables.ablation(held)


def test_gains_are_those_of_clients_in_each_methods_own_round(work):
    for method in ("Duet", "Local"):
        for job in tuning(method):
            put(work, job, tested=(0.5, 0.5))
    for seed, gain in enumerate((0.1, 0.2, 0.3)):
        put(work, work.job("Local", CENTRE, seed), tested=(0.5, 0.9), validated=(0.6, 0.5))
        put(work, work.job("Duet", CENTRE, seed), tested=(0.1, 0.5 + gain), validated=(0.2, 0.8))
    assert "| +20.00 [+10.00, +30.00], better |" in tables.table(work)
    assert "| FML | – |  |  |  |  | – |" in tables.table(work)


def test_the_map_says_what_is_left_without_the_control(work):
    """Duet has 60 % where its solo has 50 %, in the round with the best validation accuracy: ten points."""
    for method in ("Local", "Duet", "Duet, solo"):
        for job in tuning(method):
            put(work, job, tested=(0.5, 0.5))
    put(work, work.job("Duet", CENTRE, 0), tested=(0.9, 0.6), validated=(0.5, 0.6))
    put(work, work.job("Duet, solo", CENTRE, 0), tested=(0.4, 0.5), validated=(0.5, 0.6))
    head, _, *rows = tables.whole_map(work).splitlines()
    assert head.endswith(
        "| majority | Local | ProtoNorm | on its solo | FML | on its solo | Duet | on its solo | Duet, `received` |"
    )
    assert [row.endswith("| – | – | 60.00 | +10.00 | 60.00 |") for row in rows].count(True) == 1


def test_what_another_process_is_at_is_left_to_it(work, monkeypatch):
    """Of the two runs that choose Local's settings the first is held elsewhere; the second is made in this process."""
    held, free = tuning("Local")
    asked = []

    def run(experiment, out, engine, workers, progress):
        asked.append((experiment.lr, engine))
        if experiment.lr == held.lr:
            raise BlockingIOError
        put(work, free, tested=(0.5, 0.6))
        return SimpleNamespace(run=work.done(free))

    monkeypatch.setattr("tools.exchange.work.run", run)
    monkeypatch.setattr(work, "jobs", lambda stage: [*tuning("FML"), held, free])
    work.run("tune", ["Local"])
    assert asked == [(0.03, "serial"), (0.1, "serial")]
    assert work.done(held) is None
    assert accuracy(work.done(free), "logits")[1] == pytest.approx(60)
