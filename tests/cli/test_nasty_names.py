"""One set of nasty names, in a data set and in folders, driven through every output: text stays text everywhere."""

import csv
import io
import json
import re
import sys
import unicodedata
from html import unescape
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from protonorm.cli import progress
from protonorm.cli.app import app
from protonorm.core.text import visible
from protonorm.runs.run import read_run

CLASSES = [
    "[red]cat",
    "[bold]x[link=x] :smile: [",
    "$x^{2$ and $\\frac$",
    "=cmd|' C calc'!A0",
    "esc\x1b[31m\x1b]0;title\x07",
    "new\nline\r\tend",
    "50 % & #_{x} ~^ \\input{y}",
    "\u202eright to left\u2028",
    "<script>alert(1)<",
    "中文 and é",
    "bytes \udcff",
    "*star* `code` | [a](b)",
    "W" * 200,
]
FOLDER = "my [bold] $data$ \x1b[31m%s\n=x"
METHOD = "_m [red] $a$ 50% \x1b[31m {x} 中.py"
STUDY = """
from protonorm.reproduction.cells import Cell, Column

ROW, COLUMN = "=1+1 [red] $x_{2$ \\x1b[31m | <b>", "50 % & `a`\\n\\\\input{b}"
TITLE = "\\u202eTable # of [x](y) $"
COLUMNS = (Column(COLUMN, "@group\\x07"),)
ROWS = (ROW,)
CELLS = [Cell(ROW, COLUMNS[0].place, {"dataset": {"name": "spiral", "points": 20}, "clients": 2, "rounds": 1,
    "partition": "iid", "batch_size": 8})]


def draw(findings):
    from matplotlib.figure import Figure
    figure = Figure()
    figure.text(0.5, 0.5, "中")
    return {"a [b](c) $": figure}
"""


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """Make the data and run every command once; give what each said and wrote."""
    root = tmp_path_factory.mktemp("nasty")
    data, runs, figures = root / FOLDER, root / f"runs {FOLDER}", root / f"figures {FOLDER}"
    random = np.random.default_rng(0)
    for name in CLASSES:
        (data / name).mkdir(parents=True)
        for number in range(4):
            pixels = random.integers(0, 255, (16, 16), dtype=np.uint8)
            Image.fromarray(pixels).save(data / name / f"{number} [b].png")
    (root / "study [x].py").write_text(STUDY)
    (root / METHOD).write_text("import protonorm as pn\n\n\nclass Mine(pn.Local):\n    pass\n")
    said = {}

    def call(key, *words):
        result = CliRunner().invoke(app, [*words, "--out", str(runs)])
        assert result.exit_code == 0, (key, result.output, result.exception)
        said[key] = result
        return result

    settings = [f"dataset=folder:{data}", "clients=2", "partition=iid", "models=plain", "rounds=1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROTONORM_DATA", str(root / "data"))
        patch.setattr(sys, "argv", ["protonorm", "reproduce", f"a `b` {FOLDER}"])
        serial = ["--engine", "serial"]
        call("run", "run", *settings, *serial, "tracker=tensorboard")
        (folder,) = [path.parent for path in runs.glob("*/experiment.json")]
        for key, option in (("compare", []), ("csv", ["--csv"]), ("json", ["--json"])):
            methods = ["protonorm", f"{root / METHOD}:Mine"]
            call(key, "compare", *methods, *settings, *serial, "--figures", str(figures), *option)
        call("show all", "show")
        call("show", "show", folder.name)
        call("report", "report", str(folder))
        picture = data / CLASSES[0] / "0 [b].png"
        call("predict", "predict", str(folder), str(picture), "--client", "0")
        call("export", "export", str(folder), str(root / f"client {FOLDER}"), "--client", "0")
        call("reproduce", "reproduce", str(root / "study [x].py"), "--to", str(root / f"out {FOLDER}"))
    return SimpleNamespace(said=said, folder=folder, figures=figures, written=root / f"out {FOLDER}", data=data)


def hidden(text):
    """List what cannot be seen, but for line breaks."""
    return [sign for sign in text if unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Zl", "Zp") and sign != "\n"]


def test_no_command_sends_anything_but_text_to_the_terminal(scene):
    for key, result in scene.said.items():
        assert not hidden(result.stdout), key
        assert not hidden(result.stderr), key
        assert "Glyph" not in result.stderr


def test_the_record_keeps_the_names_as_they_are(scene):
    assert read_run(scene.folder).info.classes == sorted(CLASSES)


def test_the_prediction_shows_the_name_of_a_class(scene):
    shown = "".join(scene.said["predict"].stdout.split())
    assert any("".join(visible(name).split())[:20] in shown for name in CLASSES)


def test_paths_are_one_line(scene):
    assert f"Report: {visible(str(scene.folder / 'report.html'))}\n" in scene.said["report"].stdout
    assert visible(FOLDER) in scene.said["export"].stdout
    assert scene.said["export"].stdout.count("\n") == 1


def test_json_holds_the_names_themselves(scene):
    found = json.loads(scene.said["json"].stdout)
    assert found["report"] == str(scene.figures / "report.html")
    assert found["unread"] == []


def is_formula(cell):
    return cell.startswith(("=", "+", "@")) or (cell.startswith("-") and not re.fullmatch(r"-|-[\d.]+", cell))


def test_no_cell_of_a_csv_is_a_formula(scene):
    tables = [scene.said["csv"].stdout, (scene.written / "study [x].csv").read_text(encoding="utf-8")]
    for text in tables:
        lines = list(csv.reader(io.StringIO(text)))
        assert len({len(line) for line in lines}) == 1
        assert not [cell for line in lines for cell in line if is_formula(cell)]
        assert not hidden(text)
    assert f"{visible(METHOD)}:Mine,logits,True," in tables[0]
    assert "'=1+1 [red] $x_{2$ \\x1b[31m | <b>" in tables[1]


def test_latex_has_every_sign_escaped(scene):
    text = (scene.written / "study [x].tex").read_text(encoding="utf-8")
    assert not hidden(text)
    body = re.sub(r"^%.*$", "", text, flags=re.MULTILINE)
    assert r"\input" not in body
    assert r"=1+1 {[}red] \$x\_\{2\$ \textbackslash{}x1b{[}31m $|$ $<$b$>$ & " in body
    plain = re.sub(r"\\[{}%&#_$]", "", body)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0


def test_markdown_has_every_sign_escaped(scene):
    text = (scene.written / "study [x].md").read_text(encoding="utf-8")
    assert not hidden(text)
    assert r"| =1+1 \[red\] \$x\_\{2\$ \\x1b\[31m \| \<b\> |" in text
    assert r"## \\u202eTable \# of \[x\](y) \$" in text
    assert "``protonorm reproduce 'a `b` my [bold] $data$ \\x1b[31m%s =x'``, profile `cpu`" in text
    assert r"![a \[b\](c) \$](a%20%5Bb%5D%28c%29%20%24.png)" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {3, 5}


def test_figures_are_drawn(scene):
    for path in (scene.figures / "accuracy.png", scene.figures / "partition.png", scene.written / "a [b](c) $.png"):
        with Image.open(path) as picture:
            assert picture.width > 300
    assert (scene.written / "a [b](c) $.pdf").read_bytes().startswith(b"%PDF")


def test_the_page_shows_names_as_text(scene):
    text = (scene.folder / "report.html").read_text(encoding="utf-8")
    assert not hidden(text)
    assert "<script>alert" not in text
    held = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert held["populations"][0]["classes"] == [visible(name) for name in sorted(CLASSES)]
    assert "folder:my-bold-data" in unescape(text)


def test_the_page_of_a_comparison_shows_the_name_of_a_method(scene):
    text = (scene.figures / "report.html").read_text(encoding="utf-8")
    assert not hidden(text)
    assert f"{visible(METHOD)}:Mine</" in unescape(text)


def test_tensorboard_has_a_line_for_each_class(scene):
    (path,) = scene.folder.glob("tensorboard/*/prototypes/metadata.tsv")
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    held = read_run(scene.folder).prototypes(1).classes.tolist()
    assert lines == [visible(sorted(CLASSES)[k]) for k in held]


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_shows_names_as_text(monkeypatch, terminal):
    from rich.console import Console

    stream = io.StringIO()
    monkeypatch.setattr(
        progress, "Console", lambda *, stderr, **more: Console(file=stream, force_terminal=terminal, width=200, **more)
    )
    with progress.Display() as display:
        for name in (*CLASSES, FOLDER):
            display.show(f"Reading {name}", 1, 2, name, now=True)
            display.say(name)
    text = re.sub(r"\x1b\[(\?25[lh]|[\d;]*[mAK]|2K)", "", stream.getvalue()).replace("\r", "")  # rich's own
    assert not hidden(text)
    assert "Reading new\\nline\\r\\tend" in text
