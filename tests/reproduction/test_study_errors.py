"""What is said of a file that is not as it must be."""

import pytest
from experiments.reproduction.cells import Cell, Column, Printed, problems

GOOD = {
    "TITLE": "Mine",
    "COLUMNS": (Column("a"), Column("b")),
    "ROWS": ("ProtoNorm",),
    "BESIDE": ("Local",),
    "CELLS": [Cell("ProtoNorm", "a", {"rounds": 1})],
    "PAPER": {("ProtoNorm", "a"): Printed(1.0)},
    "TOLERANCE": {"cpu": 1},
    "LEADS": "ProtoNorm",
    "SLACK": {"paper": 0.5},
    "BEST": "row",
}


@pytest.mark.parametrize("more", [{}, {"LEADS": "Local"}, {"LEADS": None}, {"TITLE": "Größe 中"}])
def test_a_good_file_has_no_problems(more):
    assert not list(problems(GOOD | more))


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("TITLE", 3, "TITLE must be a text"),
        ("TITLE", "\ud800", "TITLE must be a text"),
        ("CELLS", ["a"], "CELLS must be a list"),
        ("CELLS", [Cell("ProtoNorm", 3, {})], "CELLS must be a list"),
        ("CELLS", [Cell("ProtoNorm", "a", None)], "CELLS must be a list"),
        ("CELLS", [Cell("ProtoNorm", "a", {"seed": 1})], "has the setting seed"),
        ("CELLS", [Cell("ProtoNorm", "a", {"validation": 0.2})], "leave it out: --protocol gives it"),
        ("CELLS", GOOD["CELLS"] * 2, "2 times"),
        ("CELLS", [Cell("FedProto", "a", {})], "neither in ROWS"),
        ("CELLS", [Cell("ProtoNorm", "c", {})], "not in COLUMNS"),
        ("COLUMNS", "ab", "COLUMNS must be a tuple"),
        ("COLUMNS", (Column("a"), Column("a")), "a column twice"),
        ("ROWS", "ProtoNorm", "ROWS must be a tuple"),
        ("PAPER", {"ProtoNorm": 1.0}, "made by protonorm.reproduction.cells.printed"),
        ("TOLERANCE", 3.0, "TOLERANCE must be a dict"),
        ("TOLERANCE", {"cpo": 3.0}, "TOLERANCE must be a dict"),
        ("SLACK", {"cpu": "1"}, "SLACK must be a dict"),
        ("BEST", "best", "'column' or 'row'"),
        ("LEADS", "FedProto", "neither in ROWS nor in BESIDE"),
        ("draw", 3, "draw must be a function"),
    ],
)
def test_what_is_wrong_is_said(name, value, what):
    assert what in next(problems(GOOD | {name: value}))
