"""Exceptions raised by a run whose settings are valid. Does not import torch."""


class Failed(RuntimeError):
    """Base class of the errors that stop a run; completed rounds are kept."""


class Diverged(Failed):
    """Raised when training yields non-finite values; names client, round and settings. Earlier rounds are kept."""


class TooFewReplies(Failed):
    """Raised when a round misses its quorum on every attempt; repeating the call resumes after the last round."""


class Burned(Failed):
    """Raised when not all members of a secure sum sent their messages; the round yields nothing."""


class Again(Failed):
    """Raised when a round of a real federation is to begin again, as other members may have confirmed its terms."""


class NotFetched(Failed):
    """Raised when a download is interrupted; the part already received is kept."""


# Substrings of torch's out-of-memory messages.
MEMORY_SIGNS = ("can't allocate memory", "not enough memory", "out of memory", "Storage size calculation overflowed")


def lacks_memory(error: BaseException) -> bool:
    """Return whether an error reports a lack of memory: a MemoryError, or torch's RuntimeError, by its text."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in MEMORY_SIGNS)
