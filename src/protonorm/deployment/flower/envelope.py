"""How bytes of ours lie in a message of Flower's: one record of settings, with one value."""

from __future__ import annotations

from flwr.app import ConfigRecord, Message, RecordDict

TYPE = "train"  # of all our messages; what is asked for stands in the bytes
RECORD, VALUE = "protonorm", "frame"
MOST_OBJECTS = 8  # that Flower may take a message apart into; ours are three
SPARE = 2**14  # bytes that Flower adds at most


def wrap(content: bytes) -> RecordDict:
    """Put bytes into the form that Flower carries."""
    return RecordDict({RECORD: ConfigRecord({VALUE: content})})


def unwrap(message: Message) -> bytes:
    """Take the bytes out of a message; none if it holds something else."""
    if not message.has_content():
        return b""
    record = message.content.get(RECORD)
    found = record.get(VALUE) if isinstance(record, ConfigRecord) else None
    return found if isinstance(found, bytes) else b""


def reply(content: bytes, to: Message) -> Message:
    """Answer a message of Flower's."""
    return Message(wrap(content), reply_to=to)
