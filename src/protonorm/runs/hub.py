"""Folders on the Hugging Face Hub: exported clients as models, records as data sets. Nothing here needs torch."""

import re
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from protonorm.core.types import shown
from protonorm.data.own.encoding import one_line

Kind = Literal["model", "dataset"]
REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)


def upload(folder: Path, repository: str, kind: Kind, files: Sequence[str], *, private: bool = True) -> str:
    """Upload these files of a folder to a repository OWNER/NAME, which is made if there is none; return its address."""
    hub = _hub(repository)
    try:
        api = hub.HfApi(library_name="protonorm")
        api.create_repo(repository, repo_type=kind, private=private, exist_ok=True)
        api.upload_folder(folder_path=folder, repo_id=repository, repo_type=kind, allow_patterns=list(files))
    except Exception as error:  # of the network, of the Hub, or of the library
        raise ValueError(f"{repository} cannot be uploaded: {one_line(error)}.") from error
    return f"{hub.constants.ENDPOINT}/{'datasets/' if kind == 'dataset' else ''}{repository}"


def fetch(source: str | Path, kind: Kind, files: Sequence[str], revision: str | None = None) -> Path:
    """Return a local folder as it is, or that of a repository OWNER/NAME after a download of its `files`."""
    if Path(source).is_dir():
        return Path(source)
    options = {"repo_type": kind, "revision": revision, "allow_patterns": list(files)}
    try:
        return Path(_hub(str(source)).snapshot_download(str(source), **options))
    except Exception as error:
        raise ValueError(f"{source} is no folder here, and cannot be downloaded: {one_line(error)}.") from error


def _hub(repository: str) -> Any:
    if not REPOSITORY.fullmatch(repository):
        raise ValueError(f"A repository must be OWNER/NAME, got {shown(repository)}.")
    if find_spec("huggingface_hub") is None:
        raise ValueError("The Hub needs huggingface_hub, which is not installed: pip install '.[hub]' in a checkout.")
    return import_module("huggingface_hub")
