"""Federate different models on different data by sharing prototypes alone."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protonorm.algorithms.fedavg import FedAvg
    from protonorm.algorithms.fedproto import FedProto
    from protonorm.algorithms.local import Local
    from protonorm.algorithms.protonorm import ProtoNorm
    from protonorm.core import Algorithm, Client, Server, SplitModel, Step
    from protonorm.data.dataset import Dataset
    from protonorm.errors import Diverged
    from protonorm.experiment import Experiment
    from protonorm.geometry.alignment import Alignment, align
    from protonorm.history import read_run
    from protonorm.result import Result
    from protonorm.session import run
    from protonorm.tensors import Tensors

__version__ = "0.1.0"

# Where each public name lives: looked up on first use, so that `import protonorm` loads no torch.
_PLACES = {
    "Algorithm": "core",
    "Alignment": "geometry.alignment",
    "Client": "core",
    "Dataset": "data.dataset",
    "Diverged": "errors",
    "Experiment": "experiment",
    "FedAvg": "algorithms.fedavg",
    "FedProto": "algorithms.fedproto",
    "Local": "algorithms.local",
    "ProtoNorm": "algorithms.protonorm",
    "Result": "result",
    "Server": "core",
    "SplitModel": "core",
    "Step": "core",
    "Tensors": "tensors",
    "align": "geometry.alignment",
    "read_run": "history",
    "run": "session",
}

__all__ = [
    "Algorithm",
    "Alignment",
    "Client",
    "Dataset",
    "Diverged",
    "Experiment",
    "FedAvg",
    "FedProto",
    "Local",
    "ProtoNorm",
    "Result",
    "Server",
    "SplitModel",
    "Step",
    "Tensors",
    "__version__",
    "align",
    "read_run",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'protonorm' has no attribute {name!r}")
    return getattr(import_module(f"protonorm.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
