"""What sentences name in `code` is there: commands and options, settings, targets of make, extras, files, functions."""

import importlib
import re
from functools import cache
from typing import get_args, get_type_hints

import pytest

import protonorm as pn
from protonorm.config.experiment import Experiment
from protonorm.config.kinds import COMPONENTS, KINDS
from protonorm.core.training import OUTGOING, LrSchedule
from protonorm.deployment.agreement import Agreement
from tests.docs import commands
from tests.docs.pages import ROOT, blocks, inline_code, pages

FOLDERS = "benchmarks|docs|examples|experiments|src|tests|tools"
PLACE = re.compile(rf"({FOLDERS})/[\w./-]*")
SETTING = re.compile(r"([a-z_]+(?:\.[a-z_]+)*)=(?![\"'A-Z])\S+")  # a value in quotes, or True, is Python's
WORDS = {"key", "seeds", "methods", "tracker"}  # beside the settings of an experiment
OTHERS = {"--only-a", "--only-b"}  # options of benchmarks/versions.py


@cache
def names():
    """All settings there are, those of methods and data sets among them."""
    found, left = {*Experiment.model_fields, *Agreement.model_fields, *COMPONENTS, *WORDS}, [LrSchedule]
    left += [entry.load() for entry in OUTGOING.values()]
    left += [entry.load() for kind in COMPONENTS for entry in KINDS[kind].table().values()]
    while left:
        one = left.pop()
        found |= set(getattr(one, "__dataclass_fields__", ()))
        inner = get_type_hints(one).values() if hasattr(one, "__dataclass_fields__") else get_args(one)
        left += [kind for kind in inner if get_args(kind) or hasattr(kind, "__dataclass_fields__")]
    return found


def all_options():
    known = [commands.PROTONORM, *commands.PROTONORM.commands.values()]
    known += [one for group in known[1:] for one in getattr(group, "commands", {}).values()]
    return {name for one in known for name in commands.options(one)} | OTHERS


@pytest.mark.parametrize("page", pages())
def test_commands_in_sentences_exist(page):
    """An option may also be one that a block of the page gives to another program."""
    printed = {word for block in blocks(page) for word in block.text.split() if word.startswith("--")}
    for code in inline_code(page):
        words = code.replace("…", " … ").split()
        if words[0] in ("protonorm", "make", "pip") and len(words) > 1 and words[1][0] != "(":
            commands.check_words(words)
        elif words[0].startswith("--"):
            assert words[0] in all_options() | printed, f"{page}: nothing has the option {code}"


@pytest.mark.parametrize("page", pages())
def test_files_in_sentences_exist(page):
    for code in inline_code(page):
        if PLACE.fullmatch(code):
            assert (ROOT / code).exists(), f"{page}: there is no {code}"


@pytest.mark.parametrize("page", pages())
def test_functions_in_sentences_exist(page):
    for code in inline_code(page):
        for path in re.findall(r"\bpn((?:\.\w+)+)", code):
            found = pn
            for name in path.strip(".").split("."):
                assert hasattr(found, name), f"{page}: {code}"
                found = getattr(found, name)
        if re.fullmatch(r"protonorm(\.\w+)+", code) and code != "protonorm.gamma":
            importable(code, page)


def importable(code, page):
    """Find a module, or a name in one."""
    try:
        importlib.import_module(code)
    except ModuleNotFoundError:
        module, _, name = code.rpartition(".")
        assert hasattr(importlib.import_module(module), name), f"{page}: there is no {code}"


@pytest.mark.parametrize("page", pages())
def test_settings_in_sentences_exist(page):
    known = names()
    for code in inline_code(page):
        if all(SETTING.fullmatch(word) for word in code.split()):
            for key in re.findall(r"(?:^| )([a-z_.]+)=", code):
                assert set(key.split(".")) - {"protonorm"} <= known, f"{page}: there is no setting {key}"
