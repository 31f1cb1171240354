"""Federated learning across clients with different models and data: methods, simulation and deployment."""

# Only modules that Python has already loaded may be imported here: with `python -m protonorm` the current folder is
# still first on the search path, so a typing.py in it would be executed (see __main__).
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from protonorm.algorithms.duet import Duet
    from protonorm.algorithms.fedavg import MOON, Ditto, FedAvg, FedProx, FedUV
    from protonorm.algorithms.feddistill import FedDistill, FedMD
    from protonorm.algorithms.fedgh import FedGH, FedRE
    from protonorm.algorithms.fedhp import FedHP
    from protonorm.algorithms.fedkwaz import FedKWAZ
    from protonorm.algorithms.fedl2g import FedL2G
    from protonorm.algorithms.fedmrl import FedMRL
    from protonorm.algorithms.fednh import FedNH
    from protonorm.algorithms.fedper import FedPAC, FedPer, FedRep
    from protonorm.algorithms.fedproto import FedProto, TinyProto
    from protonorm.algorithms.fedsa import FedSA
    from protonorm.algorithms.fedsaf import FedSAF
    from protonorm.algorithms.fedtgp import FedORGP, FedTGP
    from protonorm.algorithms.fml import FML, FedKD
    from protonorm.algorithms.fpl import FPL
    from protonorm.algorithms.heterofl import FedRolex, FjORD, HeteroFL
    from protonorm.algorithms.lgfedavg import FedGen, LGFedAvg
    from protonorm.algorithms.local import Local
    from protonorm.algorithms.parts.heads import SharedHead, head_of
    from protonorm.algorithms.parts.messages import Averaged, AveragedModel, class_vectors, head_slots, make_schema
    from protonorm.algorithms.parts.prototypes import (
        AveragedByClass,
        Prototypes,
        class_means,
        received_prototypes,
        stack_prototypes,
        train_prototypes,
    )
    from protonorm.algorithms.parts.training import fit_labels
    from protonorm.algorithms.protonorm import ProtoNorm
    from protonorm.algorithms.targets import FixedTargets
    from protonorm.config.experiment import Experiment
    from protonorm.core import (
        Additive,
        Algorithm,
        Client,
        Contribution,
        Field,
        Schema,
        Server,
        SplitModel,
        Step,
        Sums,
        Task,
        keep_trained,
    )
    from protonorm.core.training import Training
    from protonorm.data.dataset import Dataset
    from protonorm.errors import Diverged, TooFewReplies
    from protonorm.geometry.alignment import Alignment, Schedule, align
    from protonorm.geometry.losses import prototype_loss
    from protonorm.inference.loading import load_client
    from protonorm.inference.trained import TrainedClient
    from protonorm.models.inputs import Normalise
    from protonorm.models.split import split
    from protonorm.runs.run import Run, read_run
    from protonorm.session.comparing import compare
    from protonorm.session.comparison import Comparison
    from protonorm.session.result import Result, load_run
    from protonorm.session.running import run
    from protonorm.tensors import Tensors, snapshot

    __version__: str

# Public names by module, imported on first use so that `import protonorm` does not load torch. Algorithm classes are
# looked up in the algorithms table.
_NAMES = {
    "algorithms.parts.heads": "SharedHead head_of",
    "algorithms.parts.messages": "Averaged AveragedModel class_vectors head_slots make_schema",
    "algorithms.parts.prototypes": "AveragedByClass Prototypes class_means received_prototypes stack_prototypes "
    "train_prototypes",
    "algorithms.parts.training": "fit_labels",
    "config.experiment": "Experiment",
    "core": "Additive Algorithm Client Contribution Field Schema Server SplitModel Step Sums Task keep_trained",
    "core.training": "Training",
    "data.dataset": "Dataset",
    "errors": "Diverged TooFewReplies",
    "geometry.alignment": "Alignment Schedule align",
    "geometry.losses": "prototype_loss",
    "inference.loading": "load_client",
    "inference.trained": "TrainedClient",
    "models.inputs": "Normalise",
    "models.split": "split",
    "runs.run": "Run read_run",
    "session.comparing": "compare",
    "session.comparison": "Comparison",
    "session.result": "Result load_run",
    "session.running": "run",
    "tensors": "Tensors snapshot",
}

__all__ = [
    "FML", "FPL", "MOON", "Additive", "Algorithm", "Alignment", "Averaged", "AveragedByClass", "AveragedModel",
    "Client", "Comparison", "Contribution", "Dataset", "Ditto", "Diverged", "Duet", "Experiment", "FedAvg",
    "FedDistill", "FedGH", "FedGen", "FedHP", "FedKD", "FedKWAZ", "FedL2G", "FedMD", "FedMRL", "FedNH", "FedORGP",
    "FedPAC", "FedPer", "FedProto", "FedProx", "FedRE", "FedRep", "FedRolex", "FedSA", "FedSAF", "FedTGP", "FedUV",
    "Field", "FixedTargets", "FjORD", "HeteroFL", "LGFedAvg", "Local", "Normalise", "ProtoNorm", "Prototypes",
    "Result", "Run", "Schedule", "Schema", "Server", "SharedHead", "SplitModel", "Step", "Sums", "Task", "Tensors",
    "TinyProto", "TooFewReplies", "TrainedClient", "Training", "__version__", "align", "class_means",
    "class_vectors", "compare", "fit_labels", "head_of", "head_slots", "keep_trained", "load_client", "load_run",
    "make_schema", "prototype_loss", "read_run", "received_prototypes", "run", "snapshot", "split", "stack_prototypes",
    "train_prototypes",
]  # fmt: skip


def __getattr__(name: str) -> "Any":
    if name == "__version__":  # from a git tag
        metadata = import_module("importlib.metadata")
        try:
            return metadata.version("protonorm")
        except metadata.PackageNotFoundError:
            return "0+unknown"
    for module, names in _NAMES.items():
        if name in names.split():
            return getattr(import_module(f"protonorm.{module}"), name)
    for entry in import_module("protonorm.algorithms").ALGORITHMS.values():
        if entry.target.endswith(f":{name}"):
            return entry.load()
    raise AttributeError(f"module 'protonorm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
