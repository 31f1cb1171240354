"""What can go wrong in a run although its settings are right. Nothing here needs torch."""


class Failed(RuntimeError):
    """A run stopped; what it had finished is kept. The base of the others."""


class Diverged(Failed):
    """Training left the finite numbers. The sentence names client, round and settings; the rounds before are kept."""


class TooFewReplies(Failed):
    """A round did not reach its quorum, however often it was tried. The same call goes on from the round before."""


class NotFetched(Failed):
    """A download stopped; what has come is kept."""
