"""The commands on the page make the same runs again."""

import os
import shlex
import shutil
import subprocess

import pytest

import protonorm as pn
from protonorm.config.parsing import read_settings
from protonorm.report.page.commands import (
    commands,
    compare_command,
    run_command,
    settings_table,
    shell_text,
    shell_word,
)
from protonorm.report.page.groups import by_method, setting_text
from protonorm.runs.schema import FORMAT, RunInfo
from tests.records import made
from tests.support import experiments_of, pictures, run, spiral


def info_of(experiment, **more):
    """Describe a run of an experiment, before its first round."""
    known = {
        "format": FORMAT,
        "key": experiment.key,
        "experiment": experiment.model_dump(mode="json"),
        "changed": experiment.changed,
        "rules": ["logits"],
        "headline": "logits",
        "networks": ["plain"],
        "classes": ["a"],
        "input": {"shape": [2], "type": "float32"},
        "versions": {},
    }
    return RunInfo(**(known | more))


@pytest.mark.parametrize(
    "given",
    [
        ["algorithm=protonorm", "dataset=spiral", "rounds=5", "lr=1e-05", "partition.alpha=2", "seed=3"],
        ["algorithm=fedtgp", "dataset=spiral", "dataset.points=90", "models=mlp", "epochs=[1, 2]", "shuffle=false"],
        ["algorithm=fedavg", "models=plain", "feature_dim=64", "partition=pathological", "clients=7"],
        ["algorithm.alignment=none", "algorithm.gamma=50", "models=plain,dense"],
        ["algorithm.schedule.epsilon=0.001", "algorithm.schedule.steps=7", "evaluate_every=3", "quorum=0.5"],
        ["algorithm=fml", "models=light", "auxiliary=dense"],
        ["algorithm=local"],
        [],
    ],
)
def test_the_command_on_the_page_makes_the_same_run_again(given):
    experiment = pn.Experiment.of(read_settings(given))
    command = run_command(info_of(experiment))
    assert command.notes == []
    line = shell_text("run", command.words).replace("\\\n", " ")
    assert pn.Experiment.of(read_settings(shlex.split(line)[2:])).key == experiment.key


def test_the_command_names_nothing_but_what_was_given():
    assert run_command(info_of(pn.Experiment(algorithm="local"))).words == ["algorithm=local"]
    assert run_command(info_of(pn.Experiment(algorithm="local", rounds=7))).words[1:] == ["rounds=7"]


def test_the_compare_command_on_the_page_makes_the_same_runs_again(tmp_path):
    asked = ["protonorm:gamma=5,schedule.steps=9", "local", "dataset=spiral", "dataset.points=60", "clients=3"]
    asked += ["rounds=1", "seeds=0,2", "partition.least=4"]
    runs = {name: [run(one, out=tmp_path).run for one in found] for name, found in experiments_of(asked).items()}
    command = compare_command(by_method([one for found in runs.values() for one in found]))
    keys = [one.key for found in experiments_of(command.words).values() for one in found]
    assert keys == [one.info.key for found in runs.values() for one in found]


def test_a_comparison_with_solo_controls_is_one_command(tmp_path):
    """The command names methods without their controls, and asks for them; a method without one has no such command."""
    asked = [
        "protonorm",
        "fedproto",
        "dataset=spiral",
        "dataset.points=60",
        "clients=3",
        "rounds=1",
        "partition.least=4",
    ]
    experiments = [*experiments_of(asked).values(), *list(experiments_of([*asked, "control=solo"]).values())[:2]]
    runs = [run(one, out=tmp_path).run for (one,) in experiments]
    groups = by_method(runs)
    assert list(groups) == ["protonorm", "fedproto", "local", "protonorm (solo)", "fedproto (solo)"]
    command = compare_command(groups)
    assert command.words[-1] == "--solo"
    assert "control" not in " ".join(command.words)
    keys = [one.key for found in experiments_of(command.words[:-1]).values() for one in found]
    assert keys == [one.info.key for one in runs[:3]]
    assert compare_command(by_method(runs[:4])) is None
    alone = compare_command(by_method(runs[3:]))
    assert "control=solo" in alone.words
    assert "--solo" not in alone.words


@pytest.mark.parametrize(
    "other",
    [
        {"clients": 5},
        {"seed": 1},
        {"changed": {"algorithm": "fedkd", "algorithm.widths": [1, 2]}},
        {"changed": {"algorithm": "fedkd", "auxiliary": "dense"}},
    ],
    ids=["other settings", "another seed", "a comma", "a second network"],
)
def test_runs_that_no_comparison_makes_have_commands_of_their_own_alone(tmp_path, other):
    one, two = made(tmp_path / "a"), made(tmp_path / "b", **{"method": {"name": "fedkd"}, **other})
    found = commands(by_method([one, two]))
    assert found["compare"] is None
    assert len(found["runs"]) == 2


def test_what_a_record_does_not_hold_is_said():
    plain = info_of(pn.Experiment(algorithm="local"))
    own = run_command(
        plain.model_copy(update={"changed": {"algorithm": "protonorm_own_median:Median", "algorithm.lam": 2.0}})
    )
    assert own.words == ["algorithm=median.py:Median", "algorithm.lam=2"]
    assert "median.py is a file of your own" in own.notes[0]
    folder = run_command(plain.model_copy(update={"changed": {"dataset": "folder:cats"}}))
    assert folder.words == ["dataset=folder:PATH"]
    assert "put the place of cats for PATH" in folder.notes[0]
    networks = [{"name": "mine:net", "source": "ab"}]
    network = run_command(plain.model_copy(update={"changed": {"models": "mine:net"}, "networks": networks}))
    assert "network mine:net was given from Python" in network.notes[0]


def test_data_given_from_python_are_said_to_be(tmp_path):
    experiment = pn.Experiment(algorithm="local", dataset=pictures([0, 1] * 9, 2), clients=2)
    assert run_command(info_of(experiment)).notes == ["The dataset tiny was given from Python: no command makes it."]


def test_the_table_has_every_setting_and_marks_those_that_were_given(tmp_path):
    found = run(spiral(algorithm={"name": "protonorm", "lam": 2.0}, rounds=1), out=tmp_path).run
    rows = dict(settings_table({"protonorm": [found]})["rows"])
    assert rows["algorithm.lam"] == [("2", True)]
    assert rows["rounds"] == [("1", True)]
    assert rows["dataset.points"] == [("60", True)]
    assert rows["algorithm.gamma"] == [("10", False)]
    assert rows["momentum"] == [("0", False)]
    assert rows["seed"] == [("0", False)]
    assert "algorithm.schedule.epsilon" in rows


def test_columns_of_methods_have_empty_cells_for_settings_of_others(tmp_path):
    groups = by_method([made(tmp_path / "a"), made(tmp_path / "b", method={"name": "fedproto", "weight": 1.0})])
    table = settings_table(groups)
    assert table["methods"] == ["protonorm", "fedproto"]
    assert dict(table["rows"])["algorithm.gamma"] == [("100", False), ("", False)]


@pytest.mark.parametrize("value", [1e-5, 1.0, 300.0, 0.1, True, None, "auto", "1", [1, 2.5], "none", 1e300])
def test_values_are_read_back_as_they_were_written(value):
    (found,) = read_settings([f"x={setting_text(value)}"]).values()
    assert found == value


NASTY = [
    "=",
    "=cmd",
    "%d",
    "*a",
    "&a",
    "!x",
    "`",
    "@",
    "[a",
    "a, b",
    "{x",
    "a: b",
    "a #b",
    "- a",
    "",
    " a ",
    "null",
    "1",
    "1e5",
]
NASTY += ["a\x1b[31m", "a\nb", "\u202e", "\udcff", "'", '"', "\\n", "中文 😀", "$HOME", "$(true)", "a\x7f\x85"]


@pytest.mark.parametrize("text", NASTY, ids=ascii)
def test_any_text_is_read_back_as_it_was(text):
    assert read_settings([f"name={setting_text(text)}"]) == {"name": text}
    assert read_settings([f"name={setting_text([text, 1, text])}"]) == {"name": [text, 1, text]}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("word", [text for text in NASTY if text], ids=ascii)
def test_a_shell_reads_any_word_as_it_was(word):
    written = shell_word(word)
    assert written.isprintable()
    done = subprocess.run(
        ["bash", "-c", f"printf %s {written}"], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}
    )
    assert done.stdout == os.fsencode(word)
