"""Flowers-102 from its archive of photographs and its two files of numbers; every photograph becomes 64×64.

Nilsback and Zisserman, "Automated flower classification over a large number of classes", 2008.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protonorm.core.progress import report
from protonorm.data.access import require_room
from protonorm.data.pictures import read_picture
from protonorm.data.prepared import Arrays
from protonorm.data.published.archives.members import tar_members

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
    require_room(len(labels) * SIDE * SIDE * 3, f"{len(labels)} photographs", "the official archive has far fewer.")
    images = np.empty((len(labels), SIDE, SIDE, 3), np.uint8)
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
    """Read one row of numbers from a MATLAB file."""
    from scipy.io import loadmat

    try:
        held = loadmat(path, squeeze_me=True, variable_names=[name])[name]
        found = np.atleast_1d(held).astype(np.int64)
    except FileNotFoundError:
        raise ValueError(f"There is no file {path}.") from None
    except Exception as error:  # a damaged file gives almost any
        raise ValueError(f"{path} is damaged: it does not hold {name} ({error}).") from error
    if found.ndim != 1 or not len(found):
        raise ValueError(f"{path} is damaged: {name} has shape {found.shape}.")
    return found
