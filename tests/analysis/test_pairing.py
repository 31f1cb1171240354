import numpy as np
import pytest

from protonorm.analysis.contrasts import is_local, is_solo, pair_runs, same_but_control, same_clients
from protonorm.runs.run import Population
from tests.records import made

LOCAL = {"name": "local"}


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, ""),
        ({"rounds": 5}, ""),
        ({"method": {"name": "fedproto"}, "lr": 0.5}, ""),
        ({"dataset": {"name": "spiral"}}, "dataset (fashion; spiral)"),
        ({"partition": {"name": "iid", "seed": 2}}, "partition.seed (1; 2)"),
        ({"partition": {"name": "dirichlet", "seed": 1}}, "partition (iid; dirichlet)"),
        ({"train": 0.5}, "train (None; 0.5)"),
        ({"validation": 0.2}, "validation (None; 0.2)"),
        ({"clients": 5}, "clients (4; 5)"),
        ({"networks": ("plain", "mlp")}, "the clients' networks"),
        ({"networks": ("plain",) * 3}, ""),  # client i has number i mod n
        ({"width": 6}, "the clients' networks"),
        ({"classes": 2}, "who holds which samples"),
        ({"client_names": ["rome", "oslo", "lima", "bonn"]}, "who the clients are"),
    ],
)
def test_clients_are_the_same_if_data_partition_samples_and_networks_are(tmp_path, settings, wanted):
    assert same_clients(made(tmp_path / "a"), made(tmp_path / "b", **settings)) == wanted


@pytest.mark.parametrize("part", Population._fields)
def test_samples_are_compared_part_by_part(tmp_path, part):
    first = made(tmp_path / "a")
    other = first.population._replace(**{part: getattr(first.population, part) + 1})
    assert same_clients(first, made(tmp_path / "b", population=other)) == "who holds which samples"
    assert np.array_equal(first.population.train, first.population.test)


def test_a_control_is_the_same_method_with_the_same_settings(tmp_path):
    method, control = made(tmp_path / "a", lr=0.1, control="none"), made(tmp_path / "b", lr=0.1, control="solo")
    other = made(tmp_path / "c", lr=0.2, control="solo")
    assert same_but_control(method, control) == ""
    assert same_but_control(method, other) == "lr (0.1; 0.2)"
    assert same_but_control(method, made(tmp_path / "d", lr=0.1, rounds=4, control="solo")) == "rounds (3; 4)"
    assert same_but_control(method, made(tmp_path / "e", lr=0.1, networks=("mlp",))) == "the clients' networks"


def test_what_local_and_solo_are(tmp_path):
    """A solo control of Local is a control; records without the setting have none."""
    runs = [
        made(tmp_path / "a", method=LOCAL),
        made(tmp_path / "b", method=LOCAL, control="solo"),
        made(tmp_path / "c", control="solo"),
        made(tmp_path / "d"),
    ]
    assert [(is_local(run), is_solo(run)) for run in runs] == [
        (True, False),
        (False, True),
        (False, True),
        (False, False),
    ]


def test_runs_are_paired_by_seed_whatever_their_order(tmp_path):
    ours = [made(tmp_path / f"a{seed}", seed=seed) for seed in (2, 0, 1)]
    theirs = [made(tmp_path / f"b{seed}", seed=seed, method=LOCAL) for seed in (0, 1, 2)]
    found = pair_runs(ours, theirs)
    assert [(run.folder.name, reference.folder.name) for run, reference in found.pairs] == [
        ("a0", "b0"),
        ("a1", "b1"),
        ("a2", "b2"),
    ]
    assert found.mismatch == ""


def test_no_pair_where_a_seed_is_missing_or_one_run_differs(tmp_path):
    """A seed that one side lacks is not left out: it may be the one that diverged."""
    ours = [made(tmp_path / f"a{seed}", seed=seed) for seed in (0, 1)]
    theirs = [made(tmp_path / "b0", seed=0), made(tmp_path / "b1", seed=1, train=0.5)]
    assert pair_runs(ours, theirs[:1]) == ([], "seeds (0, 1; 0)")
    assert pair_runs(ours, []) == ([], "seeds (0, 1; none)")
    assert pair_runs(ours, theirs) == ([], "train (None; 0.5)")


def test_runs_that_share_a_seed_are_paired_by_their_partitions(tmp_path):
    def both(name, *seeds):
        parts = [{"name": "iid", "seed": seed} for seed in seeds]
        return [made(tmp_path / f"{name}{part['seed']}", partition=part) for part in parts]

    found = pair_runs(both("a", 1, 2), both("b", 2, 1))
    assert [(run.folder.name, reference.folder.name) for run, reference in found.pairs] == [("a1", "b1"), ("a2", "b2")]


def test_of_clients_whose_samples_nobody_counted_the_tested_ones_must_match(tmp_path):
    """In a real federation the record only tells how many samples each client was tested on."""
    first, other = made(tmp_path / "a"), made(tmp_path / "b")
    for one in (first, other):
        one.__dict__["population"] = Population(*(0 * part for part in one.population))
    assert not first.knows_samples
    assert same_clients(first, other) == ""
    support = other.support(other.chosen.record)
    assert support.any()
    other.__dict__["support"] = lambda record: support + 1
    assert same_clients(first, other) == "how many samples clients test on"
    other.__dict__["support"] = lambda record: 0 * support  # nobody was tested in this round
    assert same_clients(first, other) == ""
