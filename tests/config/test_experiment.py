import inspect
import json
import math
import re
from dataclasses import dataclass, field

import numpy as np
import pytest

import protonorm as pn
from protonorm.config.changes import changed_fields
from tests.support import pictures, spiral


def test_names_settings_and_objects_make_equal_experiments():
    a = pn.Experiment.of({"algorithm": {"name": "protonorm", "gamma": 50}})
    b = pn.Experiment(algorithm=pn.ProtoNorm(gamma=50))
    assert a == b
    assert a.key == b.key


def test_the_key_changes_with_every_setting_and_only_then():
    base = spiral()
    assert base.key == spiral().key
    others = [spiral(seed=1), spiral(validation=0), spiral(lr=0.1), spiral(algorithm="fedproto"), spiral(feature_dim=3)]
    others += [spiral(control="solo"), spiral(early_stopping=3)]
    assert len({base.key, *(other.key for other in others)}) == 8


def test_the_number_of_rounds_is_in_the_key_only_where_the_method_depends_on_it():
    assert spiral(rounds=4).key == spiral(rounds=9).key
    assert spiral(algorithm="fedkd", rounds=4).key != spiral(algorithm="fedkd", rounds=9).key


def test_usual_values_follow_the_data_set_and_are_recorded():
    plain = pn.Experiment(dataset="spiral").model_dump(mode="json")
    assert (plain["models"], plain["feature_dim"], plain["algorithm"]["gamma"]) == ("mlp", 2, 10.0)
    assert pn.Experiment(dataset="fashion").models == "light"


def test_the_second_network_is_the_first_of_the_models_unless_one_is_given():
    assert pn.Experiment(algorithm="fedkd").auxiliary == "plain"
    assert pn.Experiment(algorithm="fml", auxiliary="dense").auxiliary == "dense"
    assert pn.Experiment(algorithm="protonorm").auxiliary is None
    assert pn.Experiment(algorithm="fml").key != pn.Experiment(algorithm="fml", auxiliary="dense").key


def test_retries_decide_no_number_and_so_are_not_in_the_key():
    assert spiral(retries=0).key == spiral(retries=5).key
    assert spiral(state_memory=0).key == spiral().key
    assert spiral(quorum=0.5).key != spiral().key


def test_what_differs_from_the_usual_settings_is_known_however_it_was_given():
    given = pn.Experiment.of(
        {"algorithm": {"name": "protonorm", "schedule": {"epsilon": 0.5}}, "rounds": 20, "dataset": "spiral"}
    )
    assert given.changed == {"algorithm.schedule.epsilon": 0.5, "dataset": "spiral"}
    assert pn.Experiment().changed == {}
    assert pn.Experiment(models="light", feature_dim=128, algorithm=pn.ProtoNorm(gamma=300)).changed == {}
    assert pn.Experiment(algorithm=pn.FedProto(lam=3)).changed == {"algorithm": "fedproto", "algorithm.lam": 3.0}
    assert pn.Experiment(algorithm="fml", auxiliary="dense").changed == {"algorithm": "fml", "auxiliary": "dense"}
    assert pn.Experiment(lr=[0.1, 0.2], models=["plain"]).changed == {"models": ["plain"], "lr": [0.1, 0.2]}


def test_plain_data_makes_the_same_experiment_again():
    base = spiral()
    again = pn.Experiment.of(json.loads(base.model_dump_json()))
    assert again.key == base.key


def test_own_data_with_other_contents_has_another_key():
    keys = {pn.Experiment(dataset=pictures([0, 1] * 40, 2, seed=seed), clients=2).key for seed in (0, 1)}
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"round": 3}, "did you mean 'rounds'"),
        ({"algorithm": "protnorm"}, "did you mean 'protonorm'"),
        ({"algorithm": {"name": "protonorm", "gama": 3}}, "did you mean 'gamma'"),
        ({"algorithm": {"name": "protonorm", "gamma": -3}}, "algorithm.gamma must .*, got -3"),
        ({"algorithm": {"name": 3}}, "not the name of a"),
        ({"algorithm": 3}, "not an algorithm"),
        ({"dataset": "fasion"}, "did you mean 'fashion'"),
        ({"partition": {"name": "dirichlet", "alpha": 0}}, "partition.alpha must .*, got 0"),
        ({"models": "lite"}, "did you mean 'light'"),
        ({"models": []}, "must be a family"),
        ({"rounds": -1}, "rounds must .*, got -1"),
        ({"clients": 0}, "clients must .*, got 0"),
        ({"participation": 1.5}, "participation must .*, got 1.5"),
        ({"lr": float("nan")}, "lr must .*, got nan"),
        ({"batch_size": 1}, "batch_size must .*, got 1"),
        ({"seed": "x"}, "seed must .*, got 'x'"),
        ({"precision": "float16"}, "precision must .*, got 'float16'"),
        ({"device": "mps"}, "device must be cpu, cuda or cuda:1, got 'mps'"),
        ({"device": "meta"}, "device must be cpu, cuda or cuda:1, got 'meta'"),
        ({"quorum": 0}, "quorum must .*, got 0"),
        ({"evaluate": "some"}, "evaluate must .*, got 'some'"),
        ({"evaluate_every": 0}, "evaluate_every must .*, got 0"),
        ({"retries": -1}, "retries must .*, got -1"),
        ({"state_memory": -1}, "state_memory must .*, got -1"),
        ({"deadline": 0}, "deadline must .*, got 0"),
        ({"auxiliary": "plain"}, "left out for ProtoNorm, which has no second network"),
        ({"algorithm": "fml", "auxiliary": "light"}, "auxiliary must be one network, got 4: 'light'"),
        ({"algorithm": {"name": "protonorm", "schedule": {"nope": 1}}}, "no setting 'algorithm.schedule.nope'"),
        ({"algorithm": {"name": "protonorm", "schedule": {"eta": -1}}}, "algorithm.schedule.eta must .*, got -1"),
        ({"algorithm": {"name": "protonorm", "schedule": {"epsilo": 1}}}, "did you mean 'schedule.epsilon'"),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(settings, said):
    with pytest.raises(ValueError, match=said):
        pn.Experiment.of(settings)


def test_at_least_one_client_is_drawn():
    assert spiral(participation=0.01).cohort_size == 1
    assert spiral(participation=0.5).cohort_size == 3
    assert pn.Experiment(clients=100, participation=0.29).cohort_size == 29  # 0.29·100 is a little below 29 in binary


def test_a_last_round_that_is_evaluated_only_because_it_is_the_last_needs_a_run_of_its_own():
    """Every 5th round: 50 and 100 rounds agree in what the first 50 leave behind; every 7th: round 50 is extra."""
    for every, same in ((5, True), (7, False)):
        keys = {pn.Experiment(rounds=rounds, evaluate_every=every).key for rounds in (50, 100)}
        assert (len(keys) == 1) is same


USUAL = {"dataset": {"name": "spiral", "points": 600}, "partition": "iid"}


@pytest.mark.parametrize(
    ("given", "found", "changed"),
    [
        ({}, ("all", None), {}),
        ({"clients": 200}, ("all", None), {}),
        ({"clients": 201}, ("cohort", 50), {}),
        ({"clients": 201, "evaluate_every": 70}, ("cohort", 70), {"evaluate_every": 70}),
        ({"clients": 201, "evaluate": "all"}, ("all", None), {"evaluate": "all"}),
        ({"clients": 201, "evaluate": "cohort"}, ("cohort", None), {"evaluate": "cohort"}),
        ({"evaluate": "cohort"}, ("cohort", None), {"evaluate": "cohort"}),
        ({"evaluate_all_every": 5}, ("cohort", 5), {"evaluate": "cohort", "evaluate_all_every": 5}),
    ],
)
def test_who_is_evaluated_where_nobody_says_so(given, found, changed):
    """And what is told of it makes the same experiment again, by its record and by its changes."""
    experiment = pn.Experiment.of(USUAL | given)
    assert (experiment.evaluate, experiment.evaluate_all_every) == found
    told = {name: value for name, value in experiment.changed.items() if name.startswith("evaluate")}
    assert told == changed
    again = pn.Experiment.of(experiment.model_dump(mode="json"))
    assert again.key == experiment.key
    same = USUAL | {name: value for name, value in given.items() if name == "clients"} | told
    assert pn.Experiment.of(same).key == experiment.key


def test_the_key_of_usual_runs_has_no_word_of_evaluating_everybody():
    """As it was before there was such a setting; with it, the last round may be one that is evaluated for its place."""
    assert "evaluate_all_every" not in pn.Experiment.of(USUAL).model_dump(mode="json")
    assert not pn.Experiment.of(USUAL | {"rounds": 7}).depends_on_rounds
    assert pn.Experiment.of(USUAL | {"rounds": 7, "evaluate_all_every": 2}).depends_on_rounds
    assert not pn.Experiment.of(USUAL | {"rounds": 8, "evaluate_all_every": 2}).depends_on_rounds


def test_everybody_now_and_then_is_no_more_than_everybody_each_time():
    with pytest.raises(ValueError, match="evaluate_all_every must be left out with evaluate=all, got 3"):
        pn.Experiment.of(USUAL | {"evaluate": "all", "evaluate_all_every": 3})
    with pytest.raises(ValueError, match="evaluate_all_every must .*, got 0"):
        pn.Experiment.of(USUAL | {"evaluate_all_every": 0})


def test_a_copy_with_other_settings_is_an_experiment_of_its_own():
    """Its key, what it says of itself and what is filled in are those of the same settings given at once."""
    first = pn.Experiment(algorithm="protonorm", dataset="fashion", clients=4)
    assert first.key
    other = first.model_copy(update={"dataset": "spiral", "seed": 1})
    again = pn.Experiment(algorithm="protonorm", dataset="spiral", clients=4, seed=1)
    assert (other.key, other.changed) == (again.key, again.changed)
    assert other.model_dump(mode="json") == again.model_dump(mode="json")
    assert other.key != first.key
    with pytest.raises(ValueError, match="clients must .*, got -3"):
        first.model_copy(update={"clients": -3})
    assert first.model_copy() == first


@pytest.mark.parametrize("name", ["rounds", "early_stopping", "clip", "feature_dim", "batch_size", "lr", "validation"])
def test_yes_is_no_number(name):
    for yes, told in ((True, "True"), (np.True_, "(np.)?True_?")):
        with pytest.raises(ValueError, match=f"{name} must be a number, got {told}"):
            pn.Experiment(**{name: yes})


def test_yes_is_no_number_of_a_component():
    with pytest.raises(ValueError, match="algorithm.lam must be a number, got True"):
        pn.Experiment(algorithm={"name": "protonorm", "lam": True})


def test_settings_of_own_data_and_partitions_are_named():
    @dataclass
    class Stripes:
        width: int = 3
        path: str = ""
        seed: int = 0

        def assign(self, labels, clients):
            raise NotImplementedError

    made = pn.Experiment(dataset="spiral", partition=Stripes(width=7, path="here"))
    assert made.changed["partition.width"] == 7
    assert made.changed["partition.path"] == "here"
    assert "partition.width" not in pn.Experiment(dataset="spiral", partition=Stripes()).changed


def test_an_array_among_own_settings_is_compared_by_its_numbers():
    """Of two long arrays that differ in the middle, which their texts leave out."""
    usual = np.zeros(5000)

    @dataclass
    class Weighted:
        weights: np.ndarray = field(default_factory=lambda: usual)
        seed: int = 0

        def assign(self, labels, clients):
            raise NotImplementedError

    other = usual.copy()
    other[2500] = 1
    assert "partition.weights" in changed_fields(Weighted(other), "partition")
    assert "partition.weights" not in changed_fields(Weighted(usual.copy()), "partition")


def test_settings_of_an_own_class_may_be_anything(tmp_path):
    """What cannot be compared counts as changed, NaN is not, and what nobody could type is told by how it begins."""

    class Odd:
        def __eq__(self, other):
            raise ValueError("ambiguous")

        __hash__ = None

        def __str__(self):
            return "odd " * 1000

    @dataclass
    class Anything:
        odd: object = 0
        pairs: dict = field(default_factory=dict)
        many: tuple = ()
        few: tuple = ()
        fill: float = math.nan
        seed: int = 0

        def description(self):
            return {"name": "anything"}

        def assign(self, labels, clients):
            raise NotImplementedError

    own = Anything(odd=Odd(), pairs={(1, 2): 3}, many=tuple(range(300_000)), few=(1, 2))
    changed = pn.Experiment(dataset="spiral", partition=own).changed
    assert changed["partition.odd"].startswith("odd odd")
    assert changed["partition.pairs"] == "{(1, 2): 3}"
    assert len(changed["partition.many"]) < 100
    assert changed["partition.few"] == [1, 2]
    assert "partition.fill" not in changed


def test_a_copy_has_what_was_given_however_often_it_was_checked():
    """γ depends on the data: 10 on the spiral, 200 on CIFAR-100; what is filled in for one is not given to another."""
    first = pn.Experiment(algorithm="protonorm", dataset="spiral")
    assert pn.Experiment.model_validate(first) is first
    assert first.algorithm.gamma == 10
    assert first.model_copy(update={"dataset": "cifar100"}).algorithm.gamma == 200
    bare = pn.Experiment.model_construct(rounds=3)
    assert bare.model_copy(update={"seed": 4}).rounds == 3


def test_an_experiment_as_a_dict_holds_its_settings_alone():
    made = pn.Experiment(dataset="spiral", rounds=3)
    assert dict(made).keys() == pn.Experiment.model_fields.keys()
    assert pn.Experiment(**dict(made)) == made


def test_the_signature_can_be_read():
    """Names, types and values, and no bounds; pydantic's has 4,700 characters."""
    found = inspect.signature(pn.Experiment)
    assert list(found.parameters)[:3] == ["algorithm", "dataset", "partition"]
    assert found.parameters.keys() == pn.Experiment.model_fields.keys()
    assert str(found).startswith("(*, algorithm: Any = 'protonorm', dataset: Any = 'fashion', ")
    assert "rounds: int = 20, " in str(found)
    assert "momentum: float = 0.0, " in str(found)
    assert not re.search("Annotated|Validator|[GL][et]\\(|ParameterSource|<", str(found))
