"""Description of a trained client: the types of client.json, and the model card."""

import json
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, MinLen
from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic import ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from protonorm.core.text import digits, visible
from protonorm.core.types import InputSpec, Rule
from protonorm.federation.client import PROBABLE
from protonorm.federation.experts import JOINT
from protonorm.metrics import metrics
from protonorm.runs import layout
from protonorm.runs.arrays import SHARPNESS
from protonorm.runs.run import Run
from protonorm.runs.schema import Component, Name, Network, Number, Part, RoundRecord, Share, TrunkInfo, Whole, typed

FORMAT = 4
INFO, WEIGHTS, CARD, ONNX = "client.json", "client.safetensors", "README.md", "model.onnx"
MEAN, DEVIATION = 0.5, 0.5  # normalisation of bytes x/255 for networks
PILLOW = {1: "L", 3: "RGB"}  # Pillow's modes by number of channels
PARTS: tuple[Literal["validation", "test"], ...] = ("validation", "test")
MEASURED = (
    "Accuracy is the share of right answers on samples of this client that it did not train on. Rounds and rules are "
    "chosen by the validation part, never by the test part, unless it is said otherwise; balanced is the mean recall "
    "of the classes, f1 the mean F1, log_loss the mean of −log p of the true class, calibration the mean distance of "
    "confidence and accuracy in 15 bins."
)

MEANING = {
    "nearest-global": "the nearest of the global prototypes, which all clients share",
    "nearest-local": "the nearest of this client's own prototypes; a class that it has none of is never the answer",
    "logits": "the largest output of this client's own network",
    "received": "the largest output of the network as the server sent it",
    "shared": "the largest output of the second network, which all clients share",
    "coarse": "the largest output of the second network's head, on the first of the joint features",
    "ridge": "the largest output of the linear head that fits the frozen features of all clients by ridge regression",
    "gaussian": "the likeliest class, if the frozen features of all clients' classes are Gaussian with one covariance",
    "own": "the largest output of this client's own linear head on its own frozen trunk",
    "public": "the largest output of this client's own linear head on the frozen trunk that all clients have",
    "both": "the largest sum of the outputs of own and public, weighed by how each does on training samples left out",
    "joint": "the largest sum of the log-probabilities of all its rules, each at a temperature that was fitted on this "
    "client's validation samples, or 1 if it had none",
}


class Recommendation(Part):
    """Recommended rule, and the rule that provides its probability."""

    rule: Rule
    # Best on the validation parts of all clients, on the client's own in a real federation, or the method's default.
    by: Literal["validation", "own validation", "headline"]
    validation: Share | None = None  # its validation accuracy, the mean over these clients
    probability: Rule  # rule whose softmax is the answer's probability
    calibration: Share | None = None  # calibration error of that rule on the same validation samples


class Preprocessing(Part):
    """Complete preprocessing of one input before the network, in the order of the fields."""

    steps: Annotated[list[str], MinLen(1)]  # in words
    mode: Name | None = None  # Pillow's mode of images
    size: Annotated[list[Annotated[int, Ge(1)]], MinLen(2)] | None = None  # (H, W)
    window: Name | None = None  # CENTRE/WIDTH of the values that become 0 … 255, for DICOM and 16-bit images
    interpolation: Literal["bilinear"] | None = None  # Pillow's, which antialiases when downscaling
    mean: Number | None = None  # subtracted from x/255
    deviation: Number | None = None  # divisor after the subtraction

    @model_serializer(mode="wrap")
    def _without_window(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        plain: dict[str, Any] = serialise(self)
        return {name: value for name, value in plain.items() if (name, value) != ("window", None)}


class Measured(Part):
    """Measures of one rule on one part of a client's samples, none of which it trained on."""

    part: Literal["validation", "test"]
    rule: Rule
    samples: Whole
    accuracy: Share
    # plus the metrics of `protonorm.metrics` by name, None where a rule has none

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)
    __pydantic_extra__: dict[str, Number | None] = Field(init=False)


class Facts(Part):
    """Origin of a client, and its measured quality."""

    data: Name  # name of the dataset
    train: Whole  # number of training samples
    rounds: Whole  # rounds of the run
    chosen: str  # how the client's round was chosen, in words
    metrics: list[Measured]
    measured: str  # how the metrics were measured, in words
    date: str  # day on which the round's state was written, UTC
    commit: str | None  # commit of the repository in which the run was started
    dirty: bool | None  # whether the repository had uncommitted changes
    versions: dict[str, str]
    at_home: bool = False  # whether it was trained in a real federation, on its owner's machine


class ClientInfo(Part):
    """Description of a trained client."""

    format: int
    client: Whole
    name: Name  # name of the client's folder or file, or its number
    run: str
    round: Whole  # round of the state and of the server's last message
    trained: Whole  # last round in which the client trained
    algorithm: Component
    headline: Rule
    recommended: Recommendation
    network: Network
    auxiliary: Network | None = None  # second network, for methods that have one
    feature_dim: Annotated[int, Ge(1)]
    input: InputSpec
    preprocessing: Preprocessing
    classes: Annotated[list[str], MinLen(1)]
    lowered: bool  # whether layers use their CPU forms: the last bits differ
    precision: Literal["float32", "bfloat16"]
    sharpness: dict[Rule, Number] | None = None  # 1/T by rule in `joint`, 1 where absent; None: unknown
    trunk: TrunkInfo | None = None  # frozen trunk of the network; its weights are not in the client's files
    second_trunk: TrunkInfo | None = None  # likewise, of the second network

    @property
    def network_name(self) -> str:
        """Name of the client's network."""
        return name_of(self.network)

    @property
    def trunks(self) -> list[TrunkInfo]:
        """Different frozen trunks of the client's networks, in the order of the columns that these read."""
        return [trunk for trunk in dict.fromkeys((self.trunk, self.second_trunk)) if trunk]


def name_of(network: Network) -> str:
    """Return the name of a recorded network."""
    return network if isinstance(network, str) else str(network["name"])


def preprocessing(inputs: InputSpec, window: str | None = None) -> Preprocessing:
    """Return the preprocessing of one input of a kind."""
    if inputs.type != "uint8":
        kind = "vector of D numbers, float32" if inputs.vocabulary is None else "row of L tokens, int64"
        return Preprocessing(steps=[f"a {kind}, as in the training data; nothing is done to it"])
    height, width, channels = inputs.shape
    steps = [f"resize to {width} pixels across and {height} down, bilinear (Pillow)", "bytes (H, W, C)"]
    if channels in PILLOW:
        steps.insert(0, f"turn upright as EXIF says, and convert to {PILLOW[channels]} (Pillow)")
    steps += [f"(x/255 − {MEAN:g})/{DEVIATION:g}, numbers from −1 to 1", "(C, H, W)"]
    scaling: dict[str, Any] = {"interpolation": "bilinear", "mean": MEAN, "deviation": DEVIATION}
    if window:
        steps.insert(0, f"values of more than eight bits become bytes by the window {window}, as in DICOM")
    return Preprocessing(steps=steps, mode=PILLOW.get(channels), size=[height, width], window=window, **scaling)


def recommend(run: Run, round: int, among: Collection[str] | None = None) -> Recommendation:
    """Recommend the rule with the best mean validation accuracy in a round; the headline rule wins ties.

    `among` are the rules that the client has, as it may lack some of the method's rules.
    """
    info, rules = run.info, run.info.rules if among is None else among
    validation = run.rounds[round - 1].validation
    order = dict.fromkeys([info.headline, *info.rules])
    accuracies = {rule: accuracy for rule in order if rule in rules and (accuracy := validation.get(rule))}
    if not accuracies:
        return default_rule(info.headline, rules)
    rule = max(accuracies, key=lambda rule: accuracies[rule].mean)  # the first wins ties
    probability = rule if rule in PROBABLE else "logits"
    error = accuracies[probability].metrics.get("calibration") if probability in accuracies else None
    mean = accuracies[rule].mean
    return Recommendation(rule=rule, by="validation", validation=mean, probability=probability, calibration=error)


def default_rule(headline: str, rules: Collection[str]) -> Recommendation:
    """Recommend the method's default rule, without validation; the first available one if a client lacks it."""
    default = "logits" if headline == "received" else headline
    rule = default if default in rules else next(iter(rules), default)
    return Recommendation(rule=rule, by="headline", probability=rule if rule in PROBABLE else "logits")


def inverse_temperatures_of(run: Run, id: int, round: int) -> dict[str, float] | None:
    """Return 1/T of a client's rules in `joint`, {} if all are 1; None for a client that was not evaluated."""
    arrays, start = run.arrays(run.rounds[round - 1]), f"validation.{SHARPNESS}.clients."
    selected = arrays["ids"] == id if "ids" in arrays else np.arange(run.info.experiment.clients) == id
    if JOINT not in run.info.rules or not (selected.any() and run.rounds[round - 1].evaluated != "nobody"):
        return None
    values = {rule: float(arrays[start + rule][selected][0]) for rule in run.info.rules if start + rule in arrays}
    return {rule: value for rule, value in values.items() if not np.isnan(value)}


def client_info(run: Run, id: int, round: int, trained: int) -> ClientInfo:
    """Return the description of a run's client as plain data."""
    info, settings = run.info, run.info.experiment.plain()
    precision, temperatures = settings.get("precision", "float32"), inverse_temperatures_of(run, id, round)
    assert info.input is not None
    fields = {
        "format": FORMAT,
        "client": id,
        "name": info.client_name(id),
        "run": info.key,
        "round": round,
        "trained": trained,
        "algorithm": info.experiment.algorithm,
        "headline": info.headline,
        "recommended": recommend(
            run, round, [rule for rule in info.rules if rule != JOINT or temperatures is not None]
        ),
        "network": info.network(id),
        "auxiliary": settings.get("auxiliary"),
        "feature_dim": info.experiment.feature_dim,
        "input": info.input,
        "preprocessing": preprocessing(info.input, info.experiment.dataset.settings.get("window")),
        "classes": info.classes,
        "lowered": bool(settings.get("lowering", True)) and settings.get("device") == "cpu",
        "precision": precision,
        "sharpness": temperatures,
        "trunk": info.trunk(info.network(id)),
        "second_trunk": info.trunk(settings.get("auxiliary")),
    }
    return typed(ClientInfo, fields, run.folder / layout.INFO)


def facts_of(run: Run, id: int, round: int) -> Facts:
    """Return the origin of a client, and its measured quality after a round."""
    record, origin = run.rounds[round - 1], run.provenance
    reported = run.chosen if run.chosen and run.chosen.record.round == round else None
    why = reported.why if reported else "the last one; the run's tables do not report it"
    state = run.folder / (layout.SERVER if round == layout.committed(run.folder) else layout.CHOSEN)
    state = run.folder.parent / layout.RECORDS if layout.is_packed(run.folder) else state
    return Facts(
        data=run.info.experiment.dataset.name,
        train=int(run.population.train[id].sum()),
        rounds=len(run.rounds),
        chosen=f"round {round} of {len(run.rounds)}: {why}",
        metrics=[row for part in PARTS for rule in run.info.rules for row in _measured(run, id, record, part, rule)],
        measured=MEASURED,
        date=datetime.fromtimestamp(state.stat().st_mtime, UTC).date().isoformat(),
        commit=origin.commit if origin else None,
        dirty=origin.dirty if origin else None,
        versions=origin.versions if origin else run.info.versions,
    )


def _measured(run: Run, id: int, record: RoundRecord, part: Literal["validation", "test"], rule: str) -> list[Measured]:
    """Return a rule's measures on one part; an empty list if the client was not evaluated there."""
    accuracy = run.by_client(record, rule, part)[id]
    if np.isnan(accuracy):
        return []
    samples = int(getattr(run.population, part)[id].sum())
    values = {name: float(run.measured(record, rule, name, part)[id]) for name in run.measures}
    known = {name: None if np.isnan(value) else digits(value) for name, value in values.items()}
    return [Measured(part=part, rule=rule, samples=samples, accuracy=digits(accuracy), **known)]


def model_card(info: ClientInfo, facts: Facts, *, onnx: bool) -> str:
    """Render the model card: what a client is, how good it was, and how to use it."""
    loader = PackageLoader("protonorm.inference", "")
    environment = Environment(trim_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined, loader=loader)
    environment.filters |= {"plain": _plain, "code": lambda text: f"`{_plain(text) or ' '}`", "repr": repr}
    own_code = "" if isinstance(info.network, str) else ", network=make_network"
    if not (info.auxiliary in (None, info.network) or isinstance(info.auxiliary, str)):
        own_code += ", auxiliary=make_second"
    recorded = {name for row in facts.metrics for name in row.model_extra or {}}
    names = [name for name, metric in metrics().items() if not metric.optional or name in recorded]
    return environment.get_template("card.md.jinja").render(
        info=info,
        facts=facts,
        advice=info.recommended,
        ready=info.preprocessing,
        meaning=MEANING.get(info.recommended.rule, "a rule of the method's own"),
        headings=("part", "rule", "samples", "accuracy", *names),
        shape=", ".join(map(str, info.input.shape)),
        settings=json.dumps(info.algorithm.settings, sort_keys=True),
        own_code=own_code,
        onnx=ONNX if onnx else "",
    )


def _plain(text: str) -> str:
    """Return external text as one line that ends neither a code span nor a table cell."""
    return visible(text).replace("`", "'").replace("|", "/")
