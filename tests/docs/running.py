"""A page is run as a reader would do it: block after block, in one folder that is empty at first."""

import ast
import contextlib
import glob
import io
import os
import re
import shlex
import subprocess
import sys
import types
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
from typer.testing import CliRunner

from protonorm.cli.app import app
from tests.docs import commands, materials, outputs
from tests.docs.pages import RUN, blocks

UNGUARDED = ("README.md", "docs/tutorial.md")  # their scripts have no `if __name__ == "__main__"`, and start workers
SHELL_COMMANDS = ("cat", "cp", "head", "ls", "mkdir", "mv", "rm", "tail", "unzip", "zip")
NUMBER = re.compile(r"\d+(?:\.\d+)?")
BEGINS = re.compile(r"^import protonorm as pn$", re.MULTILINE)  # a block with this line stands alone


class Reader:
    """Somebody who types what a page prints; all runs are done in this process, as if it had one core."""

    def __init__(self, page, folder, monkeypatch):
        self.page, self.folder, self.patch = page, folder, monkeypatch
        self.made, self.main, self.script, self.printed, self.last = {}, None, [], "", None
        monkeypatch.delenv("PROTONORM_RUNS")
        monkeypatch.setattr("protonorm.session.running.cores", lambda: 1)
        monkeypatch.setattr("protonorm.search.sweeping.cores", lambda: 1)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.chdir(folder)

    def read(self, found):
        """Do what the blocks say, in order; files that no block speaks of are a mistake."""
        for block in found:
            self.made |= {materials.make(text, self.folder): block.place for text in block.note("files")}
            for line in block.note("before"):
                self.obey(commands.words(line))
            before = len(self.printed)
            self.do(block)
            if block.kind in RUN and not block.title:
                self.last = block, self.printed[before:]
            self.made = {name: place for name, place in self.made.items() if name not in block.text}
        assert not self.made, f"files that are not used: {self.made}"

    def do(self, block):
        """Write a file, or run the commands or the script of a block."""
        if block.title:
            assert not block.note("test"), f"{block.place}: a file is written as it is printed"
            path = self.folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.kind == "bash":
            self.type(block)
        elif block.kind == "python":
            self.execute(block)
        else:
            assert not block.note("test"), f"{block.place}: only {RUN} are run, not {block.kind!r}"
            if block.kind == "text" and not block.note("from"):
                self.hear(block)

    def hear(self, block):
        """Compare what stands on the page with what the block before it printed."""
        source, printed = self.last
        assert not source.note("test"), f"{block.place}: the output of a block that is run smaller is none for a page"
        found = outputs.differences(block.text, printed)
        assert not found, f"{block.place} is out of date; `python -m tools.docs_outputs --write` mends it\n{found}"

    def type(self, block):
        """Run each line of a block of commands."""
        smaller = commands.Smaller(" ".join(block.note("test")))
        for line in commands.lines(block.text):
            try:
                if commands.needs_shell(line):
                    assert not smaller.changes, "what needs a shell is run as it is printed"
                    self.printed += self.call(["bash", "-ec", line])
                else:
                    self.obey(smaller(commands.words(line)))
            except Exception as error:
                raise AssertionError(f"{block.place}: {line}\n{error}") from error
        assert not smaller.unused, f"{block.place}: of the comment these change nothing: {smaller.unused}"

    def obey(self, words):
        """Run one command."""
        words = [name for word in words for name in (sorted(glob.glob(word)) or [word])]
        if words[0] == "protonorm":
            with warnings.catch_warnings():
                warnings.simplefilter("default", UserWarning)  # is told on the error stream, as anywhere
                done = CliRunner().invoke(app, words[1:])
            assert done.exit_code == 0, f"{shlex.join(words)}\n{done.output}\n{done.exception!r}"
            self.printed += done.stdout
        elif words[0] == "make":
            commands.check_words(words)
            if words == ["make", "run"]:
                self.obey(commands.recipe("run"))
        elif words[0] == "cd":
            self.patch.chdir(words[1])
        elif words[0] == "python" and words[1].endswith(".py"):
            self.printed += self.call([sys.executable, *words[1:]])
        else:
            assert words[0] in SHELL_COMMANDS, f"{words[0]} is not run by tests: make it a block of kind sh"
            self.printed += self.call(words)

    def call(self, words):
        """Run a command in a process of its own, as one who has activated the environment."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            words, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def execute(self, block):
        """Run a script: as a process of its own where the page promises that this works, else here."""
        text = block.text
        for change in block.note("test"):
            old, arrow, new = change.partition(" -> ")
            assert arrow, f"{block.place}: {change!r} is not OLD -> NEW"
            text, found = re.subn(rf"(?<!\w){re.escape(old)}(?!\w)", lambda _, new=new: new, text)
            assert found == 1, f"{block.place}: {change!r} is not of something in it, once"
        try:
            if self.page in UNGUARDED:
                (self.folder / "script.py").write_text(text, encoding="utf-8")
                printed = self.call([sys.executable, "script.py"])
            else:
                printed = self.exec(text, block.line)
        except Exception as error:
            raise AssertionError(f"{block.place}: {type(error).__name__}: {error}") from error
        self.printed += printed
        for said in remarks(block.text):
            found = any(alike(said, line) for line in printed.splitlines())
            assert found, f"{block.place} says {said!r}; printed is\n{printed}"

    def exec(self, text, line):
        """Run a script here. Its lines have the numbers that they have on the page; what goes on, knows what was."""
        if BEGINS.search(text) or self.main is None:
            self.main, self.script = types.ModuleType("__main__"), []
        self.script += [""] * (line - len(self.script)) + text.splitlines()
        path = self.folder / f"{Path(self.page).stem}_page.py"
        path.write_text("\n".join(self.script) + "\n", encoding="utf-8")  # from where `inspect` takes sources
        self.main.__file__ = str(path)
        self.patch.setitem(sys.modules, "__main__", self.main)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile("\n" * line + text, str(path), "exec"), self.main.__dict__)
        return printed.getvalue()

    def leave(self):
        """Forget the page's own modules, so that another page may have others of the same names, and its figures."""
        plt.close("all")
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if name != "__main__" and file and Path(file).is_relative_to(self.folder):
                del sys.modules[name]


def remarks(text):
    """Return the lines that a script says it prints: comments below its last line, or behind print(error)."""
    lines = text.rstrip().splitlines()
    last = max((node.end_lineno for node in ast.parse(text).body), default=0)
    below = [line.removeprefix("# ") for line in lines[last:] if line.startswith("# ")]
    return below + [line.partition("  # ")[2] for line in lines if line.lstrip().startswith("print(error)  # ")]


def alike(said, printed):
    """Return whether two lines have the same words, and numbers that differ by what another processor may change."""
    if NUMBER.sub("0", said) != NUMBER.sub("0", printed):
        return False
    pairs = zip(NUMBER.findall(said), NUMBER.findall(printed), strict=True)
    return all(abs(float(a) - float(b)) <= 0.02 * abs(float(a)) for a, b in pairs)


def run_page(page, folder, monkeypatch):
    """Run all blocks of a page; give what was printed."""
    return run_blocks(page, blocks(page), folder, monkeypatch)


def run_blocks(page, found, folder, monkeypatch):
    reader = Reader(page, folder, monkeypatch)
    try:
        reader.read(found)
    finally:
        reader.leave()
    return reader.printed
