"""What can go wrong in a run although its settings are right. Nothing here needs torch."""


class Failed(RuntimeError):
    """A run stopped; what it had finished is kept."""


class Diverged(Failed):
    """Training left the finite numbers."""


class TooFewReplies(Failed):
    """A round did not reach its quorum."""


class NotFetched(Failed):
    """A download stopped; what has come is kept."""
