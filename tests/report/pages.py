"""Pages of made-up records, and what a reader or a browser finds in them."""

import json
import re
from html import unescape
from pathlib import Path

from protonorm.report.page import write_page
from tests.records import made, record

__all__ = ["data", "made", "page", "record", "words"]


def page(runs, folder: Path) -> str:
    return write_page(runs, folder / "page.html").read_text(encoding="utf-8")


def data(text: str) -> dict:
    """Read the charts' data back, as a browser does."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def words(text: str) -> str:
    """Give what a reader reads, without style, data and script."""
    body = re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", body)).split())
