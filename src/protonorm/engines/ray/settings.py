"""What each actor gets of its node."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Le
from pydantic import AllowInfNan

from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT

Amount = Annotated[float, Ge(0), Le(1024), AllowInfNan(False)]


@dataclass(frozen=True, config=STRICT)
class ActorSettings:
    """Cores and GPUs that Ray sets aside for an actor; parts of one are allowed. An actor computes with one thread."""

    num_cpus: Amount = 1.0
    num_gpus: Amount = 0.0

    def __post_init__(self) -> None:
        """Refuse what Ray cannot divide, and actors that need nothing, of which there could be any number."""
        if self.num_gpus > 1 and not self.num_gpus.is_integer():
            raise ValueError(f"num_gpus={self.num_gpus:g} is refused: above 1 expected a whole number of GPUs.")
        if not self.num_cpus and not self.num_gpus:
            raise ValueError("num_cpus=0 is refused where num_gpus is 0 too: expected some of either.")

    def check_device(self, device: str) -> None:
        """Refuse networks on a GPU in actors that see none."""
        if device.startswith("cuda") and not self.num_gpus:
            raise ValueError(f"device={device} is refused on Ray where actors have no GPU: --engine ray:num_gpus=1.")

    def fit(self, cpus: float, gpus: float) -> int:
        """Count the actors for which so much is enough."""
        rooms = [cpus / self.num_cpus] if self.num_cpus else []
        rooms += [gpus / self.num_gpus] if self.num_gpus else []
        return int(min(rooms) + 1e-9)
