import pytest

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
    ("text", "said"),
    [("rounds:\n\tx: 1\n", "tabs"), ("- 1\n- 2\n", "key: value"), ("a: [1\n", "not valid YAML")],
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
    ],
)
def test_a_text_without_quotes_is_taken_as_it_stands(text, value):
    assert read_settings([f"name={text}"]) == {"name": value}
