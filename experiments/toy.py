"""The spiral experiment of the paper's section 3.2 and its supplement, and stars of its clients.

λ is that of the figures' file names; the learning rate is ours, as the paper gives none. All clients begin with equal
weights, as in the program that these data come from. If each begins with its own, FedProto's clients do not agree on
directions, not even on IID data, nor with other learning rates and optimisers that were tried (docs/results.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .reproduction.cells import Cell

if TYPE_CHECKING:
    from protonorm.session.result import Result

    from .figures import Star

SPIRAL = {
    "dataset": "spiral",
    "models": "mlp",
    "feature_dim": 2,
    "clients": 10,
    "rounds": 200,
    "batch_size": 32,
    "lr": 0.01,
}
PARTITIONS = {"IID": {"name": "iid"}, "non-IID": {"name": "dirichlet", "alpha": 0.1}}
LAM = 0.5


def toy_cell(method: str, split: str, start: str = "equal", **fields: Any) -> Cell:
    """Make a cell of the spiral experiment; its row is the title of its panel."""
    title = f"{method} ({split}" + (f", γ={fields['gamma']:g})" if "gamma" in fields else ")")
    title += "" if start == "equal" else ", own start"
    algorithm = {"name": method.lower(), "lam": LAM, **fields}
    return Cell(title, "spiral", SPIRAL | {"partition": PARTITIONS[split], "algorithm": algorithm, "start": start})


def server_star(result: Result, title: str) -> Star:
    """Draw global prototypes as rays, upscaled as clients see them, and all local prototypes as points."""
    import numpy as np

    from .figures import Star

    clients = list(result.trained("last"))  # figures show the end of training, whatever round a table reports
    message, states = clients[0].message, [client.state for client in clients]
    return Star(
        title,
        result.experiment.algorithm.gamma * message["prototypes"].double().numpy(),
        message["classes"].numpy(),
        np.concatenate([state["prototypes"].double().numpy() for state in states]),
        np.concatenate([state["classes"].numpy() for state in states]),
        dashed=True,
    )


def client_star(result: Result, id: int, title: str) -> Star:
    """Draw a client's local prototypes as rays and the features of its test samples as points."""
    from .figures import Star

    trained = result.trained("last")[id]
    prototypes, classes = trained.state["prototypes"].double().numpy(), trained.state["classes"].numpy()
    return Star(title, prototypes, classes, trained.features(), trained.client.test.labels.numpy(), small=True)


def angles(star: Star) -> tuple[float, float]:
    """Return the smallest angle of neighbouring rays, and the median one of points to the rays of their classes (°)."""
    import numpy as np

    turns = np.degrees(np.arctan2(star.rays[:, 1], star.rays[:, 0]))  # (K,)
    around = np.sort(turns)
    gaps = np.diff(np.append(around, around[0] + 360))
    ray_of = {int(label): turn for label, turn in zip(star.ray_classes, turns, strict=True)}
    own = np.degrees(np.arctan2(star.points[:, 1], star.points[:, 0]))  # (n,)
    apart = np.abs((own - [ray_of[int(label)] for label in star.point_classes] + 180) % 360 - 180)
    return float(gaps.min()), float(np.median(apart))
