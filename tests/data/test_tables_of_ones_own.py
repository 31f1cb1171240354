"""CSV files of one's own by one setting: what they become, and what is refused."""

import re
import tracemalloc

import numpy as np
import pytest

import protonorm as pn
from protonorm.core.progress import listening
from protonorm.data.own import tables
from protonorm.data.own.datasets import Table

FLOWERS = "size,colour,kind\n1,red,rose\n3,white,lily\n1,white,rose\n3,red,lily\n"


@pytest.fixture
def flowers(tmp_path):
    path = tmp_path / "Flowers 2.csv"
    path.write_text(FLOWERS)
    return path


def written(tmp_path, text, name="mine.csv"):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_table(flowers):
    """Sizes 1, 3, 1, 3 have mean 2 and deviation 1; colours become red and white."""
    data = Table(flowers, label="kind").load()
    assert data.inputs.tolist() == [[-1, 1, 0], [1, 0, 1], [-1, 0, 1], [1, 1, 0]]
    assert data.labels.tolist() == [1, 0, 1, 0]
    assert data.classes == ("lily", "rose")
    assert data.name == "table:Flowers-2"
    assert isinstance(data.inputs, np.memmap)


def test_columns_are_dropped_and_numbers_left_as_they_are(flowers):
    assert Table(flowers, label="kind", drop="colour", standardise=False).load().inputs.tolist() == [[1], [3], [1], [3]]
    assert Table(flowers, label="kind", drop=("size",)).load().inputs.shape == (4, 2)


def test_the_column_of_groups_is_no_input(flowers):
    data = Table(flowers, label="kind", group="colour", standardise=False).load()
    assert data.inputs.tolist() == [[1], [3], [1], [3]]
    groups = list(data.groups)
    assert groups[0] == groups[3] != groups[1] == groups[2]


def test_text(tmp_path):
    path = written(tmp_path, 'label,body,more\n1,"Good, very good",x\n0,bad,\n1,good,y\n0,"Bad\nbad",z\n')
    data = Table(path, text="body", vocabulary=32).load()
    assert data.inputs.dtype == np.int64
    assert data.inputs.shape == (4, 4)  # good , very good
    assert data.shape == (4, 32)
    assert data.inputs[0, 0] == data.inputs[0, 3] == data.inputs[2, 0]
    assert data.inputs[1].tolist() == [data.inputs[3, 0], 0, 0, 0]
    assert Table(path, text="body", unit="characters").load().inputs.shape == (4, 15)


def test_whole_numbers_beyond_64_bits_are_numbers_and_endless_ones_are_refused(tmp_path):
    """2⁷⁰ and 2⁷¹ have mean 1.5·2⁷⁰ and deviation 2⁶⁹; 10⁴⁰⁰ is more than any number of the machine."""
    rows = "".join(f"{2**70 * (1 + i % 2)},{'xy'[i % 2]}\n" for i in range(60))
    path = written(tmp_path, f"id,label\n{rows}")
    assert Table(path).load().inputs[:2].tolist() == [[-1], [1]]
    path = written(tmp_path, f"id,label\n{rows}{10**400},x\n", "endless.csv")
    with pytest.raises(ValueError, match=r"The column 'id' of .*endless.csv holds too large numbers\."):
        Table(path).load()
    words = "".join(f"w{i},x\nv{i},y\n" for i in range(30))
    path = written(tmp_path, f"word,label\n{words}{10**400},x\n", "words.csv")
    with pytest.raises(ValueError, match=r"has 61 different words, and 50 at most are allowed; leave it out"):
        Table(path).load()


@pytest.mark.parametrize(("separator", "sign"), [("semicolon", ";"), ("tab", "\t")])
def test_separators_and_a_byte_order_mark(tmp_path, separator, sign):
    path = written(tmp_path, b"\xef\xbb\xbf" + FLOWERS.replace(",", sign).encode())
    assert Table(path, label="kind", separator=separator).load().inputs.shape == (4, 3)


def test_one_setting_names_data_and_networks(flowers, tmp_path):
    experiment = pn.Experiment.of({"dataset": {"name": f"table:{flowers}", "label": "kind"}})
    assert (experiment.models, experiment.feature_dim) == ("tabular", 64)
    assert experiment.key.startswith("protonorm-flowers-2-seed0-")
    assert str(tmp_path) not in str(experiment.model_dump(mode="json"))
    assert experiment.changed == {"dataset": "table:Flowers-2", "dataset.label": "kind"}
    texts = pn.Experiment.of({"dataset": {"name": f"table:{flowers}", "label": "kind", "text": "colour"}})
    assert (texts.models, texts.feature_dim) == ("text", 64)


def test_the_key_follows_the_content_and_the_settings(flowers, tmp_path):
    before = Table(flowers, label="kind").description()
    (tmp_path / "elsewhere").mkdir()
    copy = written(tmp_path / "elsewhere", FLOWERS, flowers.name)
    assert Table(copy, label="kind").description() == before
    assert Table(flowers, label="kind", drop="size").description() != before
    flowers.write_text(FLOWERS.replace("3,red", "4,red"))
    assert Table(flowers, label="kind").description() != before


def test_progress_is_told_and_a_file_is_read_once(flowers):
    events = []
    with listening(lambda *event: events.append(event)):
        Table(flowers, label="kind").load()
        first = len(events)
        Table(flowers, label="kind").load()
    assert events[0] == ("Reading Flowers 2.csv", len(FLOWERS), len(FLOWERS))
    assert ("Reading columns", 2, 2) in events
    assert len(events) == first


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty; expected a first line"),
        ("label,x\n", "has no rows"),
        ("label,x\n0,1,5\n1,2,3\n", "cannot be read as a table: rows have more columns than the first line."),
        ("label,x\n0,1\n1,2,3\n1,2\n", "cannot be read as a table: Expected 2 fields in line 3, saw 3."),
        ("label,x,y\n0,1,2\n1,2\n0,1,2\n1,1,2\n", "The column 'y' of "),
        ("label,x,x\n0,1,2\n", "the name 'x' is there twice"),
        ("label,,x\n0,1,2\n", "column 2 has no name"),
        ("label;x\n0;1\n", "one name only ('label;x'); dataset.separator sets"),
        ("kind,x\n0,1\n", "has no column 'label' for dataset.label; known: kind, x."),
        ("label,x\n0,1\n0,2\n", "one class only (0)"),
        ("label,x\n0.5,1\n1.5,2\n0.5,1\n1.5,1\n", "the label 0.5; expected classes"),
        ("label,x\n0,1\n,2\n1,3\n", "has no label in row 2"),
        ("label,x\n0,1\n1,\n", "The column 'x' of "),
        ("label,x\n0,1\n1,inf\n", "holds infinite numbers"),
        ("label\n0\n1\n", "one name only ('label')"),
        (b"label,x\n0,\xff\xfe\n", "it is not UTF-8 text"),
        ('label,x\n0,"1\n1,2\n', "cannot be read as a table: "),
    ],
)
def test_tables_that_are_refused(tmp_path, text, said):
    with pytest.raises(ValueError, match=re.escape(said)) as told:
        Table(written(tmp_path, text)).load()
    assert str(told.value).endswith(".")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"label": "kinds"}, "no column 'kinds' for dataset.label; did you mean 'kind'?"),
        ({"label": "kind", "text": "words"}, "no column 'words' for dataset.text"),
        ({"label": "kind", "drop": "size,color"}, "no column 'color' for dataset.drop; did you mean 'colour'?"),
        ({"label": "kind", "drop": "kind"}, "must name different columns"),
        ({"label": "kind", "text": "kind"}, "must name different columns"),
        ({"label": "kind", "drop": "size,colour"}, "no column but that of the labels"),
        ({"label": "kind", "categories": 1}, "The column 'colour' of "),
    ],
)
def test_settings_that_do_not_fit_the_table(flowers, settings, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        Table(flowers, **settings).load()


def test_gaps_may_be_filled(tmp_path):
    path = written(tmp_path, "label,x\n0,1\n1,\n0,3\n1,2\n")
    assert Table(path, missing="mean").load().inputs[1].tolist() == [0]


def test_labels_and_texts_may_be_words_that_pandas_takes_for_nothing(tmp_path):
    """None, NA, null and nan are classes among words, and texts; in other columns they are no value."""
    rows = "".join(f"{word},{word} {i},{i % 3}\n" for i in range(2) for word in ("None", "NA", "some", "null"))
    path = written(tmp_path, "label,body,dose\n" + rows)
    data = Table(path, drop="body").load()
    assert data.classes == ("NA", "None", "null", "some")
    assert data.labels.tolist() == [1, 0, 3, 2] * 2
    path = written(tmp_path, "label,body\n" + "a,None\nb,nan\n" * 2, "texts.csv")
    texts = Table(path, text="body", unit="characters").load()
    assert np.count_nonzero(texts.inputs, axis=1).tolist() == [4, 3] * 2
    for text, said in {
        "label,body\na,\nb,x\na,y\n": "has no text in row 1",
        "label,body\n,z\nb,x\na,y\n": "has no label in row 1",
    }.items():
        with pytest.raises(ValueError, match=said):
            Table(written(tmp_path, text, "gaps.csv"), text="body").load()
    for word in ("nan", "NA", ""):  # among numbers these are no class
        path = written(tmp_path, f"x,label\n1,0\n2,1\n3,{word}\n4,0\n", f"numbers{len(word)}.csv")
        with pytest.raises(ValueError, match="has no label in row 3"):
            Table(path).load()
    path = written(tmp_path, "x,label\nlow,0\nNone,1\nhigh,0\nlow,1\n", "words.csv")
    with pytest.raises(
        ValueError, match=r"no value in 1 of 4 rows, first in row 2 \(.* NA, None, null and nan count as"
    ):
        Table(path).load()


def test_no_value_is_what_pandas_takes_for_it(tmp_path):
    pandas = pytest.importorskip("pandas")
    from pandas._libs.parsers import STR_NA_VALUES

    assert set(tables.NOTHING) == set(STR_NA_VALUES)
    path = written(tmp_path, 'a , "b,c", d\n1, x,\nNA, None, 3\n')  # names with spaces and in quotes
    found, usual = tables.read_frame(path, ","), pandas.read_csv(path, skipinitialspace=True, index_col=False)
    pandas.testing.assert_frame_equal(found, usual)


def test_text_must_be_there(tmp_path):
    with pytest.raises(ValueError, match="The column 'body' of .* has no text in row 2"):
        Table(written(tmp_path, "label,body\n0,a\n1,\n"), text="body").load()


@pytest.mark.parametrize("path", ["nowhere.csv", "."])
def test_files_that_are_none(tmp_path, path):
    with pytest.raises(ValueError, match="There is no|is a folder, not a file"):
        Table(tmp_path / path).load()


def test_without_pandas_a_sentence_says_what_to_install(flowers, monkeypatch):
    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=re.escape("pip install '.[frame]' in a checkout")):
        Table(flowers, label="kind").load()


def test_a_table_of_very_many_columns_is_refused_by_its_first_line(tmp_path):
    """Whatever is in them, pandas takes kilobytes for each column: 200,000 of them took 3.3 GB."""
    names = ",".join(f"c{number}" for number in range(200_000))
    path = written(tmp_path, f"label,{names}\n")
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="its first line has 200001 names, and 20000 columns at most are taken"):
            Table(path).load()
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()
