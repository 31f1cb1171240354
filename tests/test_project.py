"""What stands around the package: pages for people, workflows, the wheel, the notebook."""

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path
from urllib.parse import unquote

import nbformat
import numpy as np
import pytest
import torch
import yaml
from nbclient import NotebookClient

import protonorm
from protonorm.algorithms import ALGORITHMS
from protonorm.algorithms.parts.prototypes import class_means
from protonorm.session.build import build
from tests.support import FROZEN, Given, pictures, spiral

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md", "docs/scope.md")
WORKFLOWS = ("test", "publish")
CHECKED = {
    "vendor.github-workflows": [f".github/workflows/{name}.yml" for name in WORKFLOWS],
    "vendor.github-issue-forms": [f".github/ISSUE_TEMPLATE/{name}.yml" for name in ("bug", "idea", "numbers")],
    "vendor.github-issue-config": [".github/ISSUE_TEMPLATE/config.yml"],
    "vendor.citation-file-format": ["CITATION.cff"],
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


class Careful(yaml.SafeLoader):
    """A reader that refuses a key that is there twice; the usual one keeps the last."""


def _mapping(loader, node):
    keys = [loader.construct_object(key) for key, _ in node.value]
    assert len(keys) == len(set(keys)), f"a key is there twice: {keys}"
    return dict(zip(keys, (loader.construct_object(value, deep=True) for _, value in node.value), strict=True))


Careful.add_constructor("tag:yaml.org,2002:map", _mapping)


def importers():
    """Map each module of the package to those that import it, in a statement or in a line of a table."""
    source, found = ROOT / "src", {}
    files = {".".join(path.relative_to(source).with_suffix("").parts): path for path in source.rglob("*.py")}
    for name, path in files.items():
        named = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                named |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                named.add(node.value.partition(":")[0])
        for other in named & files.keys() - {name}:
            found.setdefault(other, set()).add(name)
    return found


def test_few_modules_have_a_single_importer_in_their_own_package():
    """Such a module is a part of the one that imports it; a file is a topic, not a function."""
    loose = {}
    for module, users in importers().items():
        package = module.rpartition(".")[0]
        if len(users) == 1 and next(iter(users)).startswith(f"{package}."):
            loose.setdefault(package, []).append(module)
    assert max(map(len, loose.values()), default=0) <= 6, loose


OTHER_WORDS = {"Give", "Say", "Tell", "Let", "Hear", "Put"}  # begin no docstring: Return, Raise, Check, Build, … do


def test_docstrings_begin_with_the_verbs_of_the_field():
    found = []
    folders = ("src", "experiments", "benchmarks", "tools", "tests", "examples")
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
            text = ast.get_docstring(node) if isinstance(node, kinds) else None
            if text and text.split()[0] in OTHER_WORDS:
                found.append(f"{path.relative_to(ROOT)}: {text.splitlines()[0]}")
    assert not found


def test_the_package_has_a_bounded_size():
    files = list((ROOT / "src").rglob("*.py"))
    assert len(files) <= 270
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= 43_000


TRACE = """
import sys, threading

files = set()


def note(frame, event, argument):
    if event == "call" and "/src/protonorm/" in frame.f_code.co_filename:
        files.add(frame.f_code.co_filename)


threading.setprofile(note)
sys.setprofile(note)
sys.argv = ["protonorm", *sys.argv[1:]]
from protonorm.cli.app import main

try:
    main()
finally:
    sys.setprofile(None)
    print(len(files), file=sys.stderr)
"""


@pytest.mark.parametrize(("words", "most"), [(["run"], 110), (["compare", "protonorm", "fedproto"], 130)])
def test_a_command_crosses_few_files(tmp_path, words, most):
    """All files of ours whose code runs count, from the command line to the record, imports included."""
    settings = ["dataset=fashion", "dataset.samples=100", "models=plain", "feature_dim=8", "clients=4", "rounds=2"]
    command = [sys.executable, "-c", TRACE, *words, *settings, "--engine", "serial", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 50 < int(done.stderr.split()[-1]) <= most


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def load(path):
    return yaml.load(read(path), Careful)


def jobs():
    """Return every job that has steps of its own, with the name of its workflow."""
    found = [(name, job) for name in WORKFLOWS for job in load(f".github/workflows/{name}.yml")["jobs"].values()]
    return [(name, job) for name, job in found if "steps" in job]


def steps():
    return [step for _, job in jobs() for step in job["steps"]]


@pytest.mark.parametrize("page", PAGES)
def test_links_of_the_pages_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", read(page))
    inside = [link for link in links if not re.match(r"https?://", link)]
    assert links or page == "CODE_OF_CONDUCT.md"
    for link in inside:
        assert (ROOT / page).parent.joinpath(unquote(link)).exists(), link


@pytest.mark.parametrize("schema", CHECKED)
def test_files_for_github_and_for_citing_have_the_published_form(schema):
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *CHECKED[schema]]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_files_for_github_are_among_those_that_are_checked():
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / ".github").rglob("*.yml")}
    assert there | {"CITATION.cff"} == {file for files in CHECKED.values() for file in files}


def test_the_citation_names_software_and_paper():
    """The paper's title and authors are those on its first page."""
    citation = load("CITATION.cff")
    assert citation["license"] == PROJECT["license"]
    assert citation["keywords"] == PROJECT["keywords"]
    (paper,) = citation["references"]
    assert paper["title"] == "Heterogeneous Federated Learning with Prototype Alignment and Upscaling"
    assert [one["family-names"] for one in paper["authors"]] == ["Lee", "Shin", "Choi"]
    assert paper["year"] == 2025


def test_workflows_test_the_supported_pythons_on_three_systems():
    named = [line.rpartition(" :: ")[2] for line in PROJECT["classifiers"] if " :: Python :: 3." in line]
    (test,) = [job for name, job in jobs() if name == "test" and "strategy" in job]
    assert test["strategy"]["matrix"]["python"] == named
    assert PROJECT["requires-python"] == f">={named[0]}"
    assert {one.partition("-")[0] for one in test["strategy"]["matrix"]["os"]} == {"ubuntu", "macos", "windows"}
    assert test["runs-on"] == "${{ matrix.os }}"


def test_workflows_may_only_read_but_for_the_one_that_publishes():
    for name in WORKFLOWS:
        assert load(f".github/workflows/{name}.yml")["permissions"] == {"contents": "read"}
    assert [(name, job["permissions"]) for name, job in jobs() if "permissions" in job] == [
        ("publish", {"id-token": "write"})
    ]


def test_publishing_begins_with_a_tag_and_ends_after_the_tests():
    workflow = load(".github/workflows/publish.yml")
    assert workflow[True] == {"push": {"tags": ["v[0-9]+.[0-9]+.[0-9]+*"]}}  # YAML 1.1 reads `on` as true
    assert set(workflow["jobs"]["publish"]["needs"]) == {"test", "build"}
    assert "workflow_call" in load(".github/workflows/test.yml")[True]


def test_steps_of_workflows_are_sound():
    """One thing each, actions with a version, no secrets, and no text of others pasted into a shell."""
    for step in steps():
        assert ("uses" in step) != ("run" in step)
        assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", step.get("uses", "a/b@v1"))
        assert "${{" not in step.get("run", "")
        assert "secrets." not in str(step)
    assert all(job["timeout-minutes"] <= 60 for _, job in jobs())


def test_commands_of_workflows_and_of_the_guide_exist():
    targets = set(re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE))
    said = "\n".join(step.get("run", "") for step in steps())
    called = set(re.findall(r"^make ([\w-]+)", said, re.MULTILINE))
    assert called == {"install", "lint", "types", "layers", "docs", "test"}
    assert called | set(re.findall(r"`?make ([\w-]+)(?:`|  )", read("CONTRIBUTING.md"))) <= targets
    for line in ("python -m pip install -c constraints.txt torch", 'install -c constraints.txt -e ".[dev]"'):
        assert line in said
        assert line in read("CONTRIBUTING.md")


def test_hooks_are_those_of_the_environment():
    (repository,) = load(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    assert {hook["id"]: hook["language"] for hook in repository["hooks"]} == dict.fromkeys(
        ("ruff", "ruff-format", "mypy"), "system"
    )


def test_the_image_is_built_of_what_is_let_in_and_runs_as_nobody_special():
    lines = [line for line in read("Dockerfile").splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if line.startswith("USER")] == ["USER 1000"]
    assert 'ENTRYPOINT ["protonorm"]' in lines
    _, everything, *let_in = read(".dockerignore").splitlines()
    assert everything == "*"
    assert let_in.pop() == "**/__pycache__"
    needed = {"LICENSE", "README.md", "benchmarks", "constraints.txt", "experiments", "pyproject.toml", "src"}
    assert {line.removeprefix("!") for line in let_in} == needed
    assert all((ROOT / name).exists() for name in needed)


def test_the_changelog_begins_with_what_is_not_released():
    headings = re.findall(r"^## (.+)$", read("CHANGELOG.md"), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", heading) for heading in headings[1:])


def build_wheel(out, **variables):
    """Build a wheel with the tools of this environment; give its names, and its metadata."""
    words = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(words, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        (about,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        return names, Parser().parsestr(wheel.read(about).decode())


def test_the_wheel_has_all_of_the_package_and_no_tests(tmp_path):
    names, about = build_wheel(tmp_path, SETUPTOOLS_SCM_PRETEND_VERSION="7.8.9")
    assert about["Version"] == "7.8.9"  # the version is not written down in the sources
    package = ROOT / "src" / "protonorm"
    wanted = {
        f"protonorm/{path.relative_to(package).as_posix()}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "protonorm/py.typed" in wanted
    assert wanted <= set(names)
    rest = {name for name in names if name not in wanted}
    assert {name.split("/")[1] for name in rest if name.startswith("protonorm/")} == {"benchmarks", "experiments"}
    assert {name.split("/")[0] for name in rest} == {"protonorm", "protonorm-7.8.9.dist-info"}
    assert not [name for name in names if "test" in name.rpartition("/")[2]]


def test_the_version_is_that_of_the_installation(monkeypatch):
    asked = []
    monkeypatch.setattr("importlib.metadata.version", lambda name: asked.append(name) or "3.2.1")
    assert protonorm.__version__ == "3.2.1"
    assert asked == ["protonorm"]


def test_sources_that_are_not_installed_have_no_version(monkeypatch):
    monkeypatch.setattr("importlib.metadata.Distribution.discover", lambda **_: iter(()))
    assert protonorm.__version__ == "0+unknown"


def test_the_page_of_the_scope_says_what_each_method_sends():
    told = {}
    for methods, said in re.findall(r"^\| ([a-z0-9, ]+) \| (`.*?|nothing) \|", read("docs/scope.md"), re.MULTILINE):
        told |= {name: set(re.findall(r"`(\w+)`", said)) for name in methods.split(", ")}
    assert told.keys() == ALGORITHMS.keys()
    for name, said in told.items():
        task, _ = build(spiral(**{"algorithm": name} | ({} if name in FROZEN else {"models": "mlp"})))
        sent = {field.partition(".")[0] for slot in task.algorithm.schema(task).up for form in slot for field in form}
        assert sent == said, name


def test_a_class_with_one_picture_sends_that_pictures_features():
    """As the page of the scope warns: the mean of one vector is that vector; of two it is their midpoint."""
    data = pictures([0, 1, 1, 1, 2, 2, 2, 2] * 2, 3)
    halves = Given([list(range(8)), list(range(8, 16))])
    _, population = build(spiral(dataset=data, partition=halves, models="light", clients=2, validation=0))
    client = population.site(0).client(1)
    model = client.model.eval()
    with torch.no_grad():
        batches = [(model.features(x), y) for x, y in client.train.sweep()]
    features, labels = (torch.cat(part) for part in zip(*batches, strict=True))  # (6, d), (6,)
    assert labels.bincount().tolist() == [1, 2, 3]  # eight pictures without the two that are tested on
    said = class_means(client, model)
    assert said["classes"].tolist() == [0, 1, 2]
    torch.testing.assert_close(said["prototypes"][0], features[labels == 0][0])
    first, second = features[labels == 1]
    torch.testing.assert_close(said["prototypes"][1], first + (second - first) / 2)


def test_the_notebook_of_first_steps_runs(tmp_path):
    notebook = nbformat.read(ROOT / "examples" / "first_steps.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)  # outputs of another day are not kept
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert len(list((tmp_path / "runs").iterdir())) == 2
    printed = "".join(output.text for cell in code for output in cell.outputs if output.output_type == "stream")
    shares = {name: float(share) for name, share in re.findall(r"^(\w[\w, -]*?) +([\d.]+) %$", printed, re.MULTILINE)}
    own = tuple(f"protonorm, {rule}" for rule in ("nearest-global", "nearest-local", "logits", "joint"))
    rules = (*own, "local, logits", "majority")
    assert tuple(shares) == rules
    assert np.isfinite(list(shares.values())).all()
    drawn = [output for cell in code for output in cell.outputs if "image/png" in output.get("data", {})]
    assert len(drawn) == 3
