"""What pages list is what there is, and what they promise of the length of code is so."""

import re

from protonorm.algorithms import ALGORITHMS
from protonorm.config.experiment import Experiment
from protonorm.runs import layout
from tests.docs.pages import blocks, read


def test_the_readmes_python_has_ten_lines():
    scripts = [block.text for block in blocks("README.md") if block.kind == "python"]
    assert scripts
    assert all(len(text.strip().splitlines()) <= 10 for text in scripts)


def test_the_own_algorithm_has_at_most_40_lines():
    (text,) = [block.text for block in blocks("docs/add-your-own.md") if block.title == "median.py"]
    assert len(text.strip().splitlines()) <= 40


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


def test_every_file_of_a_record_is_described():
    page = read("docs/runs.md")
    names = [value for name, value in vars(layout).items() if name.isupper() and isinstance(value, str)]
    assert len(names) == 15
    for name in names:
        assert f"| `{name}` |" in page or f"| `{name}/" in page
