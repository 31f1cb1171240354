"""Counts that come from elsewhere: what samples can give is taken, and whatever is taken can be put on record."""

import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protonorm.core import Counts
from protonorm.federation.client import PROBABLE, _fitted, count_answers
from protonorm.federation.evaluation import Tally
from protonorm.metrics.base import BINS, LEAST_LOG
from protonorm.tensors import prefixed

RULES = (*PROBABLE, "nearest-global", "nearest-local")
RANKING = SimpleNamespace(metrics="ranking")
EXTREME = st.sampled_from([0.0, 1e-3, 1.0, 40.0, 1e4, math.inf, -math.inf, math.nan])
DTYPES = st.sampled_from([torch.float16, torch.float32, torch.float64])


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(0, 3), EXTREME, DTYPES, st.booleans())
def test_what_a_client_counts_is_always_taken(seed, classes, batches, extreme, dtype, sure):
    """Scores of every size, also such as are no numbers, under every rule; with and without temperatures."""
    chance, held = torch.Generator().manual_seed(seed), []
    for _ in range(batches):
        y = torch.randint(classes, (50,), generator=chance)
        scores = {rule: torch.randn(50, classes, generator=chance) for rule in RULES}
        for one in scores.values():
            one[torch.rand(50, classes, generator=chance) < 0.2] *= extreme
            if sure:
                one[torch.arange(50), y.flip(0)] += 1e4  # as sure as can be, and mostly wrong
        held.append(({rule: one.to(dtype) for rule, one in scores.items()}, y))
    method = SimpleNamespace(rules=("logits", "nearest-global", "joint"))
    batches, sharpness = _fitted(method, held) if seed % 2 else (held, {})
    counts = count_answers(batches, SimpleNamespace(num_classes=classes, training=RANKING))
    counts |= {f"sharpness.{rule}": torch.tensor(one, dtype=torch.float64) for rule, one in sharpness.items()}
    counts["unseen"] = counts["support"].sum()
    tally = Tally("test", RULES, 1, classes)
    tally.check(Counts(0, prefixed("test", counts)))
    tally.add(Counts(0, prefixed("test", counts)))
    tally.accuracies()


def possible(**change):
    """Count five samples, two of class 0 and three of class 2, in two bins of confidence."""
    found = {"support": [2, 0, 3], "unseen": 0, "correct.logits": [1, 0, 3], "predicted.logits": [1, 1, 3]}
    bins = torch.zeros(3, BINS, dtype=torch.float64)
    bins[:, 7], bins[:, 14] = torch.tensor([2.0, 1.0, 1.0]), torch.tensor([3.0, 2.9, 3.0])
    made = {name: torch.tensor(value) for name, value in found.items()} | {"bins.logits": bins}
    made |= {f"{name}.logits": torch.tensor(0.5, dtype=torch.float64) for name in ("nll", "sharpness")}
    made |= change
    return Counts(0, prefixed("test", {name: value for name, value in made.items() if value is not None}))


def number(value):
    return torch.tensor(value, dtype=torch.float64)


def with_bins(row, value):
    bins = possible().counts["test.bins.logits"].clone()
    bins[row, 7] = value
    return {"bins.logits": bins}


FULL = 2**63 - 1
IMPOSSIBLE = {
    "more samples of classes without a prototype": {"unseen": torch.tensor(6)},
    "more than 2147483647 samples of a class": {"support": torch.tensor([2, 0, FULL])},
    "more right answers than samples": {"correct.logits": torch.tensor([1, 1, 3])},
    "more right answers than answers": {"correct.logits": torch.tensor([2, 0, 3])},
    "an answer for each sample": {"predicted.logits": torch.tensor([FULL, FULL, 7])},  # 2·(2⁶³ − 1) + 7 is 5 mod 2⁶⁴
    "belong together under logits": {"predicted.logits": None},
    "belong together": {"bins.logits": None},
    "bins.logits that are not those": with_bins(0, 1.0),
    "bins.logits that are not": with_bins(1, 2.1),
    "bins.logits that": with_bins(2, 3.0),
    "nll.logits that is larger": {"nll.logits": number(-5.001 * LEAST_LOG)},
    "sharpness.logits that is larger": {"sharpness.logits": number(1e37)},
}


@pytest.mark.parametrize("said", IMPOSSIBLE)
def test_what_no_samples_can_give_is_refused(said):
    tally = Tally("test", ("logits",), 1, 3)
    tally.check(possible())
    with pytest.raises(ValueError, match=said):
        tally.check(possible(**IMPOSSIBLE[said]))


def test_totals_are_bounded_too():
    counts = {name: torch.tensor(2**31) for name in ("test.support", "test.correct.logits")}
    with pytest.raises(ValueError, match="more than 2147483647 samples"):
        Tally("test", ("logits",), 1, 3).check(Counts(0, counts))


@settings(deadline=None, derandomize=True, max_examples=1000)
@given(st.integers(0, 2**31))
def test_whatever_is_taken_can_be_put_on_record(seed):
    """Two clients with any numbers of the right kind: either they are refused, or the record takes them."""
    chance, tally = random.Random(seed), Tally("test", ("logits",), 2, 1)

    def draw(shape, *values):
        flat = [chance.choice(values) for _ in range(math.prod(shape))]
        return torch.tensor(flat, dtype=torch.int64 if type(values[0]) is int else torch.float64).view(shape)

    for id in range(2):
        bins = torch.zeros(3, BINS, dtype=torch.float64)
        bins[:, 3] = draw((3,), 0.0, 1.0, 2.0, 1e300)
        counts = {"support": draw((1,), 1, 2, FULL), "unseen": draw((), 0, 1, 3), "bins.logits": bins}
        counts |= {f"{kind}.logits": draw((1,), 0, 1, 2, FULL) for kind in ("correct", "predicted")}
        counts |= {f"{kind}.logits": draw((), 0.0, 30.0, 1e300) for kind in ("nll", "sharpness")}
        for name in chance.sample(sorted(counts), chance.randrange(3)):
            counts.pop(name)
        found = Counts(id, prefixed("test", counts))
        try:
            tally.check(found)
        except ValueError:
            continue
        tally.add(found)
    tally.accuracies()
    assert not any(value.dtype.kind == "f" and np.isinf(value).any() for value in tally.arrays().values())
    assert tally.unseen() is None or tally.unseen() <= 1
