"""The files of `experiments`: what they say the paper prints, and what they would run."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from experiments import figures
from experiments.reproduction.cells import Printed, find_studies, select_cells, study_names
from experiments.reproduction.findings import Findings, expected_outcomes, read_outcomes
from experiments.reproduction.profiles import PROFILES, PROTOCOLS
from experiments.reproduction.running import Reproduction
from experiments.reproduction.writing import make_tables

from protonorm.config.experiment import Experiment
from protonorm.config.kinds import bundled
from protonorm.core import Client
from protonorm.runs.archive import archive_runs
from protonorm.session import running
from protonorm.session.running import run

FIGURES = ("spiral", "spiral_clients", "partitions", "distances", "margins", "convergence")
COUNTED = ("FedNH", "FedKD", "ProtoNorm")  # whose messages are counted here; all methods' are in tests/contract
STUDIES = {study.name: study for study in find_studies(["all"])}

FEW, MANY = "Pathological setting", "Practical setting (α=0.1)"
GAMMA = "Scaling factor (γ)"
PRINTED = [  # typed by hand from the paper: corners and middles of every table
    ("table1", "LG-FedAvg", f"{FEW}: CIFAR-10", 85.49, 0.05),
    ("table1", "ProtoNorm", f"{MANY}: Tiny ImageNet", 31.20, 0.38),
    ("table1", "FedDistill", f"{FEW}: Tiny ImageNet", 30.40, 0.02),
    ("table1", "FedProto", f"{MANY}: Flowers-102", 29.77, 0.15),
    ("table1", "ProtoNorm", f"{MANY}: CIFAR-100", 47.41, 0.40),
    ("table1", "FedKD", f"{MANY}: CIFAR-10", 87.10, 0.02),
    ("table2", "LG-FedAvg", "Data heterogeneity (α): 0.01", 66.75, 0.36),
    ("table2", "FedDistill", "Decision layer dim. (d): 1024", 38.78, 1.11),
    ("table2", "FedTGP", "Decision layer dim. (d): 64", 31.26, 0.69),
    ("table2", "ProtoNorm", "Number of clients (M): 100", 41.06, 0.17),
    ("table3", "FedNH", "4-layer CNN: CIFAR-100", 32.68, 0.61),
    ("table3", "FedUV", "ResNet-18: Flowers-102", 55.36, 0.32),
    ("table3", "ProtoNorm", "ResNet-18: Tiny ImageNet", 31.69, 0.32),
    ("table4", "CIFAR-100", f"{GAMMA}: 1", 29.71, None),
    ("table4", "Flowers-102", f"{GAMMA}: 600", 50.79, None),
    ("table4", "Tiny ImageNet", f"{GAMMA}: 1000", None, None),
    ("table5", "CIFAR-10, FedProto", f"{GAMMA}: 1.1", 83.23, None),
    ("table5", "CIFAR-100, FedProto", f"{GAMMA}: 1.3", None, None),
    ("table5", "CIFAR-100, FedTGP", f"{GAMMA}: 1.4", 44.84, None),
]


@pytest.mark.parametrize(("study", "row", "column", "mean", "std"), PRINTED)
def test_printed_numbers_are_the_papers(study, row, column, mean, std):
    assert STUDIES[study].paper[row, column] == Printed(mean, std)


@pytest.mark.parametrize(
    ("study", "count", "total"),
    [
        ("table1", 49, 2512.56),
        ("table2", 49, 1735.65),
        ("table3", 18, 722.92),
        ("table4", 17, 688.12),
        ("table5", 16, 919.24),
    ],
)
def test_all_printed_numbers_add_up(study, count, total):
    """Sums of the means, added up from the paper's source by other means: a mistyped digit shows."""
    means = [one.mean for one in STUDIES[study].paper.values() if one.mean is not None]
    assert len(means) == count
    assert round(sum(means), 2) == total


OURS = ("controls", "ablation", "backbones", "privacy")  # tables that the paper does not have


@pytest.mark.parametrize("study", [study for study in STUDIES.values() if study.columns], ids=lambda study: study.name)
def test_every_printed_number_has_a_cell_and_every_row_a_number(study):
    places = {cell.place for cell in study.cells}
    assert study.paper or study.name in OURS
    assert set(study.paper) <= places
    assert {row for row, _ in places} == {*study.rows, *study.beside}
    whole = {(row, column.place) for row in study.rows for column in study.columns}
    assert (
        places <= whole if study.name == "backbones" else whole == (places if study.name in OURS else set(study.paper))
    )


def test_a_row_alone_differs_from_its_method_in_the_control_alone():
    controls, table1 = STUDIES["controls"], STUDIES["table1"]
    methods = {cell.place: cell.settings for study in (table1, controls) for cell in study.cells}
    alone = [cell for cell in controls.cells if cell.row.endswith(", alone")]
    assert len(alone) == 42  # six methods in seven columns
    for cell in alone:
        method = methods[cell.row.removesuffix(", alone"), cell.column]
        assert dict(cell.settings) == {**method, "control": "solo"}


def test_variants_of_the_ablation_are_different_experiments_and_the_first_is_table_1s():
    found = {cell.row: Experiment.of(cell.settings) for cell in STUDIES["ablation"].cells}
    described = {repr(one.model_dump(exclude={"dataset"})) for one in found.values()}
    assert len(described) == len(found) == 18
    assert runs("ablation") & runs("table1") == {
        run for run in runs("ablation") if "'algorithm', {'name': 'protonorm'}" in run and "'start'" not in run
    }


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_every_cell_of_every_profile_is_an_experiment(study, profile):
    for outcome in expected_outcomes(study, profile, PROTOCOLS[profile.protocol], profile.seeds[:1]):
        assert isinstance(outcome.experiment, Experiment)
        assert outcome.key or "is not prepared" in outcome.missing


def runs(*chosen):
    """Collect the settings of all runs of some studies under the profile `paper`."""
    return {
        repr(sorted(STUDIES[name].settings(cell, PROFILES["paper"], PROTOCOLS["paper"], 0).items(), key=str))
        for name in chosen
        for cell in STUDIES[name].cells
    }


def test_figures_share_runs():
    """Margins cost nothing more once table 1 is there, nor do distances once convergence is."""
    assert runs("margins") <= runs("table1")
    assert runs("distances") <= runs("convergence")
    assert runs("spiral_clients") <= runs("spiral")


@pytest.mark.parametrize("name", ["convergence", "distances"])
def test_figures_of_alignment_steps_stop_as_the_authors_program_does(name):
    """It stops when the mean force, rounded to four decimals, stays the same (for 10 iterations, as the paper says)."""
    for cell in STUDIES[name].cells:
        settings = STUDIES[name].settings(cell, PROFILES["paper"], PROTOCOLS["paper"], 0)
        schedule = Experiment.of(settings).algorithm.schedule
        assert (schedule.stop, schedule.epsilon, schedule.patience) == ("rounding", 1e-4, 10)


def smoke_task(studies, root, folder):
    """Make studies as small as can be, under the profile's protocol."""
    smoke = PROFILES["smoke"]
    return Reproduction(studies, smoke, PROTOCOLS[smoke.protocol], root, folder, "protonorm reproduce", [0])


def test_smoke_runs_every_kind_of_cell_few_times(tmp_path):
    task = smoke_task(list(STUDIES.values()), tmp_path, tmp_path / "out")
    waiting = task.pending()
    page = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    assert f"makes {len(waiting)} runs" in page
    assert sum(one.experiment.rounds for one in waiting.values()) < 450


def test_every_file_is_named():
    folder = Path(bundled("experiments").__file__).parent
    shared = {"__init__", "setting", "toy", "figures"}
    assert {path.stem for path in folder.glob("*.py")} - shared == set(study_names())


def test_hyperparameters_are_our_defaults():
    (table,) = STUDIES["hyperparameters"].tables(None)
    assert [row for row, entries in table.rows if entries[1].text != entries[2].text] == []
    assert len(table.rows) == 8


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """The runs of all figures and of some rows of the communication table, of a size for tests, made once."""
    folder = tmp_path_factory.mktemp("smoke")
    chosen = [STUDIES[name] for name in (*FIGURES, "communication")]
    task = smoke_task(chosen, folder / "runs", folder / "out")
    for one in task.pending().values():
        if one.cell.column != "second round" or one.cell.row in COUNTED:
            run(one.experiment, out=task.root, engine="serial")
    return task


def test_figures_come_from_records_alone(smoke, tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "DPI", 50)
    monkeypatch.setattr(running, "run", lambda *_, **__: pytest.fail("it was run"))
    monkeypatch.setattr(Client, "fit", lambda *_, **__: pytest.fail("it trained"))
    chosen = [STUDIES[name] for name in FIGURES]
    written = smoke_task(chosen, smoke.root, tmp_path).write()
    names = {path.name for one in written for path in one.paths}
    assert not any(one.remarks for one in written)
    for stem in (
        *("spiral", "spiral-data", "spiral_clients", "partitions-cifar10", "partitions-cifar100"),
        *("distances", "margins", "convergence"),
    ):
        assert {f"{stem}.png", f"{stem}.pdf"} <= names
        assert (tmp_path / f"{stem}.pdf").read_bytes().startswith(b"%PDF")
        assert b"protonorm reproduce" in (tmp_path / f"{stem}.png").read_bytes()


def test_messages_hold_what_the_formulas_say(smoke):
    """Numbers measured in the second round are those of our formula; FedKD sends at most as many."""
    (table,) = make_tables(smoke.findings(STUDIES["communication"]))
    texts = {row: [entry.text for entry in entries[1:]] for row, entries in table.rows}
    assert [row for row, counts in texts.items() if counts != ["not run yet"] * 3] == list(COUNTED)
    for row in COUNTED:
        formula, measured, octets = (int(text.replace(",", "")) for text in texts[row])
        assert measured <= formula if row == "FedKD" else measured == formula
        assert octets >= 4 * measured  # float32, and in some messages the numbers of classes


def test_a_run_of_one_round_does_not_tell_what_the_second_sends(smoke):
    """Servers of prototypes have nothing to send in the first."""
    findings = smoke.findings(STUDIES["communication"])
    first = [
        replace(one, run=replace(one.run, rounds=one.run.rounds[:1])) if one.run else one for one in findings.outcomes
    ]
    (table,) = make_tables(replace(findings, outcomes=tuple(first)))
    assert {entry.text for _, entries in table.rows for entry in entries[1:]} == {"not run yet"}


def test_a_part_of_the_communication_table_has_only_the_rows_asked_for(smoke):
    (part,) = select_cells([STUDIES["communication"]], ["FedKD"])
    (table,) = make_tables(smoke.findings(part))
    assert [row for row, _ in table.rows] == ["FedKD"]


def test_stars_show_the_clients_prototypes_and_features(smoke):
    study = STUDIES["spiral"]
    outcomes = read_outcomes(expected_outcomes(study, smoke.profile, smoke.protocol, [0]), smoke.root, {})
    result = Findings(study, smoke.profile, smoke.protocol, outcomes).result(study.cells[3].row, "spiral")
    trained = result.trained("last")[2]  # the figure shows the end of training
    star = bundled("experiments").toy.client_star(result, 2, "Client 2")
    test = result.population.site(2).client(0).test
    inputs = np.concatenate([x.numpy() for x, _ in test.sweep()])
    np.testing.assert_array_equal(star.point_classes, test.labels.numpy())
    np.testing.assert_allclose(
        star.points @ trained.state["model.head.weight"].numpy().T,
        trained.scores(inputs)["logits"],
        rtol=1e-3,
        atol=1e-5,
    )
    np.testing.assert_array_equal(star.ray_classes, trained.state["classes"].numpy())


def test_angles_of_a_star_are_those_of_its_neighbours_and_of_points_to_their_rays():
    """Rays at 10°, 100°, 350° and 200°: the nearest two are 20° apart, across 0°. Points are 30°, 5° and 170° off."""

    def at(*degrees):
        turns = np.radians(degrees)
        return 3 * np.stack([np.cos(turns), np.sin(turns)], 1)

    classes = np.array([2, 0, 1, 5])
    star = figures.Star("", at(10, 100, 350, 200), classes, at(40, 345, 270), np.array([2, 1, 0]))
    np.testing.assert_allclose(bundled("experiments").toy.angles(star), (20, 30))
    star = figures.Star("", at(10, 100, 350, 200), classes, at(5, 355), np.array([1, 1]))
    np.testing.assert_allclose(bundled("experiments").toy.angles(star), (20, 10))  # 15° across 0°, and 5°


def test_numbers_of_the_spiral_are_those_of_its_runs(smoke):
    findings = smoke.findings(STUDIES["spiral"])
    (table,) = make_tables(findings)
    for row, entries in table.rows:
        last = findings.run(row, "spiral").rounds[-1].rules
        wanted = [f"{100 * last[rule].pooled:.1f}" for rule in ("nearest-global", "nearest-local", "logits")]
        assert [entry.text for entry in entries[2:]] == wanted
        if row.startswith("ProtoNorm"):
            assert entries[0].text == "60°"


def test_a_spiral_without_its_clients_has_accuracies_alone_and_one_that_is_not_finished_has_none(smoke, tmp_path):
    [part] = select_cells([STUDIES["spiral"]], ["FedProto", "(IID"])
    task = smoke_task([part], tmp_path, tmp_path)
    (table,) = make_tables(task.findings(part))
    assert {entry.text for _, entries in table.rows for entry in entries} == {"not run yet"}
    assert [row for row, _ in table.rows] == ["FedProto (IID)", "FedProto (IID), own start"]
    first, second = task.pending().values()
    archive_runs([smoke.root / first.key], tmp_path)
    run(second.experiment.model_copy(update={"rounds": 1}), out=tmp_path, engine="serial")  # of four
    (table,) = make_tables(task.findings(part))
    begun, finished = sorted(([entry.text for entry in entries] for _, entries in table.rows), reverse=True)
    assert begun == ["not run yet"] * 5
    assert finished[:2] == ["-", "-"]
    assert all(float(text) for text in finished[2:])


def test_the_spirals_figure_has_four_panels_of_servers_and_two_of_clients(smoke):
    figures = STUDIES["spiral"].draw(smoke.findings(STUDIES["spiral"]))
    titles = [axes.get_xlabel() for axes in figures["spiral"].axes]
    assert [title.split("\n")[0].split(" ", 1)[1] for title in titles] == [
        *("FedProto", "FedProto", "ProtoNorm", "ProtoNorm", "Client 2 of ProtoNorm", "Client 5 of ProtoNorm"),
    ]
