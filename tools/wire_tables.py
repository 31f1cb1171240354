"""Write the tables of docs/wire.md from the schemas, headers and limits in the code."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from tools.wire_methods import json_of, methods, network, rules, table

from protonorm.core import frames
from protonorm.deployment import guard, messages
from protonorm.deployment.agreement import LARGEST_FILE, Agreement, Bundle
from protonorm.metrics.base import BINS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "wire.md"
PLACE = re.compile(r"(<!-- (?P<name>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

HEADER = {
    "format": "of the messages",
    "agreement": "SHA-256 of the agreement, in hexadecimal digits",
    "client": "number of the client, as its bundle says",
    "round": "in which to train; without training, that of the message",
    "kind": "what is asked for; an answer repeats it",
    "trained": "the round whose state the client is to take; 0: the one it begins with",
    "chosen": "the best round so far; a client that wants to keep one more state keeps the one after it",
    "parts": "of the client's samples, on which it is to count right answers",
    "declined": "a sentence, if the client does not do what it is asked; then there are no tensors",
    "metrics": "numbers for the record, usually `loss`, the mean loss of training",
    "seconds": "that training took",
}
TERMS = {
    "format": "of the agreement",
    "algorithm": "`name` of the method, and all of its settings",
    "classes": "names; their places are the numbers of the classes",
    "feature_dim": "d",
    "rounds": "R",
    "seed": "of all that is random and protects no one",
    "input": "`shape`, `type` and `vocabulary` of a sample, where a network is shared",
    "shared_network": "name of the network that is shared, where one is",
    "head_bias": "whether heads have a bias, where heads are shared",
    "server_lr": "of what the server trains",
    "server_batch_size": "likewise",
    "combine": "how the server combines messages, such as `median` or `mean`",
    "evaluated": "parts on which clients may be asked to count right answers",
    "evaluate_every": "rounds",
    "trunks": "frozen trunks that clients may have: `name`, `digest`, `width`; left out if any network may be",
    "shared_trunk": "likewise, of the shared network; left out if it has none",
    "reproducible": "whether clients draw their random numbers from `seed`, so that a simulation has the same bits",
    "members": "of a secure sum: fingerprints of the clients' keys; left out otherwise",
    "noise": "of a secure sum: `protect` of all members; left out if there is none",
    "amends": "of amended terms: `first` and `previous`, SHA-256 of agreements, and `round`, their first round",
}

BUNDLE = {
    "format": "of the bundle",
    "federation": "its name",
    "client": "the client's number",
    "name": "the client's name",
    "public_key": "the client's own key, as OpenSSH writes it, so that it can see that it is meant",
    "host": "name or address of the server",
    "port": "likewise",
    "authority": "certificate by which the server is known, PEM",
    "certificate": "the client's own, by which the server knows it, PEM",
    "agreement": "as below",
}


def written(page: str) -> str:
    """Write every table between its marks."""

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}\n{PARTS[match['name']]()}\n{match[3]}"

    return PLACE.sub(fill, page)


def header_table(model: type[BaseModel], meanings: Mapping[str, str]) -> str:
    """Describe the members of a JSON object by the model that reads it."""
    schema = model.model_json_schema()
    rows = []
    for name, member in schema["properties"].items():
        default = "needed" if name in schema.get("required", ()) else f"`{json_of(member.get('default'))}`"
        rows.append([f"`{name}`", _kind(member, schema), default, meanings[name]])
    return table(["name", "type", "if left out", "what it is"], rows)


def _kind(member: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Describe which values a member may have."""
    if "$ref" in member:
        return "object"
    if "const" in member:
        return f"`{json_of(member['const'])}`"
    if "enum" in member:
        return ", ".join(f"`{json_of(value)}`" for value in member["enum"])
    if "anyOf" in member:
        return " or ".join(_kind(option, schema) for option in member["anyOf"])
    kind = {
        "integer": "whole number",
        "number": "number",
        "string": "text",
        "array": "list",
        "boolean": "true or false",
    }
    words = {**kind, "object": "object", "null": "null"}[member["type"]]
    if member["type"] == "array":
        words += f" of {_kind(member['items'], schema)}"
    least, most = member.get("minimum", member.get("minLength", member.get("minItems"))), member.get("maximum")
    least = member.get("exclusiveMinimum") if least is None else least
    most = member.get("maxLength", member.get("maxItems", member.get("maxProperties"))) if most is None else most
    unit = " characters" if member["type"] == "string" else " members" if member["type"] in ("array", "object") else ""
    above = "above" if "exclusiveMinimum" in member else "from"
    if least is not None and most is not None:
        return f"{words}, {least} to {most}{unit}"
    if most is not None:
        return f"{words}, {most}{unit} at most"
    return words if least is None else f"{words} {above} {least}{unit}"


def limits() -> str:
    """List what may not be exceeded."""
    rows = [
        ["JSON header", f"{frames.MAX_HEADER:,} bytes"],
        ["tensors of a message, all together", f"what its schema allows, and at most {frames.MAX_BODY:,} bytes"],
        ["index of the tensors", f"{frames.MAX_INDEX:,} bytes"],
        ["tensors of a message", f"{frames.MAX_TENSORS:,}"],
        ["axes of a tensor", str(frames.MAX_AXES)],
        ["name of a tensor", f"{frames.MAX_NAME_LENGTH} characters"],
        ["room for names and shapes in the bound by schema", f"{messages.PER_TENSOR} bytes a tensor, and once more"],
        ["numbers of a reply", f"finite, and the root mean square of each tensor at most {guard.LARGEST_SCALE:,.0f}"],
        ["an agreement", f"{LARGEST_FILE:,} bytes"],
    ]
    return table(["what", "limit"], rows)


def types() -> str:
    """List the types of tensors."""
    words = {
        "F": "floating number of IEEE 754",
        "B": "bfloat16",
        "I": "whole number, two's complement",
        "U": "whole number",
    }
    rows = []
    for name, size in frames.BYTES.items():
        values = "0 or 1" if name == "BOOL" else words[name[0]]
        rows.append([f"`{name}`", str(size), values])
    return table(["dtype", "bytes", "what it is"], rows)


def refusals() -> str:
    """List why the server refuses an answer."""
    meanings = {
        "malformed": "its bytes are no frame, or its header or index is not as described here",
        "unknown client": "this client was not asked in this round",
        "identity": "`client` is not the number that belongs to the key it came with",
        "agreement": "`agreement` is another one",
        "late": "it is for an earlier round, or for what was asked before",
        "round": "it is for a round that has not begun",
        "repeated": "the client has answered in this round already",
        "declined": "the client declined",
        "content": "names, types, shapes or numbers are not what the schema allows, or counts cannot be right",
        "scale": "numbers are finite, and larger than training makes them",
    }
    rows = [[why, meanings[why], "no" if why in ("late", "repeated") else "yes"] for why in guard.Why.__args__]  # type: ignore[attr-defined]
    return table(["why", "what is wrong", "the client is lost for the round"], rows)


def counts() -> str:
    """List what is counted in an evaluation."""
    rows = [
        ["`support`", "int64", "(K,)", "samples of each class"],
        ["`unseen`", "int64", "()", "samples whose class has no prototype of the client's own; 0 if there are no such"],
        ["`correct.RULE`", "int64", "(K,)", "right answers by true class; at most `support`"],
        ["`predicted.RULE`", "int64", "(K,)", "answers by the class that was answered; their sum is that of `support`"],
        ["`nll.RULE`", "float64", "()", "sum of −log p of the true class, p at least 10⁻¹²; may be left out"],
        [
            "`bins.RULE`",
            "float64",
            f"(3, {BINS})",
            "samples, summed confidence and right answers, by confidence; likewise",
        ],
    ]
    return table(["tensor, after `counts.PART.`", "type", "shape", "what it is"], rows)


PARTS: dict[str, Callable[[], str]] = {
    "limits": limits,
    "types": types,
    "refusals": refusals,
    "request": lambda: header_table(messages.RequestHeader, HEADER),
    "answer": lambda: header_table(messages.AnswerHeader, HEADER),
    "agreement": lambda: header_table(Agreement, TERMS),
    "bundle": lambda: header_table(Bundle, BUNDLE),
    "methods": methods,
    "network": network,
    "counts": counts,
    "rules": rules,
}


def main() -> None:
    """Bring the page up to date."""
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
