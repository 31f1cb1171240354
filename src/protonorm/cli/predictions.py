"""Predictions for people, for programs and for spreadsheets. Nothing here needs torch."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protonorm.cli.tables import make_table
from protonorm.core.digits import digits
from protonorm.core.text import spreadsheet
from protonorm.files import replace

if TYPE_CHECKING:
    from protonorm.inference.answers import Answers, RuleAnswers
    from protonorm.inference.trained import TrainedClient

COLUMNS = ("picture", "class", "rule", "probability", "agree")
CONFIDENCE = "softmax of the rule's scores at its answer"
MARGIN = "1 − d1/d2 of the distances to the nearest and the second nearest prototype: 0 halfway, 1 on the nearest"


def plain_answers(
    found: TrainedClient, paths: Sequence[Path], answers: Answers, bad: dict[Path, str]
) -> dict[str, Any]:
    """Give predictions as plain data."""
    advice = found.info.recommended
    return {
        "run": found.info.run,
        "client": found.id,
        "name": found.name,
        "round": found.info.round,
        "rule": answers.rule,
        "recommended": advice.model_dump(mode="json"),
        "probability": f"softmax of {advice.probability} at the class",
        "confidence": CONFIDENCE,
        "margin": MARGIN,
        "pictures": [
            {
                "picture": str(path),
                "class": found.classes[answers.classes[row]],
                "probability": None if answers.probability is None else digits(answers.probability[row]),
                "agree": bool(answers.agree[row]),
                "rules": {rule: _plain(found, one, row) for rule, one in answers.rules.items()},
            }
            for row, path in enumerate(paths)
        ],
        "skipped": [{"picture": str(path), "why": why} for path, why in bad.items()],
    }


def _plain(found: TrainedClient, one: RuleAnswers, row: int) -> dict[str, Any]:
    margin = {} if one.margin is None else {"margin": digits(one.margin[row])}
    return {"class": found.classes[one.classes[row]], "confidence": digits(one.confidence[row]), **margin}


def answers_csv(found: TrainedClient, paths: Sequence[Path], answers: Answers) -> str:
    """Write predictions as CSV, a line for each picture; no name passes for a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    more = [
        (rule, one, ("confidence",) if one.margin is None else ("confidence", "margin"))
        for rule, one in answers.rules.items()
    ]
    writer.writerow(
        [*COLUMNS, *(spreadsheet(f"{rule} {name}") for rule, _, names in more for name in ("class", *names))]
    )
    for row, path in enumerate(paths):
        sure = "" if answers.probability is None else digits(answers.probability[row])
        cells: list[Any] = [spreadsheet(str(path)), spreadsheet(found.classes[answers.classes[row]])]
        cells += [spreadsheet(answers.rule), sure, "yes" if answers.agree[row] else "no"]
        for _, one, names in more:
            cells.append(spreadsheet(found.classes[one.classes[row]]))
            cells += [digits(getattr(one, name)[row]) for name in names]
        writer.writerow(cells)
    return text.getvalue()


def require_csv_place(path: Path) -> None:
    """Refuse to write predictions over a file that is anything else."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; --csv takes the name of a file.")
    if not path.parent.is_dir():
        raise ValueError(f"There is no folder {path.parent} to write {path.name} into.")
    if path.exists():
        with path.open("rb") as file:
            first = file.readline(1000)
        if not first.startswith(",".join(COLUMNS).encode()):
            raise ValueError(f"{path} exists and does not hold predictions; it is left as it is.")


def write_csv(path: Path, text: str) -> None:
    """Write the file in one step."""
    replace(path, text.encode("utf-8", "backslashreplace"))


def answers_table(found: TrainedClient, paths: Sequence[Path], answers: Answers) -> Any:
    """Show the recommended answer to each picture, how sure it is, and what each rule says."""
    order = dict.fromkeys([answers.rule, *answers.rules])
    rows = []
    for row, path in enumerate(paths):
        sure = "" if answers.probability is None else f"{100 * answers.probability[row]:.0f} %"
        said = [_told(found, answers.rules[rule], row) for rule in order]
        rows.append([str(path), found.classes[answers.classes[row]], sure, *said])
    title = f"Client {found.name} of {found.info.run}, after round {found.info.round}"
    return make_table(title, ["picture", "answer", "probability", *order], rows, caption(found, answers))


def _told(found: TrainedClient, one: RuleAnswers, row: int) -> str:
    number = f"{100 * one.confidence[row]:.0f} %" if one.margin is None else f"margin {one.margin[row]:.2f}"
    return f"{found.classes[one.classes[row]]} ({number})"


def caption(found: TrainedClient, answers: Answers) -> str:
    """Say which answer is recommended and why, and what the numbers are."""
    advice = found.info.recommended
    why = "it is the method's usual rule, which no validation has chosen"
    if answers.rule != advice.rule:
        why = f"{advice.rule}, which is recommended, is not at hand"
    elif advice.by == "validation" and advice.validation is not None:
        why = f"it was best on the clients' validation parts, {100 * advice.validation:.1f} % right"
    told = [f"The answer is that of the rule {answers.rule}: {why}."]
    if answers.probability is not None:
        off = "" if advice.calibration is None else f"; on validation it was {100 * advice.calibration:.1f} points off"
        told.append(f"Its probability is the softmax of {advice.probability} at that class{off}.")
    if any(one.margin is not None for one in answers.rules.values()):
        told.append("Rules by prototypes give a margin, no probability: 0 halfway between two prototypes, 1 on one.")
    return " ".join(told)
