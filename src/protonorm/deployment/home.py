"""What a client keeps on its own machine: the server's last message, its own evaluations, and its trained network.

Beside the states, in the folder of its federation's first agreement:

message.safetensors  last message of the server, with its round and the round of the state that belongs to it
history.jsonl        own accuracy under each rule and training loss of each round
about.json           inputs, network and number of samples, so that the network can be used without the data
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from protonorm import files, tensors
from protonorm.algorithms.local import Local
from protonorm.core.own_code import load_own
from protonorm.core.randomness import one_thread
from protonorm.core.robust import MEAN
from protonorm.core.samples import view
from protonorm.core.task import Counts, Order, Task
from protonorm.core.types import InputSpec
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.client_folder import HISTORY, read_history
from protonorm.deployment.site import OwnSite
from protonorm.federation.client import evaluate_step, first_state, train_step
from protonorm.federation.evaluation import Tally
from protonorm.federation.experts import JOINT
from protonorm.files import append, cut, sealed, unsealed
from protonorm.inference.info import FORMAT as CLIENT_FORMAT
from protonorm.inference.info import MEASURED, ClientInfo, Facts, Measured, Recommendation, default_rule, preprocessing
from protonorm.inference.loading import OwnCode, assemble
from protonorm.models.choose import Network, described
from protonorm.runs.layout import read_lines, stamp
from protonorm.runs.provenance import versions
from protonorm.runs.schema import typed
from protonorm.runs.states import FolderStore
from protonorm.session.leakage import Audit, examine
from protonorm.tensors import Tensors, prefixed, strip_prefix

if TYPE_CHECKING:
    from protonorm.deployment.client_folder import ClientFolder
    from protonorm.inference.trained import TrainedClient

MESSAGE, ABOUT = "message.safetensors", "about.json"
ROUND, TRAINED = "round", "trained"  # tensors beside the message


class Home:
    """Files of a client beside its states; private, atomic, and with checksums."""

    def __init__(self, store: FolderStore, id: int) -> None:
        self.folder, self._store, self.id = store.folder, store, id
        self._stamp = stamp(store.key, f"message-{id}", 0)

    def keep_message(self, round: int, trained: int, message: Tensors) -> None:
        """Keep the server's message after a round, with the round of the state that belongs to it."""
        rounds = {ROUND: torch.tensor(round), TRAINED: torch.tensor(trained)}
        tensors.save(self.folder / MESSAGE, rounds | prefixed("message", message), self._stamp)

    def message(self) -> tuple[int, int, Tensors]:
        """Return the kept message, its round, and the round of the state that belongs to it."""
        if not (self.folder / MESSAGE).is_file():
            raise ValueError("The client has not trained yet: it can be used after its first two rounds.")
        kept = tensors.load(self.folder / MESSAGE, self._stamp)
        return int(kept[ROUND]), int(kept[TRAINED]), strip_prefix(kept, "message")

    def state(self, trained: int) -> Tensors:
        """Return the client's state after a round."""
        return self._store.load(self.id, trained)

    def add(self, round: int, **line: Any) -> None:
        """Append to the history of a round."""
        path = self.folder / HISTORY
        cut(path, sum(map(len, read_lines(path))))  # remove a line that a kill left incomplete
        append(path, sealed({"round": round, **line}, owner=self.folder.name))

    def describe(self, site: OwnSite) -> None:
        """Write what the client's network needs to be used without the data."""
        recipe, task = site.recipe(site.id), site.task
        second = task.shared_network.name if task.algorithm.auxiliary and task.shared_network else None
        network_info = {"network": described(recipe.network), "auxiliary": second, "lowered": site.training.lowered}
        network_info |= {"precision": site.training.precision, "data": site.dataset.name}
        network_info |= {"input": site.dataset.spec.describe(), "train": int(site.facts().train.sum())}
        content, path = sealed(network_info, pretty=True, owner=self.folder.name), self.folder / ABOUT
        if not path.is_file() or path.read_bytes() != content:
            files.replace(path, content)

    def about(self) -> dict[str, Any]:
        """Return what `describe` wrote."""
        path = self.folder / ABOUT
        return unsealed(path.read_bytes(), path, pretty=True, owner=self.folder.name)


def own_measures(task: Task, counts: Tensors, parts: Sequence[str]) -> dict[str, Any]:
    """Return a client's own accuracy and other metrics by part and rule, from its counts."""
    measures: dict[str, Any] = {"rule": task.algorithm.headline}
    for part in parts:
        tally = Tally(part, task.algorithm.rules, 1, task.num_classes)
        tally.add(Counts(0, counts))
        evaluated = {rule: accuracy for rule, accuracy in tally.accuracies().items() if accuracy is not None}
        rules = {rule: {"accuracy": accuracy.pooled, **accuracy.metrics} for rule, accuracy in evaluated.items()}
        measures[part] = {"samples": int(counts[f"{part}.support"].sum()), "rules": rules}
    prefix = "validation.sharpness."
    return measures | {
        "sharpness": {name[len(prefix) :]: float(value) for name, value in counts.items() if name.startswith(prefix)}
    }


def train_alone(site: OwnSite, store: FolderStore, parts: Sequence[str], report: Callable[[str], None]) -> None:
    """Train on a client's own data alone, for as many rounds as the federation has: a baseline for its owner.

    It goes on from the last round that was done. Nothing of it is sent.
    """
    alone, id = copy(site), site.id
    alone.task = task = replace(site.task, algorithm=Local(), shared_network=None, combine=MEAN)
    home = Home(store, id)
    done = max(read_history(home.folder), default=0)
    with one_thread():
        state = store.load(id, done) if done else first_state(task, alone)
        for round in range(done + 1, task.rounds + 1):
            state, reply = train_step(task, alone, Order(id, round, round - 1), state, {})
            counts = evaluate_step(task, alone, Order(id, round, round), state, {}, parts).counts
            store.save(id, round, state)
            measures = own_measures(task, counts, parts)
            home.add(round, **measures, metrics=dict(reply.metrics))
            store.keep_only(id, round)
            shown = [
                f"{part} {measured['rules']['logits']['accuracy']:.1%}"
                for part in parts
                if (measured := measures[part])["rules"]
            ]
            report(f"Round {round} of {task.rounds} alone: {', '.join(shown) or 'nothing to test on'}.")


def audit_own(site: OwnSite, store: FolderStore) -> Audit:
    """Attack the message that a client would send next; what it is compared with are its own held-out samples."""
    home, task = Home(store, site.id), site.task
    message: Tensors = {}
    round, state = 0, first_state(task, site)
    if (home.folder / MESSAGE).is_file():
        round, trained, message = home.message()
        state = home.state(trained)
    client = site.client(round + 1)
    others = replace(client.test, index=torch.cat([client.validation.index, client.test.index]))
    if not len(others):
        raise ValueError("An audit needs validation or test samples to compare with, and this client has none.")
    protect, pictures = site.training.protect, view(site.dataset.inputs)
    with one_thread():
        return examine(task, site, round + 1, state, message, protect, others, pictures)


def load_trained(folder: ClientFolder) -> TrainedClient:
    """Load the trained client of a client's folder, as of the last message that the server sent it."""
    bundle, model = folder.bundle, folder.settings.model or ""
    network = load_own(model, "network") if ".py:" in model else None
    home, data = Home(folder.store(), bundle.client), folder.settings.data
    window = data.get("window") if isinstance(data, dict) else None
    return trained_client(folder.terms, home, folder.settings.name, bundle.federation, network, window)


def trained_client(
    terms: Agreement, home: Home, name: str, federation: str, network: Network | None = None, window: str | None = None
) -> TrainedClient:
    """Build a trained client from what its own machine has kept."""
    round, trained, message = home.message()
    network_info, line = home.about(), read_history(home.folder).get(round, {})
    about = {"client": home.id, "name": name, "run": federation, "round": round, "trained": trained}
    info = _client_info(terms, network_info, line, about, window)
    facts = _facts(terms, network_info, line, info, home)
    return assemble(info, facts, home.folder / MESSAGE, home.state(trained), message, OwnCode(network))


def _client_info(
    terms: Agreement,
    network_info: Mapping[str, Any],
    line: Mapping[str, Any],
    about: Mapping[str, Any],
    window: str | None,
) -> ClientInfo:
    """Describe a trained client; the rule is recommended by the owner's own validation samples."""
    algorithm, inputs = terms.task.algorithm, InputSpec.model_validate(network_info["input"])
    sharpness = line.get("sharpness") if JOINT in algorithm.rules else None
    rules = [rule for rule in algorithm.rules if rule != JOINT or sharpness is not None]
    usual = default_rule(algorithm.headline, rules)
    measured = line.get("validation", {}).get("rules", {})
    order = dict.fromkeys([algorithm.headline, *rules])
    accuracies = {rule: measured[rule]["accuracy"] for rule in order if rule in measured and rule in rules}
    if accuracies and line["validation"]["samples"]:
        best = max(accuracies, key=lambda rule: accuracies[rule])  # the first wins ties
        probability = default_rule(best, rules).probability
        probable = {"probability": probability, "calibration": measured.get(probability, {}).get("calibration")}
        usual = Recommendation(rule=best, by="own validation", validation=accuracies[best], **probable)
    plain = {
        "format": CLIENT_FORMAT,
        **about,
        "algorithm": terms.algorithm,
        "headline": algorithm.headline,
        "recommended": usual,
        **{name: network_info[name] for name in ("network", "auxiliary", "lowered", "precision")},
        "feature_dim": terms.feature_dim,
        "input": inputs,
        "preprocessing": preprocessing(inputs, window),
        "classes": terms.classes,
        "sharpness": sharpness,
    }
    return typed(ClientInfo, plain, Path(ABOUT))


def _facts(
    terms: Agreement, network_info: Mapping[str, Any], line: Mapping[str, Any], info: ClientInfo, home: Home
) -> Facts:
    """Return a client's origin and measured quality, from what its own machine has recorded."""
    rows = [
        Measured.model_validate({"part": part, "rule": rule, "samples": measured["samples"], **values})
        for part in ("validation", "test")
        if (measured := line.get(part)) and measured["samples"]
        for rule, values in measured["rules"].items()
    ]
    last = max([info.round, *read_history(home.folder)])
    why = "the last one that the server published" if info.round >= last else "the best one by the validation samples"
    return Facts(
        data=network_info["data"],
        train=network_info["train"],
        rounds=terms.rounds,
        chosen=f"round {info.round} of {terms.rounds}: {why}",
        metrics=rows,
        measured=MEASURED,
        date=datetime.fromtimestamp((home.folder / MESSAGE).stat().st_mtime, UTC).date().isoformat(),
        commit=None,
        dirty=None,
        versions=versions(),
        at_home=True,
    )
