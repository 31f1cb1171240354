"""One typed reader for all records: what is wrong is said with the name of the file."""

import json

import numpy as np
import pytest

from protonorm.files import parse_json, sealed
from protonorm.runs import layout
from protonorm.runs.arrays import majority_correct
from protonorm.runs.run import Population, read_run
from tests.records import made
from tests.runs.records import record


def rewrite(path, change, pretty=True, line=None):
    """Change a sealed JSON object and seal it again: the content is wrong, not the checksum."""
    lines = [path.read_bytes()] if pretty else path.read_bytes().splitlines(keepends=True)
    place = line or 0
    value = parse_json(lines[place], path)
    value.pop("checksum")
    change(value)
    lines[place] = sealed(value, pretty=pretty, owner="" if pretty else "key")
    path.write_bytes(b"".join(lines))


def info(change):
    return lambda folder: rewrite(folder / layout.INFO, change)


def line(number, change):
    return lambda folder: rewrite(folder / layout.METRICS, change, pretty=False, line=number)


def failure(text):
    return lambda folder: (folder / layout.FAILURE).write_bytes(sealed(text, pretty=True, owner="key"))


DAMAGES = {
    "fewer lines": (
        lambda f: (f / layout.METRICS).write_bytes(b"".join((f / layout.METRICS).read_bytes().splitlines(True)[:2])),
        "metrics.jsonl.*: 2 lines for 3 committed",
    ),
    "no lines": (lambda f: (f / layout.METRICS).unlink(), "metrics.jsonl.*: 0 lines for 3 committed"),
    "round twice": (line(1, lambda v: v.update(round=1)), "metrics.jsonl.*line 2 is that of round 1"),
    "no rules": (line(0, lambda v: v.pop("rules")), "metrics.jsonl.*rules"),
    "an accuracy of two": (line(2, lambda v: v["rules"]["nearest-global"].update(pooled=2.0)), "metrics.jsonl.*pooled"),
    "an unknown entry": (line(0, lambda v: v.update(more=1)), "metrics.jsonl.*more"),
    "rounds in words": (info(lambda v: v["experiment"].update(rounds="3")), "experiment.json.*experiment.rounds"),
    "no settings": (info(lambda v: v.update(experiment=[])), "experiment.json.*experiment"),
    "no rule": (info(lambda v: v.update(rules=[])), "experiment.json.*rules"),
    "another headline": (info(lambda v: v.update(headline="x")), "headline 'x' is none of its rules"),
    "no reason": (failure({"round": 2}), "failure.json is damaged: reason"),
    "no round": (failure({"reason": "x"}), "failure.json is damaged: round"),
    "no checksum": (lambda f: (f / layout.FAILURE).write_text('{"round": 1, "reason": "x"}'), "it has no checksum"),
    "no object": (lambda f: (f / layout.INFO).write_text("[]"), "holds a list"),
    "deep nesting": (lambda f: (f / layout.INFO).write_text("[" * 100000), "not valid JSON"),
    "a number without end": (lambda f: (f / layout.INFO).write_text('{"format": ' + "9" * 5000 + "}"), "valid JSON"),
}


@pytest.mark.parametrize(("damage", "said"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_record_is_refused_by_the_name_of_its_file(tmp_path, damage, said):
    folder = record(tmp_path / "run")
    damage(folder)
    with pytest.raises(ValueError, match=said):
        read_run(folder)


def test_a_run_at_work_has_more_lines_than_committed_rounds(tmp_path):
    folder = record(tmp_path / "run", done=2)
    with (folder / layout.METRICS).open("a") as file:
        file.write('{"round": 3}\n{"rou')
    run = read_run(folder)
    assert len(run.rounds) == 2
    assert not run.finished


def test_a_failure_after_the_rounds_that_are_asked_for_is_none_of_theirs(tmp_path):
    """Four rounds were done and a fifth failed: who asks for four has a finished run, who asks for five does not."""
    folder = record(tmp_path / "run", rounds=9, done=4)
    failure({"round": 5, "reason": "It diverged."})(folder)
    assert read_run(folder).failure.round == 5
    assert read_run(folder, 5).failure.round == 5
    assert read_run(folder, 4).failure is None
    assert read_run(folder, 4).finished


def test_the_record_of_another_version_is_refused_in_a_sentence(tmp_path):
    """Format 1 had no field for it."""
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / layout.INFO).write_text(json.dumps({"key": "k", "experiment": {"rounds": 1}, "rules": ["logits"]}))
    with pytest.raises(ValueError, match=r"another version of protonorm \(format 1\); this version reads format 3"):
        read_run(folder)


@pytest.mark.parametrize("change", [(b'"format"', b'"formau"'), (b'"format": 3', b'"format": 2')])
def test_a_damaged_format_is_damage_and_not_another_version(tmp_path, change):
    folder = record(tmp_path / "run")
    path = folder / layout.INFO
    path.write_bytes(path.read_bytes().replace(*change))
    with pytest.raises(ValueError, match=r"experiment\.json is damaged: it was changed after it was written"):
        read_run(folder)


def test_a_whole_record_of_a_later_version_is_one_of_another_version(tmp_path):
    folder = record(tmp_path / "run")
    (folder / layout.INFO).write_bytes(sealed({"format": 4, "novel": []}, pretty=True))
    with pytest.raises(ValueError, match=r"another version of protonorm \(format 4\); this version reads format 3"):
        read_run(folder)


def test_arrays_become_accuracies_of_clients_and_classes(tmp_path):
    """Client 0 has 1 of 2 right, client 1 2 of 2; of the classes 1 of 1, 1 of 2, 1 of 1."""
    run = read_run(record(tmp_path / "run"))
    last = run.rounds[-1]
    assert run.by_client(last, "nearest-global").tolist() == [0.5, 1.0]
    assert run.by_class(last, "logits").tolist() == [1.0, 0.5, 1.0]
    assert np.isnan(run.by_client(last, "local")).all()
    classes, margins = run.margins(last)
    assert (classes.tolist(), margins.tolist()) == ([0, 2], [0.5, 0.25])
    assert run.population.train.tolist() == [[3, 1, 0], [0, 2, 2]]


def test_majority_predicts_the_most_frequent_training_class(tmp_path):
    """Client 0 guesses class 0, 1 of its 2 test samples; client 1 class 1, the first of equals, 1 of 2."""
    found = read_run(record(tmp_path / "run")).majority
    assert (found.pooled, found.mean, found.worst) == (0.5, 0.5, 0.5)


def test_summary_has_best_last_and_the_mean_of_own_bests(tmp_path):
    found = read_run(record(tmp_path / "run")).summary()
    assert (found.best.round, found.last.round) == (1, 3)  # the first of equals
    assert found.best.pooled == 0.75
    assert found.own_best == 0.75
    assert read_run(tmp_path / "run").summary("local") is None


def test_the_best_round_of_a_summary_is_neither_the_first_nor_the_last(tmp_path):
    """Two clients with 100 and 300 test samples and right answers 10, 240 | 100, 210 | 90, 150 in three rounds.

    Pooled 250/400, 310/400, 240/400: the second is best. Its mean is (1 + 0.7)/2, its worst client has 0.7. The
    clients' own bests are 1 in round 2 and 240/300 = 0.8 in round 1: 0.9 on average.
    """
    counts = np.array([[100], [300]])
    population = Population(counts, np.zeros_like(counts), counts)
    tested = [[10, 240], [100, 210], [90, 150]]
    settings = {"classes": 1, "clients": 2, "population": population, "rules": ["logits"]}
    found = made(tmp_path / "run", tested=tested, **settings).summary()
    assert found.best == (2, 0.775, 0.85, 0.7)
    assert found.last == (3, 0.6, 0.7, 0.5)
    assert found.own_best == 0.9


def test_the_best_round_has_the_most_right_answers_and_not_the_best_mean(tmp_path):
    """Right answers 100, 150 | 0, 300: pooled 250/400 and 300/400, but means (1 + 0.5)/2 and (0 + 1)/2."""
    counts = np.array([[100], [300]])
    settings = {"classes": 1, "clients": 2, "rounds": 2, "population": Population(counts, 0 * counts, counts)}
    found = made(tmp_path / "run", tested=[[100, 150], [0, 300]], rules=["logits"], **settings)
    assert found.summary().best == (2, 0.75, 0.5, 0.0)
    assert (found.chosen.record.round, found.chosen.by) == (2, "test")  # there is no validation part


@pytest.mark.parametrize("bit", range(3))
def test_the_round_in_the_servers_stamp_has_a_checksum(tmp_path, bit):
    """One flipped bit makes another digit of it: rounds that are on record would be passed over in silence."""
    folder = record(tmp_path / "run", done=3)
    path = folder / layout.SERVER
    content = path.read_bytes()
    digit = content.index(b'"key server 3 ') + len('"key server ')
    path.write_bytes(content[:digit] + bytes([content[digit] ^ 1 << bit]) + content[digit + 1 :])
    with pytest.raises(ValueError, match=r"server\.safetensors is damaged: the round in its stamp"):
        read_run(folder)


def test_a_failure_of_another_run_is_refused(tmp_path):
    folder = record(tmp_path / "run")
    told = sealed({"round": 1, "reason": "Another run diverged."}, pretty=True, owner="other")
    (folder / layout.FAILURE).write_bytes(told)
    with pytest.raises(ValueError, match=r"failure\.json is damaged"):
        read_run(folder)


@pytest.mark.parametrize("version", [True, 3.0, "3", None, [3]])
def test_a_format_is_a_whole_number_and_nothing_that_equals_one(tmp_path, version):
    folder = record(tmp_path / "run")
    rewrite(folder / layout.INFO, lambda info: info.update(format=version))
    with pytest.raises(ValueError, match=r"experiment\.json is damaged: its format is .*, which is no whole number"):
        read_run(folder)


@pytest.mark.parametrize("text", ["text", "", ".", __file__, "no\0name"])
def test_what_is_no_run_is_refused_in_a_sentence_also_as_a_text(text):
    with pytest.raises(ValueError, match=r"is not a run: it has no experiment\.json\."):
        read_run(text)


@pytest.mark.parametrize("value", [3, None, ["run"], b"run"])
def test_what_is_no_path_is_refused_in_a_sentence(value):
    with pytest.raises(ValueError, match="is not a run: expected the path of its folder"):
        read_run(value)


def test_a_text_is_a_path(tmp_path):
    assert len(read_run(str(record(tmp_path / "run"))).rounds) == 3


def test_old_names_of_rules_are_read(tmp_path):
    """Records from before the rules had names of their own say `global` and `local`, also in the names of arrays."""
    made(tmp_path / "new")
    folder = made(tmp_path / "key", rules=("global", "logits")).folder

    def older(value):
        for part in ("rules", "validation"):
            value[part] = {name.removeprefix("nearest-"): held for name, held in value[part].items()}

    rewrite(folder / layout.INFO, lambda value: value.update(rules=["global", "logits"], headline="global"))
    for number in range(3):
        rewrite(folder / layout.METRICS, older, pretty=False, line=number)
    assert b"nearest" not in b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())
    old, new = read_run(folder), read_run(tmp_path / "new")
    assert (old.info.rules, old.info.headline) == (["nearest-global", "logits"], "nearest-global")
    for one, other in zip(old.rounds, new.rounds, strict=True):
        assert one.rules == other.rules
        for name in ("global", "nearest-global", "logits"):
            np.testing.assert_array_equal(old.by_client(one, name), new.by_client(other, name))
            np.testing.assert_array_equal(old.by_class(one, name), new.by_class(other, name))
    assert not np.isnan(old.by_client(old.rounds[-1], "global")).any()
    assert old.summary("global") == new.summary("nearest-global")


def test_prototypes_of_the_last_round_are_kept(tmp_path):
    """Of 101 rounds the first, every fourth, and the last; an older record lacks the last."""
    run = made(tmp_path / "run", rounds=101)
    assert run.snapshots() == [1, *range(4, 101, 4), 101]
    assert len(run.prototypes(101).vectors)
    with pytest.raises(ValueError, match=r"No prototypes of round 99 are recorded; they are of rounds 1, 4, .*, 101\."):
        run.prototypes(99)
    (run.folder / layout.PROTOTYPES / "101.safetensors").unlink()
    assert run.snapshots() == [1, *range(4, 101, 4)]


def test_majority_guesses_the_most_frequent_class_of_the_training_part():
    """Client 0 guesses class 0 and has 1 of 5 right; client 1 guesses class 2 and has 4 of 7."""
    train, test = np.array([[3, 1, 0], [0, 1, 2]]), np.array([[1, 4, 0], [3, 0, 4]])
    assert majority_correct(train, test).tolist() == [[1, 0, 0], [0, 0, 4]]
