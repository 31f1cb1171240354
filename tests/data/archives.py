"""Small archives in the layout of the official ones, and small pictures."""

import gzip
import io
import struct
import tarfile
import zipfile
from hashlib import md5
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

RANDOM = np.random.default_rng(0)


def tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def sums(*paths: Path) -> dict[str, str]:
    """Return the checksums of archives, as `prepare` takes them."""
    return {path.name: md5(path.read_bytes()).hexdigest() for path in paths}


def content_sums(*paths: Path) -> dict[str, str]:
    """Return the checksums of what gzip has packed."""
    return {path.name: md5(gzip.decompress(path.read_bytes())).hexdigest() for path in paths}


def planes(count: int) -> np.ndarray:
    """Draw pictures as CIFAR has them: red, green and blue planes in a row, (n, 3072)."""
    return RANDOM.integers(0, 256, (count, 3072), dtype=np.uint8)


def jpeg(side: int | tuple[int, int], grey: bool = False) -> bytes:
    """Draw a photograph."""
    width, height = (side, side) if isinstance(side, int) else side
    pixels = RANDOM.integers(0, 256, (height, width) if grey else (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95)
    return file.getvalue()


def python2_pickle(value) -> bytes:
    """Write a dict of text, lists of numbers or text, and arrays of bytes as Python 2 and numpy did (protocol 2)."""
    return b"\x80\x02" + _pickled(value) + b"."


def _pickled(value) -> bytes:
    if isinstance(value, dict):
        return b"}(" + b"".join(_pickled(key) + _pickled(one) for key, one in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(_pickled, value)) + b"e"
    if isinstance(value, int):
        return b"K" + bytes([value]) if value < 256 else b"J" + struct.pack("<i", value)
    if isinstance(value, str):
        return b"U" + bytes([len(value)]) + value.encode("latin-1")
    if isinstance(value, np.ndarray):
        blank = b"cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02K\x00\x85U\x01b\x87R"
        kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        shape = b"".join(map(_pickled, value.shape)) + b"\x86"
        content = b"T" + struct.pack("<i", value.nbytes) + value.tobytes()
        return blank + b"(K\x01" + shape + kind + b"\x89" + content + b"tb"
    raise TypeError(value)


CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def cifar10_binary(folder: Path) -> tuple[Path, np.ndarray, np.ndarray]:
    """Make six batches of two pictures; give them all, (12, 3072), and their labels."""
    pixels, labels = planes(12), np.arange(12, dtype=np.uint8) % 10
    records = np.concatenate([labels[:, None], pixels], axis=1)
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    members = {
        f"cifar-10-batches-bin/{name}": records[2 * at : 2 * at + 2].tobytes()
        for at, name in reversed(list(enumerate(names)))
    }
    members["cifar-10-batches-bin/batches.meta.txt"] = ("\n".join(CIFAR10) + "\n\n").encode()
    members["cifar-10-batches-bin/readme.html"] = b"<html></html>"
    return tar(folder / "cifar-10-binary.tar.gz", members), pixels, labels


def cifar10_python(folder: Path, batch: bytes | None = None) -> tuple[Path, np.ndarray, np.ndarray]:
    """Make the same as pickles of Python 2; `batch` takes the place of the first one."""
    pixels, labels = planes(12), np.arange(12, dtype=np.uint8) % 10
    names = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    members = {
        f"cifar-10-batches-py/{name}": python2_pickle(
            {
                "batch_label": "a batch",
                "labels": labels[2 * at : 2 * at + 2].tolist(),
                "data": pixels[2 * at : 2 * at + 2],
                "filenames": ["a.png", "b.png"],
            }
        )
        for at, name in enumerate(names)
    }
    if batch is not None:
        members["cifar-10-batches-py/data_batch_1"] = batch
    meta = {"num_cases_per_batch": 10000, "label_names": CIFAR10, "num_vis": 3072}
    members["cifar-10-batches-py/batches.meta"] = python2_pickle(meta)
    return tar(folder / "cifar-10-python.tar.gz", members), pixels, labels


FINE = [f"thing_{k}" for k in range(100)]


def cifar100_binary(folder: Path) -> tuple[Path, np.ndarray, np.ndarray]:
    pixels, labels = planes(5), np.array([99, 0, 7, 50, 7], np.uint8)
    records = np.concatenate([labels[:, None] // 5, labels[:, None], pixels], axis=1)
    members = {
        "cifar-100-binary/train.bin": records[:3].tobytes(),
        "cifar-100-binary/test.bin": records[3:].tobytes(),
        "cifar-100-binary/fine_label_names.txt": "\n".join(FINE).encode() + b"\n",
        "cifar-100-binary/coarse_label_names.txt": b"some\n",
    }
    return tar(folder / "cifar-100-binary.tar.gz", members), pixels, labels


def cifar100_python(folder: Path) -> tuple[Path, np.ndarray, np.ndarray]:
    pixels, labels = planes(5), np.array([99, 0, 7, 50, 7], np.uint8)

    def part(rows: slice) -> bytes:
        fine = labels[rows].tolist()
        return python2_pickle({"data": pixels[rows], "fine_labels": fine, "coarse_labels": [k // 5 for k in fine]})

    members = {
        "cifar-100-python/train": part(slice(0, 3)),
        "cifar-100-python/test": part(slice(3, 5)),
        "cifar-100-python/meta": python2_pickle({"fine_label_names": FINE, "coarse_label_names": ["some"]}),
    }
    return tar(folder / "cifar-100-python.tar.gz", members), pixels, labels


def flowers(folder: Path, photographs: int = 6) -> list[Path]:
    """Make six photographs of different sizes: 1, 2 train, 3 validates, 4 to 6 test; classes 1, 102, 5, 1, 5, 5."""
    members = {f"jpg/image_{number:05d}.jpg": jpeg((70 + number, 90)) for number in range(photographs, 0, -1)}
    savemat(folder / "imagelabels.mat", {"labels": np.array([[1, 102, 5, 1, 5, 5]], np.uint8)})
    numbers = {"trnid": [[2, 1]], "valid": [[3]], "tstid": [[6, 4, 5]]}
    savemat(folder / "setid.mat", {name: np.array(value, np.uint16) for name, value in numbers.items()})
    return [tar(folder / "102flowers.tgz", members), folder / "imagelabels.mat", folder / "setid.mat"]


def tiny(folder: Path) -> Path:
    """Make two classes of two training pictures, and three validation pictures, one of them grey."""
    root = "tiny-imagenet-200/"
    path = folder / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{root}wnids.txt", "n02\nn01\n")
        archive.writestr(f"{root}words.txt", "n01\tgoldfish, Carassius auratus\nn02\tacorn\nn03\tentity\n")
        for kind in ("n01", "n02"):
            archive.writestr(f"{root}train/{kind}/{kind}_boxes.txt", "")
            for number in range(2):
                archive.writestr(f"{root}train/{kind}/images/{kind}_{number}.JPEG", jpeg(64))
        labels = "val_0.JPEG\tn02\t0\t0\t62\t62\nval_1.JPEG\tn01\t0\t0\t62\t62\nval_2.JPEG\tn02\t0\t0\t62\t62\n"
        archive.writestr(f"{root}val/val_annotations.txt", labels)
        for number in range(3):
            archive.writestr(f"{root}val/images/val_{number}.JPEG", jpeg(64, grey=number == 2))
        archive.writestr(f"{root}test/images/test_0.JPEG", jpeg(64))
    return path


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def digits(folder: Path) -> tuple[list[Path], np.ndarray]:
    """Make four training and two test pictures; give the pictures, (6, 28, 28)."""
    pictures = RANDOM.integers(0, 256, (6, 28, 28), dtype=np.uint8)
    labels = np.array([3, 1, 4, 1, 5, 9], np.uint8)
    paths = []
    for part, rows in (("train", slice(0, 4)), ("t10k", slice(4, 6))):
        for name, array in (("images-idx3", pictures), ("labels-idx1", labels)):
            paths.append(folder / f"{part}-{name}-ubyte.gz")
            paths[-1].write_bytes(gzip.compress(idx(array[rows])))
    return paths, pictures
