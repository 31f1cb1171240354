"""Types of settings: a value outside its range is refused where it is given."""

from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AllowInfNan, ConfigDict

Count = Annotated[int, Ge(1)]  # 1, 2, 3, …
Whole = Annotated[int, Ge(0)]  # 0, 1, 2, …
Positive = Annotated[float, Gt(0), AllowInfNan(False)]
NonNegative = Annotated[float, Ge(0), AllowInfNan(False)]
Fraction = Annotated[float, Gt(0), Le(1)]  # (0, 1]
Share = Annotated[float, Gt(0), Lt(1)]  # (0, 1)

STRICT = ConfigDict(extra="forbid")  # an unknown field is an error, never ignored
