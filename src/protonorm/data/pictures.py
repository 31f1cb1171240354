"""Reading of image files with Pillow, and of DICOM with pydicom: headers, then pixels of one size and form.

More than eight bits become eight by a window, the linear function of DICOM PS3.3 C.11.2.1.2.1. Nothing needs torch.
"""

import importlib
import math
import re
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
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".webp", ".tif", ".tiff", ".dcm")
DICOM = ".dcm"
GREY = ("1", "L", "LA")  # Pillow's modes of grey images with at most eight bits
DEEP = ("I;16", "I;16B", "I;16L", "I", "F")  # grey, with more than eight bits: they need a window
COLOURED = ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr", "RGBX", "LAB", "HSV", "RGBa", "La")
MODE = {1: "L", 3: "RGB"}  # by number of channels
ORIENTATION = 0x0112  # EXIF field
SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations that swap height and width
LISTED = 50  # maximum number of images listed in an error
MAX_PIXELS = 2**28  # of a DICOM image
NO_WINDOW = "its pixels have more than eight bits; dataset.window=CENTRE/WIDTH, as in 40/400, says which values count"

Window = tuple[float, float]  # centre and width of the values that are told apart; the others become black or white


class ImageHeader(NamedTuple):
    """Size and number of channels, from an image header."""

    height: int
    width: int
    channels: int  # 1 or 3


def read_window(text: str | None) -> Window | None:
    """Parse a window, such as 40/400."""
    if text is None:
        return None
    number = r"[+-]?[0-9]+(?:\.[0-9]+)?"
    parts = re.fullmatch(rf"({number})/({number})", text.strip())
    window = (float(parts[1]), float(parts[2])) if parts else (0.0, 0.0)
    if not 1 < window[1] <= 2**32 or abs(window[0]) > 2**32:
        raise ValueError(f"dataset.window must be CENTRE/WIDTH with a width above 1, such as 40/400, got {text}.")
    return window


def apply_window(values: NDArray[Any], window: Window) -> NDArray[np.uint8]:
    """Scale values (H, W) to 0 … 255: the window's lower end is black, its upper end white."""
    centre, width = window
    scaled = (values.astype(np.float64) - (centre - 0.5)) / (width - 1) + 0.5
    return np.rint(255 * np.clip(scaled, 0, 1)).astype(np.uint8)


def read_header(file: Path | IO[bytes], name: str = "", window: Window | None = None) -> ImageHeader:
    """Read an image's size and channels without its pixels."""
    with open_picture(file, name or str(file), window, header=True) as picture:
        width, height = picture.size
        if picture.getexif().get(ORIENTATION) in SIDEWAYS:
            width, height = height, width
        return ImageHeader(height, width, 1 if picture.mode in GREY + DEEP else 3)


def read_picture(
    file: Path | IO[bytes], name: str, size: tuple[int, int] | None, channels: int, window: Window | None = None
) -> NDArray[np.uint8]:
    """Read an image as (H, W, C), upright, resized to (H, W) if a size is given."""
    with open_picture(file, name, window) as picture:
        upright = ImageOps.exif_transpose(picture)
        if picture.mode in DEEP and window is not None:
            upright = Image.fromarray(apply_window(np.asarray(upright), window))
        upright = upright.convert(MODE[channels])
        if size and upright.size != size[::-1]:
            upright = upright.resize(size[::-1], Image.Resampling.BILINEAR)
        return np.asarray(upright, dtype=np.uint8).reshape(upright.height, upright.width, channels)


def read_usable(
    paths: Sequence[Path], size: tuple[int, int], channels: int, window: Window | None = None
) -> tuple[NDArray[np.uint8], dict[int, str]]:
    """Read the readable images into an array (N − B, H, W, C), and return the errors of B others by position."""
    images, errors = np.empty((len(paths), *size, channels), np.uint8), {}
    for position, path in enumerate(steps(paths, "Reading pictures")):
        try:
            images[position] = read_picture(path, str(path), size, channels, window)
        except ValueError as error:
            errors[position] = str(error)
    return (np.delete(images, list(errors), axis=0) if errors else images), errors


def read_headers(paths: Sequence[Path], window: Window | None = None) -> tuple[dict[int, ImageHeader], dict[int, str]]:
    """Read headers by position, and return the errors of unreadable ones by position."""
    headers, errors = {}, {}
    for position, path in enumerate(steps(paths, "Reading picture headers")):
        try:
            headers[position] = read_header(path, window=window)
        except ValueError as error:
            errors[position] = str(error)
    return headers, errors


def describe_errors(errors: Mapping[int, str], count: int) -> str:
    """Format the errors of images, one per line, up to a maximum number."""
    lines = [errors[position] for position in sorted(errors)]
    more = [f"and {len(lines) - LISTED} more."] if len(lines) > LISTED else []
    return "\n".join([f"{len(errors)} of {count} pictures cannot be used:", *lines[:LISTED], *more])


@contextmanager
def open_picture(
    file: Path | IO[bytes], name: str, window: Window | None = None, *, header: bool = False
) -> Iterator[Any]:
    """Open an image; raise a ValueError that names it if it is unreadable."""
    if isinstance(file, Path):
        require_file(file, "picture")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd metadata
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            if isinstance(file, Path) and file.suffix.lower() == DICOM:
                yield _read_dicom(file, window, header=header)
                return
            with Image.open(file, formats=FORMATS) as picture:
                if picture.mode in DEEP and window is None:  # Pillow would clip them to white
                    raise ValueError(NO_WINDOW)
                if picture.mode not in GREY + COLOURED + DEEP:
                    raise ValueError(f"its pixels are of the kind {picture.mode}; expected eight bits a channel")
                yield picture
    except UnidentifiedImageError:
        raise ValueError(f"{name} is not a picture that can be read; expected {', '.join(FORMATS)}.") from None
    except Exception as error:  # a damaged image can raise almost any exception
        cause = reason(error) if isinstance(error, OSError) else str(error) or type(error).__name__
        raise ValueError(f"The picture {name} cannot be read: {cause.rstrip('.')}.") from error


def _read_dicom(path: Path, window: Window | None, *, header: bool) -> Any:
    """Read a DICOM image of one frame with eight bits a channel; without a window, by the one that it brings."""
    try:
        import pydicom

        pixels: Any = importlib.import_module("pydicom.pixels")  # mypy takes its functions for private
    except ImportError:
        raise ValueError("DICOM needs pydicom, which is not installed: pip install '.[dicom]' in a checkout") from None
    content = pydicom.dcmread(path, stop_before_pixels=header)
    frames, (height, width) = int(content.get("NumberOfFrames") or 1), (int(content.Rows), int(content.Columns))
    if frames != 1 or not 0 < height * width <= MAX_PIXELS:
        raise ValueError(f"it must have one frame of at most {MAX_PIXELS} pixels, got {frames} of {height}×{width}")
    coloured = content.SamplesPerPixel == 3
    if header:
        return Image.new("RGB" if coloured else "L", (width, height))
    if coloured:
        values = pixels.pixel_array(content)  # (H, W, 3), RGB
        if values.dtype != np.uint8:
            raise ValueError(f"its colours are of type {values.dtype}; expected eight bits a channel")
        return Image.fromarray(values)
    values = pixels.apply_rescale(pixels.pixel_array(content), content)
    if window is None:
        own = [content.get(word) for word in ("WindowCenter", "WindowWidth")]
        centre, span = (float(one[0] if isinstance(one, pydicom.multival.MultiValue) else one or 0) for one in own)
        if not (span > 1 and math.isfinite(centre)):
            raise ValueError(NO_WINDOW.replace("have more than eight bits", "come without a window"))
        window = centre, span
    scaled = apply_window(values, window)
    return Image.fromarray(255 - scaled if content.PhotometricInterpretation == "MONOCHROME1" else scaled)
