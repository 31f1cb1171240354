"""Validated types of settings, and short representations of values for messages."""

from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import AfterValidator, AllowInfNan, BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

from protonorm.core.text import shortened, visible

MAX_INT = 2**31 - 1  # largest integer that all of torch and numpy support
MAX_AXIS_LENGTH = 2**20  # along an axis of a sample: larger values indicate wrong input or exhaust memory
MAX_VOCABULARY = 2**18  # vocabulary size: a network has a row of weights for each token


def _refuse_truth(value: Any) -> Any:
    if type(value).__name__ in ("bool", "bool_"):  # Python's, and numpy's, which is not imported here
        raise PydanticCustomError("number", "input should be a number")
    return value


# In Python True equals 1, so patience=true would be a valid number. It must be last in a list of annotations: bounds
# after it are checked, but missing from the JSON schema.
NOT_TRUTH = BeforeValidator(_refuse_truth)

Count = Annotated[int, Ge(1), Le(MAX_INT), NOT_TRUTH]  # 1, 2, 3, …
Whole = Annotated[int, Ge(0), Le(MAX_INT), NOT_TRUTH]  # 0, 1, 2, …
BatchSize = Annotated[int, Ge(2), Le(MAX_INT), NOT_TRUTH]  # batch norm needs at least two samples
Seed = Annotated[int, Ge(0), Le(2**63 - 1), NOT_TRUTH]
Width = Annotated[int, Ge(1), Le(2**16), NOT_TRUTH]  # of a layer: larger values only exhaust memory
Positive = Annotated[float, Gt(0), AllowInfNan(False), NOT_TRUTH]
NonNegative = Annotated[float, Ge(0), AllowInfNan(False), NOT_TRUTH]
Fraction = Annotated[float, Gt(0), Le(1), NOT_TRUTH]  # (0, 1]
Share = Annotated[float, Gt(0), Lt(1), NOT_TRUTH]  # (0, 1)
Below1 = Annotated[float, Ge(0), Lt(1), NOT_TRUTH]  # [0, 1)
Format = Annotated[Literal[1], NOT_TRUTH]  # of a file or message: Literal[1] alone would accept true

OLD_RULES = {"global": "nearest-global", "local": "nearest-local"}  # rules' names in older records and programs


def rule_name(name: str) -> str:
    """Return a prediction rule's present name, given it or the one that older records have."""
    return OLD_RULES.get(name, name) if isinstance(name, str) else name


Rule = Annotated[str, MinLen(1), AfterValidator(rule_name)]  # name of a prediction rule

STRICT = ConfigDict(extra="forbid")  # an unknown field is an error


def shown(value: Any) -> str:
    """Format a value for a message: its repr in a single line, truncated if it is long."""
    try:
        return shortened(repr(value))
    except (ValueError, RecursionError):  # repr fails for integers of thousands of digits and for deep nesting
        return f"a {type(value).__name__} too large to show"


def truncate_start(text: str, most: int = 90) -> str:
    """Format a path for a message: in a single line, without its beginning if it is long."""
    line = visible(text[-most - 1 :])
    return line if len(line) <= most else f"…{line[1 - most :]}"


AS_TUPLE = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)  # JSON has lists
Shape = Annotated[tuple[Annotated[int, Ge(1), Le(MAX_AXIS_LENGTH)], ...], MinLen(1), MaxLen(3), AS_TUPLE]


class InputSpec(BaseModel):
    """Shape and type of a stored sample, in tasks, agreements and records."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    shape: Shape  # (H, W, C) for images, (D,) for vectors, (L,) for tokens
    type: Literal["uint8", "float32", "int64"]
    vocabulary: Annotated[int, Ge(2), Le(MAX_VOCABULARY)] | None = None  # V, the vocabulary size, for tokens

    @property
    def network_shape(self) -> tuple[int, ...]:
        """Input shape of a network: (C, H, W) for images, (D,) for vectors, (L, V) for tokens."""
        if self.vocabulary is not None:
            return (*self.shape, self.vocabulary)
        return (self.shape[2], self.shape[0], self.shape[1]) if len(self.shape) == 3 else self.shape

    def describe(self) -> dict[str, Any]:
        """Return a JSON-compatible description."""
        return self.model_dump(mode="json", exclude_none=True)
