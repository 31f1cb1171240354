"""Noise on integers, drawn from the operating system's randomness, and the accounting of the privacy it spends.

The noise is the discrete Gaussian (Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy",
NeurIPS 2020): R releases of noise multiplier σ satisfy zCDP with ρ = R/(2σ²). It is drawn exactly: a decision is made
in floating point only where rounding cannot change it, and with as many digits as it takes elsewhere.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from os import urandom

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

STEPS = 2**16  # integers per clipping norm C, to which numbers are rounded before noise is added
WIDEST = 2**50  # standard deviation of noise: sums stay within 64 bits
BLOCK = 2**18  # numbers that are drawn at once
SLACK = 2.0**-48  # bound of the relative rounding error of exp(−γ), per 1 + γ
WORD = 64  # bits
HALVINGS = 100  # of an interval, in the search for a root
LARGEST = 1e6  # σ and ε that are searched

Integers = NDArray[np.int64]
Bits = NDArray[np.uint64]


def quantised(x: Tensor, clip: float) -> Tensor:
    """Clip rows (n, d) to a norm and round them towards zero to integers (n, d) of norm ≤ STEPS, exactly."""
    x = x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) / clip
    numbers = (x * (STEPS / x.norm(dim=1, keepdim=True).clamp(min=1.0))).long()
    for _ in range(2):  # rounding of the norm may leave it too large by little; then by nothing
        long = numbers.square().sum(dim=1, keepdim=True) > STEPS**2
        numbers = torch.where(long, numbers - numbers.sign(), numbers)
    long = numbers.square().sum(dim=1, keepdim=True) > STEPS**2
    return torch.where(long, 0, numbers)


def discrete_gaussian(width: int, count: int) -> Integers:
    """Draw integers with probabilities proportional to exp(−x²/(2 width²)), exactly."""
    if not 0 < width <= WIDEST:
        raise ValueError(f"The standard deviation of noise must be from 1 to 2⁵⁰ steps, got {width}.")
    scale, square = width + 1, width * width
    drawn, missing = [np.zeros(0, np.int64)], count
    while missing > 0:
        x = _laplace(scale, min(2 * missing + WORD, BLOCK))
        beyond = (np.abs(x) - (width - 1)) - 1 / scale  # |x| − width²/scale, without cancellation

        def exactly(place: int, x: Integers = x) -> Fraction:
            return Fraction((abs(int(x[place])) * scale - square) ** 2, 2 * square * scale * scale)

        drawn.append(x[_happens(beyond**2 / (2 * square), exactly)][:missing])
        missing -= len(drawn[-1])
    return np.concatenate(drawn)


def _laplace(scale: int, count: int) -> Integers:
    """Draw up to `count` integers with probabilities proportional to exp(−|x|/scale), exactly."""
    below = _words(count) >> np.uint64(WORD - (scale - 1).bit_length())
    size = below[below < scale].astype(np.int64)
    size = size[_happens(size / scale, lambda place, size=size: Fraction(int(size[place]), scale))]  # type: ignore[misc]
    growing = np.arange(len(size))
    while len(growing := growing[_happens(np.ones(len(growing)), lambda place: Fraction(1))]):
        size[growing] += scale
    negative = _words(len(size)) >> np.uint64(WORD - 1) == 1
    signed: Integers = np.where(negative, -size, size)[(size > 0) | ~negative]
    return signed


def _happens(gamma: NDArray[np.float64], exactly: Callable[[int], Fraction]) -> NDArray[np.bool_]:
    """Return true with probability exp(−γ) for each γ, which is rounded; `exactly` gives that of a place unrounded."""
    words = _words(len(gamma))
    chance, uniform = np.exp(-gamma), words * 2.0**-WORD
    slack = SLACK * chance * (1 + gamma) + 2.0 ** (1 - WORD)
    decided = uniform < chance
    for place in np.flatnonzero(np.abs(uniform - chance) <= slack):
        decided[place] = _is_below(int(words[place]), exactly(int(place)))
    return decided


def _is_below(word: int, gamma: Fraction) -> bool:
    """Return whether a uniform number that begins with 64 given bits is below exp(−γ), drawing more bits as needed."""
    bits = WORD
    while True:
        with localcontext(prec=bits):  # digits, far more than the bits need
            chance = (-Decimal(gamma.numerator) / Decimal(gamma.denominator)).exp() * 2**bits
        if abs(word - chance) > 2:
            return bool(word < chance)
        word, bits = (word << WORD) + secrets.randbits(WORD), bits + WORD


def _words(count: int) -> Bits:
    return np.frombuffer(urandom(8 * count), np.uint64)


def delta_of(epsilon: float, mu: float) -> float:
    """Return δ at which continuous Gaussian noise with Σ 1/σ² = μ² is (ε, δ)-private, exactly (Balle and Wang, 2018).

    δ = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ).
    """
    first, second = torch.special.log_ndtr(
        torch.tensor([mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu], dtype=torch.float64)
    ).tolist()
    return math.exp(first) * -math.expm1(min(0.0, epsilon + second - first))


def epsilon_of(mu: float, delta: float) -> float:
    """Return the least ε at which continuous Gaussian noise with Σ 1/σ² = μ² is (ε, δ)-private."""
    return least(lambda epsilon: delta_of(epsilon, mu) <= delta)


def sigma_of(epsilon: float, delta: float, rounds: int = 1) -> float:
    """Return the least σ at which so many releases with continuous Gaussian noise are (ε, δ)-private."""
    return least(lambda sigma: delta_of(epsilon, math.sqrt(rounds) / max(sigma, 1e-9)) <= delta)


def epsilon_of_zcdp(rho: float, delta: float) -> float:
    """Return ε at which ρ-zCDP is (ε, δ)-private: the minimum of ρα + ln(1 − 1/α) − ln(αδ)/(α − 1) over α > 1."""

    def value(log: float) -> float:
        more = math.exp(log)  # α − 1
        return rho * (1 + more) + math.log(more / (1 + more)) - (math.log(delta) + math.log1p(more)) / more

    low, high = -20.0, 40.0
    for _ in range(HALVINGS):
        third = (high - low) / 3
        low, high = (low, high - third) if value(low + third) < value(high - third) else (low + third, high)
    return max(0.0, value((low + high) / 2))


@lru_cache
def noise_for(epsilon: float, delta: float, rounds: int) -> float:
    """Return the least σ at which so many releases with discrete Gaussian noise are (ε, δ)-private."""
    return least(lambda sigma: epsilon_of_zcdp(rounds / (2 * max(sigma, 1e-9) ** 2), delta) <= epsilon)


def least(holds: Callable[[float], bool]) -> float:
    """Return the least number for which a condition holds, given that it holds for all larger ones."""
    low, high = 0.0, LARGEST
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
