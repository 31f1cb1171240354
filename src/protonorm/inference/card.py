"""The model card of an exported client: a page for people, README.md. Nothing here needs torch."""

from __future__ import annotations

import json

from protonorm.core.text import visible
from protonorm.inference.info import INFO, ONNX, WEIGHTS, ClientInfo, Facts, Measured

HEADINGS = ("part", "rule", "samples", "accuracy", "balanced", "f1", "log_loss", "calibration")

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


def model_card(info: ClientInfo, facts: Facts, *, onnx: bool) -> str:
    """Write what a client is, how good it was, and how it is used."""
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
    numbers = [getattr(one, name) for name in HEADINGS[3:]]
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
    """Write a name that comes from outside as text of one line that ends no code span and no table cell."""
    return visible(text).replace("`", "'").replace("|", "/")


def _code(text: str) -> str:
    return f"`{_plain(text) or ' '}`"
