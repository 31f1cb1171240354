"""A trained client, in its run or out of it: what it takes to predict.

An exported client is a folder:
client.json            algorithm, network, inputs, d, classes, rules, measures; nothing in it is executed
client.safetensors     state.*: weights and local prototypes; message.*: what the server said last, global prototypes
README.md              the same for people: a model card
model.onnx             the same for other programs, if it is asked for
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from protonorm.algorithms.parts.prototypes import prototype_scores
from protonorm.core.algorithm import Algorithm
from protonorm.core.node import Client
from protonorm.core.randomness import one_thread
from protonorm.core.samples import as_input, evaluation_batch, view
from protonorm.federation.experts import JOINT, joint_scores
from protonorm.files import BLANK, checksum, make_folder, parse_json, replace, seal, sealed
from protonorm.inference.answers import Answers, answers_of
from protonorm.inference.card import model_card
from protonorm.inference.facts import facts_of
from protonorm.inference.info import CARD, FORMAT, INFO, ONNX, WEIGHTS, ClientInfo, Facts
from protonorm.inference.module import ClientModule, make_module
from protonorm.models.memory import lacks_memory
from protonorm.runs.run import Run
from protonorm.tensors import Tensors, encode, prefixed

__all__ = ["CARD", "FORMAT", "INFO", "ONNX", "STAMP", "WEIGHTS", "ClientInfo", "TrainedClient", "refuse_foreign"]

STAMP = "protonorm client 0"


@dataclass(frozen=True)
class TrainedClient:
    """A client that has trained: its network with the weights of a round, and what the server said in that round.

    `result.clients["berlin"]`, `result.clients[3]` and `pn.load_client(folder)` give one. Inputs are arrays as a data
    set has them: pictures (n, H, W, C) uint8, vectors (n, D) float32, tokens (n, L) int64; others are refused with a
    ValueError. A rule is a way to predict: `global`, `local`, `logits`, `received`, `shared`, `coarse` or `joint`, as
    far as the method has them.
    """

    info: ClientInfo  # what the client is, in plain data: names, classes, network, preprocessing, round, rule
    algorithm: Algorithm = field(repr=False)  # the method
    client: Client = field(repr=False)  # a workspace: its weights are those last loaded
    state: Tensors = field(repr=False)  # what it remembers: weights, local prototypes
    message: Tensors = field(repr=False)  # what the server said last
    source: Run | Facts = field(repr=False)  # the run that it is of, or what its file says of that

    @property
    def id(self) -> int:
        """Give the client's number."""
        return self.info.client

    @property
    def classes(self) -> tuple[str, ...]:
        """Name the classes, K."""
        return tuple(self.info.classes)

    @property
    def rule(self) -> str:
        """Name the rule that is used if none is given: the one that won on validation, else the method's headline."""
        return self.info.recommended.rule

    @property
    def name(self) -> str:
        """Give the client's name: that of its folder or file, or its number."""
        return self.info.name

    @cached_property
    def facts(self) -> Facts:
        """Say where the client comes from, and how good it was there."""
        return facts_of(self.source, self.id, self.info.round) if isinstance(self.source, Run) else self.source

    @cached_property
    def module(self) -> ClientModule:
        """Give the client as an `nn.Module` of plain torch layers: inputs as stored to scores (n, K) by rule."""
        with one_thread():
            return make_module(self)

    def predict(self, x: NDArray[Any], rule: str | None = None) -> NDArray[np.int64]:
        """Predict the numbers (n,) of the classes under a rule, the recommended one if none is given."""
        scores = self.scores(x)
        if (wanted := rule or self.rule) not in scores:
            raise ValueError(f"There is no rule {wanted!r} here; known: {', '.join(scores)}.")
        best: NDArray[np.int64] = scores[wanted].argmax(1)
        return best

    def confidence(self, x: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
        """Give the softmax of the scores (n, K) under each rule: how sure a rule is, not how often it is right."""
        return {rule: _softmax(value) for rule, value in self.scores(x).items()}

    def answers(self, x: NDArray[Any]) -> Answers:
        """Give the recommended answers, their probability, and what each rule says.

        The parts are `classes`, `probability` and `agree`, (n,) each, and `rules`, which has `classes`, `confidence`
        and `margin` of each rule.
        """
        scores, wanted = self.scores(x), self.info.recommended
        by_prototypes = type(self.algorithm).scores is prototype_scores
        lengths = np.square(self.features(x)).sum(1) if by_prototypes else None  # ‖z‖², (n,)
        softmax = {rule: _softmax(value) for rule, value in scores.items()}
        return answers_of(wanted.rule, wanted.probability, scores, softmax, lengths)

    @torch.no_grad()
    def scores(self, x: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
        """Score the classes (n, K) under each rule: the largest wins."""
        inputs = self._checked(x)
        try:
            with one_thread():
                found = self._scores(self.state, inputs)
                received = self.algorithm.receive(self.client, self.state, self.message)
                if received is not None:
                    found["received"] = self._scores(received, inputs)["logits"]
                if (sharpness := self.known_sharpness(found)) is not None:
                    found[JOINT] = joint_scores({rule: found[rule] for rule in self.experts(found)}, sharpness)
        except (LookupError, TypeError, RuntimeError) as error:
            if lacks_memory(error):
                raise
            what = f"{type(error).__name__}: {error}"
            raise ValueError(
                f"Client {self.name} cannot predict with what it remembers and was told: {what}"
            ) from error
        return {rule: value.numpy() for rule, value in found.items()}

    def experts(self, rules: Iterable[str]) -> list[str]:
        """Choose those of the rules that `joint` adds up: all that the method reports."""
        known = set(rules)
        return [rule for rule in self.algorithm.rules if rule in known and rule != JOINT]

    def known_sharpness(self, rules: Iterable[str]) -> dict[str, float] | None:
        """Give 1/T of the rules that there are; None if they cannot be joined as they were when the run tested them."""
        sharpness, lacks_second = self.info.sharpness, self.algorithm.auxiliary and self.client.auxiliary is None
        if JOINT not in self.algorithm.rules or sharpness is None or lacks_second:
            return None
        return None if sharpness.keys() - {*self.experts(rules), JOINT} else sharpness

    @torch.no_grad()
    def features(self, x: NDArray[Any] | None = None) -> NDArray[np.float64]:
        """Give the features (n, d) of inputs; of the client's own test samples if none are given."""
        client = self.client
        if x is None and not len(client.test):
            raise ValueError(f"Client {self.name} has no test samples here; give inputs, (n, …).")
        with one_thread(), client.autocast():
            model = client.load(self.state).eval()
            batches = (one for one, _ in client.test.sweep(device=client.device)) if x is None else self._batches(x)
            parts = [model.features(batch).double().cpu() for batch in batches]
        return torch.cat(parts).numpy()

    def save(self, path: str | Path, *, onnx: bool = False) -> Path:
        """Write the client into a folder of its own, for `load_client`; what is not a client is left as it is.

        With `onnx` there is also a file for programs without protonorm or torch; that needs protonorm[onnx].
        """
        folder = Path(path)
        if folder.is_file():
            raise ValueError(f"{folder} is a file; a client is saved into a folder.")
        refuse_foreign(folder)
        facts, graph = self.facts, self._onnx() if onnx else None
        tensors = prefixed("state", self.state) | prefixed("message", self.message)
        content = seal(encode(tensors, f"{STAMP} {BLANK}"), STAMP)
        plain = self.info.model_dump(mode="json") | {"facts": facts.model_dump(mode="json")}
        make_folder(folder)
        replace(folder / WEIGHTS, content)
        replace(folder / INFO, sealed(plain | {"weights": checksum(content)}, pretty=True))
        replace(folder / CARD, model_card(self.info, facts, onnx=onnx).encode("utf-8", "backslashreplace"))
        if graph is None:
            (folder / ONNX).unlink(missing_ok=True)  # of the client that was here before
        else:
            replace(folder / ONNX, graph)
        return folder

    def _onnx(self) -> bytes:
        from protonorm.inference.onnx_graph import onnx_graph  # needs an extra

        with one_thread():
            return onnx_graph(self.info, self.module)

    def _scores(self, state: Tensors, inputs: torch.Tensor) -> Tensors:
        client = self.client
        client.load(state).eval()
        parts = []
        for rows in inputs.split(evaluation_batch(inputs)):
            with client.autocast():
                parts.append(self.algorithm.scores(client, state, self.message, as_input(rows.to(client.device))))
        return {rule: torch.cat([part[rule] for part in parts]).double().cpu() for rule in parts[0]}

    def _batches(self, x: NDArray[Any]) -> list[torch.Tensor]:
        inputs = self._checked(x)
        return [as_input(rows.to(self.client.device)) for rows in inputs.split(evaluation_batch(inputs))]

    def _checked(self, x: NDArray[Any]) -> torch.Tensor:
        """Refuse inputs that are not of the kind the client was trained on."""
        shape, kind = tuple(self.info.input.shape), self.info.input.type
        if x.shape[1:] != shape or str(x.dtype) != kind or not len(x):
            raise ValueError(
                f"The inputs have shape {x.shape} and type {x.dtype}; "
                f"expected (n, {', '.join(map(str, shape))}) of type {kind}."
            )
        return view(x)


def _softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Make shares (n, K) that sum to one of scores (n, K)."""
    shares: NDArray[np.float64] = torch.from_numpy(scores).double().softmax(1).numpy()
    return shares


def refuse_foreign(folder: Path) -> None:
    """Refuse a folder in which files of our names are not ours."""
    held = [folder / name for name in (INFO, WEIGHTS, CARD, ONNX) if (folder / name).exists()]
    if not held:
        return
    try:
        found = parse_json((folder / INFO).read_bytes(), folder / INFO)
    except (OSError, ValueError):
        found = {}
    if not {"format", "client", "weights", "checksum"} <= found.keys():
        raise ValueError(f"{held[0]} exists and is not of an exported client; it is left as it is.")
