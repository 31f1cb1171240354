import re

import pytest

from protonorm.search.grid import commands, read_entries, read_grid, split_values
from tests.search.grids import SPIRAL, spiral_settings
from tests.support import experiments_of


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("1,2,3", ["1", "2", "3"]),
        ("[1,2],3", ["[1,2]", "3"]),
        ("[[1,2],[3]],{a: 1, b: 2}", ["[[1,2],[3]]", "{a: 1, b: 2}"]),
        ("'a,b',c", ["'a,b'", "c"]),
        ("it's,all", ["it's", "all"]),  # a quote inside a value is a letter
        ("folder:/a[b,c", ["folder:/a[b", "c"]),  # and so is a bracket
        ("", [""]),
    ],
)
def test_commas_part_values_but_not_inside_brackets_and_quotes(text, parts):
    assert split_values(text) == parts


def test_words_and_files_say_the_same(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "methods: [protonorm, 'fedproto:lam=2']\nalgorithm: {gamma: [50, 100]}\n"
        "lr: [0.01, [0.1, 0.2]]\npartition: {name: dirichlet, alpha: [0.1, 0.5]}\nrounds: 3\nseeds: [0, 1]\n"
    )
    words = ["protonorm", "fedproto:lam=2", "algorithm.gamma=50,100", "lr=0.01,[0.1,0.2]", "partition=dirichlet"]
    words += ["partition.alpha=0.1,0.5", "rounds=3", "seeds=0,1"]
    assert read_entries([str(path)]) == read_entries(words)
    assert read_entries([str(path), "lr=0.5"])[1]["lr"] == [0.5]  # the later one wins


def test_a_grid_has_all_combinations_of_what_each_method_has():
    """ProtoNorm and FedProto have γ: 2 methods × 2 γ × 3 rates, and Local 3 rates: 15 points; two seeds: 30 runs."""
    grid = read_grid(
        [*SPIRAL, "protonorm", "fedproto", "local", "algorithm.gamma=5,10", "lr=0.01,0.02,0.03", "seeds=4,7"]
    )
    assert [sum(point.method == name for point in grid.points) for name in ("protonorm", "fedproto", "local")] == [
        6,
        6,
        3,
    ]
    runs = list(grid.runs())
    assert len(runs) == 30
    assert [seed for _, seed, _ in runs] == [4] * 15 + [7] * 15
    assert grid.swept == ["algorithm.gamma", "lr"]
    assert grid.remarks == ["Without algorithm.gamma, which is no setting of theirs: local."]
    assert len({one.key for _, _, one in runs}) == 30


def test_seeds_win_over_a_seed_as_in_compare(tmp_path):
    (tmp_path / "base.yaml").write_text("seed: 9\n")
    for words in (["seed=9", "seeds=0,1"], [str(tmp_path / "base.yaml"), "seeds=0,1"]):
        grid = read_grid([*SPIRAL, "fedproto", *words])
        assert grid.seeds == [0, 1]
        assert {one.seed for _, _, one in grid.runs()} == {0, 1}
        compared = experiments_of(["fedproto", *SPIRAL, *words])["fedproto"]
        assert [one.key for _, _, one in grid.runs()] == [one.key for one in compared]


def test_runs_are_those_of_the_command_run():
    grid = read_grid([*SPIRAL, "protonorm", "fedtgp:lam=2", "protonorm.gamma=5,7", "lr=0.01,0.05", "seed=3"])
    found = {one.key for _, _, one in grid.runs()}
    wanted = [
        spiral_settings(algorithm={"name": "protonorm", "gamma": gamma}, lr=lr, seed=3)
        for gamma in (5, 7)
        for lr in (0.01, 0.05)
    ]
    wanted += [spiral_settings(algorithm={"name": "fedtgp", "lam": 2}, lr=lr, seed=3) for lr in (0.01, 0.05)]
    assert found == {one.key for one in wanted}


def test_a_method_keeps_the_setting_that_its_word_gives():
    grid = read_grid([*SPIRAL, "protonorm:gamma=5", "fedproto", "gamma=2,3"])
    found = [(point.method, experiment.algorithm.gamma) for point, _, experiment in grid.runs()]
    assert found == [("protonorm:gamma=5", 5), ("fedproto", 2), ("fedproto", 3)]
    assert grid.remarks == []


def test_equal_points_are_run_once():
    grid = read_grid([*SPIRAL, "protonorm", "algorithm.gamma=10,null,10.0"])  # the spiral's usual γ is 10
    assert len(grid.points) == 1


def test_rounds_of_one_run_are_two_points():
    grid = read_grid([*SPIRAL, "fedproto", "rounds=1,3"])
    assert len(grid.points) == 2
    assert len({one.key for _, _, one in grid.runs()}) == 1


def test_everybody_now_and_then_is_enough_to_choose_by():
    assert len(read_grid([*SPIRAL, "fedproto", "evaluate_all_every=2", "lr=0.1,0.2"]).points) == 2


def test_points_on_other_data_are_other_problems():
    grid = read_grid([*SPIRAL, "fedproto", "partition.alpha=0.1,0.5", "lr=0.1,0.2"])
    assert len({point.problem for point in grid.points}) == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["lr=1,2"], "There is no method to run"),
        (
            ["fedproto", "local", "algorithm.mu=1,2"],
            "'algorithm.mu' must be a setting of a method, and fedproto and local do not have it",
        ),
        (
            ["protonorm:gamma=5", "local", "gamma=1,2"],
            "'algorithm.gamma' must be given once: protonorm:gamma=5 would not",
        ),
        (["fedproto:label=mine", "lr=1,2"], "label=… names a row of `protonorm compare`, and nothing elsewhere."),
        (["fedproto", "seeds=0-2"], "seeds must be a number, or a list as 0,1,2, got '0-2'."),
        (["fedproto", "validation=0"], "validation must be above 0: settings are chosen by validation accuracy"),
        (["fedproto", "validation=0.1,0"], "validation must be above 0"),
        (["fedproto", "evaluate=cohort"], "evaluate=cohort needs evaluate_all_every"),
        (["fedproto", "rounds=0"], "rounds must be above 0"),
        (["fedproto", "lrr=1,2"], "An experiment has no setting 'lrr'; did you mean 'lr'"),
        (["fedproto", "lr=1,,2"], "lr must "),
        (["fedproto", "protonorm.gamma=1,2"], "'protonorm.gamma' is not a setting"),
        (["fedproto", "seeds=0,-1"], "seed must "),
        (["fedproto", f"lr={','.join(['0.1'] * 200)}", f"momentum={','.join(['0'] * 51)}"], "This grid has 10200 runs"),
    ],
)
def test_bad_grids_are_refused_with_a_sentence(words, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        read_grid([*SPIRAL, *words])


def test_an_empty_list_is_refused(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text("methods: [local]\nlr: []\n")
    with pytest.raises(ValueError, match="'lr' has an empty list"):
        read_grid([str(path)])


def as_commands(*words, wanted=lambda point: True):
    grid = read_grid([*SPIRAL, *words])
    return [
        command.replace("\\\n   ", "").split()
        for command in commands([point for point in grid.points if wanted(point)])
    ]


def test_chosen_settings_are_one_comparison_where_methods_share_them():
    (one,) = as_commands("protonorm:lam=2", "local", "algorithm.gamma=5", "momentum=0.5", "seeds=0,1")
    assert one[:4] == ["protonorm", "compare", "protonorm:lam=2,gamma=5", "local"]
    assert set(one[4:]) == {*SPIRAL, "momentum=0.5", "seeds=0,1"}
    two = as_commands(
        "fedproto", "local", "momentum=0.5,0.6", "seeds=0,1",
        wanted=lambda point: point.chosen["momentum"] == (0.5 if point.method == "local" else 0.6),
    )  # fmt: skip
    assert [command[2] for command in two] == ["fedproto", "local"]
    assert "momentum=0.6" in two[0]
    assert "momentum=0.5" in two[1]


def test_one_run_is_a_run():
    (one,) = as_commands("protonorm:lam=2", "algorithm.gamma=5", "seed=3")
    assert one[:2] == ["protonorm", "run"]
    assert set(one[2:]) == {*SPIRAL, "algorithm=protonorm", "algorithm.lam=2", "algorithm.gamma=5", "seed=3"}
