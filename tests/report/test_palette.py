"""Colours, markers and dashes of up to twenty methods."""

import re
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest

from protonorm.report.drawing import DARK, DASHES, LIGHT, MARKERS, SLOTS, line_style, style_rules


def test_colours_have_enough_contrast_in_both_modes():
    """WCAG 2: 4.5 for text, 3 for lines and marks, against the surface they are drawn on."""
    style = files("protonorm.report.page").joinpath("assets/page.css").read_text() + style_rules()
    pairs = dict(re.findall(r"--([\w-]+): (light-dark\([^)]*\))", style))
    for mode in (0, 1):
        colour = {name: re.findall("#[0-9a-f]{6}", pair)[mode] for name, pair in pairs.items()}
        for name in ("text", "quiet", "accent", "good", "bad"):
            assert min(contrast(colour[name], colour[strip_prefix]) for strip_prefix in ("surface", "page")) >= 4.5, (
                name
            )
        for name in ("edge", "heat", *(f"s{slot}" for slot in range(SLOTS))):
            assert contrast(colour[name], colour["surface"]) >= 3, name


BLIND = [  # Machado et al., IEEE TVCG 2009: what is seen without red, green or blue cones, in linear RGB
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
]


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(("count", "least"), [(8, 20), (SLOTS, 14)])
def test_colour_blind_readers_can_tell_the_lines_apart(colours, count, least):
    """In CIELAB about 2 is the least difference that is seen side by side; 20 is a plain one."""
    assert SLOTS == len(LIGHT) == len(DARK) == 20
    for eye in (np.eye(3), *BLIND):
        seen = [lab(np.array(eye) @ linear(colour)) for colour in colours[:count]]
        assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) >= least - 0.1


def test_every_slot_has_a_class_in_the_style_sheet():
    rules = style_rules()
    assert f"--s19: light-dark({LIGHT[19]}, {DARK[19]});" in rules
    assert rules.count("light-dark(") == SLOTS
    assert ".s0 { color: var(--s0); }" in rules


def test_the_script_has_as_many_slots_and_markers():
    """Ten forms, full and hollow, and ten kinds of dashes: no two of twenty lines have all in common."""
    script = files("protonorm.report.page").joinpath("assets/draw.js").read_text()
    assert f"const SLOTS = {SLOTS};" in script
    forms = script.split("const forms = [")[1].split("];")[0]
    kinds = [line.strip() for line in forms.strip().splitlines()]
    assert len(kinds) == len(set(kinds)) == 10
    dashes = re.findall(r'"([^"]*)"', re.search(r"const DASHES = \[(.*)\]", script)[1])
    assert len(dashes) == len(set(dashes)) == 10
    styles = [line_style(slot) for slot in range(SLOTS)]
    assert len({style["color"] for style in styles}) == SLOTS
    assert len({(style["marker"], style["markerfacecolor"] == "white") for style in styles}) == SLOTS
    assert len(set(MARKERS)) == len(set(DASHES)) == 10


def lab(colour):
    white = np.array([0.9505, 1, 1.089])
    mixed = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]] @ np.clip(colour, 0, 1)
    x, y, z = (np.cbrt(one) if one > 0.008856 else 7.787 * one + 16 / 116 for one in mixed / white)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour):
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


def linear(colour):
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
