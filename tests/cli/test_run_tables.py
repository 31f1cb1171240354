"""The table of a comparison: gains, verdicts and what is bold, within the width of a page."""

import pytest
from rich.console import Console
from rich.text import Text

from protonorm.analysis.comparison import rows
from protonorm.cli.console import PAGE, say
from protonorm.cli.run_tables import comparison_tables, runs_table
from tests.records import hundred, made
from tests.support import run, spiral


@pytest.fixture
def runs(tmp_path):
    """Make the runs of a method: clients with 100 samples and so many right answers, a row for each seed."""

    def make(name, *right, control="none", validation=100, **settings):
        return [
            made(
                tmp_path / f"{name}-{control}-{seed}", method={"name": name}, seed=seed, control=control,
                clients=len(row), classes=1, rounds=1, population=hundred(len(row), validation), tested=[row],
                validated=[row] if validation else None, **settings,
            )
            for seed, row in enumerate(right)
        ]  # fmt: skip

    return make


def shown(capsys, groups, width=PAGE):
    """Print the tables in lines of so many characters; no line is longer."""
    for table in comparison_tables("mine", rows(groups), width):
        Console(width=width).print(table)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    return lines


def line_of(lines, start):
    """Find a line by how it begins; blanks count once."""
    return next(line for line in (" ".join(line.split()) for line in lines) if f"{line} ".startswith(f"{start} "))


def bold_texts(groups):
    cells = [
        cell
        for table in comparison_tables("mine", rows(groups), PAGE)
        for column in table.columns
        for cell in column.cells
    ]
    return [cell.plain for cell in cells if isinstance(cell, Text) and cell.style == "bold"]


def test_gains_with_intervals_and_verdicts(runs, capsys):
    """`up` gains .1 and .2 with both seeds, 65 pooled in both.

    Of four draws of clients all are the one with .1 in 1/16 of the cases, all the one with .2 as often: [.1, .2].
    """
    groups = {
        "up": runs("up", [60, 70], [60, 70]),
        "down": runs("down", [30, 50], [50, 30]),
        "same": runs("same", [50, 50], [50, 50]),
        "local": runs("local", [50, 50], [50, 50]),
    }
    lines = shown(capsys, groups)
    assert line_of(lines, "method") == "method rule accuracy best* last gain on local lose verdict"
    assert line_of(lines, "up") == "up nearest-global 65.00–65.00 65.00 65.00 +15.00 [+10.00, +20.00] 0 % better"
    assert line_of(lines, "down") == (
        "down nearest-global 40.00–40.00 40.00 40.00 −10.00 [−20.00, +0.00] 50 % not distinguishable"
    )
    assert line_of(lines, "same") == (
        "same nearest-global 50.00–50.00 50.00 50.00 +0.00 [+0.00, +0.00] 0 % practically equal"
    )
    assert line_of(lines, "Local") == "Local nearest-global 50.00–50.00 50.00 50.00"
    assert bold_texts(groups) == ["65.00–65.00"]
    assert "With fewer than 5 seeds intervals of gains may be too narrow." in " ".join(" ".join(lines).split())


def test_gains_stand_in_a_table_of_their_own_where_there_is_little_room(runs, capsys):
    """Beside each other, accuracies and gains need more than 80 characters."""
    groups = {"up": runs("up", [60, 70], [60, 70]), "local": runs("local", [50, 50], [50, 50])}
    lines = shown(capsys, groups, 80)
    assert line_of(lines, "up nearest-global") == "up nearest-global 65.00–65.00 65.00 65.00"
    assert line_of(lines, "method against") == "method against gain lose worst 10 % verdict"
    assert line_of(lines, "up local") == "up local +15.00 [+10.00, +20.00] 0 % +10.00 better"


@pytest.mark.parametrize("width", [80, 100, PAGE, 120])
def test_both_gains_stand_below_each_other_at_every_width(runs, capsys, width):
    """The mean gain on Local is (10 − 30 + 60 + 22)/4 = 15.5, on the control (5 − 5 − 1 + 2)/4 = 0.25.

    One case in four loses against Local, two against the control. The worst tenth is one case.
    """
    groups = {
        "protonorm": runs("protonorm", [60, 70], [60, 72]),
        "protonorm (solo)": runs("protonorm", [55, 75], [61, 70], control="solo"),
        "local": runs("local", [50, 100], [0, 50]),
    }
    lines = shown(capsys, groups, width)
    tail = "−30.00 " if width > 80 else ""
    assert line_of(lines, "ProtoNorm local").endswith(f"25 % {tail}not distinguishable")
    assert "+15.50 [" in line_of(lines, "ProtoNorm local")
    assert "+0.25 [" in line_of(lines, "solo")
    assert line_of(lines, "solo").endswith(f"50 % {'−5.00 ' if tail else ''}not distinguishable")
    assert line_of(lines, "ProtoNorm (solo) local")
    text = " ".join(" ".join(lines).split())
    assert ("worst 10 % verdict" in line_of(lines, "method against")) == bool(tail)
    assert "Columns, rules, gains and verdicts: docs/statistics.md." in text
    assert "ProtoNorm against its solo control: over 2 seeds clients gain in 2 of 4 cases, lose in 2" in text
    assert "ProtoNorm (solo) against Local" not in text  # that stands in the table alone
    assert bold_texts(groups) == []


def test_a_solo_run_is_marked_in_the_list(runs, capsys):
    say(runs_table([*runs("a", [60]), *runs("a", [55], control="solo")]))
    lines = capsys.readouterr().out.splitlines()
    assert line_of(lines, "a-solo-0 (solo) solo 1/1")
    assert line_of(lines, "a-none-0 none 1/1")


def test_one_seed_has_no_interval_no_verdict_and_nothing_bold(runs, capsys):
    groups = {"up": runs("up", [60, 70]), "local": runs("local", [50, 50])}
    lines = shown(capsys, groups)
    assert line_of(lines, "up nearest-global") == "up nearest-global 65.00 65.00 65.00 +15.00 0 % no interval"
    text = " ".join(" ".join(lines).split())
    assert "One seed: there is no interval" in text
    assert "No accuracy is bold: that of up cannot be told apart from that of Local (one seed has no interval)." in text
    assert "up against Local: 2 of 2 clients gain, 0 lose." in text
    assert bold_texts(groups) == []
    assert "brackets" not in text
    assert "Verdicts" not in text


def test_runs_that_do_not_match_have_no_gain_and_a_sentence(runs, capsys):
    groups = {"up": runs("up", [60, 70], train=0.5), "local": runs("local", [50, 50], train=0.6)}
    lines = shown(capsys, groups)
    assert line_of(lines, "up nearest-global") == "up nearest-global 65.00 65.00 65.00 – – not comparable"
    assert "up has no gain against Local: they differ in train (0.5; 0.6)." in " ".join(" ".join(lines).split())


def test_the_caption_says_how_the_round_was_chosen(runs, capsys):
    chosen = " ".join(" ".join(shown(capsys, {"up": runs("up", [60, 70])})).split())
    assert "in the round with the best mean validation accuracy" in chosen
    without = " ".join(" ".join(shown(capsys, {"up": runs("other", [60, 70], validation=0)})).split())
    assert "as there is no validation part: optimistic" in without


def test_a_table_of_one_method_has_its_clients_in_place_of_gains(runs, capsys):
    lines = shown(capsys, {"up": runs("up", [60, 70], [60, 72])})
    assert line_of(lines, "method") == "method rule accuracy clients worst 10 % best* last own best*"


def test_runs_are_listed_with_the_settings_in_which_they_differ(tmp_path):
    """As many as there is room for; the seed stays longest, and what is left out is named."""
    settings = {"lr": (0.1, 0.5), "batch_size": (8, 16), "seed": (0, 1)}
    runs = [
        made(tmp_path / name, **{key: values[place] for key, values in settings.items()})
        for place, name in enumerate("ab")
    ]

    def headings(width):
        table = runs_table(runs, width)
        assert Console(width=1000).measure(table).maximum <= max(width, 40)
        return [str(column.header) for column in table.columns], str(table.caption)

    wide, told = headings(110)
    assert wide == ["run", "lr", "batch_size", "seed", "rounds", "rule", "accuracy", "best*", "last"]
    assert "also differ" not in told
    assert "Best*: in the best test round" in told
    narrow, told = headings(74)
    assert narrow == ["run", "lr", "batch_size", "seed", "rounds", "rule", "accuracy"]
    assert "Best*" not in told
    narrower, told = headings(60)
    assert narrower == ["run", "lr", "seed", "rounds", "rule", "accuracy"]
    assert told.endswith("The runs also differ in batch_size; --json has all settings.")
    cells = [list(map(str, column.cells)) for column in runs_table(runs).columns]
    assert cells[1:4] == [["0.1", "0.5"], ["8", "16"], ["0", "1"]]


def test_the_caption_of_a_list_fits_the_runs_in_it(tmp_path):
    parts = {"tested": [[90], [40], [50]], "population": hundred(1), "clients": 1, "classes": 1}
    validated = made(tmp_path / "a", validated=[[1], [3], [2]], **parts)
    by_test, cohort = made(tmp_path / "b"), made(tmp_path / "c", evaluated=[0, 2])
    captions = [str(runs_table([run]).caption) for run in (validated, by_test, cohort)]
    words = ("best validation accuracy", "where * follows", "not everybody was evaluated")
    for place, told in enumerate(captions):
        assert [word in told for word in words] == [place == other for other in range(3)]
        assert "of one seed" in told
    same = str(runs_table([validated, made(tmp_path / "d", validated=[[1], [3], [2]], **parts)]).caption)
    assert same.endswith("No setting but rounds differs between these runs.")


def test_runs_are_listed_with_the_reported_round(tmp_path, capsys):
    """Validation is best in round 2 with 40 of 100 right in the test; round 1 had 90, the last has 50."""
    parts = {"tested": [[90], [40], [50]], "validated": [[1], [3], [2]], "population": hundred(1)}
    say(runs_table([made(tmp_path / "a", clients=1, classes=1, **parts)]))
    assert line_of(capsys.readouterr().out.splitlines(), "a") == "a 3/3 nearest-global 40.00 90.00 50.00"


def test_a_list_of_runs_marks_those_whose_round_the_test_part_has_chosen(tmp_path):
    runs = [run(spiral(rounds=1, validation=share), tmp_path).run for share in (0.1, 0)]
    cells = {str(column.header): list(map(str, column.cells)) for column in runs_table(runs).columns}
    assert [cell.endswith("*") for cell in cells["accuracy"]] == [False, True]
    assert not any(cell.endswith("*") for name in ("best*", "last") for cell in cells[name])
