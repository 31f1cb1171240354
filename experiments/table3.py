"""Table 3: one network for all clients, beside two methods that average whole models.

Headline of FedNH and FedUV is the model as received; the second table has their models after local training too,
because the paper does not say which of the two it means.
"""

from .reproduction.cells import Column, printed
from .setting import DATASETS, cell, practical

TITLE = "Table 3: accuracy with homogeneous models"

NETWORKS = {"4-layer CNN": "cnn", "ResNet-18": "resnet18"}
COLUMNS = tuple(Column(name, network) for network in NETWORKS for name in ("CIFAR-100", "Flowers-102", "Tiny ImageNet"))
METHODS = {"FedNH": "fednh", "FedUV": "feduv", "ProtoNorm": "protonorm"}
ROWS = tuple(METHODS)
BESIDE = ("Local", "FedAvg")

CELLS = [
    cell(row, column, practical(DATASETS[column.name], models=NETWORKS[column.group]), algorithm)
    for column in COLUMNS
    for row, algorithm in (METHODS | {"Local": "local", "FedAvg": "fedavg"}).items()
]

PAPER = printed(
    COLUMNS,
    """
    FedNH     | 32.68 ± 0.61 | 36.61 ± 1.29 | 16.50 ± 0.07 | 37.72 ± 1.23 | 47.61 ± 1.09 | 22.62 ± 0.70
    FedUV     | 46.10 ± 0.21 | 50.48 ± 0.70 | 27.38 ± 0.07 | 48.33 ± 0.19 | 55.36 ± 0.32 | 30.18 ± 0.06
    ProtoNorm | 48.25 ± 0.12 | 51.21 ± 0.54 | 29.35 ± 0.05 | 50.57 ± 0.21 | 60.28 ± 0.49 | 31.69 ± 0.32
    """,
)

TOLERANCE = {"paper": 3.0}
LEADS, SLACK = "ProtoNorm", {"paper": 0.5, "cpu": 1.0}
