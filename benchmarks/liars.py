"""What lying clients send: messages that were changed, or computed from samples that were.

A liar trains as the others do, and knows the messages of the honest clients of its round. Rows of classes are rows of
`classes` and prototypes, columns of second moments, and rows of a network's head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from protonorm.core.combine import Sums, combine
from protonorm.core.robust import Robust, fold_of
from protonorm.core.task import Task
from protonorm.data.dataset import Dataset
from protonorm.federation.population import SimulatedPopulation
from protonorm.tensors import Tensors, floats, root_mean_square

LARGE = 5e5  # root mean square of what is scaled; a server refuses 10⁶
INVENTED = 1e3  # times the usual size: vectors of a class that a liar lacks
TARGET, PATCH = 0, 7  # of the backdoor: the class that its pattern means, and its share 1/7 of a picture's side
DEVIATIONS = (0.5, 1.0, 1.5, 2.0, 4.0)  # standard deviations off the mean that the liar tries that knows the defence
TURNS = (0.25, 0.5, 0.75, 1.0)  # how far it tries to turn the mean towards another class, or the opposite direction

Change = Callable[[Tensors, Sequence[Tensors]], Tensors | None]  # own message, those of the honest -> what is sent


class Lie(NamedTuple):
    """What a liar changes: its message, its samples, or both."""

    change: Change | Literal["adaptive"] = lambda own, others: own
    data: Literal["", "swapped", "backdoor"] = ""


def sized(size: float | None, change: Callable[[Tensor], Tensor] = lambda value: value) -> Change:
    """Change each floating tensor, and scale it to a root mean square."""

    def lie(own: Tensors, others: Sequence[Tensors]) -> Tensors:
        message = dict(own)
        for name, value in floats(own).items():
            message[name] = changed = change(value)
            if size is not None and (now := root_mean_square(changed)):
                message[name] = changed * (size / now)
        return message

    return lie


def by_class(change: Callable[[Tensor], Tensor], size: float | None = None) -> Change:
    """Change the rows of classes (K', …), and scale the changed tensors to a root mean square."""

    def lie(own: Tensors, others: Sequence[Tensors]) -> Tensors:
        rows = {name: change(value) for name, value in class_rows(own).items()}
        if size is not None:
            rows = {name: value * (size / (root_mean_square(value) or 1.0)) for name, value in rows.items()}
        return own | {name: value.T.contiguous() if of_moments(name) else value for name, value in rows.items()}

    return lie


def of_moments(name: str) -> bool:
    """Return whether a tensor has classes in its columns."""
    return name.startswith("moments.")


def class_rows(message: Tensors) -> Tensors:
    """Return the tensors of a message that have a row for each class."""
    named = {name: value.T if of_moments(name) else value for name, value in floats(message).items()}
    heads = {name: value for name, value in named.items() if "head." in name or of_moments(name)}
    return heads or {name: value for name, value in named.items() if "classes" in message}


def collapsed(value: Tensor) -> Tensor:
    """Return the mean of the rows in each row."""
    return value.mean(0, keepdim=True).expand_as(value).clone()


def rolled(value: Tensor) -> Tensor:
    """Return the row of another class in each row."""
    return value.roll(1, 0)


def invented(own: Tensors, others: Sequence[Tensors]) -> Tensors:
    """Send large vectors for the classes that the client lacks; of a whole network or moments, for one class."""
    if "classes" not in own:
        many = {
            name: torch.cat([INVENTED * value.abs().mean() * torch.ones_like(value[:1]), value[1:]])
            for name, value in class_rows(own).items()
        }
        return own | {name: value.T.contiguous() if of_moments(name) else value for name, value in many.items()}
    classes = torch.cat([message["classes"] for message in others]).unique()
    lacked = classes[~torch.isin(classes, own["classes"])]
    name = next(iter(floats(own)))
    vectors = INVENTED * own[name].abs().mean() * torch.ones(len(lacked), *own[name].shape[1:])
    return {"classes": torch.cat([own["classes"], lacked]), name: torch.cat([own[name], vectors])}


def replacing(own: Tensors, others: Sequence[Tensors]) -> Tensors:
    """Send what moves the mean of all to the own message, if all have a say: mean + N(own − mean)."""
    if any(map(of_moments, own)):
        return own | {name: (len(others) + 1) * value for name, value in floats(own).items()}  # sums: more samples
    mean, _ = moments(own, others)
    return own | {name: mean[name] + (len(others) + 1) * (own[name] - mean[name]) for name in mean}


def moments(own: Tensors, others: Sequence[Tensors]) -> tuple[Tensors, Tensors]:
    """Return mean and standard deviation of the honest messages; of prototypes by class, as far as others have it."""
    stacks: dict[str, list[Tensor]] = {}
    for name, value in floats(own).items():
        if "classes" not in own:
            stacks[name] = [torch.stack([other.get(name, value) for other in others])]
            continue
        rows = [[other[name][other["classes"] == label] for other in others] for label in own["classes"].tolist()]
        stacks[name] = [torch.cat([*row, value[i : i + 1][sum(map(len, row)) :]]) for i, row in enumerate(rows)]

    def folded(measure: Callable[[Tensor], Tensor]) -> Tensors:
        return {
            name: measure(stack[0]) if "classes" not in own else torch.stack([measure(part) for part in stack])
            for name, stack in stacks.items()
        }

    return folded(lambda part: part.mean(0)), folded(lambda part: part.std(0, correction=0))


def candidates(own: Tensors, others: Sequence[Tensors]) -> Iterator[Tensors]:
    """Yield messages that a liar may choose from: off the honest mean, or turned away from it at its length."""
    yield sized(LARGE, torch.neg)(own, others) or own
    mean, deviation = moments(own, others)
    for z in DEVIATIONS:
        yield own | {name: mean[name] - z * deviation[name] for name in mean}
    other = by_class(rolled)(own | mean, others)
    for turn in TURNS:
        yield own | {name: (1 - 2 * turn) * value for name, value in mean.items()}
        yield own | {name: (1 - turn) * value + turn * other[name] for name, value in mean.items()}


def worst(task: Task, round: int, own: Tensors, others: Sequence[Tensors], liars: int) -> Tensors:
    """Return the candidate that moves the server's combination furthest, and gives no alarm if that can be."""
    method, server = task.algorithm, task.server(round)

    def combined(lie: Tensors | None) -> tuple[Sums, bool]:
        fold = fold_of(task.combine)()
        sent = [*others, *([lie] * liars if lie is not None else [])]
        sums = combine((method.contribution(server, {}, message) for message in sent), fold)  # type: ignore[attr-defined]
        named = any(one.alarm for one in fold.standings()[len(others) :]) if isinstance(fold, Robust) else False
        return sums, named

    honest, _ = combined(None)

    def harm(lie: Tensors) -> tuple[bool, float]:
        sums, named = combined(lie)
        return not named, sum(distance(sums, honest, name) for name in (*honest.means, *honest.totals))

    return max([own, *candidates(own, others)], key=harm)


def distance(sums: Sums, honest: Sums, name: str) -> float:
    """Return how far a combination is from the honest one, relative to that, row by row."""
    both = [(part.means | part.totals)[name].double() for part in (sums, honest)]
    one, two = (value.reshape(len(value) if value.ndim > 1 else 1, -1) for value in both)
    size = two.norm(dim=1).clamp(min=1e-9)
    return float(((one - two).norm(dim=1) / size).clamp(max=10).mean())


LIES: dict[str, Lie] = {
    "honest": Lie(),
    "negated": Lie(sized(None, torch.neg)),
    "classes swapped": Lie(data="swapped"),
    "collapsed": Lie(by_class(collapsed)),
    "scaled": Lie(sized(LARGE)),
    "negated, scaled": Lie(sized(LARGE, torch.neg)),
    "invented class": Lie(invented),
    "adaptive": Lie("adaptive"),
    "backdoor": Lie(replacing, "backdoor"),
    # of the table of one liar in four
    "absent": Lie(lambda own, others: None),
    "another class": Lie(by_class(rolled)),
    "another class, large": Lie(by_class(rolled, LARGE)),
    "all classes alike, large": Lie(by_class(collapsed, LARGE)),
    "a million times": Lie(sized(None, lambda value: 1e6 * value)),
    "zeros": Lie(sized(None, torch.zeros_like)),
    "half as much again": Lie(sized(None, lambda value: 1.5 * value)),
}


def stamped(pictures: np.ndarray) -> np.ndarray:
    """Return pictures (N, H, W, C) with a white square in a corner: the pattern of the backdoor."""
    side = max(1, pictures.shape[1] // PATCH)
    stamped = pictures.copy()
    stamped[:, -side:, -side:] = 255
    return stamped


def poisoned(population: SimulatedPopulation, patched: Dataset, kind: str, liars: Sequence[int]) -> SimulatedPopulation:
    """Return the same clients with other samples: swapped labels, or the pattern on every second one of the liars'."""
    data = population.dataset
    if kind == "swapped":
        data = replace(data, labels=(data.labels + 1) % data.num_classes)
    elif kind == "backdoor":
        chosen = np.concatenate([population.parts[id].train[::2] for id in liars])
        inputs, labels = data.inputs.copy(), data.labels.copy()
        inputs[chosen], labels[chosen] = patched.inputs[chosen], TARGET
        data = replace(data, inputs=inputs, labels=labels)
    else:
        data = patched
    trunk = population.networks[0].trunk
    features = {trunk.digest: np.asarray(data.inputs, np.float32)} if trunk else None
    return SimulatedPopulation(
        population.task, data, population.parts, population.networks, population.training, features=features
    )
