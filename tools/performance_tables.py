"""Write the tables of docs/performance.md, scale.md and security.md from the results that `protonorm bench` keeps."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from protonorm.files import read_json

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "docs" / name for name in ("performance.md", "scale.md", "security.md")]
RESULTS = ROOT / "benchmarks" / "results"
PLACE = re.compile(r"(<!-- (?P<name>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def written(page: str, results: Path = RESULTS) -> str:
    """Write every table between its marks, where there is a result."""

    def fill(match: re.Match[str]) -> str:
        path = results / f"{match['name']}.json"
        return f"{match[1]}\n{part(match['name'], path)}\n{match[3]}" if path.is_file() else match[0]

    return PLACE.sub(fill, page)


def part(name: str, path: Path) -> str:
    """Write one table, and where and how it was measured."""
    result = read_json(path)
    head, *rows = import_module(f"benchmarks.{name}").table(result)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join([*("| " + " | ".join(line) + " |" for line in lines), "", origin(result)]) + "\n"


def origin(result: dict[str, Any]) -> str:
    """Describe where numbers come from."""
    text, machine = f"`{result['command']}`", result.get("machine")
    if machine:
        versions = f"Python {machine['python']}, torch {machine['torch']}, numpy {machine['numpy']}"
        text += f" on {machine['processor']}, {machine['cores']} cores, {machine['system']}; {versions}"
    return f"{text}. {result.get('note', '')}".strip()


def main() -> None:
    """Bring the pages up to date."""
    sys.path.insert(0, str(ROOT))
    for page in PAGES:
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
