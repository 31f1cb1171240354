"""The paper's tables and figures, one file each, in the paper's order: `protonorm reproduce NAME` makes them again.

The last three are not in the paper: two say what explains its numbers, and one is about frozen backbones.

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
)
