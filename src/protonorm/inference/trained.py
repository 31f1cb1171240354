"""Trained clients, of a run or exported: all that is needed to predict.

An exported client is a folder:
client.json            algorithm, network, inputs, d, classes, rules, measures; nothing in it is executed
client.safetensors     state.*: weights and local prototypes; message.*: last message of the server, global prototypes
README.md              model card with the same content
model.onnx             ONNX graph for other programs, optional
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from protonorm.algorithms.parts.prototypes import prototype_scores
from protonorm.core import Algorithm, Client, one_thread
from protonorm.core.samples import as_input, evaluation_batch, view
from protonorm.core.text import shortened
from protonorm.core.types import rule_name, shown
from protonorm.errors import lacks_memory
from protonorm.federation.experts import JOINT, joint_scores
from protonorm.files import BLANK, checksum, make_folder, parse_json, replace, seal, sealed
from protonorm.inference.info import CARD, INFO, ONNX, WEIGHTS, ClientInfo, Facts, facts_of, model_card, name_of
from protonorm.inference.module import ClientModule, make_module, onnx_graph
from protonorm.models.frozen import SideBySide, load_trunk
from protonorm.runs.run import Run
from protonorm.tensors import Tensors, encode, prefixed

Numbers = NDArray[np.float64]

PROTOTYPE_RULES = ("nearest-global", "nearest-local")  # with scores ‖z‖² − ‖z − c‖²
STAMP = "protonorm client 0"
FILES = (INFO, WEIGHTS, CARD, ONNX)  # of an exported client


class RuleAnswers(NamedTuple):
    """Answers of one rule to n inputs."""

    classes: NDArray[np.int64]  # (n,)
    confidence: Numbers  # (n,): softmax of the scores at the answer
    margin: Numbers | None  # (n,): 1 − d₁/d₂ of the two nearest prototypes; None for rules without prototypes


class Answers(NamedTuple):
    """Recommended answers to n inputs, and those of all rules."""

    rule: str  # recommended rule
    classes: NDArray[np.int64]  # (n,): recommended answers
    probability: Numbers | None  # (n,): their probability, by the rule with probabilities; None if there is none
    rules: dict[str, RuleAnswers]

    @property
    def agree(self) -> NDArray[np.bool_]:
        """Whether all rules give the recommended answer, (n,)."""
        same: NDArray[np.bool_] = np.all([rule.classes == self.classes for rule in self.rules.values()], axis=0)
        return same


def answers_of(
    rule: str, probability: str, scores: dict[str, Numbers], confidence: dict[str, Numbers], lengths: Numbers | None
) -> Answers:
    """Build answers from scores and their softmax (n, K) by rule; `lengths` is ‖z‖² (n,) for prototype rules."""
    rules = {}
    for name, score in scores.items():
        best = score.argmax(1)
        margin = None if lengths is None or name not in PROTOTYPE_RULES else margins(lengths[:, None] - score)
        rules[name] = RuleAnswers(best, confidence[name][np.arange(len(best)), best], margin)
    chosen = rule if rule in rules else next(iter(rules))
    classes, shares = rules[chosen].classes, confidence.get(probability)
    likely = None if shares is None else shares[np.arange(len(classes)), classes]
    return Answers(chosen, classes, likely, rules)


def margins(squared: Numbers) -> Numbers:
    """Compute 1 − d₁/d₂ (n,) from squared distances (n, K) to prototypes: 0 halfway between two, 1 on a prototype.

    A class without a prototype is infinitely far.
    """
    if squared.shape[1] < 2:
        return np.ones(len(squared))
    first, second = np.sqrt(np.maximum(np.partition(squared, 1, axis=1)[:, :2], 0.0)).T
    valid = second > 0
    return np.where(valid, 1 - np.divide(first, second, out=np.zeros_like(first), where=valid), 0.0)


@dataclass(frozen=True, repr=False)
class TrainedClient:
    """Trained client: its network with the weights of a round, and the server's message of that round.

    Get one from `result.clients["berlin"]`, `result.clients[3]` or `pn.load_client(folder)`. Inputs are arrays as in a
    dataset, or lists of such numbers: images (n, H, W, C) uint8, vectors (n, D) float32, tokens (n, L) int64; other
    inputs raise a ValueError. A rule is a way to predict: `nearest-global`, `nearest-local`, `logits`,
    `received`, `shared`, `coarse` or `joint`, as far as the method has them.
    """

    info: ClientInfo  # description in plain data: names, classes, network, preprocessing, round, rule
    algorithm: Algorithm  # method
    client: Client  # workspace: its weights are those loaded last
    state: Tensors  # state of the client: weights, local prototypes
    message: Tensors  # last message of the server
    source: Run | Facts  # run of the client, or the facts in its file
    given: tuple[str | None, str | None] = (None, None)  # names of frozen networks that say where their weights are

    def __repr__(self) -> str:
        """Return one line with the client, its network and its rule."""
        return (
            f"TrainedClient({shortened(self.name, 40)} of {shortened(self.info.run, 60)}, round {self.info.round}, "
            f"{shortened(self.info.network_name, 40)}, {len(self.classes)} classes, rule {self.rule})"
        )

    @property
    def id(self) -> int:
        """Number of the client."""
        return self.info.client

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the K classes."""
        return tuple(self.info.classes)

    @property
    def rule(self) -> str:
        """Default rule: the best one on validation, else the method's headline rule."""
        return self.info.recommended.rule

    @property
    def name(self) -> str:
        """Name of the client: that of its folder or file, or its number."""
        return self.info.name

    @cached_property
    def facts(self) -> Facts:
        """Origin of the client, and its measured quality."""
        return facts_of(self.source, self.id, self.info.round) if isinstance(self.source, Run) else self.source

    @cached_property
    def module(self) -> ClientModule:
        """The client as an `nn.Module` of plain torch layers: maps inputs as stored to scores (n, K) by rule."""
        with one_thread():
            return make_module(self)

    @cached_property
    def trunks(self) -> SideBySide | None:
        """Frozen trunks of the client's networks, with the weights that are here; None if it has none."""
        info = self.info
        pairs = [(info.trunk, self.given[0] or info.network_name)]
        if info.second_trunk not in (None, info.trunk):
            pairs.append((info.second_trunk, self.given[1] or name_of(info.auxiliary)))
        return SideBySide([load_trunk(name, trunk.digest) for trunk, name in pairs if trunk]) if info.trunk else None

    def predict(self, x: NDArray[Any], rule: str | None = None) -> NDArray[np.int64]:
        """Predict class numbers (n,) of inputs (n, …) under a rule, the recommended one by default.

        Raises:
            ValueError: If the inputs have another shape or type, or the client has no such rule.
        """
        scores = self.scores(x)
        if (name := rule_name(rule or self.rule)) not in scores:
            raise ValueError(f"There is no rule {name!r} here; known: {', '.join(scores)}.")
        classes: NDArray[np.int64] = scores[name].argmax(1)
        return classes

    def confidence(self, x: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
        """Return the softmax of the scores (n, K) under each rule: certainty of the rule, not its accuracy."""
        return {rule: _softmax(value) for rule, value in self.scores(x).items()}

    def answers(self, x: NDArray[Any]) -> Answers:
        """Return the recommended answers to inputs (n, …), their probability, and the answers of each rule.

        Returns:
            Answers with `classes`, `probability` and `agree`, (n,) each, and `rules`, which has `classes`,
            `confidence` and `margin` of each rule.
        """
        scores, advice = self.scores(x), self.info.recommended
        by_prototypes = type(self.algorithm).scores is prototype_scores
        lengths = np.square(self.features(x)).sum(1) if by_prototypes else None  # ‖z‖², (n,)
        softmax = {rule: _softmax(value) for rule, value in scores.items()}
        return answers_of(advice.rule, advice.probability, scores, softmax, lengths)

    @torch.no_grad()
    def scores(self, x: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
        """Compute scores of the classes (n, K) under each rule: the largest wins."""
        inputs = self._checked(x)
        try:
            with one_thread():
                scores = self._scores(self.state, inputs)
                received = self.algorithm.receive(self.client, self.state, self.message)
                if received is not None:
                    scores["received"] = self._scores(received, inputs)["logits"]
                if (temperatures := self.known_sharpness(scores)) is not None:
                    scores[JOINT] = joint_scores({rule: scores[rule] for rule in self.experts(scores)}, temperatures)
        except (LookupError, TypeError, RuntimeError) as error:
            if lacks_memory(error):
                raise
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(f"Client {self.name} cannot predict with its state and last message: {reason}") from error
        return {rule: value.numpy() for rule, value in scores.items()}

    def experts(self, rules: Iterable[str]) -> list[str]:
        """Return the rules that `joint` sums: all that the method reports."""
        available = set(rules)
        return [rule for rule in self.algorithm.rules if rule in available and rule != JOINT]

    def known_sharpness(self, rules: Iterable[str]) -> dict[str, float] | None:
        """Return 1/T of the rules; None if they cannot be combined as in the run's tests."""
        temperatures, lacks_second = self.info.sharpness, self.algorithm.auxiliary and self.client.auxiliary is None
        if JOINT not in self.algorithm.rules or temperatures is None or lacks_second:
            return None
        return None if temperatures.keys() - {*self.experts(rules), JOINT} else temperatures

    @torch.no_grad()
    def features(self, x: NDArray[Any] | None = None) -> NDArray[np.float64]:
        """Compute the features (n, d) of inputs; of the client's own test samples if none are given."""
        client = self.client
        if x is None and not len(client.test):
            raise ValueError(f"Client {self.name} has no test samples here; give inputs, (n, …).")
        test_batches = (batch for batch, _ in client.test.sweep(device=client.device))
        batches = test_batches if x is None else self._batches(self._checked(x))
        with one_thread(), client.autocast():
            model = client.load(self.state).eval()
            return torch.cat([model.features(batch).double().cpu() for batch in batches]).numpy()

    def save(self, path: str | Path, *, onnx: bool = False) -> Path:
        """Write the client into a folder, for `load_client`; return the folder.

        Args:
            path: Folder to write; files in it that are not of an exported client are never overwritten.
            onnx: Also write an ONNX file for programs without protonorm or torch; needs protonorm[onnx].

        Raises:
            ValueError: If the path is a file, or holds files of the same names that are not of an exported client.
        """
        folder = Path(path)
        if folder.is_file():
            raise ValueError(f"{folder} is a file; a client is saved into a folder.")
        refuse_foreign(folder)
        with one_thread():
            facts, graph = self.facts, onnx_graph(self.info, self.module) if onnx else None
        tensors = prefixed("state", self.state) | prefixed("message", self.message)
        content = seal(encode(tensors, f"{STAMP} {BLANK}"), STAMP)
        fields = self.info.model_dump(mode="json") | {"facts": facts.model_dump(mode="json")}
        make_folder(folder)
        replace(folder / WEIGHTS, content)
        replace(folder / INFO, sealed(fields | {"weights": checksum(content)}, pretty=True))
        replace(folder / CARD, model_card(self.info, facts, onnx=onnx).encode("utf-8", "backslashreplace"))
        (folder / ONNX).unlink(missing_ok=True)  # of a client saved here earlier
        if graph is not None:
            replace(folder / ONNX, graph)
        return folder

    def push_to_hub(self, repository: str, *, private: bool = True, onnx: bool = False) -> str:
        """Upload the saved client to a model repository OWNER/NAME of the Hugging Face Hub; return its address."""
        from protonorm.runs.hub import upload

        with TemporaryDirectory() as folder:
            self.save(folder, onnx=onnx)
            card = Path(folder) / CARD
            card.write_bytes(b"---\nlibrary_name: protonorm\ntags: [federated-learning]\n---\n" + card.read_bytes())
            return upload(Path(folder), repository, "model", FILES, private=private)

    @classmethod
    def from_pretrained(cls, source: str | Path, *, revision: str | None = None, **own: Any) -> TrainedClient:
        """Load a client from a folder, or from a repository OWNER/NAME of the Hub, as `load_client` does."""
        from protonorm.inference.loading import load_client  # it imports this module
        from protonorm.runs.hub import fetch

        return load_client(fetch(source, "model", FILES, revision), **own)

    def _scores(self, state: Tensors, inputs: torch.Tensor) -> Tensors:
        client = self.client
        client.load(state).eval()
        with client.autocast():
            parts = [self.algorithm.scores(client, state, self.message, batch) for batch in self._batches(inputs)]
        return {rule: torch.cat([part[rule] for part in parts]).double().cpu() for rule in parts[0]}

    def _batches(self, inputs: torch.Tensor) -> Iterator[torch.Tensor]:
        for rows in inputs.split(evaluation_batch(inputs)):
            x = as_input(rows.to(self.client.device))
            yield x if self.trunks is None else self.trunks(x)

    def _checked(self, x: NDArray[Any]) -> torch.Tensor:
        """Return inputs as a tensor; raise a ValueError if they are not of the kind the client was trained on."""
        shape, kind = self.info.input.shape, self.info.input.type
        if not isinstance(x, np.ndarray):
            x = _array(x, kind)
        if x.shape[1:] != shape or str(x.dtype) != kind or not len(x):
            raise ValueError(
                f"The inputs have shape {x.shape} and type {x.dtype}; "
                f"expected (n, {', '.join(map(str, shape))}) of type {kind}."
            )
        return view(x)


def _array(x: Any, kind: str) -> NDArray[Any]:
    """Convert a list of numbers to an array; raise a ValueError if the type cannot represent each of them."""
    try:
        values = np.array(x)
        if values.dtype.kind not in "iuf":
            raise ValueError("they are not numbers")
        with np.errstate(all="ignore"):
            array: NDArray[Any] = values.astype(kind)
        exact = np.isfinite(array) if kind == "float32" else array == values
        if not exact.all():
            raise ValueError(f"{shown(values[~exact][0].item())} does not fit the type {kind}")
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(f"The inputs {shown(x)} cannot be made an array of numbers: {reason}.") from None
    return array


def _softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the softmax (n, K) of scores (n, K)."""
    shares: NDArray[np.float64] = torch.from_numpy(scores).double().softmax(1).numpy()
    return shares


def refuse_foreign(folder: Path) -> None:
    """Raise a ValueError if a folder has files with an exported client's names that are not of one."""
    files = [folder / name for name in FILES if (folder / name).exists()]
    with suppress(OSError, ValueError):
        if {"format", "client", "weights", "checksum"} <= parse_json((folder / INFO).read_bytes(), folder).keys():
            return
    if files:
        raise ValueError(f"{files[0]} exists and is not of an exported client; it is left as it is.")
