"""What pages list is what there is, and what they promise of the length of code is so."""

import re
from itertools import cycle, takewhile

import pytest

from protonorm.algorithms import ALGORITHMS
from protonorm.config.experiment import Experiment
from protonorm.runs import layout
from tests.contract.test_laws import settings_of
from tests.docs.pages import blocks, read


def test_the_readmes_python_has_ten_lines():
    scripts = [block.text for block in blocks("README.md") if block.kind == "python" and not block.title]
    assert scripts
    assert all(len(text.strip().splitlines()) <= 10 for text in scripts)


def test_own_algorithms_have_at_most_40_lines():
    texts = {block.title: block.text for block in blocks("docs/add-your-own.md") if block.title}
    assert {"median.py", "fedprox.py", "heads.py", "decayed.py"} <= texts.keys()
    assert max(len(text.strip().splitlines()) for text in texts.values()) <= 40


def test_every_algorithm_has_a_page():
    for name in ALGORITHMS:
        page = read(f"docs/algorithms/{name}.md")
        assert f"algorithm={name}" in page or f"compare {name}" in page


def test_every_setting_is_in_the_tutorials_table():
    """With its default, where the table gives one number or word for it."""
    rows = [line.split("|")[1:4] for line in read("docs/tutorial.md").splitlines() if line.startswith("| `")]
    told = {}
    for names, defaults, _ in rows:
        keys = [name for name in re.findall(r"`([\w.…]+)`", names) if "." not in name]
        told |= dict(zip(keys, (value.strip() for value in defaults.split(",")), strict=False))
        assert len(keys) in (1, len(defaults.split(",")))
    assert told.keys() == Experiment.model_fields.keys()
    for name, field in Experiment.model_fields.items():
        default = f"{field.default:g}" if isinstance(field.default, float) else str(field.default).lower()
        if field.default is not None:
            assert told[name] == default, name


@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - {"fedrolex"}))
def test_every_setting_of_a_method_is_in_its_pages_table(name):
    """With its default, where there is one for all data and networks. FedRolex has HeteroFL's table."""
    lines = iter(read(f"docs/algorithms/{name}.md").splitlines())
    header = next(line for line in lines if line.startswith("| setting |"))
    column = [title.strip() for title in header.split("|")].index("default")
    told = {}
    for cells in (line.split("|") for line in takewhile(lambda line: line.startswith("|"), lines)):
        values = [value.strip().replace("10⁻⁶", "1e-6") for value in cells[column].split(",")]
        told |= zip(re.findall(r"`([\w.]+)`", cells[1]), cycle(values), strict=False)
    settings = {setting: value for setting, (_, value) in settings_of(ALGORITHMS[name].load()()).items()}
    assert told.keys() == settings.keys()
    for setting, value in settings.items():
        if isinstance(value, bool | str):
            assert told[setting] == str(value).lower(), setting
        elif value is not None:
            assert float(told[setting]) == value, setting


def test_every_file_of_a_record_is_described():
    page = read("docs/runs.md")
    names = [
        value
        for name, value in vars(layout).items()
        if name.isupper() and isinstance(value, str) and name not in ("TEMPORARY", "BUSY")
    ]
    assert len(names) == 16
    for name in names:
        assert f"| `{name}` |" in page or f"| `{name}/" in page
