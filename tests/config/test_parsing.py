import pytest

from protonorm.config.components import build
from protonorm.config.parsing import read_settings


def test_words_become_nested_settings():
    words = ["algorithm=protonorm", "algorithm.gamma=200", "partition.alpha=0.1", "rounds=5", "models=[plain,dense]"]
    assert read_settings(words) == {
        "algorithm": {"name": "protonorm", "gamma": 200},
        "partition": {"alpha": 0.1},
        "rounds": 5,
        "models": ["plain", "dense"],
    }


def test_a_field_may_come_before_its_owner():
    assert read_settings(["algorithm.lam=2", "algorithm=fedproto"]) == {"algorithm": {"lam": 2, "name": "fedproto"}}


def test_fields_of_fields():
    words = ["algorithm.schedule.epsilon=0.1", "algorithm=protonorm", "algorithm.schedule.steps=3"]
    assert read_settings(words) == {"algorithm": {"name": "protonorm", "schedule": {"epsilon": 0.1, "steps": 3}}}


def test_words_override_a_file_and_another_algorithm_drops_the_fields_of_the_first(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("algorithm:\n  name: protonorm\n  gamma: 50\nrounds: 9\n")
    assert read_settings([str(path), "rounds=2"])["rounds"] == 2
    assert read_settings([str(path), "algorithm.gamma=7"])["algorithm"] == {"name": "protonorm", "gamma": 7}
    assert read_settings([str(path), "algorithm=fedproto"])["algorithm"] == {"name": "fedproto"}


@pytest.mark.parametrize(
    ("words", "held"),
    [
        (["dataset=folder:/old", "dataset.path=/new"], {"name": "folder", "path": "/new"}),
        (["dataset.path=/old", "dataset=folder:/new"], {"name": "folder", "path": "/new"}),
        (["dataset.path=/old", "dataset.name=folder:/new"], {"name": "folder", "path": "/new"}),
        (
            ["dataset=folder:/old", "dataset.size=8", "dataset.name=folder:/new"],
            {"name": "folder", "path": "/new", "size": 8},
        ),
        (
            ["dataset=folder:/old", "dataset.size=8", "dataset=folder:/new"],
            {"name": "folder", "path": "/new", "size": 8},
        ),
        (["dataset=folder", "dataset.size=8", "dataset=folder:/new"], {"name": "folder", "path": "/new", "size": 8}),
        (["dataset=folder:/old", "dataset.size=8", "dataset=npz:/new"], {"name": "npz", "path": "/new"}),
        (["dataset=mine.py:Blobs", "dataset.path=/new"], {"name": "mine.py:Blobs", "path": "/new"}),
    ],
)
def test_the_later_path_wins(words, held):
    assert read_settings(words)["dataset"] == held


def test_two_paths_in_one_place_are_refused():
    with pytest.raises(ValueError, match="dataset.path must be that of 'folder:/a'"):
        build("dataset", {"name": "folder:/a", "path": "/b"})


def test_a_field_of_a_value_is_refused():
    with pytest.raises(ValueError, match="needs fields of schedule, but 'cosine' was given before"):
        read_settings(["algorithm.schedule=cosine", "algorithm.schedule.epsilon=1"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr: 0.5\nrounds: 1\nlr: 0.01\n", "'lr' is given twice"),
        ("rounds:\n\tx: 1\n", "tabs"),
        ("- 1\n- 2\n", "key: value"),
        ("a: [1\n", "not valid YAML"),
    ],
)
def test_a_bad_file_is_refused_with_a_sentence(tmp_path, text, said):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        read_settings([str(path)])


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("rounds", "neither a setting"),
        ("nowhere.yaml", "no file"),
        ("optimiser.lr=1", "not a setting"),
        ("=3", "not a"),
        ("algorithm..x=3", "not a setting"),
    ],
)
def test_a_bad_word_is_refused_with_a_sentence(word, said):
    with pytest.raises(ValueError, match=said):
        read_settings([word])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("folder:", "folder:"),
        ("folder:/my: pictures #1", "folder:/my: pictures #1"),
        ("- x", "- x"),
        ("5 # five", 5),
        ("'5'", "5"),
        ('"a\\x1bb"', "a\x1bb"),
        ("{a: 1}", {"a": 1}),
        ("[a, b]", ["a", "b"]),
        ("null", None),
        (" x ", "x"),
        ("|", "|"),
        ("@data", "@data"),
        ("my: a: b", "my: a: b"),
        ("&a", "&a"),
        ("!x", "!x"),
        ("2024-01-01", "2024-01-01"),
        ("1:30", "1:30"),
        ("1:30.5", "1:30.5"),
        ("0x1f", "0x1f"),
        ("010", 10),
        ("-007", -7),
        ("1_000", 1000),
        ("1.5", 1.5),
        (".5", 0.5),
        ("-2.e+3", -2000.0),
    ],
)
def test_a_text_without_quotes_is_taken_as_it_stands(text, value):
    assert read_settings([f"name={text}"]) == {"name": value}
