"""A column of pictures of Hugging Face `datasets`, decoded by our own reader. Nothing here needs torch."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protonorm.core.progress import steps
from protonorm.data.access import require_room
from protonorm.data.own.folders import ImageOptions, choose_channels, choose_size
from protonorm.data.pictures import read_header, read_picture

HEADERS = "Reading picture headers"


def stored_pictures(datasets: Any, data: Any, column: str, options: ImageOptions) -> NDArray[np.uint8]:
    """Decode pictures (N, H, W, C), one after the other."""
    stored = data.cast_column(column, datasets.Image(decode=False))
    names = [Path(f"{column} of row {row + 1}") for row in range(len(stored))]
    headers = [read_header(*_picture(stored, column, row, str(name))) for row, name in enumerate(steps(names, HEADERS))]
    channels, size = choose_channels(names, headers, options), choose_size(names, headers, options)
    require_room(
        len(names) * size[0] * size[1] * channels,
        f"{len(names)} pictures of {size[0]}×{size[1]}",
        "dataset.size=64, say, makes them smaller.",
    )
    images = np.empty((len(names), *size, channels), np.uint8)
    for row, name in enumerate(steps(names, "Reading pictures")):
        images[row] = read_picture(*_picture(stored, column, row, str(name)), size, channels)
    return images


def _picture(stored: Any, column: str, row: int, name: str) -> tuple[Path | io.BytesIO, str]:
    """Find a picture's bytes, or its file."""
    held = stored[row][column] or {}
    if held.get("bytes"):
        return io.BytesIO(held["bytes"]), name
    if not held.get("path"):
        raise ValueError(f"There is no picture in {name}.")
    return Path(held["path"]), str(held["path"])
