"""Inputs that all clients share before the first round: targets and public inputs, from files, data sets or noise.

Files are identified by their content, and read without unpickling.
"""

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from protonorm.core.registry import Entry
from protonorm.core.samples import view
from protonorm.core.types import InputSpec
from protonorm.tensors import all_finite

TARGETS, PUBLIC = "targets", "public inputs"  # contents of a file
DIGEST = Entry("protonorm.data.dataset:public_digest", "what a data set holds")
INPUTS = Entry("protonorm.data.dataset:public_inputs", "its inputs")
ROUNDS = 2**20  # exceeds the rounds of any run, so that rounds of different seeds never share a random state
FEW = 16  # rows compared first


def digest_of(file: str, what: str) -> str:
    """Return the SHA-256 of a file's content."""
    path = existing(file, what)
    status = path.stat()
    return _hashed(path.resolve(), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=16)  # called by every client of a process
def _hashed(path: Path, size: int, time: int) -> str:
    del size, time  # cache keys: a changed file is a different entry
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_public(public: str) -> str:
    """Return the SHA-256 of public inputs, a .npy file or a data set."""
    return digest_of(public, PUBLIC) if is_file(public) else str(DIGEST.load()(public))


def is_file(public: str) -> bool:
    """Return whether public inputs are the path of a .npy file rather than a data set."""
    return public.endswith(".npy")


def existing(file: str, what: str) -> Path:
    """Return the path of a file; raise if it does not exist."""
    path = Path(file).expanduser()
    if not path.is_file():
        raise ValueError(f"There is no file of {what} {path}; expected the path of a .npy file.")
    return path


def read_array(file: str, what: str, expected: str, digest: str | None) -> NDArray[Any]:
    """Map the array of a .npy file; raise if its content differs from the digest. `wanted` is for errors."""
    path = existing(file, what)
    if digest is not None and digest_of(file, what) != digest:
        raise ValueError(f"{path} is not the file of {what} that the run began with: its content has changed.")
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path} cannot be used as {what} ({error}); {expected}.") from error
    if not isinstance(loaded, np.ndarray):
        raise ValueError(f"{path} cannot be used as {what}: it holds several arrays; {expected}.")
    array: NDArray[Any] = loaded
    return array


def read_targets(file: str, num_classes: int, feature_dim: int, digest: str | None = None) -> Tensor:
    """Read unit vectors (K, d) of all classes from a .npy file of K rows of d numbers, of any length."""
    expected = f"expected a .npy file of {num_classes} rows, the classes, of {feature_dim} numbers"
    array = read_array(file, TARGETS, expected, digest)
    if array.dtype.kind != "f":
        raise ValueError(f"{file} cannot be used as targets: it holds {array.dtype}; {expected} of a floating type.")
    if array.shape != (num_classes, feature_dim):
        raise ValueError(f"{file} cannot be used as targets: its shape is {array.shape}; {expected}.")
    vectors = np.array(array, dtype=np.float64)  # (K, d)
    if not np.isfinite(vectors).all() or not vectors.any(axis=1).all():
        raise ValueError(f"{file} cannot be used as targets: a row is zero or not finite, and has no direction.")
    _, exponents = np.frexp(np.abs(vectors).max(axis=1, keepdims=True))  # (K, 1)
    return normalize(torch.from_numpy(np.ldexp(vectors, -exponents))).float()  # scaling by powers of two is exact


def read_public(public: str, spec: InputSpec, least: int, digest: str | None = None) -> Tensor:
    """Map public inputs (P, …) from a .npy file or a data set; raise if they do not fit the networks' input."""
    source = "a .npy file" if is_file(public) else "a data set"
    expected = f"expected {source} of at least {least} inputs of shape {spec.shape} and type {spec.type}"
    inputs = _load(public, expected, digest)
    if inputs.shape[1:] != spec.shape or str(inputs.dtype) != spec.type or len(inputs) < least:
        raise ValueError(f"{public} cannot be used as {PUBLIC}: it holds {inputs.shape} of {inputs.dtype}; {expected}.")
    if spec.vocabulary is not None and inputs.size and (inputs.min() < 0 or inputs.max() >= spec.vocabulary):
        raise ValueError(
            f"{public} cannot be used as {PUBLIC}: it holds tokens from {inputs.min()} to {inputs.max()}; "
            f"expected tokens from 0 to {spec.vocabulary - 1}."
        )
    if inputs.dtype.kind == "f" and not _finite(public, digest or digest_of_public(public)):
        raise ValueError(f"{public} cannot be used as {PUBLIC}: some of its numbers are NaN or infinite.")
    return view(inputs)


@lru_cache(maxsize=4)  # called in every round
def _finite(public: str, digest: str) -> bool:
    del digest  # cache key: changed content is a different entry
    return all_finite(view(_load(public, "expected a .npy file of inputs", None)))


def same_inputs(public: Tensor, own: Tensor) -> bool:
    """Return whether public inputs are the whole data set of a client's samples; a few rows decide most cases."""
    alike = public.shape == own.shape and public.dtype == own.dtype
    return alike and all(torch.equal(public[:rows], own[:rows].cpu()) for rows in (FEW, len(public)))


def _load(public: str, expected: str, digest: str | None) -> NDArray[Any]:
    if is_file(public):
        return read_array(public, PUBLIC, expected, digest)
    if digest is not None and digest_of_public(public) != digest:
        raise ValueError(f"{public} is not the data set that the run began with: its content has changed.")
    inputs: NDArray[Any] = INPUTS.load()(public)
    return inputs


def noise(like: Tensor, count: int, seed: int) -> Tensor:
    """Draw inputs (count, …) with the shape and type of samples (n, …): bytes, or normal numbers."""
    generator, shape = torch.Generator().manual_seed(seed), (count, *like.shape[1:])
    if like.dtype == torch.uint8:
        return torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    if not like.is_floating_point():
        raise ValueError("Noise is no text: expected public=text:PATH, or a .npy file of tokens.")
    return torch.randn(shape, generator=generator, dtype=like.dtype)


def draw_positions(size: int, count: int, seed: int, round: int) -> Tensor:
    """Draw the positions (count,) of a round's public inputs; the same for all clients."""
    generator = torch.Generator().manual_seed((seed * ROUNDS + round) % 2**63)
    return torch.randperm(size, generator=generator)[:count]
