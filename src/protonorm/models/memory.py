"""Tell errors that say that memory is short from all others. Nothing here needs torch."""

SIGNS = ("can't allocate memory", "not enough memory", "out of memory", "Storage size calculation overflowed")


def lacks_memory(error: BaseException) -> bool:
    """Tell whether an error says that memory is short: Python's and numpy's own kind, or torch's by its text."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)
