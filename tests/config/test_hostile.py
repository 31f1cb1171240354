"""Settings made to do harm, or by mistake: a short sentence that says what is meant, and nothing is begun."""

import pytest

import protonorm as pn
from protonorm.config.parsing import DEEPEST, LARGEST, LONGEST_TEXT, load_plain, read_settings
from protonorm.core.text import shortened
from protonorm.core.types import shown
from tests.support import experiments_of

BOMB = "a: &a [x, x]\n" + "".join(f"{one}: &{one} [*{before}, *{before}]\n" for before, one in ("ab", "bc", "cd"))

FILES = {
    "an alias bomb": (f"{BOMB}models: *d\n", "anchors and aliases"),
    "an anchor alone": ("rounds: &a 3\n", "anchors and aliases"),
    "an alias alone": ("rounds: *a\n", "anchors and aliases"),
    "a tag": ("rounds: !!int 3\n", "tags"),
    "a deep nest": ("models: " + "[" * 100_000, f"more than {DEEPEST} lists and maps"),
    "a deep map": ("a: " * 5, "not valid YAML"),
    "a large file": ("#" * (LARGEST + 1), "larger than 1 MB"),
    "a number of many digits": (f"rounds: {'9' * 4500}\n", "a value cannot be read"),
}


@pytest.mark.parametrize(("text", "said"), FILES.values(), ids=FILES)
def test_a_hostile_file_is_refused_in_a_sentence(tmp_path, text, said):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=said) as refused:
        read_settings([str(path)])
    assert str(path) in str(refused.value)
    assert len(str(refused.value)) < 1000  # the names of all settings are most of it


def test_what_is_just_small_enough_is_read(tmp_path):
    nest = "[" * (DEEPEST - 1) + "1" + "]" * (DEEPEST - 1)  # in a map
    path = tmp_path / "a.yaml"
    path.write_text(f"models: {nest}\nname: {'x' * LONGEST_TEXT}\n" + "#" * 1000)
    found = read_settings([str(path)])
    assert len(found["name"]) == LONGEST_TEXT
    assert str(found["models"]) == nest


@pytest.mark.parametrize("text", ["a\x1b[31m", "\udcff", "\x7f", "a\x00"])
def test_a_text_that_yaml_does_not_take_is_text(text):
    assert read_settings([f"name={text}"]) == {"name": text}


def test_numbers_texts_lists_and_maps_are_read():
    assert load_plain("{a: [1, 2.5, true, null, x y]}") == {"a": [1, 2.5, True, None, "x y"]}


WORDS = [  # words, what the sentence must hold
    (["lr=[0.1,-1]"], "lr must be greater than 0, got -1"),
    (["epochs=[1,0]"], "epochs must .*, got 0"),
    (["batch_size=[4,x]"], "batch_size must .*, got 'x'"),
    (["algorithm=fml", "auxiliary=3"], "auxiliary must be a family, a network, or a list of networks, got 3"),
    (["algorithm=fml", "auxiliary=[]"], r"auxiliary must be .*, got \[\]"),
    (["feature_dim=100000000000"], "feature_dim must be less than or equal to 65536, got 100000000000"),
    (["feature_dim=1e11"], "feature_dim"),
    (["rounds=" + "9" * 31], "rounds must .*, got 9{31}"),
    (["clients=2147483648"], "clients must .*, got 2147483648"),
    (["batch_size=" + "9" * 400], "batch_size must .*, got 9{79}…"),
    (["rounds=" + "9" * 5000], "cannot be read|must have at most"),
    (["seed=9223372036854775808"], "seed must .*, got 9223372036854775808"),
    (["dataset=spiral", "dataset.points=" + "9" * 31], "dataset.points must .*, got 9{31}"),
    (["algorithm.schedule.steps=" + "9" * 31], "algorithm.schedule.steps must .*, got 9{31}"),
    (["rounds=[1,2]"], r"rounds must .*, got \[1, 2\]"),
    (["device=[cpu]"], r"device must .*, got \['cpu'\]"),
    (["seed={a: 1}"], r"seed must .*, got \{'a': 1\}"),
    (["models={a: 1}"], r"models must be .*, got \{'a': 1\}"),
    (["rounds="], "rounds must .*, got ''"),
    (["algorithm="], "Unknown algorithm ''"),
    (["dataset="], "Unknown dataset ''"),
    (["models="], "Unknown network or family ''"),
    (["dataset=folder:"], "dataset.path must be the path of a file or folder, got ''"),
    (["dataset=folder", "dataset.path="], "dataset.path must be the path of a file"),
    (["dataset=folder:~nosuchuser"], "cannot be found: ~nosuchuser is not the home of a user"),
    (["dataset=npz:~nosuchuser/x.npz"], "cannot be found: ~nosuchuser is not the home of a user"),
    (["dataset=cifar10", "dataset.root=~nosuchuser"], "dataset.root='~nosuchuser' cannot be found"),
    (["algorithm=../protonorm"], "Unknown algorithm '../protonorm'"),
    (["dataset=a/b/c"], "Unknown dataset"),
    (["models=/etc/passwd"], "Unknown network or family"),
    (["models=timm:../x"], "timm has no network '../x'"),
    (["models=" + "x" * (LONGEST_TEXT + 1)], f"models must have at most {LONGEST_TEXT} characters"),
    (["models=" + "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1)], f"more than {DEEPEST} lists and maps"),
    (["models=mlp\0"], "must not hold the character NUL"),
    (["dataset=folder:a\0b"], "must not hold the character NUL"),
    (["algorithm.x=a\0b"], "algorithm.x must not hold the character NUL, got 'a.x00b'"),
    (["algorithm" + ".x" * 30 + "=1"], "inside each other"),
    (["device=meta"], "device must be cpu, cuda or cuda:1, got 'meta'"),
    (["algorithm=" + "x" * 4000], "Unknown algorithm 'x{79}…'"),
    (["dataset=" + "y" * 4000], "Unknown dataset"),
    (["partition=" + "z" * 4000], "Unknown partition"),
    (["models=" + "x" * 4000], "Unknown network or family"),
    (["models=torchvision:" + "x" * 4000], "torchvision has no network"),
    (["algorithm=" + "x" * 4000 + ".py:A"], "There is no Python file"),
    (["x" * 4000 + "=1"], "has no setting 'x{78}…"),
    (["rounds=" + "x" * 4000], "rounds must .*, got 'x{78}…"),
    (["partition.x=" + "[1, " * 5 + "1" + "]" * 5], "partition dirichlet has no setting"),
    (["algorithm.schedule=" + "x" * 4000], "algorithm.schedule must .*, got 'x{78}…"),
]


@pytest.mark.parametrize(
    ("words", "said"),
    WORDS,
    ids=[" ".join(words)[:40].encode("ascii", "backslashreplace").decode() for words, _ in WORDS],
)
def test_a_hostile_word_is_refused_in_a_short_sentence(words, said):
    with pytest.raises(ValueError, match=said) as refused:
        assert not pn.Experiment.of(read_settings(words)).key
    assert len(str(refused.value)) < 1000  # the names of all settings are most of it


def test_many_mistakes_are_not_all_told():
    with pytest.raises(ValueError, match="There are 995 more like these") as refused:
        pn.Experiment.of({f"x{number}": 1 for number in range(1000)})
    assert len(str(refused.value)) < 5000


def test_the_largest_seed_is_taken():
    assert pn.Experiment(seed=2**63 - 1).key != pn.Experiment(seed=2**63 - 2).key


@pytest.mark.parametrize("settings", [{3: 4}, {None: 1}, {"self": 1}, {"cls": 1}, {"settings": 1}])
def test_odd_names_are_refused(settings):
    with pytest.raises(ValueError, match="setting|must"):
        pn.Experiment.of(settings)


def test_no_seeds_are_refused():
    with pytest.raises(ValueError, match="at least one seed"):
        experiments_of(["local", "seeds=[]"])


def test_a_key_is_the_name_of_a_folder_whatever_the_data_are_called(tmp_path):
    """255 bytes are the most that a name may have."""
    from tests.support import pictures

    data = pictures([0, 1] * 20, 2)
    names = ["../../x", "中" * 300, "a\0b\n", "\x1b[31m", ""]
    for name in names:
        object.__setattr__(data, "name", name)
        key = pn.Experiment(dataset=data, clients=2, models="plain").key
        assert len(key.encode()) < 200
        (tmp_path / key).mkdir()
        assert (tmp_path / key).parent == tmp_path


def test_values_are_shown_in_few_words():
    ring = []
    ring.append(ring)
    deep = []
    for _ in range(5000):
        deep = [deep]
    assert shown("a\nb\u202e") == r"'a\nb\u202e'"
    assert shown(10**5000) == "a int too large to show"
    assert shown(deep) == "a list too large to show"
    assert shown(ring) == "[[...]]"
    assert len(shown("x" * 10**6)) == len(shortened("\n" * 10**6)) == 80
