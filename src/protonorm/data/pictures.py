"""Reading of image files with Pillow: headers, then pixels of one size and number of channels. Nothing needs torch."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from protonorm.core.progress import steps
from protonorm.data.access import reason, require_file

# Formats that Pillow decodes itself; for some others, such as EPS, it calls other programs.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "WEBP", "TIFF")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".webp", ".tif", ".tiff")
GREY = ("1", "L", "LA")  # Pillow's modes of grey images with at most eight bits
COLOURED = ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr", "RGBX", "LAB", "HSV", "RGBa", "La")
MODE = {1: "L", 3: "RGB"}  # by number of channels
ORIENTATION = 0x0112  # EXIF field
SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations that swap height and width
LISTED = 50  # maximum number of images listed in an error


class ImageHeader(NamedTuple):
    """Size and number of channels, from an image header."""

    height: int
    width: int
    channels: int  # 1 or 3


def read_header(file: Path | IO[bytes], name: str = "") -> ImageHeader:
    """Read an image's size and channels without its pixels."""
    with open_picture(file, name or str(file)) as picture:
        width, height = picture.size
        if picture.getexif().get(ORIENTATION) in SIDEWAYS:
            width, height = height, width
        return ImageHeader(height, width, 1 if picture.mode in GREY else 3)


def read_picture(file: Path | IO[bytes], name: str, size: tuple[int, int] | None, channels: int) -> NDArray[np.uint8]:
    """Read an image as (H, W, C), upright, resized to (H, W) if a size is given."""
    with open_picture(file, name) as picture:
        upright = ImageOps.exif_transpose(picture).convert(MODE[channels])
        if size and upright.size != size[::-1]:
            upright = upright.resize(size[::-1], Image.Resampling.BILINEAR)
        return np.asarray(upright, dtype=np.uint8).reshape(upright.height, upright.width, channels)


def read_usable(
    paths: Sequence[Path], size: tuple[int, int], channels: int
) -> tuple[NDArray[np.uint8], dict[int, str]]:
    """Read the readable images into an array (N − B, H, W, C), and return the errors of B others by position."""
    images, errors = np.empty((len(paths), *size, channels), np.uint8), {}
    for position, path in enumerate(steps(paths, "Reading pictures")):
        try:
            images[position] = read_picture(path, str(path), size, channels)
        except ValueError as error:
            errors[position] = str(error)
    return (np.delete(images, list(errors), axis=0) if errors else images), errors


def read_headers(paths: Sequence[Path]) -> tuple[dict[int, ImageHeader], dict[int, str]]:
    """Read headers by position, and return the errors of unreadable ones by position."""
    headers, errors = {}, {}
    for position, path in enumerate(steps(paths, "Reading picture headers")):
        try:
            headers[position] = read_header(path)
        except ValueError as error:
            errors[position] = str(error)
    return headers, errors


def describe_errors(errors: Mapping[int, str], count: int) -> str:
    """Format the errors of images, one per line, up to a maximum number."""
    lines = [errors[position] for position in sorted(errors)]
    more = [f"and {len(lines) - LISTED} more."] if len(lines) > LISTED else []
    return "\n".join([f"{len(errors)} of {count} pictures cannot be used:", *lines[:LISTED], *more])


@contextmanager
def open_picture(file: Path | IO[bytes], name: str) -> Iterator[Any]:
    """Open an image; raise a ValueError that names it if it is unreadable."""
    if isinstance(file, Path):
        require_file(file, "picture")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd metadata
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=FORMATS) as picture:
                if picture.mode not in GREY + COLOURED:  # Pillow would clip sixteen bits to white
                    raise ValueError(f"its pixels are of the kind {picture.mode}; expected eight bits a channel")
                yield picture
    except UnidentifiedImageError:
        raise ValueError(f"{name} is not a picture that can be read; expected {', '.join(FORMATS)}.") from None
    except Exception as error:  # a damaged image can raise almost any exception
        cause = reason(error) if isinstance(error, OSError) else str(error) or type(error).__name__
        raise ValueError(f"The picture {name} cannot be read: {cause.rstrip('.')}.") from error
