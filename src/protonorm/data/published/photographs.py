"""Readers of the official archives of Flowers-102, Tiny ImageNet, MNIST and Fashion-MNIST."""

import io
import math
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protonorm.core.progress import report, steps
from protonorm.data.access import require_room
from protonorm.data.builtin import CLASSES
from protonorm.data.pictures import read_picture
from protonorm.data.prepared import Arrays
from protonorm.data.published.prepare import gunzip, tar_members, zip_members, zip_names

SIDE = 64
PICTURE = re.compile(r"jpg/image_(\d{5})\.jpg")
SPLITS = ("trnid", "valid", "tstid")  # numbers of the training, validation and test photographs, from 1

# the common English names, in the order of the labels
NAMES = tuple(
    """\
pink primrose, hard-leaved pocket orchid, canterbury bells, sweet pea, english marigold, tiger lily, moon orchid,
bird of paradise, monkshood, globe thistle, snapdragon, colt's foot, king protea, spear thistle, yellow iris,
globe-flower, purple coneflower, peruvian lily, balloon flower, giant white arum lily, fire lily, pincushion flower,
fritillary, red ginger, grape hyacinth, corn poppy, prince of wales feathers, stemless gentian, artichoke,
sweet william, carnation, garden phlox, love in the mist, mexican aster, alpine sea holly, ruby-lipped cattleya,
cape flower, great masterwort, siam tulip, lenten rose, barbeton daisy, daffodil, sword lily, poinsettia,
bolero deep blue, wallflower, marigold, buttercup, oxeye daisy, common dandelion, petunia, wild pansy, primula,
sunflower, pelargonium, bishop of llandaff, gaura, geranium, orange dahlia, pink-yellow dahlia, cautleya spicata,
japanese anemone, black-eyed susan, silverbush, californian poppy, osteospermum, spring crocus, bearded iris,
windflower, tree poppy, gazania, azalea, water lily, rose, thorn apple, morning glory, passion flower, lotus,
toad lily, anthurium, frangipani, clematis, hibiscus, columbine, desert-rose, tree mallow, magnolia, cyclamen,
watercress, canna lily, hippeastrum, bee balm, ball moss, foxglove, bougainvillea, camellia, mallow, mexican petunia,
bromelia, blanket flower, trumpet creeper, blackberry lily""".replace("\n", " ").split(", ")
)

ROOT = "tiny-imagenet-200/"
TRAIN = re.compile(ROOT + r"train/(n\d+)/images/[^/]+\.JPEG")
VALID = re.compile(ROOT + r"val/images/([^/]+\.JPEG)")
TEXTS = {f"{ROOT}{name}" for name in ("wnids.txt", "words.txt", "val/val_annotations.txt")}


def read_flowers(files: Mapping[str, Path]) -> Arrays:
    """Read 102flowers.tgz, imagelabels.mat and setid.mat, in the order of the photographs' numbers."""
    labels = _numbers(files["imagelabels.mat"], "labels") - 1  # (N,)
    split = np.full(len(labels), -1, np.int8)
    for number, name in enumerate(SPLITS):
        members = _numbers(files["setid.mat"], name)
        if members.min() < 1 or members.max() > len(labels):
            raise ValueError(f"setid.mat does not fit: {name} names photograph {members.max()} of {len(labels)}.")
        split[members - 1] = number
    if split.min() < 0 or labels.min() < 0 or labels.max() >= len(NAMES):
        raise ValueError("imagelabels.mat and setid.mat do not belong together.")
    images = _empty_images(len(labels))
    seen = np.zeros(len(labels), bool)
    path = files["102flowers.tgz"]
    for name, content in tar_members(path, lambda name: PICTURE.fullmatch(name) is not None):
        row = int(name[-9:-4]) - 1
        if not 0 <= row < len(labels):
            raise ValueError(f"{path} holds {name}, but {len(labels)} photographs have labels.")
        images[row] = read_picture(io.BytesIO(content), name, (SIDE, SIDE), 3)
        seen[row] = True
        report(f"Reading {path.name}", int(seen.sum()), len(labels))
    if not seen.all():
        raise ValueError(f"{path} is not whole: {int((~seen).sum())} of {len(labels)} photographs are missing.")
    return Arrays(images, labels, split, NAMES)


def _numbers(path: Path, name: str) -> NDArray[np.int64]:
    """Read a row of numbers from a MATLAB file."""
    from scipy.io import loadmat

    try:
        values = np.atleast_1d(loadmat(path, squeeze_me=True, variable_names=[name])[name]).astype(np.int64)
    except FileNotFoundError:
        raise ValueError(f"There is no file {path}.") from None
    except Exception as error:  # a damaged file can raise almost any exception
        raise ValueError(f"{path} is damaged: it does not hold {name} ({error}).") from error
    if values.ndim != 1 or not len(values):
        raise ValueError(f"{path} is damaged: {name} has shape {values.shape}.")
    return values


def _empty_images(count: int) -> NDArray[np.uint8]:
    require_room(count * SIDE * SIDE * 3, f"{count} pictures", "the official archive has far fewer.")
    return np.empty((count, SIDE, SIDE, 3), np.uint8)


def read_tinyimagenet(files: Mapping[str, Path]) -> Arrays:
    """Read tiny-imagenet-200.zip: the training images class by class, then the validation images."""
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
    if not names:
        raise ValueError(f"{path} is not the official archive: it has no pictures with labels.")
    images = _empty_images(len(names))
    labels, split = np.empty(len(names), np.int64), np.empty(len(names), np.int8)
    for row, (name, content) in enumerate(zip_members(path, set(names).__contains__)):
        images[row] = read_picture(io.BytesIO(content), name, (SIDE, SIDE), 3)
        labels[row] = number[str(code_of(name))]
        split[row] = TRAIN.fullmatch(name) is None
        report(f"Reading {path.name}", row + 1, len(names))
    words = dict(line.split("\t", 1) for line in texts["words.txt"].splitlines() if "\t" in line)
    titles = [words.get(code, code).strip() for code in codes]
    unique = [
        f"{title} ({code})" if titles.count(title) > 1 else title for title, code in zip(titles, codes, strict=True)
    ]
    return Arrays(images, labels, split, tuple(unique))


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an array of bytes: two zeros, its type (8), its number of dimensions, their sizes, then the bytes."""
    content = gunzip(path)
    start = 4 + 4 * dimensions
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4))
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) - start != math.prod(shape):
        raise ValueError(f"{path} is damaged: it is not an idx file of {dimensions} dimensions.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _read_idx_files(files: Mapping[str, Path], classes: tuple[str, ...]) -> Arrays:
    images, labels = [], []
    for part in steps(("train", "t10k"), "Reading idx files"):
        images.append(read_idx(files[f"{part}-images-idx3-ubyte.gz"], 3))
        labels.append(read_idx(files[f"{part}-labels-idx1-ubyte.gz"], 1))
        if len(images[-1]) != len(labels[-1]) or not len(labels[-1]) or labels[-1].max() >= len(classes):
            raise ValueError(f"The {part} files do not belong together: their pictures and labels do not match.")
    split = np.repeat(np.array([0, 1], np.int8), [len(part) for part in labels])
    return Arrays(np.concatenate(images)[..., None], np.concatenate(labels).astype(np.int64), split, classes)


read_fashion = partial(_read_idx_files, classes=CLASSES)
read_digits = partial(_read_idx_files, classes=tuple("0123456789"))
