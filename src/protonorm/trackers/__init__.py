"""Programs that can follow a run besides its record: the table of contents, which imports none of them."""

from protonorm.core.registry import Entry

TRACKERS: dict[str, Entry] = {
    "tensorboard": Entry(
        "protonorm.trackers.tensorboard:TensorBoard",
        "curves, histograms, settings and prototypes for TensorBoard",
        {"extra": "track", "to look at": "tensorboard --logdir runs"},
    ),
}
