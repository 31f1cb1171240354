import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from protonorm.analysis.breakdown import headline, plain_run, standing
from protonorm.analysis.comparison import COLUMNS, MAJORITY, Cell, Reported, Unread, rows, whole
from protonorm.runs.run import Population, RoundSummary, Summary
from protonorm.runs.schema import Accuracy
from tests.records import guessing, hundred, made


def table(**runs):
    return {(row.method, row.rule): row for row in rows(runs)}


def test_a_method_has_a_row_for_each_rule_its_headline_first(tmp_path):
    """Of 3 rounds, n has n/4 under `nearest-global` and half of that under `logits`."""
    found = rows({"protonorm": [made(tmp_path / "run")]})
    assert [(row.method, row.rule, row.headline) for row in found] == [
        ("protonorm", "nearest-global", True),
        ("protonorm", "logits", False),
        ("majority", MAJORITY, True),
    ]
    assert [str(found[0].cells[name]) for name in ("accuracy", "best", "last", "mean", "worst")] == ["75.00"] * 5
    assert str(found[1].cells["best"]) == "37.50"


def test_columns_are_parts_of_the_reported_round_and_of_a_runs_summary():
    summary = Summary(RoundSummary(3, 0.1, 0.2, 0.3), RoundSummary(9, 0.4, 0.5, 0.6), 0.7)
    accuracy = Accuracy(pooled=0.81, mean=0.82, worst=0.83, p10=0.84)
    found = {name: number(Reported(0, None, accuracy, summary)) for name, (_, number) in COLUMNS.items()}
    usual = {"accuracy": 0.81, "mean": 0.82, "worst": 0.83, "best": 0.1, "last": 0.4, "own_best": 0.7}
    assert found == {**usual, "common": None, "newcomers": None}
    nothing = {name: number(Reported(0, None, None, summary)) for name, (_, number) in COLUMNS.items()}
    assert (nothing["accuracy"], nothing["mean"], nothing["worst"], nothing["best"]) == (None, None, None, 0.1)


def test_the_reported_round_is_chosen_once_by_the_mean_validation_accuracy(tmp_path):
    """Validation of the clients (.5, .7, .6) and (.5, .4, .6): means .5, .55, .6, so that round 3 is reported.

    Right answers there are 30 and 50 of 100 under the headline, half of them under the other rule; the best test round
    is round 1 with 90, each client's own best 90.
    """
    tested, validated = [[90, 90], [70, 80], [30, 50]], [[50, 50], [70, 40], [60, 60]]
    run = made(tmp_path / "a", clients=2, classes=1, population=hundred(2), tested=tested, validated=validated)
    found = table(a=[run])
    head, other = found["a", "nearest-global"], found["a", "logits"]
    assert (head.seeds, head.rounds, head.chosen_by) == ((0,), (3,), "validation")
    assert {name: cell.mean for name, cell in head.cells.items()} == pytest.approx(
        {"accuracy": 0.4, "mean": 0.4, "worst": 0.3, "best": 0.9, "last": 0.4, "own_best": 0.9}
    )
    assert (other.cells["accuracy"].mean, other.cells["best"].mean, other.rounds) == (0.2, 0.45, (3,))


def test_without_validation_the_best_test_round_is_reported_as_such(tmp_path):
    run = made(tmp_path / "a", clients=2, classes=1, population=hundred(2, 0), tested=[[90, 90], [70, 80], [30, 50]])
    found = table(a=[run])["a", "nearest-global"]
    assert (found.rounds, found.chosen_by, found.cells["accuracy"].mean) == ((1,), "test", 0.9)


def test_luck_is_not_reported(tmp_path):
    """Answers are right by chance, ½, in 30 rounds of 8 seeds: 10 clients with 100 samples, so that pooled ± .016.

    The best of 30 test rounds lies about two deviations, .03, above chance, the one chosen by validation does not.
    """
    random = np.random.default_rng(4)
    runs = [
        made(
            tmp_path / f"{seed}", clients=10, classes=1, rounds=30, population=hundred(10), seed=seed,
            tested=random.binomial(100, 0.5, (30, 10)), validated=random.binomial(100, 0.5, (30, 10)),
        )
        for seed in range(8)
    ]  # fmt: skip
    cells = table(chance=runs)["chance", "nearest-global"].cells
    assert cells["accuracy"].interval.low < 0.5 < cells["accuracy"].interval.high
    assert cells["best"].interval.low > 0.52


def test_seeds_are_averaged_with_an_interval(tmp_path):
    """Runs of 3 and of 1 rounds end with 3/8 and 1/4: mean 5/16, deviation (1/8)/√2.

    t(0.975, 1 d.f.) = 12.7062; the interval's half is 12.7062 · (1/8)/√2/√2 = 0.79414.
    """
    runs = [made(tmp_path / "a"), made(tmp_path / "b", rounds=1, seed=1)]
    cell = table(protonorm=runs)["protonorm", "logits"].cells["best"]
    assert cell.mean == pytest.approx(5 / 16)
    assert cell.std == pytest.approx(1 / 8 / 2**0.5)
    assert cell.interval == pytest.approx((5 / 16 - 0.79414, 5 / 16 + 0.79414), abs=1e-5)
    assert cell.range == (1 / 4, 3 / 8)
    assert (str(cell), cell.short, cell.text(1, 3)) == ("25.00–37.50", "31.25", "0.250–0.375")


def test_of_two_seeds_tables_show_the_range_and_of_three_the_interval():
    assert str(Cell.of([0.451, 0.463])) == "45.10–46.30"
    assert str(Cell.of([0.4, 0.5, 0.6])) == "50.00 ± 24.84"
    assert str(Cell.of([0.4, 0.5], repeated=True)) == "45.00"
    assert str(Cell.of([0.4, None])) == "40.00"
    assert Cell.of([None]) is None


def test_one_seed_and_the_same_run_twice_have_no_interval(tmp_path):
    run = made(tmp_path / "a")
    for runs in ([run], [run, run]):
        found = table(protonorm=runs)["protonorm", "nearest-global"]
        assert (found.seeds, found.note) == ((0,), "")
        assert (found.cells["accuracy"].std, found.cells["accuracy"].interval) == (None, None)


def test_federations_of_other_clients_that_agreed_on_the_same_are_two(tmp_path):
    """Their keys are those of their agreements, which do not say who takes part."""
    names = (["rome", "oslo", "lima", "bonn"], ["cork", "kyiv", "graz", "bari"])
    rome, cork = (made(tmp_path / held[0] / "same", client_names=held) for held in names)
    assert whole({"protonorm": [rome, cork, rome]})["protonorm"] == [rome, cork]


def test_the_best_test_round_is_one_in_which_everybody_was_evaluated(tmp_path):
    """In the third round 3/4 are right, but of some clients only; of rounds with everybody the second has the most."""
    run = made(tmp_path / "run")
    cohorts = [one.model_copy(update={"evaluated": "cohort"}) for one in run.rounds]
    assert replace(run, rounds=[*run.rounds[:2], cohorts[2]]).summary("nearest-global").best.round == 2
    assert replace(run, rounds=[*run.rounds[:2], cohorts[2]]).summary("nearest-global").last.round == 3
    assert replace(run, rounds=cohorts).summary("nearest-global").best.round == 3


def test_a_row_says_that_a_run_stopped_and_how_many_seeds_it_stands_for(tmp_path):
    """A run of one round has nothing under `nearest-global`, a rule from round 2 on, so no round is reported."""
    whole, stopped = made(tmp_path / "a"), made(tmp_path / "b", done=1, seed=1, failure=(2, "It diverged."))
    later = made(tmp_path / "c", seed=2, failure=(4, "It diverged."))
    found = table(protonorm=[whole, stopped], other=[stopped], both=[later, stopped])
    assert found["protonorm", "nearest-global"].note == "stopped in round 2, 1 of 2 seeds"
    assert found["protonorm", "logits"].note == "stopped in round 2, 1 of 2 seeds"
    assert found["other", "nearest-global"].note == "stopped in round 2"
    assert found["both", "logits"].note == "stopped in round 2 and 4, 1 of 2 seeds"
    assert found["other", "nearest-global"].cells["best"] is None
    assert found["other", "logits"].cells["accuracy"] is None
    assert found["other", "logits"].cells["best"].mean == 0.125


def test_a_damaged_run_has_a_note_and_takes_the_gain_with_it(tmp_path):
    """Its seed may be the one that went wrong."""
    local = [made(tmp_path / f"l{seed}", seed=seed, method={"name": "local"}) for seed in (0, 1)]
    damaged = Unread("nearest-global", "A bit was flipped.")
    found = table(some=[made(tmp_path / "a"), damaged], none=[damaged], local=local)
    assert found["some", "nearest-global"].note == "1 of 2 seeds, not read: A bit was flipped"
    assert found["some", "nearest-global"].local.mismatch == "seeds (0; 0, 1)"
    assert found["none", "nearest-global"].note == "not read: A bit was flipped"
    assert found["none", "nearest-global"].local is None


def test_runs_that_share_a_seed_have_a_mean_and_no_interval(tmp_path):
    """Two partitions with seed 0: 3/4 in the third of three rounds, 1/2 in the only one of a single."""
    parts = [{"name": "iid", "seed": seed} for seed in (1, 2)]
    runs = [made(tmp_path / f"{seed}", rounds=seed, rules=["logits"], partition=parts[seed // 3]) for seed in (1, 3)]
    found = table(protonorm=runs)["protonorm", "logits"]
    assert found.seeds == (0, 0)
    assert found.cells["accuracy"].interval is None
    assert found.cells["accuracy"].std > 0


@pytest.fixture
def several(tmp_path):
    """Three methods and Local with two seeds; two clients of 100 samples with so many right answers."""
    right = {
        "high": ([60, 70], [62, 70]),
        "near": ([70, 58], [58, 70]),
        "low": ([20, 30], [22, 30]),
        "local": ([50, 60], [50, 60]),
    }
    return {
        name: [
            made(
                tmp_path / f"{name}{seed}", method={"name": name}, seed=seed, clients=2, classes=1, rounds=1,
                population=hundred(2), tested=[row], validated=[row],
            )
            for seed, row in enumerate(both)
        ]
        for name, both in right.items()
    }  # fmt: skip


def test_headline_rows_have_gains_against_local(several):
    """Of `high`: (.1, .1) and (.12, .1), mean .105; of `low`: −.3, −.3, −.28, −.3."""
    found = table(**several)
    high, low = found["high", "nearest-global"].local.transfer, found["low", "nearest-global"].local.transfer
    assert (high.mean, high.verdict, high.negative) == (pytest.approx(0.105), "better", 0)
    assert (low.mean, low.verdict, low.negative) == (pytest.approx(-0.295), "worse", 1)
    assert found["high", "logits"].local is None
    assert found["local", "nearest-global"].local is None
    wide = {row.method: row for row in rows(several, margin=0.2) if row.headline and row.local}
    assert {name: row.local.transfer.verdict for name, row in wide.items()} == {
        "high": "practically equal",
        "near": "practically equal",
        "low": "worse",
    }


def test_the_highest_accuracy_stands_out_only_if_it_differs_from_all_others(several):
    """Without `near`, every case of `high` is above those of the others."""
    found = rows(several)
    top = found[0]
    assert [row.method for row in found if row.leads] == ["high"]
    assert list(top.alike) == ["near"]
    assert not top.stands_out
    clear = rows({name: runs for name, runs in several.items() if name != "near"})
    assert [row.method for row in clear if row.stands_out] == ["high"]
    single = rows({name: runs[:1] for name, runs in several.items()})
    assert not any(row.stands_out for row in single)
    assert set(single[0].alike.values()) == {"one seed has no interval"}
    assert not any(row.leads for row in rows({"high": several["high"]}))


def test_methods_are_ranked_under_one_rule_at_a_time(several, tmp_path):
    """`high` and `near` are judged by `nearest-global`, `low` and Local by `logits`, of which Local is the higher one.

    Local is also higher than `high`, which so does not stand out whatever `near` is.
    """
    logits = {
        name: [
            made(
                tmp_path / f"{name}-logits{seed}", method={"name": name}, seed=seed, clients=2, classes=1, rounds=1,
                population=hundred(2), tested=[row], validated=[row], rules=["logits", "nearest-global"],
            )
            for seed, row in enumerate(both)
        ]
        for name, both in {"low": ([20, 30], [22, 30]), "local": ([80, 90], [80, 90])}.items()
    }  # fmt: skip
    found = {row.method: row for row in rows(several | logits) if row.headline}
    assert [name for name, row in found.items() if row.leads] == ["high", "local"]
    assert list(found["high"].alike) == ["near", "local"]
    assert found["high"].alike["local"] == "no lower, but judged by logits"
    assert found["local"].stands_out
    alone = rows({"high": several["high"], "local": logits["local"]})
    assert not any(row.leads for row in alone)


def test_an_equal_accuracy_under_another_rule_lets_nobody_stand_out(several, tmp_path):
    """`high` has 0.65 and 0.66 under `nearest-global`, `other` the same under `logits`."""
    other = [
        made(
            tmp_path / f"other{seed}", method={"name": "other"}, seed=seed, clients=2, classes=1, rounds=1,
            population=hundred(2), tested=[row], validated=[row], rules=["logits", "nearest-global"],
        )
        for seed, row in enumerate(([65, 65], [66, 66]))
    ]  # fmt: skip
    compared = {name: several[name] for name in ("high", "low")} | {"other": other}
    found = {row.method: row for row in rows(compared) if row.headline}
    assert found["high"].leads
    assert found["high"].alike == {"other": "no lower, but judged by logits"}


def test_the_majority_is_the_same_in_every_round(tmp_path):
    """Guesses are right for 10 of 10 and for 0 of 30 samples: pooled ¼; ½ in the mean, as each client's best."""
    train, test = np.array([[9, 1], [9, 1]]), np.array([[10, 0], [0, 30]])
    made_run = made(tmp_path / "one", population=Population(train, 0 * train, test), clients=2, classes=2, rounds=1)
    row = next(row for row in rows({"one": [made_run]}) if row.is_majority)
    cells = {name: cell.mean for name, cell in row.cells.items()}
    assert cells == {"accuracy": 0.25, "mean": 0.5, "worst": 0.0, "best": 0.25, "last": 0.25, "own_best": 0.5}


def test_the_majority_of_clients_that_train_is_averaged_over_the_seeds_that_draw_them(tmp_path):
    """Guesses are right for all samples of client 0, which trains with seed 0, and for none of client 1's."""
    train, test = np.array([[9, 1], [9, 1]]), np.array([[10, 0], [0, 30]])
    usual = {"population": Population(train, 0 * train, test), "clients": 2, "classes": 2, "rounds": 2, "held_out": 0.5}
    runs = [made(tmp_path / str(seed), seed=seed, evaluated=[seed], **usual) for seed in range(2)]
    assert next(row for row in rows({"one": runs}) if row.is_majority).cells["accuracy"].mean == 0.5


def test_the_majority_is_averaged_over_the_seeds_of_one_partition_only(tmp_path):
    """0.2 and 0.4 have the mean 0.3 and the deviation 0.2/√2; the same population counts once."""

    def one(name, level, alpha, seed):
        partition = {"name": "dirichlet", "alpha": alpha, "seed": seed}
        return made(tmp_path / name, population=guessing(level), partition=partition, rounds=1)

    runs = {
        "mild": [one("a", 0.2, 1.0, 1), one("b", 0.4, 1.0, 2), one("c", 0.4, 1.0, 2)],
        "strong": [one("d", 0.8, 0.1, 1)],
    }
    found = {row.method: row.cells["accuracy"] for row in rows(runs) if row.is_majority}
    assert list(found) == ["majority (alpha=1)", "majority (alpha=0.1)"]
    assert found["majority (alpha=1)"].mean == pytest.approx(0.3)
    assert found["majority (alpha=1)"].std == pytest.approx(0.02**0.5)
    assert (found["majority (alpha=0.1)"].mean, found["majority (alpha=0.1)"].std) == (0.8, None)


def test_a_row_is_plain_data(several):
    found = json.loads(json.dumps(asdict(rows(several)[0]), allow_nan=False))
    assert found["local"]["transfer"]["mean"] == pytest.approx(0.105)
    assert found["cells"]["accuracy"]["interval"][0] < found["cells"]["accuracy"]["mean"]
    assert found["seeds"] == [0, 1]


def test_a_run_in_a_sentence(tmp_path):
    runs = [
        made(tmp_path / "a"),
        made(tmp_path / "b", done=1),
        made(tmp_path / "c", done=1, failure=(2, "It diverged.")),
    ]
    assert [standing(run) for run in runs] == [
        "3 of 3 rounds are done.",
        "1 of 3 rounds are done; the same command goes on.",
        "Stopped in round 2: It diverged.",
    ]
    worse = {"tested": [[50], [40], [40]], "validated": [[50], [40], [40]], "population": hundred(1)}
    early = made(tmp_path / "e", clients=1, classes=1, rounds=9, done=3, early_stopping=2, **worse)
    assert standing(early) == "3 of 9 rounds are done; it ended early, as the validation accuracy rose no more."
    partition = {"name": "dirichlet", "alpha": 0.1, "least": 2}
    found = headline({"x": [made(tmp_path / "d", partition=partition)]})
    assert found == "fashion, dirichlet (alpha 0.1), 4 clients, 3 rounds"
    assert headline({"x": runs}) == "fashion, iid, 4 clients, 3 rounds"


def test_a_run_in_plain_data(tmp_path):
    found = plain_run(made(tmp_path / "run", population=guessing(0.6), done=1, failure=(2, "It diverged.")))
    assert found["key"] == "run"
    assert (found["rounds"], found["finished"], found["headline"]) == (1, False, "nearest-global")
    assert found["experiment"]["algorithm"] == {"name": "protonorm", "lam": 1.0, "gamma": 100.0}
    best = {"round": 1, "pooled": 0.125, "mean": 0.125, "worst": 0.125}
    assert found["summary"] == {
        "nearest-global": None,
        "logits": {"best": best, "last": best, "own_best": 0.1},
    }  # 2 of 20
    assert found["chosen"] is None
    assert found["majority"].items() >= {"pooled": 0.6, "mean": 0.6, "worst": 0.6}.items()
    assert found["failure"] == {"round": 2, "reason": "It diverged."}


def test_the_reported_round_in_plain_data(tmp_path):
    found = plain_run(made(tmp_path / "run"))["chosen"]
    assert (found["round"], found["by"], found["rules"]["nearest-global"]["pooled"]) == (3, "test", 0.75)
    assert list(found["rules"]) == ["nearest-global", "logits"]
