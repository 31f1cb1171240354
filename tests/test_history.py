import json

import pytest

from protonorm.history import read_run
from tests.report.pages import record


def written(folder, name, text):
    (folder / name).write_text(text)
    return folder


def experiment(folder, **more):
    about = json.loads((folder / "experiment.json").read_text())
    return written(folder, "experiment.json", json.dumps(about | more))


LINE = '{"round": %d, "rules": {}}\n'
DAMAGES = {
    "fewer lines": (lambda f: written(f, "metrics.jsonl", LINE % 1 + LINE % 2), "metrics.jsonl.*: 2 lines for 3 comm"),
    "no lines": (lambda f: (f / "metrics.jsonl").unlink(), "metrics.jsonl.*: 0 lines for 3 committed"),
    "round twice": (
        lambda f: written(f, "metrics.jsonl", LINE % 1 * 3),
        "metrics.jsonl.*line 2 is not that of round 2",
    ),
    "no rules": (lambda f: written(f, "metrics.jsonl", '{"round": 1}\n' * 3), "metrics.jsonl.*line 1 lacks"),
    "rounds in words": (lambda f: experiment(f, experiment={"rounds": "3"}), "experiment.json.*whole number of rounds"),
    "no settings": (lambda f: experiment(f, experiment=[]), "experiment.json.*expected settings"),
    "no rule": (lambda f: experiment(f, rules=[]), "experiment.json.*prediction rules"),
    "another headline": (lambda f: experiment(f, headline="x"), "experiment.json.*headline 'x' is none of its rules"),
    "no reason": (lambda f: written(f, "failure.json", '{"round": 2}'), "failure.json is damaged"),
    "no round": (lambda f: written(f, "failure.json", '{"reason": "x"}'), "failure.json is damaged"),
}


@pytest.mark.parametrize(("damage", "said"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_record_is_refused_by_the_name_of_its_file(tmp_path, damage, said):
    folder = record(tmp_path / "run")
    damage(folder)
    with pytest.raises(ValueError, match=said):
        read_run(folder)


def test_a_run_at_work_has_more_lines_than_committed_rounds(tmp_path):
    folder = record(tmp_path / "run", done=2)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(LINE % 3 + '{"rou')
    assert len(read_run(folder).history) == 2
