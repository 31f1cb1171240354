"""Attacks on a client's own message: what it reveals of the client's samples, before and after the owner's policy.

The attacker is the server at its best, which knows the network that computed the message. Presence: which classes does
the client have? Membership: was a sample among those that the message was computed from, or another of its class?
Matching: which of many candidate pictures is it? Inversion: what does the picture look like? Regression from features
to pixels, learned from other pictures, mostly came closer than gradient descent on pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from protonorm.config.experiment import Experiment
from protonorm.core import Client, Samples
from protonorm.core.privacy import sends_moments
from protonorm.core.randomness import seeded
from protonorm.core.samples import view
from protonorm.core.task import Site, Task
from protonorm.core.training import Outgoing, Unchanged
from protonorm.federation.population import SimulatedPopulation
from protonorm.inference.loading import load_server
from protonorm.runs import layout
from protonorm.runs.run import Run
from protonorm.runs.states import FolderStore, message_to, trained_rounds
from protonorm.session.build import build
from protonorm.tensors import Tensors

CANDIDATES = 200  # pictures among which the true one is searched
PICTURES = 4  # of a client, that are searched and inverted: those of its smallest classes, and one of the largest
MEMBERS = 1000  # samples whose membership is tested
BATCH = 256  # inputs whose vectors are computed at once
RIDGE = 1e-4  # of the regression from vectors to pictures, relative to their mean square
EMPTY = torch.zeros(0)  # in place of a picture
VECTORS = ("prototypes", "logits")  # tensors of messages with a row for each class

Features = Callable[[Tensor], Tensor]  # inputs (B, …) -> vectors (B, d)
Decoder = Callable[[Tensor], Tensor]  # vectors (n, d) -> pictures (n, H, W, C)
Near = Callable[[Samples, Tensor, Tensor], Tensor]  # samples, places (n,), classes (n,) -> cosines to their vectors


class Search(NamedTuple):
    """Search for one picture of a client in a message."""

    name: str  # its class
    samples: int  # training samples of that class
    rank: int  # of the true picture among the candidates, from 1
    candidates: int
    psnr: float | None  # of the inverted picture, in dB; None if nothing of the class is sent, or there is no picture
    guess: float | None  # of the mean picture of others of the class, which needs no message
    picture: Tensor  # (H, W, C) from 0 to 1, or empty
    inverted: Tensor

    @property
    def found(self) -> bool:
        """Whether the picture is picked out of the candidates."""
        return self.rank == 1


class Findings(NamedTuple):
    """What a message reveals."""

    classes: int  # number of classes with a vector
    presence: float | None  # area under the curve: which classes the client has; None if it has all
    membership: float  # area under the curve: which samples it has, of those of the same class
    searches: list[Search]


class Audit(NamedTuple):
    """Findings of a client before and after its owner's policy."""

    client: str
    before: Findings
    after: Findings


def audit_run(run: Run, experiment: Experiment, protect: Outgoing, clients: int, names: Sequence[str]) -> list[Audit]:
    """Attack the messages that clients of a run would send next, with the policy `protect` and without any.

    The clients are those of these names or numbers, or without any as many as asked for that have the smallest classes.
    """
    layout.refuse_without_networks(run.folder)
    if not run.rounds:
        raise ValueError(f"An audit needs a run of at least one round, got none in {run.folder}.")
    task, population = build(experiment)
    saved, path, round = load_server(run, "last")
    trained = trained_rounds(saved, experiment.clients, round, path)
    store = FolderStore(run.folder / layout.CLIENTS, run.info.key, cache=0)
    counts = torch.from_numpy(population.facts().train)  # (M, K)
    smallest = torch.where(counts > 0, counts, counts.max() + 1).amin(1)
    chosen = [run.find_client(name) for name in names] or smallest.argsort(stable=True)[:clients].tolist()
    audits, pictures = [], view(population.dataset.inputs)
    for id in (id for id in chosen if trained[id]):
        state, message, others = store.load(id, trained[id]), message_to(saved, id), others_of(population, id)
        audits.append(examine(task, population.site(id), round + 1, state, message, protect, others, pictures))
    return audits


def others_of(population: SimulatedPopulation, id: int) -> Samples:
    """Return all samples of a population that a client does not train on."""
    site = population.site(id)
    own = site.client(0).train.index.cpu().numpy()
    return population.samples(np.setdiff1d(np.arange(len(population.dataset.labels)), own), id)


def examine(
    task: Task,
    site: Site,
    round: int,
    state: Tensors,
    message: Tensors,
    step: Outgoing,
    others: Samples,
    pictures: Tensor,
) -> Audit:
    """Attack the message that a client would send in a round, as it is and after its owner's step.

    The message is not computed from the `others`; `pictures` are the inputs of the data set that all samples are of.
    """
    step.check(task)
    client = site.client(round)
    known = {name: value for name, value in state.items() if not name.startswith("sent.")}  # so that all is sent again
    with seeded(task.seed, round, site.id):
        result = task.algorithm.local_update(client, known, message)
    client.load(result.state).eval()
    step.check_network(task, client.model)
    features = reader(task, client)
    with seeded(task.seed, round, site.id, "evaluate"):
        scene = Scene.drawn(task.classes, client, others, pictures)
        before = attack(client, result.message, features, scene)
        unchanged = step == Unchanged()
        after = before if unchanged else attack(client, step.apply(task, client, result.message), features, scene)
        return Audit(client.name or str(client.id), before, after)


def reader(task: Task, client: Client) -> Features:
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


def rows_of(client: Client, message: Tensors) -> tuple[Tensor, Tensor]:
    """Return the classes (R,) of which a message has vectors, and these (R, d)."""
    for name in VECTORS:
        if name in message:
            return message["classes"], message[name].double()
    trunk = client.model.trunk
    moments = message.get(f"moments.{trunk.digest[:12]}") if trunk else None
    if moments is None:
        return torch.zeros(0, dtype=torch.int64), torch.zeros(0, 1, dtype=torch.float64)
    if trunk and len(moments) != trunk.width + 1:
        raise ValueError(f"An audit is for features as they are, got {len(moments) - 1} projections of {trunk.width}.")
    classes = moments.any(0).nonzero().flatten()
    return classes, moments[:-1, classes].T.double()


class Scene(NamedTuple):
    """Samples that are attacked, drawn once for both messages, and those that an attacker has."""

    classes: Sequence[str]  # names
    others: Samples  # that the message was not computed from
    pictures: Tensor  # (N, H, W, C) of the data set, or other inputs
    members: Tensor  # (n,) places of the training part, whose membership is tested
    strangers: Tensor  # (m,) places of the others, of the client's classes
    sought: list[int]  # places of the training part: pictures that are searched
    candidates: list[Tensor]  # (c,) places of the others for each of these: of its class and, if these are few, others

    @classmethod
    def drawn(cls, classes: Sequence[str], client: Client, others: Samples, pictures: Tensor) -> Self:
        """Draw the samples that are attacked."""
        labels, counts = client.train.labels, client.train.class_counts(client.num_classes)
        order = [k for k in counts.argsort(stable=True).tolist() if counts[k]]
        chosen = dict.fromkeys([*order[: PICTURES - 1], order[-1]])
        shuffled = torch.randperm(len(others))
        known = others.labels[shuffled]
        candidates = [shuffled[(known != k).int().argsort(stable=True)][:CANDIDATES] for k in chosen]
        strangers = shuffled[torch.isin(known, labels.unique())][:MEMBERS]
        sought = [int((labels == k).nonzero()[0]) for k in chosen]
        return cls(classes, others, pictures, torch.randperm(len(labels))[:MEMBERS], strangers, sought, candidates)

    def shown(self, samples: Samples, places: Tensor) -> Tensor:
        """Return pictures (n, H, W, C) from 0 to 1."""
        return self.pictures[samples.index[places].cpu()].float() / 255


def attack(client: Client, message: Tensors, features: Features, scene: Scene) -> Findings:
    """Attack a message in all four ways."""
    classes, rows = rows_of(client, message)
    has = client.train.class_counts(client.num_classes) > 0
    norms = torch.zeros(client.num_classes, dtype=torch.float64).index_copy_(0, classes, rows.norm(dim=1))
    presence = None if bool(has.all()) else area(norms[has], norms[~has])
    near = likeness(classes, rows, features, client.num_classes)
    y, y_others = client.train.labels[scene.members], scene.others.labels[scene.strangers]
    scores = near(client.train, scene.members, y), near(scene.others, scene.strangers, y_others)
    membership = area(*scores, y.unsqueeze(1) == y_others.unsqueeze(0))
    found = searches(client, classes, rows, near, decoder(features, scene), scene)
    return Findings(len(classes), presence, membership, list(found))


def likeness(classes: Tensor, rows: Tensor, features: Features, num_classes: int) -> Near:
    """Return the cosines of samples to the vectors of classes, or to the nearest of all where there is none."""
    place = torch.full((num_classes,), -1).index_copy_(0, classes, torch.arange(len(classes)))  # of a class in rows
    table = normalize(rows)

    @torch.no_grad()
    def near(samples: Samples, places: Tensor, y: Tensor) -> Tensor:
        if not len(places) or not len(rows):
            return torch.zeros(len(places), dtype=torch.float64)
        z = torch.cat([features(samples.batch(part)[0]).double() for part in places.split(BATCH)])
        cosines, own = normalize(z) @ table.T, place[y]  # (n, R), (n,)
        return torch.where(own >= 0, cosines.gather(1, own.clamp(min=0).unsqueeze(1)).squeeze(1), cosines.amax(1))

    return near


def searches(
    client: Client, classes: Tensor, rows: Tensor, near: Near, decode: Decoder | None, scene: Scene
) -> Iterator[Search]:
    """Yield the searches for single pictures: among candidates, and by inversion."""
    at, others = torch.tensor(scene.sought), scene.others
    labels, counts = client.train.labels[at], client.train.class_counts(client.num_classes)
    scores = near(client.train, at, labels)
    for i, (label, candidates) in enumerate(zip(labels.tolist(), scene.candidates, strict=True)):
        rank = 1 + int((near(others, candidates, torch.full_like(candidates, label)) >= scores[i]).sum())
        search = Search(scene.classes[label], int(counts[label]), rank, len(candidates) + 1, None, None, EMPTY, EMPTY)
        if decode is not None:
            true, alike = scene.shown(client.train, at[i : i + 1])[0], candidates[others.labels[candidates] == label]
            mean = scene.shown(others, alike if len(alike) else candidates).mean(0)
            search = search._replace(picture=true, guess=ratio(true, mean))
            if len(row := rows[classes == label]):
                inverted = decode(row)[0]
                search = search._replace(inverted=inverted, psnr=ratio(true, inverted))
        yield search


def decoder(features: Features, scene: Scene) -> Decoder | None:
    """Return what inverts vectors, learned from the other samples; None if these are no pictures."""
    if scene.pictures.ndim != 4 or not len(scene.strangers):
        return None
    with torch.no_grad():
        z = torch.cat([features(scene.others.batch(part)[0]).double() for part in scene.strangers.split(BATCH)])
    return decoder_of(z, scene.shown(scene.others, scene.strangers))


def decoder_of(z: Tensor, pictures: Tensor) -> Decoder:
    """Fit the ridge regression from vectors (n, d) to pictures (n, H, W, C)."""
    x, size = pictures.flatten(1).double(), pictures.shape[1:]
    middle, mean = z.mean(0), x.mean(0)
    z = z - middle
    ridge = RIDGE * float(z.square().mean()) * len(z) * torch.eye(z.shape[1], dtype=torch.float64)
    weights = torch.linalg.solve(z.T @ z + ridge, z.T @ (x - mean))  # (d, H·W·C)
    return lambda rows: (mean + (rows - middle) @ weights).clamp(0, 1).float().reshape(-1, *size)


def ratio(true: Tensor, other: Tensor) -> float:
    """Return the peak signal-to-noise ratio of two pictures from 0 to 1, in dB, at most 99."""
    return min(99.0, -10 * math.log10(max(float((true - other).square().mean()), 1e-12)))


def area(inside: Tensor, outside: Tensor, compared: Tensor | None = None) -> float:
    """Return the area under the curve of scores: the chance that one inside (n,) is above one outside (m,).

    Pairs that are not compared, by a mask (n, m), do not count; without pairs it is 0.5.
    """
    apart = inside.double().unsqueeze(1) - outside.double().unsqueeze(0)
    above = (apart > 0).double() + 0.5 * (apart == 0).double()
    pairs = above.flatten() if compared is None else above[compared]
    return float(pairs.mean()) if len(pairs) else 0.5
