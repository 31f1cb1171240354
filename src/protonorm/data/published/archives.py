"""Readers of the official archives of CIFAR-10, CIFAR-100, Flowers-102, Tiny ImageNet, MNIST and Fashion-MNIST.

CIFAR: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009; as binary and as Python archives.
"""

import io
import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from protonorm.core.progress import report, steps
from protonorm.data.access import require_room
from protonorm.data.builtin import CLASSES
from protonorm.data.pickled import read_pickle
from protonorm.data.pictures import read_picture
from protonorm.data.prepared import Arrays
from protonorm.data.published.prepare import gunzip, tar_members, zip_members, zip_names

PIXELS = 3 * 32 * 32
Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]  # red, green and blue planes in a row (n, 3072), labels (n,)
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))


class Layout(NamedTuple):
    """Names of files and keys in an archive."""

    folder: str
    train: tuple[str, ...]
    test: str
    names: str
    key: str = ""  # of the labels, in pickles
    names_key: str = ""
    before: int = 0  # bytes before a record's label


def _read_binary(files: Mapping[str, Path], layout: Layout) -> Arrays:
    members = _read_members(files, layout)
    width = layout.before + 1 + PIXELS
    batches: list[Batch] = []
    for name in (*layout.train, layout.test):
        if len(members[name]) % width or not members[name]:
            raise ValueError(f"{name} is damaged: {len(members[name])} bytes are no records of {width} bytes.")
        records = np.frombuffer(members[name], np.uint8).reshape(-1, width)
        batches.append((records[:, layout.before + 1 :], records[:, layout.before].astype(np.int64)))
    return _join(batches, members[layout.names].decode("utf-8").split())


def _read_python(files: Mapping[str, Path], layout: Layout) -> Arrays:
    members = {name: read_pickle(content, name) for name, content in _read_members(files, layout).items()}
    batches: list[Batch] = []
    for name in (*layout.train, layout.test):
        pixels, labels = members[name].get("data"), members[name].get(layout.key)
        numbers = np.array(labels if isinstance(labels, list) else [])
        if not isinstance(pixels, np.ndarray) or pixels.shape != (len(numbers), PIXELS) or numbers.dtype.kind != "i":
            raise ValueError(f"{name} does not hold pictures and their labels as the official archive does.")
        batches.append((pixels, numbers.astype(np.int64)))
    names = members[layout.names].get(layout.names_key)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{layout.names} does not hold the names of the classes.")
    return _join(batches, names)


def _read_members(files: Mapping[str, Path], layout: Layout) -> dict[str, bytes]:
    """Read the members that the layout names from the archive."""
    (path,) = files.values()
    names = {f"{layout.folder}/{name}": name for name in (*layout.train, layout.test, layout.names)}
    members: dict[str, bytes] = {}
    for member, content in tar_members(path, names.__contains__):
        members[names[member]] = content
        report(f"Reading {path.name}", len(members), len(names))
    if missing := [name for name in names.values() if name not in members]:
        raise ValueError(f"{path} is not the official archive: it lacks {', '.join(missing)}.")
    return members


def _join(batches: Sequence[Batch], classes: Sequence[str]) -> Arrays:
    """Concatenate the batches, the test batch last; planes (3, 32, 32) become pixels (32, 32, 3)."""
    labels = np.concatenate([labels for _, labels in batches])
    if labels.min() < 0 or labels.max() >= len(classes):
        raise ValueError(f"The labels go from {labels.min()} to {labels.max()}, but {len(classes)} classes are named.")
    planes = np.concatenate([pixels for pixels, _ in batches]).reshape(-1, 3, 32, 32)
    split = np.zeros(len(labels), np.int8)
    split[len(labels) - len(batches[-1][1]) :] = 1
    return Arrays(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels, split, tuple(classes))


BATCH_FILES = tuple(f"{name}.bin" for name in BATCHES)
BINARY10 = Layout("cifar-10-batches-bin", BATCH_FILES, "test_batch.bin", "batches.meta.txt")
BINARY100 = Layout("cifar-100-binary", ("train.bin",), "test.bin", "fine_label_names.txt", before=1)
PYTHON10 = Layout("cifar-10-batches-py", BATCHES, "test_batch", "batches.meta", "labels", "label_names")
PYTHON100 = Layout("cifar-100-python", ("train",), "test", "meta", "fine_labels", "fine_label_names")
read_binary10, read_binary100 = (partial(_read_binary, layout=layout) for layout in (BINARY10, BINARY100))
read_python10, read_python100 = (partial(_read_python, layout=layout) for layout in (PYTHON10, PYTHON100))

SIDE = 64  # of the photographs of Flowers-102 and Tiny ImageNet
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
    filled = np.zeros(len(labels), bool)
    path = files["102flowers.tgz"]
    for name, content in tar_members(path, lambda name: PICTURE.fullmatch(name) is not None):
        row = int(name[-9:-4]) - 1
        if not 0 <= row < len(labels):
            raise ValueError(f"{path} holds {name}, but {len(labels)} photographs have labels.")
        images[row] = read_picture(io.BytesIO(content), name, (SIDE, SIDE), 3)
        filled[row] = True
        report(f"Reading {path.name}", int(filled.sum()), len(labels))
    if not filled.all():
        raise ValueError(f"{path} is not whole: {int((~filled).sum())} of {len(labels)} photographs are missing.")
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
