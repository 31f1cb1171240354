"""The table of a comparison in a file of its own: LaTeX or Markdown."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protonorm.analysis.row import Row

KINDS = {".tex": "LaTeX", ".md": "Markdown"}
HEAD = 200  # bytes of a file's beginning in which its mark is sought


def refuse_files(files: Mapping[str, Path]) -> None:
    """Refuse, before anything is run, a name with another ending, or a place where something is that is not ours."""
    for ending, path in files.items():
        if path.suffix.lower() != ending:
            raise ValueError(f"{path} is refused: the name of a table in {KINDS[ending]} ends in {ending}.")
        if os.path.lexists(path) and not _is_ours(path):
            raise ValueError(f"{path} exists and is not a table of protonorm; it is left as it is. Give another name.")


def write_tables(files: Mapping[str, Path], title: str, rows: Sequence[Row]) -> list[Path]:
    """Write the table in each of the forms asked for, and say where."""
    from protonorm.files import make_folder, replace

    for ending, path in files.items():
        make_folder(path.parent)
        replace(path, table_text(ending, title, rows).encode())
    return list(files.values())


def table_text(ending: str, title: str, rows: Sequence[Row]) -> str:
    """Write the table in the form of files with this ending."""
    from protonorm.analysis.printed import latex_table, markdown_table, printed_table

    table = printed_table(title, rows)
    return latex_table(table) if ending == ".tex" else markdown_table(table)


def _is_ours(path: Path) -> bool:
    from protonorm.analysis.printed import MARK

    if not path.is_file():
        return False
    with path.open("rb") as file:
        return MARK.encode() in file.read(HEAD)
