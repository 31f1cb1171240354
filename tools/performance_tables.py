"""Write the tables of docs/performance.md, scale.md, security.md and attacks.md from what `protonorm bench` keeps."""

from __future__ import annotations

import re
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

from protonorm.files import read_json

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "docs" / name for name in ("performance.md", "scale.md", "security.md", "attacks.md")]
RESULTS = ROOT / "benchmarks" / "results"
PLACE = re.compile(r"(<!-- (?P<name>\w+?)(?P<short>_summary)? -->\n).*?(<!-- end -->)", re.DOTALL)


def written(page: str, results: Path = RESULTS) -> str:
    """Write every table between its marks, where there is a result."""

    def fill(match: re.Match[str]) -> str:
        path = results / f"{match['name']}.json"
        text = part(match["name"], path, "summary" if match["short"] else "table") if path.is_file() else ""
        return f"{match[1]}\n{text}\n{match[4]}" if text else match[0]

    return PLACE.sub(fill, page)


def part(name: str, path: Path, kind: str) -> str:
    """Write one table, whole or in short, and where and how it was measured."""
    result = read_json(path)
    head, *rows = getattr(import_module(f"benchmarks.{name}"), kind)(result)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join([*("| " + " | ".join(line) + " |" for line in lines), "", origin(result)]) + "\n"


def origin(result: dict[str, Any]) -> str:
    """Describe where numbers come from."""
    text, machine = f"`{result['command']}`", result.get("machine")
    if machine:
        versions = f"Python {machine['python']}, torch {machine['torch']}, numpy {machine['numpy']}"
        text += f" on {machine['processor']}, {machine['cores']} cores, {machine['system']}; {versions}"
    commits = Counter(case["commit"] for case in result.get("cases", []) if "commit" in case)
    text += "".join(f"; {count} cases at commit {commit[:12]}" for commit, count in commits.items())
    return f"{text}. {result.get('note', '')}".strip()


def main() -> None:
    """Bring the pages up to date."""
    sys.path.insert(0, str(ROOT))
    for page in PAGES:
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
