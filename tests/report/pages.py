"""Pages of made-up records, and what a reader or a browser finds in them."""

import json
import re
from html import unescape
from pathlib import Path

from protonorm.report.page import write_page
from tests.records import hundred, made, record

__all__ = ["data", "made", "page", "record", "runs_of", "words"]


def runs_of(folder: Path, name: str, right, *, validated=None, **settings) -> list:
    """Make a method's runs, a seed for each table of right answers (R, M) of 100 samples a client and round.

    Validation answers are the same if they are not given; `validated=False` stands for no validation part.
    """
    found = []
    for seed, table in enumerate(right):
        part = {} if validated is False else {"validated": table if validated is None else validated[seed]}
        given = {"population": hundred(len(table[0]), 0 if validated is False else 100), "classes": 1} | settings
        place = folder / f"{name}-{len(list(folder.iterdir()))}"
        method = {"name": name}
        found.append(
            made(
                place, method=method, seed=seed, clients=len(table[0]), rounds=len(table), tested=table, **part, **given
            )
        )
    return found


def page(runs, folder: Path) -> str:
    return write_page(runs, folder / "page.html").read_text(encoding="utf-8")


def data(text: str) -> dict:
    """Read the charts' data back, as a browser does."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def words(text: str) -> str:
    """Return the visible text of a page, without style, data and script."""
    body = re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", body)).split())
