"""What server and client say to each other: a request with the server's message, and the answer to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from annotated_types import Ge, Le, MaxLen
from pydantic import AllowInfNan, BaseModel, ConfigDict, ValidationError

from protonorm.core.complaints import sentences
from protonorm.core.schema import Schema, Size, Slot
from protonorm.core.task import Task
from protonorm.core.types import LARGEST
from protonorm.deployment.frames import LARGEST_BODY, BadFrame, decode_body, encode_body, join, split
from protonorm.federation.client import BINS
from protonorm.tensors import Tensors, prefixed, under

FORMAT: Final = 1  # of the messages; another one is refused
SAID, COUNTED = "said", "counts"  # before the names of an answer's tensors: the reply, and what was counted
PER_TENSOR = 512  # bytes that the index of tensors may take for each

Kind = Literal["train", "evaluate", "evaluate+train"]
Number = Annotated[int, Ge(0), Le(LARGEST)]
Digest = Annotated[str, MaxLen(64)]
Metric = Annotated[float, Ge(-1e39), Le(1e39), AllowInfNan(False)]  # all float32 there is; means of it are finite


class Header(BaseModel):
    """What stands before the tensors of every message."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[1]
    agreement: Digest  # SHA-256 of the terms
    client: Number
    round: Number  # in which to train; in which to evaluate, if there is nothing to train
    kind: Kind

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Self:
        """Read a header, or say in a sentence what is wrong with it."""
        try:
            return cls.model_validate(dict(plain))
        except ValidationError as error:
            known: dict[str, list[str]] = {name: [] for name in cls.model_fields}
            raise BadFrame(sentences(error, known, "Its header").rstrip(".")) from None

    @property
    def evaluated_round(self) -> int:
        """Give the round that is evaluated: the one before the round to train in, whose message is sent."""
        return self.round - 1 if self.kind == "evaluate+train" else self.round


class RequestHeader(Header):
    """What the server asks of a client. The tensors are what the server said last."""

    trained: Number  # the round whose state the client is to take, 0 for its first one
    chosen: Number = 0  # the best round so far: the state after it is kept
    parts: Annotated[list[Literal["validation", "test"]], MaxLen(2)] = []  # to be evaluated on


class AnswerHeader(Header):
    """What a client says of its answer."""

    declined: Annotated[str, MaxLen(2000)] = ""  # a sentence, if the client refuses; then there are no tensors
    metrics: Annotated[dict[Annotated[str, MaxLen(64)], Metric], MaxLen(64)] = {}
    seconds: Annotated[float, Ge(0), Le(1e9), AllowInfNan(False)] = 0.0


class Request(NamedTuple):
    """A request as the client has it."""

    header: RequestHeader
    message: Tensors


class Answer(NamedTuple):
    """An answer as the server has it."""

    header: AnswerHeader
    message: Tensors  # the reply to the server's message, if it was to train
    counts: Tensors  # what was counted, if it was to be evaluated; the owner may not allow it


def write_request(header: RequestHeader, body: bytes) -> bytes:
    """Write a request; the body is encoded once for all clients."""
    return join(header.model_dump(mode="json"), body)


def read_request(content: bytes, largest: int = LARGEST_BODY) -> Request:
    """Read a request, or raise a BadFrame."""
    plain, body = split(content, largest)
    return Request(RequestHeader.read(plain), decode_body(body))


def write_answer(answer: Answer) -> bytes:
    """Write an answer."""
    tensors = prefixed(SAID, answer.message) | prefixed(COUNTED, answer.counts)
    return join(answer.header.model_dump(mode="json"), encode_body(tensors))


def read_answer_header(content: bytes, largest: int = LARGEST_BODY) -> tuple[AnswerHeader, bytes]:
    """Read an answer's header, or raise a BadFrame; its tensors are left as bytes."""
    plain, body = split(content, largest)
    return AnswerHeader.read(plain), body


def read_answer_tensors(body: bytes) -> tuple[Tensors, Tensors]:
    """Read the reply and the counts of an answer, or raise a BadFrame."""
    tensors = decode_body(body)
    strange = [name for name in tensors if name.partition(".")[0] not in (SAID, COUNTED)]
    if strange:
        raise BadFrame(f"it holds {strange[0][:80]!r}, which nobody expects")
    return under(tensors, SAID), under(tensors, COUNTED)


def largest_message(schema: Schema, slots: tuple[Slot, ...]) -> int:
    """Bound the bytes of a message's tensors by what the schema allows; one of unknown size has the general bound."""
    total, tensors = 0, 1
    for slot in slots:
        sizes = [sum(_largest(schema, one.shape, one.dtype.itemsize) for one in form.values()) for form in slot]
        total += max(sizes)
        tensors += max(len(form) for form in slot)
    return min(LARGEST_BODY, total + PER_TENSOR * tensors)


def largest_counts(task: Task, parts: int = 2) -> int:
    """Bound the bytes of a client's counts: whole numbers by class and rule, and those of its probabilities."""
    rules = len(task.algorithm.rules) + 1
    of_rule = 2 * 8 * task.num_classes + 2 * 8 + 3 * BINS * 8 + 5 * PER_TENSOR
    return parts * (8 * task.num_classes + 8 + 2 * PER_TENSOR + rules * of_rule)


def _largest(schema: Schema, shape: tuple[Size, ...], width: int) -> int:
    for size in shape:
        width *= size if isinstance(size, int) else schema.exact.get(size, schema.bounds.get(size, LARGEST_BODY))
    return width
