import pytest
from experiments.reproduction.profiles import CPU_ROUNDS, CPU_SAMPLES, PROFILES, USUAL_ROUNDS
from experiments.reproduction.running import reproduction

from protonorm.config.experiment import Experiment

PAPER = {"dataset": "cifar100", "models": "paper", "feature_dim": 64, "clients": 20, "rounds": 300}


def test_paper_changes_nothing():
    assert PROFILES["paper"].cut(PAPER) == PAPER
    assert PROFILES["paper"].seeds == (0, 1, 2)


def test_profiles_have_their_protocols():
    found = {name: profile.protocol for name, profile in PROFILES.items()}
    assert found == {"paper": "paper", "cpu": "validated", "smoke": "validated"}


def test_cpu_cuts_pictures_rounds_and_networks_but_not_the_width_nor_the_clients():
    cut = PROFILES["cpu"].cut(PAPER)
    assert cut == PAPER | {
        "dataset": {"name": "cifar100", "samples": CPU_SAMPLES["cifar100"]},
        "rounds": CPU_ROUNDS,
        "models": "light",
    }


def test_cpu_leaves_small_data_whole():
    assert PROFILES["cpu"].cut(PAPER | {"dataset": "flowers102"})["dataset"] == "flowers102"
    spiral = {"dataset": "spiral", "rounds": 200, "models": "mlp"}
    assert PROFILES["cpu"].cut(spiral) == spiral


def test_what_is_assigned_but_not_trained_is_not_cut():
    assert PROFILES["cpu"].cut(PAPER | {"rounds": 0}) == PAPER | {"rounds": 0}


def test_smoke_takes_what_is_in_the_package_and_stands_alone():
    cut = PROFILES["smoke"].cut(PAPER | {"partition": {"name": "pathological", "classes_per_client": 10}})
    assert cut["dataset"]["name"] == "fashion"
    assert cut["rounds"] == 2
    assert cut["partition"]["classes_per_client"] == 2
    assert (PROFILES["smoke"].is_result, PROFILES["smoke"].stamp) == (False, "SMOKE")
    assert all(PROFILES[name].is_result and not PROFILES[name].stamp for name in ("paper", "cpu"))


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_settings_that_are_names_or_the_users_own_objects_stay(profile):
    thing = object()
    assert profile.cut({"dataset": thing, "rounds": 9}) == {"dataset": thing, "rounds": 9}
    assert profile.cut(PAPER | {"partition": "iid"})["partition"] == "iid"


def test_cpu_takes_the_usual_rounds_where_a_cell_says_none():
    assert PROFILES["cpu"].cut({"dataset": "cifar10"}) == {
        "dataset": {"name": "cifar10", "samples": CPU_SAMPLES["cifar10"]},
        "rounds": USUAL_ROUNDS,
    }


def test_fewer_rounds_cut_what_has_more():
    shorter = PROFILES["paper"].up_to(60)
    assert shorter.cut(PAPER) == PAPER | {"rounds": 60}
    assert shorter.cut(PAPER | {"rounds": 40}) == PAPER | {"rounds": 40}
    assert shorter.cut({"dataset": "spiral"}) == {"dataset": "spiral"}  # has 20
    assert PROFILES["paper"].up_to(10).cut({"dataset": "spiral"}) == {"dataset": "spiral", "rounds": 10}
    assert (shorter.name, shorter.seeds, shorter.protocol) == ("paper", (0, 1, 2), "paper")


def test_fewer_rounds_come_after_what_a_profile_cuts():
    assert PROFILES["cpu"].up_to(60).cut(PAPER) == PROFILES["cpu"].cut(PAPER) | {"rounds": 60}
    assert PROFILES["cpu"].up_to(200).cut(PAPER)["rounds"] == CPU_ROUNDS


def test_an_experiment_that_does_not_say_has_the_usual_rounds():
    assert Experiment.model_fields["rounds"].default == USUAL_ROUNDS


def test_an_unknown_profile_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'smoke'"):
        reproduction(["all"], "smoek", None, None, None, [], None, None, "")
