"""What was cut is said where it was, in every form, and nowhere else."""

import csv
import io

import pytest
from experiments.reproduction.cells import Cell, find_studies
from experiments.reproduction.profiles import PROFILES, cut_in_short, cuts
from experiments.reproduction.writing import make_tables, write

from protonorm.cli.reproduce import terminal_table
from tests.reproduction.studies import TINY, fake_findings, small_study

ONE = "Group: one"
PICTURES = TINY | {"dataset": "cifar100", "models": "paper", "rounds": 300, "algorithm": "local"}


def one_cell(**settings):
    return small_study(cells=[Cell("ProtoNorm", ONE, settings)])


def cut_of(tmp_path, profile, seeds=1, **settings):
    given = {("ProtoNorm", ONE): [None] * seeds}
    return fake_findings(tmp_path, one_cell(**settings), given, profile)


def test_each_thing_that_was_cut_is_named_with_its_size(tmp_path):
    found = cut_of(tmp_path, "cpu", **PICTURES)
    assert cut_in_short(found) == (
        "30,000 pictures of CIFAR-100; 100 rounds instead of 300; networks of the family light instead of the paper's"
    )
    reduced, seeds, compare = cuts(found)
    assert reduced == f"Cut: {cut_in_short(found)}."
    assert seeds == "One seed instead of three; `--seeds 0,1,2` adds the others."
    assert compare.endswith("lower than printed: compare methods with each other inside a column.")


@pytest.mark.parametrize(
    ("settings", "short"),
    [
        ({"dataset": "flowers102", "models": "cnn", "rounds": 300}, "100 rounds instead of 300"),
        ({"dataset": "tinyimagenet", "models": "cnn", "rounds": 2}, "10,000 pictures of Tiny ImageNet"),
        ({"dataset": "flowers102", "models": "resnet18", "rounds": 9}, "the network residual instead of ResNet-18"),
        ({"dataset": "cifar10", "rounds": 0}, ""),
        ({"dataset": {"name": "spiral", "points": 20}}, ""),
    ],
)
def test_nothing_else_is_named(tmp_path, settings, short):
    assert cut_in_short(cut_of(tmp_path, "cpu", **TINY | {"algorithm": "local"} | settings)) == short


def test_fewer_rounds_by_the_command_are_told_once(tmp_path):
    found = cut_of(tmp_path, "cpu", **PICTURES)
    shorter = type(found)(found.study, found.profile.up_to(60), found.protocol, found.outcomes)
    assert [told for told in cuts(shorter) if "rounds" in told] == [
        "Cut: 30,000 pictures of CIFAR-100; 60 rounds instead of 300; networks of the family light instead of the "
        "paper's."
    ]


@pytest.mark.parametrize(("seeds", "told"), [(1, ["One seed"]), (2, ["Two seeds"]), (3, [])])
def test_fewer_seeds_than_printed_are_told_whatever_the_profile(tmp_path, seeds, told):
    found = cuts(cut_of(tmp_path, "paper", seeds, **TINY | {"algorithm": "local"}))
    assert found == [f"{one} instead of three; `--seeds 0,1,2` adds the others." for one in told]


def test_a_profile_without_results_says_what_stands_in(tmp_path):
    assert cuts(cut_of(tmp_path, "smoke", **PICTURES)) == [
        "Cut: 600 pictures of fashion in place of every data set, fewer clients and classes; 2 rounds instead of 300.",
        "Nothing here is a result.",
    ]
    assert cuts(cut_of(tmp_path, "smoke", **TINY | {"rounds": 200, "algorithm": "local"}))[:1] == [
        "Cut: a few points of the spiral; 4 rounds instead of 200.",
    ]


def test_every_form_of_a_table_says_what_was_cut(tmp_path):
    found = cut_of(tmp_path, "cpu", **PICTURES)
    write(found, tmp_path / "out")
    for ending in ("md", "tex"):
        text = (tmp_path / "out" / f"small.{ending}").read_text(encoding="utf-8")
        caption = next(line for line in text.splitlines() if "Cut: " in line and not line.startswith("%"))
        assert "Cut: 30,000 pictures of CIFAR-100; 100 rounds instead of 300" in caption
    (line,) = csv.DictReader(io.StringIO((tmp_path / "out" / "small.csv").read_text(encoding="utf-8")))
    assert line["cut"].startswith("30,000 pictures of CIFAR-100; 100 rounds")
    for table in make_tables(found):
        assert "Cut: 30,000 pictures" in str(terminal_table(table, found.profile).caption)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_study_of_the_paper_says_what_it_cuts(tmp_path, profile):
    for study in find_studies(["all"]):
        changed = any(PROFILES[profile].cut(cell.settings) != cell.settings for cell in study.cells)
        found = fake_findings(tmp_path, type(study)(study.name, study.title, study.cells), {}, profile)
        assert bool(cut_in_short(found)) == changed, study.name
