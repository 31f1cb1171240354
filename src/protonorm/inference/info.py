"""Description of a trained client: the types of client.json, and the model card."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, MinLen
from pydantic import ConfigDict, Field

from protonorm.core.text import digits, visible
from protonorm.core.types import InputSpec
from protonorm.federation.client import PROBABLE
from protonorm.federation.experts import JOINT
from protonorm.metrics import METRICS
from protonorm.runs import layout
from protonorm.runs.arrays import SHARPNESS
from protonorm.runs.run import Run
from protonorm.runs.schema import Component, Name, Network, Number, Part, RoundRecord, Share, Whole

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

HEADINGS = ("part", "rule", "samples", "accuracy", *METRICS)
MEANING = {
    "global": "the nearest of the global prototypes, which all clients share",
    "local": "the nearest of this client's own prototypes; a class that it has none of is never the answer",
    "logits": "the largest output of this client's own network",
    "received": "the largest output of the network as the server sent it",
    "shared": "the largest output of the second network, which all clients share",
    "coarse": "the largest output of the second network's head, on the first of the joint features",
    "joint": "the largest sum of the log-probabilities of all its rules, each at a temperature that was fitted on this "
    "client's validation samples, or 1 if it had none",
}


class Recommendation(Part):
    """Recommended rule, and the rule that provides its probability."""

    rule: Name
    by: Literal["validation", "headline"]  # best on the validation parts, or the method's default
    validation: Share | None = None  # its validation accuracy, the mean over clients
    probability: Name  # rule whose softmax is the answer's probability
    calibration: Share | None = None  # calibration error of that rule on the validation samples of all clients


class Preprocessing(Part):
    """Complete preprocessing of one input before the network, in the order of the fields."""

    steps: Annotated[list[str], MinLen(1)]  # in words
    mode: Name | None = None  # Pillow's mode of images
    size: Annotated[list[Annotated[int, Ge(1)]], MinLen(2)] | None = None  # (H, W)
    interpolation: Literal["bilinear"] | None = None  # Pillow's, which antialiases when downscaling
    mean: Number | None = None  # subtracted from x/255
    deviation: Number | None = None  # divisor after the subtraction


class Measured(Part):
    """Measures of one rule on one part of a client's samples, none of which it trained on."""

    part: Literal["validation", "test"]
    rule: Name
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


class ClientInfo(Part):
    """Description of a trained client."""

    format: int
    client: Whole
    name: Name  # name of the client's folder or file, or its number
    run: str
    round: Whole  # round of the state and of the server's last message
    trained: Whole  # last round in which the client trained
    algorithm: Component
    headline: str
    recommended: Recommendation
    network: Network
    auxiliary: Network | None = None  # second network, for methods that have one
    feature_dim: Annotated[int, Ge(1)]
    input: InputSpec
    preprocessing: Preprocessing
    classes: Annotated[list[str], MinLen(1)]
    lowered: bool  # whether layers use their CPU forms: the last bits differ
    precision: Literal["float32", "bfloat16"]
    sharpness: dict[Name, Number] | None = None  # 1/T by rule in `joint`, 1 where absent; None: unknown

    @property
    def network_name(self) -> str:
        """Name of the client's network."""
        return self.network if isinstance(self.network, str) else str(self.network["name"])


def preprocessing(inputs: InputSpec) -> Preprocessing:
    """Return the preprocessing of one input of a kind."""
    if inputs.type != "uint8":
        kind = "vector of D numbers, float32" if inputs.vocabulary is None else "row of L tokens, int64"
        return Preprocessing(steps=[f"a {kind}, as in the training data; nothing is done to it"])
    height, width, channels = inputs.shape
    steps = [f"resize to {width} pixels across and {height} down, bilinear (Pillow)", "bytes (H, W, C)"]
    if channels in PILLOW:
        steps.insert(0, f"turn upright as EXIF says, and convert to {PILLOW[channels]} (Pillow)")
    steps += [f"(x/255 − {MEAN:g})/{DEVIATION:g}, numbers from −1 to 1", "(C, H, W)"]
    return Preprocessing(
        steps=steps,
        mode=PILLOW.get(channels),
        size=[height, width],
        interpolation="bilinear",
        mean=MEAN,
        deviation=DEVIATION,
    )


def recommend(run: Run, round: int, among: Collection[str] | None = None) -> Recommendation:
    """Recommend the rule with the best mean validation accuracy in a round; the headline rule wins ties.

    `among` are the rules that the client has, as it may lack some of the method's rules.
    """
    info = run.info
    validated, there = run.rounds[round - 1].validation, info.rules if among is None else among
    order = dict.fromkeys([info.headline, *info.rules])
    known = {rule: found for rule in order if rule in there and (found := validated.get(rule))}
    if not known:
        return usual_rule(info.headline, there)
    rule = max(known, key=lambda one: known[one].mean)  # the first wins ties
    probability = rule if rule in PROBABLE else "logits"
    calibrated = known.get(probability)
    return Recommendation(
        rule=rule,
        by="validation",
        validation=known[rule].mean,
        probability=probability,
        calibration=calibrated.metrics.get("calibration") if calibrated else None,
    )


def usual_rule(headline: str, rules: Collection[str]) -> Recommendation:
    """Recommend the method's default rule, without validation; the first available one if a client lacks it."""
    usual = "logits" if headline == "received" else headline
    rule = usual if usual in rules else next(iter(rules), usual)
    return Recommendation(rule=rule, by="headline", probability=rule if rule in PROBABLE else "logits")


def sharpness_of(run: Run, id: int, round: int) -> dict[str, float] | None:
    """Return 1/T of a client's rules in `joint`, {} if all are 1; None for a client that was not evaluated."""
    arrays, start = run.arrays(run.rounds[round - 1]), f"validation.{SHARPNESS}.clients."
    place = arrays["ids"] == id if "ids" in arrays else np.arange(run.info.experiment.clients) == id
    if JOINT not in run.info.rules or not (place.any() and run.rounds[round - 1].evaluated != "nobody"):
        return None
    found = {name.removeprefix(start): float(one[place][0]) for name, one in arrays.items() if name.startswith(start)}
    return {rule: found[rule] for rule in run.info.rules if not np.isnan(found.get(rule, np.nan))}  # in a fixed order


def facts_of(run: Run, id: int, round: int) -> Facts:
    """Return the origin of a client, and its measured quality after a round."""
    record, origin = run.rounds[round - 1], run.provenance
    return Facts(
        data=run.info.experiment.dataset.name,
        train=int(run.population.train[id].sum()),
        rounds=len(run.rounds),
        chosen=_chosen(run, round),
        metrics=[one for part in PARTS for rule in run.info.rules for one in _measured(run, id, record, part, rule)],
        measured=MEASURED,
        date=_date(run, round),
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
    found = {name: float(run.measured(record, rule, name, part)[id]) for name in METRICS}
    beside = {name: None if np.isnan(value) else digits(value) for name, value in found.items()}
    return [Measured(part=part, rule=rule, samples=samples, accuracy=digits(accuracy), **beside)]


def _chosen(run: Run, round: int) -> str:
    """Explain why this round was chosen."""
    if run.chosen and run.chosen.record.round == round:
        return f"round {round} of {len(run.rounds)}: {run.chosen.why}"
    return f"round {round} of {len(run.rounds)}: the last one; the run's tables do not report it"


def _date(run: Run, round: int) -> str:
    """Return the day on which the round's state was written."""
    path = run.folder / (layout.SERVER if round == layout.committed(run.folder) else layout.CHOSEN)
    path = run.folder.parent / layout.RECORDS if layout.is_packed(run.folder) else path
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).date().isoformat()


def model_card(info: ClientInfo, facts: Facts, *, onnx: bool) -> str:
    """Render the model card: what a client is, how good it was, and how to use it."""
    parts = [_what(info, facts), _answers(info), _measures(facts), _inputs(info), _python(info)]
    parts += [_onnx(info)] if onnx else []
    return "\n\n".join([*parts, _origin(info, facts, onnx)]) + "\n"


def _what(info: ClientInfo, facts: Facts) -> str:
    who = f"Client {_code(info.name)}" + ("" if info.name == str(info.client) else f" (number {info.client})")
    classes = ", ".join(map(_code, info.classes))
    return (
        f"# {who} of {_code(info.run)}\n\n"
        f"A classifier that was trained by {_code(info.algorithm.name)}, federated with others: its data stayed with "
        f"it. It has the network {_code(info.network_name)} with d = {info.feature_dim} features, and was trained on "
        f"{facts.train} samples of {_code(facts.data)}.\n\n"
        f"{facts.chosen[0].upper()}{facts.chosen[1:]}.\n\n"
        f"Its {len(info.classes)} classes, in the order of the scores: {classes}."
    )


def _answers(info: ClientInfo) -> str:
    advice = info.recommended
    means = MEANING.get(advice.rule, "a rule of the method's own")
    why = "it is the method's usual rule, which no validation has chosen"
    if advice.by == "validation" and advice.validation is not None:
        right = f"{100 * advice.validation:.2f} % right, the mean over clients"
        why = f"it won on the clients' validation parts ({right})"
    told = (
        f"## Which answer to take\n\nTake that of `{_plain(advice.rule)}`, {means}: {why}. "
        f"How sure it is, is the softmax of `{_plain(advice.probability)}` at that class."
    )
    if advice.calibration is not None:
        off = 100 * advice.calibration
        told += f" On validation samples of all clients such numbers were {off:.1f} points off on average."
    if advice.rule != advice.probability:
        told += (
            " Scores of rules by prototypes are distances, not probabilities: their softmax is nearly always 0 or 1."
        )
    return told


def _measures(facts: Facts) -> str:
    if not facts.metrics:
        return "## How good it was\n\nThis client was not evaluated in this round, or has no samples to test with."
    rows = [" | ".join(_cells(one)) for one in facts.metrics]
    table = "\n".join(f"| {row} |" for row in [" | ".join(HEADINGS), " | ".join(["---"] * len(HEADINGS)), *rows])
    return f"## How good it was\n\n{table}\n\n{facts.measured}"


def _cells(one: Measured) -> list[str]:
    numbers = [getattr(one, name, None) for name in HEADINGS[3:]]
    return [one.part, f"`{_plain(one.rule)}`", str(one.samples), *("" if x is None else f"{x:.4f}" for x in numbers)]


def _inputs(info: ClientInfo) -> str:
    steps = "\n".join(f"{place}. {step}" for place, step in enumerate(info.preprocessing.steps, 1))
    shape = ", ".join(map(str, info.input.shape))
    return (
        f"## What goes in\n\n{steps}\n\n"
        f"`predict`, the module and the ONNX file take inputs of shape (n, {shape}) and type {info.input.type}: "
        "what comes after the bytes is done inside them."
    )


def _python(info: ClientInfo) -> str:
    own = "" if isinstance(info.network, str) else ", network=make_network"
    own += (
        "" if info.auxiliary in (None, info.network) or isinstance(info.auxiliary, str) else ", auxiliary=make_second"
    )
    return (
        "## With protonorm\n\n```python\nimport torch\n\nimport protonorm as pn\n\n"
        f'client = pn.load_client("."{own})\n'
        "found = client.answers(x)  # found.classes (n,), found.probability (n,), found.rules\n"
        "scores = client.module(torch.from_numpy(x))  # a torch nn.Module: scores (n, K) by rule\n```"
    )


def _onnx(info: ClientInfo) -> str:
    rule, sure = _plain(info.recommended.rule), _plain(info.recommended.probability)
    ready = info.preprocessing
    if ready.mode and ready.size:
        height, width = ready.size
        read = (
            f'picture = ImageOps.exif_transpose(Image.open("picture.png")).convert("{ready.mode}")\n'
            f"picture = picture.resize(({width}, {height}), Image.Resampling.BILINEAR)\n"
            f"x = np.asarray(picture, np.uint8).reshape(1, {', '.join(map(str, info.input.shape))})\n"
        )
        needed = "import numpy as np\nimport onnxruntime\nfrom PIL import Image, ImageOps\n"
    else:
        read = f"x = np.zeros((1, {', '.join(map(str, info.input.shape))}), np.{info.input.type})  # yours\n"
        needed = "import numpy as np\nimport onnxruntime\n"
    return (
        "## Without protonorm\n\n"
        f"`{ONNX}` has the input `inputs` and an output for each rule; its metadata hold the classes.\n\n"
        f"```python\nimport json\n\n{needed}\n{read}"
        f'session = onnxruntime.InferenceSession("{ONNX}")\n'
        "rules = [one.name for one in session.get_outputs()]\n"
        'scores = dict(zip(rules, session.run(None, {"inputs": x})))  # (n, K) by rule\n'
        'classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])\n'
        f"best = scores[{rule!r}][0].argmax()\n"
        f"logits = scores[{sure!r}][0]\n"
        "shares = np.exp(logits - logits.max())\n"
        "print(classes[best], shares[best] / shares.sum())\n```"
    )


def _origin(info: ClientInfo, facts: Facts, onnx: bool) -> str:
    commit = "unknown" if facts.commit is None else _code(facts.commit) + (" with changes" if facts.dirty else "")
    versions = ", ".join(f"{_plain(name)} {_plain(version)}" for name, version in facts.versions.items())
    settings = json.dumps(info.algorithm.settings, sort_keys=True)
    files = [f"`{INFO}`: all of this for programs", f"`{WEIGHTS}`: weights and prototypes"]
    files += [f"`{ONNX}`: the network as a graph"] if onnx else []
    return (
        f"## Where it comes from\n\n"
        f"- run {_code(info.run)}, state of {facts.date} (UTC)\n- commit: {commit}\n- versions: {versions}\n"
        f"- method: {_code(info.algorithm.name)} {_code(settings)}\n- files: {'; '.join(files)}\n\n"
        "Weights and prototypes were computed from this client's training data, and can reveal something of them. "
        "How good it is on other data than those of its own test part has not been measured."
    )


def _plain(text: str) -> str:
    """Return external text as one line that ends neither a code span nor a table cell."""
    return visible(text).replace("`", "'").replace("|", "/")


def _code(text: str) -> str:
    return f"`{_plain(text) or ' '}`"
