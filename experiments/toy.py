"""The spiral experiment of the paper's section 3.2 and its supplement, and stars of its clients.

λ is that of the figures' file names; the learning rate is ours, as the paper gives none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protonorm.reproduction.cells import Cell

if TYPE_CHECKING:
    from protonorm.report.stars import Star

SPIRAL = {
    "dataset": "spiral",
    "models": "mlp",
    "feature_dim": 2,
    "clients": 10,
    "rounds": 200,
    "batch_size": 32,
    "lr": 0.01,
}
DEALT = {"IID": {"name": "iid"}, "non-IID": {"name": "dirichlet", "alpha": 0.1}}
LAM = 0.5


def toy_cell(method: str, dealt: str, **fields: Any) -> Cell:
    """Make a cell of the spiral experiment; its row is the title of its panel."""
    title = f"{method} ({dealt}" + (f", γ={fields['gamma']:g})" if "gamma" in fields else ")")
    algorithm = {"name": method.lower(), "lam": LAM, **fields}
    return Cell(title, "spiral", SPIRAL | {"partition": DEALT[dealt], "algorithm": algorithm})


def server_star(result: Any, title: str) -> Star:
    """Draw global prototypes as rays, upscaled as clients see them, and all local prototypes as points."""
    import numpy as np

    from protonorm.report.stars import Star

    states = [client.state for client in result.clients]
    message = result.clients[0].message
    gamma = result.experiment.algorithm.gamma
    return Star(
        title,
        gamma * message["prototypes"].double().numpy(),
        message["classes"].numpy(),
        np.concatenate([state["prototypes"].double().numpy() for state in states]),
        np.concatenate([state["classes"].numpy() for state in states]),
        dashed=True,
    )


def client_star(result: Any, id: int, title: str) -> Star:
    """Draw a client's local prototypes as rays and the features of its test samples as points."""
    from protonorm.report.stars import Star

    trained = result.clients[id]
    features, labels = trained.features()
    prototypes, classes = trained.state["prototypes"].double().numpy(), trained.state["classes"].numpy()
    return Star(title, prototypes, classes, features, labels, small=True)
