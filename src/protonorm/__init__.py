"""Federate different models on different data by sharing prototypes alone."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protonorm.algorithms.fedavg import FedAvg
    from protonorm.algorithms.feddistill import FedDistill
    from protonorm.algorithms.fedgen import FedGen
    from protonorm.algorithms.fedgh import FedGH
    from protonorm.algorithms.fedkd import FedKD
    from protonorm.algorithms.fednh import FedNH
    from protonorm.algorithms.fedproto import FedProto
    from protonorm.algorithms.fedtgp import FedTGP
    from protonorm.algorithms.feduv import FedUV
    from protonorm.algorithms.fml import FML
    from protonorm.algorithms.lgfedavg import LGFedAvg
    from protonorm.algorithms.local import Local
    from protonorm.algorithms.protonorm import ProtoNorm
    from protonorm.core import Algorithm, Client, Server, SplitModel, Step
    from protonorm.data.dataset import Dataset
    from protonorm.errors import Diverged
    from protonorm.experiment import Experiment
    from protonorm.geometry.alignment import Alignment, align
    from protonorm.history import read_run
    from protonorm.models.split import split
    from protonorm.result import Result
    from protonorm.saved import load_client
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
    "FML": "algorithms.fml",
    "FedAvg": "algorithms.fedavg",
    "FedDistill": "algorithms.feddistill",
    "FedGH": "algorithms.fedgh",
    "FedGen": "algorithms.fedgen",
    "FedKD": "algorithms.fedkd",
    "FedNH": "algorithms.fednh",
    "FedProto": "algorithms.fedproto",
    "FedTGP": "algorithms.fedtgp",
    "FedUV": "algorithms.feduv",
    "LGFedAvg": "algorithms.lgfedavg",
    "Local": "algorithms.local",
    "ProtoNorm": "algorithms.protonorm",
    "Result": "result",
    "Server": "core",
    "SplitModel": "core",
    "Step": "core",
    "Tensors": "tensors",
    "align": "geometry.alignment",
    "load_client": "saved",
    "read_run": "history",
    "run": "session",
    "split": "models.split",
}

__all__ = [
    "FML",
    "Algorithm",
    "Alignment",
    "Client",
    "Dataset",
    "Diverged",
    "Experiment",
    "FedAvg",
    "FedDistill",
    "FedGH",
    "FedGen",
    "FedKD",
    "FedNH",
    "FedProto",
    "FedTGP",
    "FedUV",
    "LGFedAvg",
    "Local",
    "ProtoNorm",
    "Result",
    "Server",
    "SplitModel",
    "Step",
    "Tensors",
    "__version__",
    "align",
    "load_client",
    "read_run",
    "run",
    "split",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'protonorm' has no attribute {name!r}")
    return getattr(import_module(f"protonorm.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
