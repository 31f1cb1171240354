"""Registry of experiment trackers, which does not import them."""

from protonorm.core.registry import Entry

TRACKERS: dict[str, Entry] = {
    "tensorboard": Entry(
        "protonorm.trackers.tensorboard:TensorBoard",
        "curves, histograms, settings and prototypes for TensorBoard",
        {"extra": "track", "to look at": "tensorboard --logdir runs"},
    ),
}
