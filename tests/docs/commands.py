"""Commands that pages print: their words, the options that there are, and how a comment makes them smaller."""

import re
import shlex
import tomllib

import typer

from protonorm.cli.app import app
from protonorm.cli.options import TAKE_SETTINGS
from tests.docs.pages import ROOT

PROTONORM = typer.main.get_command(app)
SHELL = re.compile(r"[|<>;&$`]|^\w+=\S+ ")  # what only a shell understands
EXTRA = re.compile(r"protonorm\[([\w,]+)\]|\.\[([\w,]+)\]")


def lines(text):
    """Split a block into commands; a backslash at the end of a line joins it with the next."""
    joined = text.replace("\\\n", " ").splitlines()
    return [line.strip() for line in joined if line.strip() and not line.lstrip().startswith("#")]


def words(line):
    """Split a command as a shell does; what follows # is for the reader."""
    return shlex.split(line, comments=True)


def needs_shell(line):
    bare = re.sub(r"'[^']*'|\"[^\"]*\"|#.*", "", line)
    return bool(SHELL.search(bare))


def targets():
    """Name what `make` makes."""
    return set(re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def recipe(target):
    """Return the words of the command of protonorm that `make` runs for a target."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = re.findall(rf"^{target}:.*\n\t\$\(BIN\)/(protonorm .*)$", text, re.MULTILINE)
    return words(line)


def extras():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return set(settings["project"]["optional-dependencies"])


def command(given):
    """Find the subcommand that words of `protonorm` name, and the words that are left."""
    found, rest = PROTONORM, list(given)
    while rest and hasattr(found, "commands") and not rest[0].startswith("-"):
        assert rest[0] in found.commands, f"protonorm has no command {rest[0]!r}"
        found = found.commands[rest.pop(0)]
    return found, rest


def options(found):
    """Name the options of a command, with whether each takes a value."""
    named = {"--help": False}
    for one in found.params:
        if one.param_type_name == "option":
            named |= dict.fromkeys([*one.opts, *one.secondary_opts], not one.is_flag)
    return named


def check_options(given):
    """Refuse options that the subcommand does not have."""
    found, rest = command(given)
    for word in rest:
        name = word.partition("=")[0]
        if name.startswith("-") and name != "-":
            assert name in options(found), f"protonorm {found.name} has no option {name}"


def check_words(given):
    """Check what can be checked of a command that is not run: subcommands, options, targets and extras."""
    if given[0] == "protonorm":
        check_options(given[1:])
    elif given[0] == "make":
        assert set(given[1:]) <= targets(), f"make has no {given[1:]}"
    elif "pip" in given[:3]:
        named = {name for word in given for pair in EXTRA.findall(word) for name in "".join(pair).split(",")}
        assert named <= extras(), f"there is no extra {named - extras()}"


def files(given):
    """Name the files that a command which is not run takes from the repository."""
    if given[0] == "python" and given[1].endswith(".py"):
        return [given[1]]
    if "pip" in given[:3] or given[0] == "pip-compile":
        return [given[n + 1] for n, word in enumerate(given[:-1]) if word in ("-c", "-r", "--constraint")]
    return []


class Smaller:
    """The changes that a comment makes to the commands of a block; each must be of use."""

    def __init__(self, text):
        self.changes, left = [], words(text)
        while left:
            word = left.pop(0)
            takes = word.startswith("--") and left and not left[0].startswith("--") and "=" not in left[0]
            self.changes.append([word, left.pop(0)] if takes else [word])
        self.unused = list(self.changes)

    def __call__(self, given):
        """Change the words of a command where a change fits."""
        if given[0] != "protonorm":
            return given
        found, _ = command(given[1:])
        for change in self.changes:
            name = change[0]
            fits = name in options(found) if name.startswith("--") else found.name in TAKE_SETTINGS and "=" in name
            changed = _replaced(given, change) if fits else given
            if changed != given and change in self.unused:
                self.unused.remove(change)
            given = changed
        return given


def _replaced(given, change):
    """Replace a printed setting or option, or append it."""
    name = change[0]
    key = name if name.startswith("--") else name.partition("=")[0] + "="
    at = next((n for n, word in enumerate(given) if (word == key if key == name else word.startswith(key))), None)
    if at is None:
        return [*given, *change]
    return [*given[:at], *change, *given[at + len(change) :]]
