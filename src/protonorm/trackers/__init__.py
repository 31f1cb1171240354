"""Who can follow a run besides its record; the table is also the table of contents, and imports none of them."""

from protonorm.core.registry import Entry

TRACKERS: dict[str, Entry] = {
    "tensorboard": Entry(
        "protonorm.trackers.tensorboard:TensorBoard",
        "curves, histograms, settings and prototypes for TensorBoard",
        {"extra": "track", "to look at": "tensorboard --logdir runs"},
    ),
}
