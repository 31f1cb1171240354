"""Types of settings: a value outside its range is refused where it is given, and shown in few words."""

from typing import Annotated, Any

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AllowInfNan, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

from protonorm.core.text import visible

LARGEST = 2**31 - 1  # what every part of torch and numpy can count to
SHOWN = 80  # characters of a value in a sentence


def _refuse_truth(value: Any) -> Any:
    if type(value).__name__ in ("bool", "bool_"):  # Python's, and numpy's, which is not imported here
        raise PydanticCustomError("number", "input should be a number")
    return value


# Python takes True for 1, so that patience=true would be a number. Last in its list: bounds that stand after it are
# checked as well, but a JSON schema does not name them.
NOT_TRUTH = BeforeValidator(_refuse_truth)

Count = Annotated[int, Ge(1), Le(LARGEST), NOT_TRUTH]  # 1, 2, 3, …
Whole = Annotated[int, Ge(0), Le(LARGEST), NOT_TRUTH]  # 0, 1, 2, …
Seed = Annotated[int, Ge(0), Le(2**63 - 1), NOT_TRUTH]
Width = Annotated[int, Ge(1), Le(2**16), NOT_TRUTH]  # of a layer: wider ones only fill the memory
Positive = Annotated[float, Gt(0), AllowInfNan(False), NOT_TRUTH]
NonNegative = Annotated[float, Ge(0), AllowInfNan(False), NOT_TRUTH]
Fraction = Annotated[float, Gt(0), Le(1), NOT_TRUTH]  # (0, 1]
Share = Annotated[float, Gt(0), Lt(1), NOT_TRUTH]  # (0, 1)
Below1 = Annotated[float, Ge(0), Lt(1), NOT_TRUTH]  # [0, 1)

STRICT = ConfigDict(extra="forbid")  # an unknown field is an error, never ignored


def shown(value: Any) -> str:
    """Write a value for a sentence: as Python writes it, in one line, and cut if it is long."""
    try:
        return shortened(repr(value))
    except (ValueError, RecursionError):  # Python does not write numbers of thousands of digits, nor deep nests
        return f"a {type(value).__name__} too large to show"


def shortened(text: str, most: int = SHOWN) -> str:
    """Write a text for a sentence: in one line, and cut if it is long."""
    line = visible(text[: most + 1])
    return line if len(line) <= most else f"{line[: most - 1]}…"
