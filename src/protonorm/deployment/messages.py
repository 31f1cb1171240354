"""Messages between server and client: requests, answers, their headers and size limits."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from annotated_types import Ge, Le, MaxLen
from pydantic import AllowInfNan

from protonorm.core.frames import MAX_BODY, BadFrame, decode_body, encode_body, join, split
from protonorm.core.schema import Schema, Size, Slot
from protonorm.core.task import Task
from protonorm.core.types import MAX_INT, Format
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.settings import Document
from protonorm.metrics import metrics
from protonorm.tensors import Tensors, prefixed, strip_prefix

FORMAT: Final = 1  # version of the message format; others are rejected
REPLY, COUNTS = "said", "counts"  # name prefixes of an answer's tensors: the reply, and the evaluation counts
PER_TENSOR = 512  # bytes that the tensor index may take per tensor

Kind = Literal["train", "evaluate", "evaluate+train", "keep", "amend", "members", "mask"]
Number = Annotated[int, Ge(0), Le(MAX_INT)]
Digest = Annotated[str, MaxLen(64)]
Metric = Annotated[float, Ge(-1e39), Le(1e39), AllowInfNan(False)]  # the range of float32, so that means stay finite


TERMS = "agreement"  # tensor of an amendment: its JSON as bytes
USED = "used"  # metric of an answer without a pledge: 1 if the client's message of the round may have been sent
CONFIRMED = "confirmed"  # metric of the answer to an amendment: 1 if the owner has confirmed it


class Header(Document):
    """Header that precedes the tensors of every message."""

    format: Format
    agreement: Digest  # SHA-256 of the agreement
    client: Number
    round: Number  # round to train in; if nothing is trained, the round of the message
    kind: Kind

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Self:
        """Parse a header, or raise a BadFrame that says what is wrong."""
        try:
            return cls.checked(plain, "Its header")
        except ValueError as error:
            raise BadFrame(str(error).replace("\n", " ").rstrip(".")) from None

    @property
    def trains(self) -> bool:
        """Whether training is requested."""
        return "train" in self.kind

    @property
    def published(self) -> int:
        """Round of the message, which is the round to evaluate: the one before a training round."""
        return self.round - self.trains


class RequestHeader(Header):
    """Header of a request; the tensors are the server's latest message."""

    trained: Number  # round of the state to start from; 0 for the initial state
    chosen: Number = 0  # best round so far: clients keep its state
    parts: Annotated[list[Literal["validation", "test"]], MaxLen(2)] = []  # sample parts to evaluate on


class AnswerHeader(Header):
    """Header of an answer."""

    declined: Annotated[str, MaxLen(2000)] = ""  # reason, if the client declines; then there are no tensors
    metrics: Annotated[dict[Annotated[str, MaxLen(64)], Metric], MaxLen(64)] = {}
    seconds: Annotated[float, Ge(0), Le(1e9), AllowInfNan(False)] = 0.0


class Request(NamedTuple):
    """Parsed request."""

    header: RequestHeader
    message: Tensors


class Answer(NamedTuple):
    """Parsed answer."""

    header: AnswerHeader
    message: Tensors  # reply to the server's message, if training was requested
    counts: Tensors  # evaluation counts, if requested and allowed by the client's owner


def write_request(header: RequestHeader, body: bytes) -> bytes:
    """Serialise a request; the body is encoded once for all clients."""
    return join(header.model_dump(mode="json"), body)


def read_request(content: bytes, largest: int = MAX_BODY) -> Request:
    """Parse a request, or raise a BadFrame."""
    plain, body = split(content, largest)
    return Request(RequestHeader.read(plain), decode_body(body))


def write_answer(answer: Answer) -> bytes:
    """Serialise an answer."""
    tensors = prefixed(REPLY, answer.message) | prefixed(COUNTS, answer.counts)
    return join(answer.header.model_dump(mode="json"), encode_body(tensors))


def read_answer_header(content: bytes, largest: int = MAX_BODY) -> tuple[AnswerHeader, bytes]:
    """Parse an answer's header, or raise a BadFrame; its tensors stay encoded."""
    plain, body = split(content, largest)
    return AnswerHeader.read(plain), body


def read_answer_tensors(body: bytes) -> tuple[Tensors, Tensors]:
    """Decode an answer's reply and counts, or raise a BadFrame."""
    tensors = decode_body(body)
    if unexpected := [name for name in tensors if name.partition(".")[0] not in (REPLY, COUNTS)]:
        raise BadFrame(f"it holds {unexpected[0][:80]!r}, which is not expected")
    return strip_prefix(tensors, REPLY), strip_prefix(tensors, COUNTS)


def largest_message(schema: Schema, slots: tuple[Slot, ...]) -> int:
    """Return the maximal size in bytes of a message's tensors by the schema; MAX_BODY if unbounded."""
    total, tensors = 0, 1
    for slot in slots:
        sizes = [sum(_largest(schema, field.shape, field.dtype.itemsize) for field in form.values()) for form in slot]
        total += max(sizes)
        tensors += max(len(form) for form in slot)
    return min(MAX_BODY, total + PER_TENSOR * tensors)


def largest_request(agreement: Agreement) -> int:
    """Return the maximal size in bytes of a request's tensors: the server's message, or amended terms."""
    schema = agreement.task.schema
    pledges = 2**8 * len(agreement.members)  # bytes of pledges or signatures
    return max(largest_message(schema, schema.down), 2 * len(agreement.write()) + PER_TENSOR + pledges)


def largest_counts(task: Task, parts: int = 2) -> int:
    """Return the maximal size in bytes of a client's counts: integers by class and rule, and probability metrics."""
    rules, classes = len(task.algorithm.rules) + 1, task.num_classes
    declared = [count.sizes(classes) for metric in metrics().values() for count in metric.counts.values()]
    of_rule = 2 * 8 * classes + 8 + sum(8 * prod(shape) for shape in declared) + (3 + len(declared)) * PER_TENSOR
    return parts * (8 * task.num_classes + 8 + 2 * PER_TENSOR + rules * of_rule)


def _largest(schema: Schema, shape: tuple[Size, ...], width: int) -> int:
    for size in shape:
        width *= size if isinstance(size, int) else schema.exact.get(size, schema.bounds.get(size, MAX_BODY))
    return width
