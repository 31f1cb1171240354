"""The paper's tables and figures, one file each, in the paper's order: `protonorm reproduce NAME` makes them again.

The last four are not in the paper: two say what explains its numbers, one is about frozen backbones, and one about the
price of privacy.

Lee, Shin and Choi, "Heterogeneous Federated Learning with Prototype Alignment and Upscaling", ICCV 2025.
"""

NAMES = (
    "spiral",
    "table1",
    "table2",
    "table3",
    "table4",
    "table5",
    "convergence",
    "distances",
    "margins",
    "spiral_clients",
    "hyperparameters",
    "partitions",
    "communication",
    "controls",
    "ablation",
    "backbones",
    "privacy",
)
