"""Data of Hugging Face: objects, and folders that were saved; what cannot be used is refused with a sentence."""

import io
import re

import numpy as np
import pytest
from PIL import Image as Picture

import protonorm as pn
from protonorm.core.progress import listening
from protonorm.data.own import hugging
from protonorm.data.own.datasets import HuggingFace
from protonorm.data.own.encoding import Options
from protonorm.data.own.hugging import from_hugging_face
from tests.support import run

datasets = pytest.importorskip(
    "datasets", reason="Hugging Face datasets is not installed: pip install '.[hf]' in a checkout"
)
from datasets import ClassLabel, Features, Image  # noqa: E402


def picture(value, size=(16, 20), grey=False):
    """Draw a picture of one brightness, as a PNG file's bytes."""
    file = io.BytesIO()
    Picture.fromarray(np.full(size if grey else (*size, 3), value, np.uint8)).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def photographs(values, labels, **options):
    features = Features({"image": Image(), "label": ClassLabel(names=["cat", "dog"])})
    return datasets.Dataset.from_dict({"image": [picture(v, **options) for v in values], "label": labels}, features)


def saved(data, tmp_path, name="pets"):
    data.save_to_disk(str(tmp_path / name))
    return tmp_path / name


def made(columns, **options):
    return from_hugging_face(datasets.Dataset.from_dict(columns), "mine", Options(**options))


def test_a_folder_of_pictures(tmp_path):
    data = HuggingFace(saved(photographs([10, 200, 30], [1, 0, 1]), tmp_path)).load()
    assert data.inputs.shape == (3, 16, 20, 3)
    assert data.inputs[:, 0, 0, 0].tolist() == [10, 200, 30]
    assert (data.labels.tolist(), data.classes, data.name) == ([1, 0, 1], ("cat", "dog"), "hf:pets")
    assert isinstance(data.inputs, np.memmap)


def test_parts_are_put_together_and_one_setting_trains(tmp_path):
    half = [20, 230] * 10
    parts = datasets.DatasetDict(train=photographs(half, [0, 1] * 10), test=photographs(half, [0, 1] * 10))
    path = saved(parts, tmp_path)
    settings = {"dataset": f"hf:{path}", "partition": "iid", "clients": 2, "rounds": 1}
    experiment = pn.Experiment.of(settings)
    assert (experiment.models, experiment.dataset.load().labels.tolist()) == ("light", [0, 1] * 20)
    assert str(tmp_path) not in str(experiment.model_dump(mode="json"))
    assert len(run(experiment, tmp_path / "runs").history) == 1


def test_a_folder_is_read_once_and_again_when_it_changes(tmp_path):
    path = saved(photographs([10, 200], [1, 0]), tmp_path)
    events = []
    with listening(lambda *event: events.append(event)):
        before = HuggingFace(path).description()
        first = len(events)
        assert HuggingFace(path).description() == before
    assert ("Reading pictures", 2, 2) in events
    assert len(events) == first
    saved(photographs([11, 200], [1, 0]), tmp_path, "other")
    assert HuggingFace(tmp_path / "other").description()["sha256"] != before["sha256"]


def test_pictures_of_several_sizes_and_kinds():
    mixed = datasets.concatenate_datasets([photographs([1], [0]), photographs([2], [1], size=(8, 8))])
    with pytest.warns(UserWarning, match="differ in size .*16×20 image of row 1, 8×8 image of row 2"):
        assert from_hugging_face(mixed).inputs.shape == (2, 64, 64, 3)
    small = from_hugging_face(mixed, options=Options(size=8, channels=1))
    assert small.inputs.shape == (2, 8, 8, 1)
    greys = datasets.concatenate_datasets([photographs([1], [0]), photographs([2], [1], grey=True)])
    with pytest.raises(ValueError, match=r"coloured \(image of row 1\) and some are grey \(image of row 2\)"):
        from_hugging_face(greys)


def test_columns_of_plain_values():
    """Heights 1 and 3 have mean 2 and deviation 1; words become a column each."""
    data = made({"height": [1, 3, 1, 3], "hair": ["fair", "dark", "dark", "fair"], "label": ["a", "b", "a", "b"]})
    assert data.inputs.tolist() == [[-1, 0, 1], [1, 1, 0], [-1, 1, 0], [1, 0, 1]]
    assert (data.labels.tolist(), data.classes, data.models) == ([0, 1, 0, 1], ("a", "b"), "tabular")
    assert made({"x": [1, 2], "id": [5, 6], "label": [0, 1]}, drop=("id",)).inputs.shape == (2, 1)


def test_vectors_tokens_and_texts():
    labels = ["a", "b"]
    vectors = made({"x": [[1.0, 5.0], [3.0, 5.0]], "label": labels}, input="x")
    assert vectors.inputs.tolist() == [[-1, 0], [1, 0]]
    tokens = made({"input_ids": [[7, 2], [3]], "mask": [[1, 1], [1]], "label": labels}, input="input_ids")
    assert (tokens.inputs.tolist(), tokens.vocabulary, tokens.models) == ([[7, 2], [3, 0]], 8, "text")
    long = {"input_ids": [list(range(1, 301)), [3]], "label": labels}  # more than the usual 64 words or 256 characters
    assert made(long, input="input_ids").inputs[0].tolist() == list(range(1, 301))
    cut = made(long, input="input_ids", length=5)
    assert (cut.inputs.tolist(), cut.vocabulary) == ([[1, 2, 3, 4, 5], [3, 0, 0, 0, 0]], 6)
    texts = made({"text": ["so good", "so bad"], "label": labels}, input="text")
    assert (texts.inputs.shape, texts.vocabulary) == ((2, 2), 4096)
    assert texts.inputs[0, 0] == texts.inputs[1, 0]


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ({"x": [1, 2], "y": [0, 1]}, {}, "mine has no column 'label' for dataset.label; known: x, y."),
        ({"x": [1, 2], "label": [0, 1]}, {"input": "z"}, "mine has no column 'z' for dataset.input"),
        ({"x": [1, 2], "label": [0, 1]}, {"drop": ("z",)}, "mine has no column 'z' for dataset.drop"),
        ({"x": [1, 2], "label": [0, 0]}, {}, "one class only (0)"),
        ({"x": [1, 2], "label": [0, None]}, {}, "has no label in row 2"),
        ({"x": [1, 2], "label": [[0], [1]]}, {}, "holds a list in each row; expected one label"),
        (
            {"x": [None, [1]], "label": [0, 1]},
            {},
            "'x' of mine holds a list in each row; dataset.input=x learns from it",
        ),
        ({"x": [None, {"a": 1}], "label": [0, 1]}, {}, "'x' of mine holds a dict in each row"),
        ({"x": [None, b"\xff"], "label": [0, 1]}, {}, "'x' of mine holds bytes, which mean nothing by themselves"),
        ({"x": [1, 2], "label": [0, 1]}, {"input": "label"}, "dataset.label, dataset.input and dataset.drop must name"),
        (
            {"x": [1, 2], "label": [0, 1]},
            {"drop": ("label",)},
            "dataset.label, dataset.input and dataset.drop must name",
        ),
        ({"x": [1.0, None], "label": [0, 1]}, {}, "The column 'x' of mine has no value in 1 of 2 rows"),
        ({"x": [1.0, float("inf")], "label": [0, 1]}, {}, "holds infinite numbers"),
        ({"x": [[1.0], [2.0]], "label": [0, 1]}, {}, "dataset.input=x learns from it"),
        ({"x": [[1.0], [2.0, 3.0]], "label": [0, 1]}, {"input": "x"}, "is ragged: row 1 has 1 numbers, row 2 has 2"),
        ({"x": [[1.0], [float("nan")]], "label": [0, 1]}, {"input": "x"}, "column 1 holds NaN"),
        ({"x": ["a", None], "label": [0, 1]}, {"input": "x"}, "has no text in row 2"),
        ({"x": [[1], [-2]], "label": [0, 1]}, {"input": "x"}, "holds the token -2"),
        ({"x": [str(i) + "x" for i in range(120)], "label": [0, 1] * 60}, {}, "has 120 different words"),
        ({"x": [], "label": []}, {}, "mine has no rows"),
    ],
)
def test_columns_that_are_refused(columns, options, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        made(columns, **options)


def test_labels_that_are_not_known_are_refused():
    """Public test parts often have −1 where the answer is secret."""
    with pytest.raises(ValueError, match="cannot be used: labels go from -1 to 1, but 2 classes are named"):
        from_hugging_face(photographs([1, 2], [-1, 1]))


def test_several_columns_of_pictures():
    features = Features({"left": Image(), "right": Image(), "label": ClassLabel(names=["cat", "dog"])})
    rows = {"left": [picture(1), picture(2)], "right": [picture(3), picture(4)], "label": [0, 1]}
    data = datasets.Dataset.from_dict(rows, features)
    with pytest.raises(ValueError, match=r"several columns of pictures \(left, right\); dataset.input names one"):
        from_hugging_face(data)
    assert from_hugging_face(data, options=Options(input="right")).inputs[0, 0, 0, 0] == 3
    assert from_hugging_face(data, options=Options(drop=("right",))).inputs[0, 0, 0, 0] == 1


def test_a_picture_that_is_none():
    features = Features({"image": Image(), "label": ClassLabel(names=["cat", "dog"])})
    broken = {"bytes": b"no picture", "path": None}
    data = datasets.Dataset.from_dict({"image": [picture(1), broken], "label": [0, 1]}, features)
    with pytest.raises(ValueError, match="image of row 2 is not a picture that can be read"):
        from_hugging_face(data)
    missing = datasets.Dataset.from_dict({"image": [picture(1), None], "label": [0, 1]}, features)
    with pytest.raises(ValueError, match="There is no picture in image of row 2"):
        from_hugging_face(missing)


def test_folders_that_are_none(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ValueError, match="is not a folder that save_to_disk of Hugging Face datasets wrote"):
            HuggingFace(path).load()
    path = saved(photographs([1, 2], [0, 1]), tmp_path)
    (path / "dataset_info.json").write_text("{")
    with pytest.raises(ValueError, match="cannot be read as saved datasets: "):
        HuggingFace(path).load()


def test_objects_of_another_kind():
    with pytest.raises(ValueError, match="is a list; expected a Dataset or DatasetDict"):
        from_hugging_face([1, 2])


def test_without_the_package_a_sentence_says_what_to_install(tmp_path, monkeypatch):
    path = saved(photographs([1, 2], [0, 1]), tmp_path)
    monkeypatch.setattr(hugging, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=re.escape("pip install '.[hf]' in a checkout")):
        HuggingFace(path).load()
