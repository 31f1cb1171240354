"""The API reference is written from docstrings and covers every public name; the site loads nothing from elsewhere."""

import contextlib
import inspect
import io
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import urlsplit

import pytest
from tools import api_pages

import protonorm as pn
from tests.docs.pages import ROOT

NAMES = [name for name in pn.__all__ if name != "__version__"]
CLASSES = [name for name in NAMES if inspect.isclass(getattr(pn, name))]
EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "video": "src"}
INERT = {"canonical", "prev", "next", "edit", "alternate"}  # links of a head that only say where something is


class Page(HTMLParser):
    """What a page of the site names and loads."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.loads = set(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids.add(given.get("id"))
        if tag in LOADED and given.get(LOADED[tag]) and not (tag == "link" and given.get("rel") in INERT):
            self.loads.append(given[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site as `make docs` does, where a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # of the theme's makers, on another program of theirs
    done = subprocess.run(words, cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {path.relative_to(site).as_posix(): Page(path) for path in site.rglob("*.html")}


@pytest.fixture(scope="module")
def entries():
    """Return what the reference has of each name."""
    texts = [path.read_text(encoding="utf-8") for path in api_pages.PAGES]
    return {match["name"]: match[0] for text in texts for match in api_pages.PLACE.finditer(text)}


@pytest.mark.parametrize("path", api_pages.PAGES, ids=lambda path: path.name)
def test_the_reference_is_up_to_date(path):
    page = path.read_text(encoding="utf-8")
    assert api_pages.written(page) == page, "`python -m tools.api_pages` mends it"


def members(kind):
    """Name the public methods, properties and fields that a class has of its own."""
    inherited = {name for base in kind.__mro__[1:] for name in vars(base)}
    fields = set(inspect.get_annotations(kind))
    made = {name for name, one in vars(kind).items() if inspect.isroutine(one) or _is_property(one)}
    overridden = {name for name in fields if name in inherited}  # described where they come from
    return sorted(name for name in made | (fields - overridden) if not name.startswith("_"))


def _is_property(one):
    return isinstance(one, property | classmethod | staticmethod) or type(one).__name__ == "cached_property"


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_on_a_page(name, entries):
    assert f"## {name}\n" in entries[name]


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_member_of_a_class_is_on_a_page(name, entries):
    kind = getattr(pn, name)
    missing = [
        one
        for one in members(kind)
        if not re.search(rf"^ +(?:(?:async )?def {one}\(|{one}: )", entries[name], re.MULTILINE)
        and not _shared(kind, one)
    ]
    assert not missing


def _shared(kind, name):
    """Return whether a method is a function of another class or module, put in by its name: it is described there."""
    found = vars(kind).get(name)
    return inspect.isfunction(found) and not found.__qualname__.startswith(f"{kind.__name__}.")


def test_members_are_found():
    """Some that must be among them: a method, a property, a cached one, a class method, a field."""
    assert {"frame", "clients", "experiment", "run"} <= set(members(pn.Result))
    assert {"of", "rounds", "key"} <= set(members(pn.Experiment))
    assert "lr" in members(pn.Training)
    assert {"gamma", "local_update"} <= set(members(pn.ProtoNorm))
    assert "headline" not in members(pn.ProtoNorm)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_and_method_says_what_it_does(name):
    found = getattr(pn, name)
    if name == "Tensors":
        return  # a type
    assert inspect.getdoc(found)
    for one in members(found) if inspect.isclass(found) else ():
        member = inspect.getattr_static(found, one, None)
        if inspect.isroutine(member) or _is_property(member):
            assert (getattr(member, "__doc__", "") or getattr(member, "__func__", member).__doc__).strip(), one


EXAMPLES = {name: found for name in NAMES if (found := EXAMPLE.findall(inspect.getdoc(getattr(pn, name)) or ""))}


@pytest.mark.parametrize("text", [text for found in EXAMPLES.values() for text in found])
def test_examples_in_docstrings_run(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("protonorm.session.running.cores", lambda: 1)
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(text, "example", "exec"), {"__name__": "example"})


def test_there_are_examples():
    assert {"Experiment", "run", "compare", "align", "Dataset", "split", "Normalise", "Field"} <= EXAMPLES.keys()


def test_no_page_loads_anything_from_elsewhere(pages):
    assert len(pages) > 40
    assert sum(len(page.loads) for page in pages.values()) > 100
    for path, page in pages.items():
        away = [link for link in page.loads if urlsplit(link).netloc or urlsplit(link).scheme not in ("", "data")]
        assert not away, path


def test_styles_load_nothing_from_elsewhere(site):
    """Fonts and pictures that a style sheet names are beside it, or inside."""
    sheets = list(site.rglob("*.css"))
    assert sheets
    for sheet in sheets:
        text = sheet.read_text(encoding="utf-8")
        assert not re.findall(r"url\(\s*[\"']?(?:https?:)?//", text), sheet.name
        assert "@import" not in text, sheet.name
