"""Pack the pictures of `protonorm.data.builtin` from the idx files of Fashion-MNIST.

    python tools/embed_fashion.py [folder with train-images-idx3-ubyte.gz and train-labels-idx1-ubyte.gz]

The usual folder is that of the Debian package dataset-fashion-mnist. Nothing is drawn at random: the first 600 pictures
of each class in the training file are taken, so that the same bytes come out every time.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protonorm.data.builtin import CLASSES, FILE, IMAGES_PER_CLASS, SHA256, SIDE

USUAL = Path("/usr/share/datasets/fashion-mnist")
PACKAGE = Path(__file__).resolve().parents[1] / "src" / "protonorm" / "data"
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 2}]


def read(path: Path, header: int) -> NDArray[np.uint8]:
    """Read the bytes of an idx file after its header."""
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)


def choose(folder: Path) -> NDArray[np.uint8]:
    """Take the first pictures of each class, class after class: (6000, 28, 28)."""
    pictures = read(folder / "train-images-idx3-ubyte.gz", 16).reshape(-1, SIDE, SIDE)
    labels = read(folder / "train-labels-idx1-ubyte.gz", 8)
    first = np.concatenate([np.flatnonzero(labels == k)[:IMAGES_PER_CLASS] for k in range(len(CLASSES))])
    chosen: NDArray[np.uint8] = pictures[first]
    return chosen


def main() -> None:
    """Write the packed file and say its size and the hash that the loader checks."""
    chosen = choose(Path(sys.argv[1]) if len(sys.argv) > 1 else USUAL)
    packed = lzma.compress(chosen.transpose(0, 2, 1).tobytes(), lzma.FORMAT_XZ, filters=FILTERS)
    (PACKAGE / FILE).write_bytes(packed)
    digest = hashlib.sha256(chosen.tobytes()).hexdigest()
    print(f"{FILE}: {len(chosen)} pictures, {len(packed)} bytes, sha256 of the pictures {digest}")
    if digest != SHA256:
        print("This is not the hash in protonorm/data/builtin.py: change SHA256 there.")


if __name__ == "__main__":
    main()
