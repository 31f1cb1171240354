"""Attacks on a client's own message: what it reveals of the client's samples, before and after the owner's policy.

The attacker is the server at its best, which knows the network that computed the message. Presence: which classes does
the client have? Membership: was a sample among those that the message was computed from? Matching: which of many
candidate pictures is it? Inversion: what does a picture look like that gives the same features?
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from protonorm.core import Client, Samples
from protonorm.core.privacy import sends_moments
from protonorm.core.randomness import seeded
from protonorm.core.task import Site, Task
from protonorm.core.training import Outgoing
from protonorm.tensors import Tensors

CANDIDATES = 200  # pictures among which the true one is searched
PICTURES = 4  # of a client, that are searched and inverted: those of its smallest classes, and one of the largest
STEPS, RATE, SMOOTH = 300, 0.05, 0.02  # of the inversion: steps of Adam, learning rate, weight of the total variation
VECTORS = ("prototypes", "logits")  # tensors of messages with a row for each class

Rows = dict[int, Tensor]  # by class


class Search(NamedTuple):
    """Search for one picture of a client in a message."""

    name: str  # its class
    samples: int  # training samples of that class
    rank: int  # of the true picture among the candidates, from 1
    candidates: int
    psnr: float | None  # of the inverted picture, in dB; None if nothing of the class is sent, or there is no picture
    picture: Tensor  # (H, W, C) from 0 to 1, or empty
    inverted: Tensor


class Findings(NamedTuple):
    """What a message reveals."""

    rows: list[int]  # classes that are sent
    presence: float  # area under the curve: which classes the client has
    membership: float  # area under the curve: which samples it has
    searches: list[Search]


class Audit(NamedTuple):
    """Findings of a client before and after its owner's policy."""

    client: str
    before: Findings
    after: Findings

    @property
    def exposed(self) -> list[Search]:
        """Searches that found a picture before the policy."""
        return [search for search in self.before.searches if search.rank == 1]

    @property
    def hidden(self) -> list[Search]:
        """Searches for the same pictures after the policy, that no longer find them."""
        return [
            after
            for before, after in zip(self.before.searches, self.after.searches, strict=True)
            if before.rank == 1 < after.rank
        ]


def examine(
    task: Task, site: Site, round: int, state: Tensors, message: Tensors, step: Outgoing, others: Samples
) -> Audit:
    """Attack the message that a client would send next, as it is and after its owner's step.

    Args:
        task: The task.
        site: The client's data, network and training.
        round: Round in which the message is computed.
        state: The client's state.
        message: The server's message.
        step: The owner's outgoing step.
        others: Samples that the message was not computed from.
    """
    step.check(task)
    client = site.client(round)
    known = {name: value for name, value in state.items() if not name.startswith("sent.")}  # so that all is sent again
    with seeded(task.seed, round, site.id):
        result = task.algorithm.local_update(client, known, message)
        client.load(result.state)
    features = reader(task, client)
    with seeded(task.seed, round, site.id, "evaluate"):
        return Audit(
            client.name or str(client.id),
            *(
                attack(task, client, sent, features, others)
                for sent in (result.message, step.apply(task, client, result.message))
            ),
        )


def reader(task: Task, client: Client) -> Callable[[Tensor], Tensor]:
    """Return the function from inputs to the vectors of which messages have a mean or a sum by class."""
    names = {name for slot in task.schema.up for form in slot for name in form}
    if sends_moments(task):
        return lambda x: normalize(client.model.trunk_features(x))  # (N, D)
    if "classes" in names and names & {*VECTORS}:
        return client.model if "logits" in names else client.model.features
    raise ValueError(
        f"An audit is for methods whose clients send vectors by class, or second moments; those of "
        f"{type(task.algorithm).__name__} send {', '.join(sorted(names)) or 'nothing'}, to which other attacks apply."
    )


def rows_of(client: Client, message: Tensors) -> Rows:
    """Return the vectors (d,) of a message, by class."""
    for name in VECTORS:
        if name in message:
            return dict(zip(message["classes"].tolist(), message[name].double(), strict=True))
    trunk = client.model.trunk
    moments = message.get(f"moments.{trunk.digest[:12]}") if trunk else None
    if moments is None:
        return {}
    if trunk and len(moments) != trunk.width + 1:
        raise ValueError(f"An audit is for features as they are, got {len(moments) - 1} projections of {trunk.width}.")
    sums = moments.double()
    return {k: sums[:-1, k] for k in range(sums.shape[1]) if bool(sums[:, k].any())}


def attack(
    task: Task, client: Client, message: Tensors, features: Callable[[Tensor], Tensor], others: Samples
) -> Findings:
    """Attack a message in all four ways."""
    rows, client_classes = rows_of(client, message), client.train.class_counts(client.num_classes)
    client.model.eval()
    norms = torch.tensor([float(rows[k].norm()) if k in rows else 0.0 for k in range(client.num_classes)])
    presence = area(norms[client_classes > 0], norms[client_classes == 0])
    near = likeness(rows, features)
    places = torch.isin(others.labels, client.train.labels.unique()).nonzero().flatten()
    outside = places[torch.randperm(len(places))[: len(client.train)]]
    scores = [
        near(part, chosen) for part, chosen in ((client.train, torch.arange(len(client.train))), (others, outside))
    ]
    searched = [search(client, rows, place, near, features, others) for place in sought(client)]
    return Findings(sorted(rows), presence, area(*scores), searched)


def likeness(rows: Rows, features: Callable[[Tensor], Tensor]) -> Callable[[Samples, Tensor], Tensor]:
    """Return the function that says how near samples are to the vector of their class, or to the nearest of all."""

    @torch.no_grad()
    def near(samples: Samples, places: Tensor) -> Tensor:
        if not len(places) or not rows:
            return torch.zeros(len(places))
        x, y = samples.batch(places)
        z = features(x).double()
        table = torch.stack([cosine_similarity(z, row.unsqueeze(0)) for row in rows.values()], 1)  # (N, rows)
        own = torch.tensor([list(rows).index(k) if k in rows else -1 for k in y.tolist()])
        return torch.where(own >= 0, table.gather(1, own.clamp(min=0).unsqueeze(1)).squeeze(1), table.amax(1))

    return near


def sought(client: Client) -> list[int]:
    """Return the places of pictures to search for: of the client's smallest classes, and of its largest."""
    labels = client.train.labels
    counts = client.train.class_counts(client.num_classes)
    order = [k for k in counts.argsort().tolist() if counts[k]]
    chosen = dict.fromkeys([*order[: PICTURES - 1], order[-1]])
    return [int((labels == k).nonzero()[0]) for k in chosen]


def search(
    client: Client,
    rows: Rows,
    place: int,
    near: Callable[[Samples, Tensor], Tensor],
    features: Callable[[Tensor], Tensor],
    others: Samples,
) -> Search:
    """Search for a picture among candidates of its class and, where these are too few, of others; and invert it."""
    label, at = int(client.train.labels[place]), torch.tensor([place])
    order = torch.randperm(len(others))
    order = order[(others.labels[order] != label).int().argsort(stable=True)][:CANDIDATES]
    scores = near(others, order)
    rank = 1 + int((scores >= near(client.train, at)).sum())
    x, _ = client.train.batch(at)
    empty = torch.zeros(0)
    picture, inverted, psnr = empty, empty, None
    if x.ndim == 4 and client.model.trunk is None:
        picture = shown(x)
        if label in rows:
            inverted = shown(invert(rows[label].float(), features, x.shape))
            psnr = -10 * math.log10(max(float((picture - inverted).square().mean()), 1e-12))
    count = int((client.train.labels == label).sum())
    return Search(str(label), count, rank, len(order) + 1, psnr, picture, inverted)


def invert(row: Tensor, features: Callable[[Tensor], Tensor], shape: Sequence[int]) -> Tensor:
    """Return a picture (1, C, H, W) whose features point where a vector does, smooth as pictures are."""
    x = torch.zeros(*shape, requires_grad=True)
    optimiser = torch.optim.Adam([x], RATE)
    for _ in range(STEPS):
        optimiser.zero_grad()
        z = features(x.clamp(-1, 1))[0]
        rough = (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()
        loss = (z - row).square().sum() / row.square().sum().clamp(min=1e-12) + SMOOTH * rough
        loss.backward()
        optimiser.step()
    return x.detach().clamp(-1, 1)


def shown(x: Tensor) -> Tensor:
    """Return a network's input (1, C, H, W) as a picture (H, W, C) from 0 to 1."""
    return ((x[0].permute(1, 2, 0) + 1) / 2).clamp(0, 1).contiguous()


def area(inside: Tensor, outside: Tensor) -> float:
    """Return the area under the curve of scores: the chance that one inside is above one outside; 0.5 if none is."""
    if not len(inside) or not len(outside):
        return 0.5
    apart = inside.double().unsqueeze(1) - outside.double().unsqueeze(0)
    return float(((apart > 0).double() + 0.5 * (apart == 0).double()).mean())


def verdict(audits: Sequence[Audit], policy: str) -> str:
    """Summarise in one or two sentences what the messages reveal, for people who decide."""
    exposed = sum(len(audit.exposed) for audit in audits)
    whole = sum(len(audit.before.searches) for audit in audits)
    left = exposed - sum(len(audit.hidden) for audit in audits)
    if not exposed:
        return (
            f"As they are, the messages let the server pick none of the {whole} pictures out of others of their class."
        )
    start = f"As they are, the messages let the server pick {exposed} of {whole} pictures out of others of their class"
    return f"{start}; with {policy}, {left} of these." if policy != "none" else f"{start}, and no policy is set."
