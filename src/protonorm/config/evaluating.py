"""Who is evaluated, and how often everybody is, where an experiment does not say it."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

MANY = 200  # clients above which a round's cohort is evaluated, and everybody now and then
ALL_EVERY = 50  # rounds between evaluations of everybody then


class Evaluated(NamedTuple):
    """Who is evaluated."""

    evaluate: Literal["all", "cohort"]
    evaluate_all_every: int | None  # rounds; None: never, where a round's cohort is evaluated


def who_is_evaluated(
    evaluate: Literal["all", "cohort"] | None, all_every: int | None, every: int, clients: int
) -> Evaluated:
    """Fill in what is not given; everybody is never evaluated more often than anybody unless that is asked for."""
    if evaluate == "all" and all_every is not None:
        raise ValueError(
            f"evaluate_all_every={all_every} is refused: with evaluate=all everybody is evaluated each time; "
            "it is for evaluate=cohort."
        )
    if evaluate is not None or all_every is not None:
        return Evaluated(evaluate or "cohort", all_every)
    return Evaluated("all", None) if clients <= MANY else Evaluated("cohort", max(ALL_EVERY, every))


def usual_values(found: Evaluated, every: int, clients: int) -> dict[str, Any]:
    """Give what both settings are if nobody mentions them: as found, or else nothing, so that both are told of."""
    usual = found == who_is_evaluated(None, None, every, clients)
    return found._asdict() if usual else dict.fromkeys(found._fields)
