"""Tiny ImageNet from its zip: training folders, and the validation folder with its file of labels.

Le and Yang, "Tiny ImageNet Visual Recognition Challenge", 2015. Some pictures are grey; they become coloured.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from protonorm.core.progress import report
from protonorm.data.access import require_room
from protonorm.data.pictures import read_picture
from protonorm.data.prepared import Arrays
from protonorm.data.published.archives.members import zip_members, zip_names

SIDE = 64
ROOT = "tiny-imagenet-200/"
TRAIN = re.compile(ROOT + r"train/(n\d+)/images/[^/]+\.JPEG")
VALID = re.compile(ROOT + r"val/images/([^/]+\.JPEG)")
TEXTS = {f"{ROOT}{name}" for name in ("wnids.txt", "words.txt", "val/val_annotations.txt")}


def read_tinyimagenet(files: Mapping[str, Path]) -> Arrays:
    """Read tiny-imagenet-200.zip: the training pictures class by class, then the validation pictures."""
    (path,) = files.values()
    texts = {name.removeprefix(ROOT): content.decode() for name, content in zip_members(path, TEXTS.__contains__)}
    if missing := [name for name in TEXTS if name.removeprefix(ROOT) not in texts]:
        raise ValueError(f"{path} is not the official archive: it lacks {', '.join(sorted(missing))}.")
    codes = sorted(texts["wnids.txt"].split())
    number = {code: label for label, code in enumerate(codes)}
    valid = dict(line.split("\t")[:2] for line in texts["val/val_annotations.txt"].splitlines() if "\t" in line)

    def code_of(name: str) -> str | None:
        if match := TRAIN.fullmatch(name):
            return match[1]
        match = VALID.fullmatch(name)
        return valid.get(match[1]) if match else None

    names = [name for name in zip_names(path) if code_of(name) in number]
    require_room(len(names) * SIDE * SIDE * 3, f"{len(names)} pictures", "the official archive has far fewer.")
    images = np.empty((len(names), SIDE, SIDE, 3), np.uint8)
    labels = np.empty(len(names), np.int64)
    split = np.empty(len(names), np.int8)
    for row, (name, content) in enumerate(zip_members(path, set(names).__contains__)):
        images[row] = read_picture(io.BytesIO(content), name, (SIDE, SIDE), 3)
        labels[row] = number[str(code_of(name))]
        split[row] = TRAIN.fullmatch(name) is None
        report(f"Reading {path.name}", row + 1, len(names))
    if not names:
        raise ValueError(f"{path} is not the official archive: it has no pictures with labels.")
    words = dict(line.split("\t", 1) for line in texts["words.txt"].splitlines() if "\t" in line)
    return Arrays(images, labels, split, _names(codes, words))


def _names(codes: list[str], words: Mapping[str, str]) -> tuple[str, ...]:
    """Name the classes by their words; the official code tells two with the same words apart."""
    found = [words.get(code, code).strip() for code in codes]
    return tuple(f"{name} ({code})" if found.count(name) > 1 else name for name, code in zip(found, codes, strict=True))
