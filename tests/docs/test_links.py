"""No link is dead: files, and headings on them, are where links point to; and the site can be built."""

import re
from functools import cache
from urllib.parse import unquote, urlsplit

import markdown
import pytest
import yaml

from tests.docs.pages import CODE, ROOT, pages, prose, read

LINK = re.compile(
    r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\[[^\]]+\]:\s*(\S+)|(?:href|src)=\"([^\"]+)\"", re.MULTILINE
)
SITE = "docs/"  # pages of the site: a link from them must stay there


def links(page):
    text = CODE.sub("", prose(page))
    return ["".join(found) for found in LINK.findall(text)]


@cache
def anchors(page):
    """Name the headings of a page as the site does."""
    settings = yaml.safe_load(read("mkdocs.yml"))["markdown_extensions"]
    extensions = [next(iter(one)) if isinstance(one, dict) else one for one in settings]
    html = markdown.markdown(read(page), extensions=extensions)
    return set(re.findall(r'id="([^"]+)"', html))


def on_github(page):
    """Name them as GitHub does, where the pages are read too."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", pages())
def test_every_link_leads_somewhere(page):
    for link in links(page):
        parts = urlsplit(link)
        if parts.scheme:
            assert parts.scheme in ("https", "mailto"), f"{page}: {link}"
            continue
        target = (ROOT / page).parent / unquote(parts.path) if parts.path else ROOT / page
        assert target.exists(), f"{page}: {link} leads nowhere"
        inside = target.resolve().relative_to(ROOT).as_posix()
        assert not page.startswith(SITE) or inside.startswith(SITE), f"{page}: {link} leads out of the site"
        if parts.fragment and target.suffix == ".md":
            assert parts.fragment in anchors(inside), f"{page}: {link}: no such heading; there are {anchors(inside)}"
            assert parts.fragment in on_github(inside), f"{page}: {link}: GitHub names that heading otherwise"


def test_links_are_found():
    """Those of the README lead to most pages of the site."""
    found = {urlsplit(link).path for link in links("README.md")}
    assert len(found) > 15
    assert "docs/images/spiral.png" in found


def test_every_page_of_the_site_is_in_its_table_of_contents():
    listed = set(re.findall(r"[\w/-]+\.md", read("mkdocs.yml").partition("nav:")[2]))
    assert listed == {page.removeprefix(SITE) for page in pages() if page.startswith(SITE)}
