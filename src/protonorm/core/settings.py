"""Dataclasses whose fields are settings: what does not fit is refused in a sentence, also where Python makes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import wraps
from typing import Any, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as validated

from protonorm.core.complaints import known_fields, sentences

Made = TypeVar("Made")


@dataclass_transform(field_specifiers=(field, Field))
def dataclass(*, frozen: bool, config: ConfigDict) -> Callable[[type[Made]], type[Made]]:
    """Make a dataclass that checks its fields; its complaints are plain ValueErrors, not pydantic's."""

    def decorate(cls: type[Made]) -> type[Made]:
        made: Any = validated(cls, frozen=frozen, config=config)
        check = made.__init__

        @wraps(check)
        def init(self: Any, *values: Any, **settings: Any) -> None:
            try:
                check(self, *values, **settings)
            except ValidationError as error:
                raise ValueError(sentences(error, known_fields(type(self)), type(self).__name__)) from None

        made.__init__ = init
        kept: type[Made] = made
        return kept

    return decorate
