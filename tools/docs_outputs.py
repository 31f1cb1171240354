"""Run what the pages print, and compare what comes out with the outputs on them; --write puts it there.

    python -m tools.docs_outputs                     all pages with outputs: says what differs; then the exit code is 1
    python -m tools.docs_outputs --write README.md

A block of kind `text` is what the nearest block above it prints that is run, unless a comment `<!-- from: … -->` says
what else it is; a line with nothing but … stands for lines that are left out (`tests/docs/outputs.py`). A page is run
as in its test, block after block in an empty folder, with one core.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from tests.docs import outputs
from tests.docs.pages import ROOT, Block, blocks, pages
from tests.docs.running import Reader


class Listener(Reader):
    """A reader who notes what each output should be, and goes on."""

    def hear(self, block: Block) -> None:
        """Note what the block before this one printed."""
        self.heard[block] = self.last[1]


def listen(page: str) -> dict[Block, str]:
    """Run a page, and give what belongs into each block of outputs."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROTONORM_RUNS", "unused")
        patch.setenv("PROTONORM_DATA", str(Path(folder) / "data"))
        patch.setenv("MPLBACKEND", "Agg")
        reader = Listener(page, Path(folder), patch)
        reader.heard = {}
        try:
            reader.read(blocks(page))
        finally:
            reader.leave()
    return reader.heard


def written(text: str, heard: dict[Block, str]) -> str:
    """Replace the outputs in the text of a page, the last one first, so that line numbers stay true."""
    lines = text.splitlines(keepends=True)
    for block, output in sorted(heard.items(), key=lambda pair: -pair[0].line):
        end = block.line + block.text.count("\n")  # lines count from 1, and the fence is one
        lines[block.line : end] = outputs.refreshed(block.text, output).splitlines(keepends=True)
    return "".join(lines)


def has_outputs(page: str) -> bool:
    """Return whether a page shows what something prints."""
    return any(block.kind == "text" and not block.note("from") for block in blocks(page))


def main() -> int:
    """Go through the pages."""
    parser = argparse.ArgumentParser(description="Compare the outputs on the pages with what is printed now.")
    parser.add_argument("pages", nargs="*", help="such as README.md and docs/tutorial.md; all that have outputs")
    parser.add_argument("--write", action="store_true", help="put what is printed now on the pages")
    arguments = parser.parse_args()
    stale = 0
    for page in arguments.pages or filter(has_outputs, pages()):
        heard = listen(page)
        if arguments.write:
            path = ROOT / page
            path.write_text(written(path.read_text(encoding="utf-8"), heard), encoding="utf-8")
            continue
        for block, output in heard.items():
            if difference := outputs.differences(block.text, output):
                stale += 1
                print(f"{block.place}\n{difference}\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
