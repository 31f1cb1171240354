"""Registry of experiment trackers, which does not import them."""

from protonorm.core.registry import Entry

TRACKERS: dict[str, Entry] = {
    "tensorboard": Entry(
        "protonorm.trackers.tensorboard:TensorBoard",
        "curves, histograms, settings and prototypes for TensorBoard",
        {"extra": "track", "to look at": "tensorboard --logdir runs"},
    ),
    "wandb": Entry(
        "protonorm.trackers.services:WeightsAndBiases",
        "curves, histograms and settings for Weights & Biases; offline unless WANDB_MODE=online",
        {"extra": "wandb", "to look at": "wandb sync runs/wandb/offline-run-*"},
    ),
    "mlflow": Entry(
        "protonorm.trackers.services:MLflow",
        "curves and settings for MLflow, in runs/mlruns or at MLFLOW_TRACKING_URI",
        {
            "extra": "mlflow",
            "to look at": "MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri runs/mlruns, of the whole mlflow",
        },
    ),
}
