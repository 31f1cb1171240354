"""Commands `export` and `predict`: export trained clients and use them."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protonorm.cli.console import make_table, print_json, reporting, say
from protonorm.cli.options import Checkpoint, CheckpointOf, Json, NoOwnCode, Out, PushTo, path_option, read_path
from protonorm.core.text import csv_lines, digits, visible
from protonorm.files import replace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from protonorm.core.types import InputSpec
    from protonorm.inference.trained import Answers, RuleAnswers, TrainedClient


def read_client(text: str) -> str:
    """Parse a client's name or number."""
    if not text or visible(text) != text:
        raise typer.BadParameter("expected a client's name or number.")
    return text


CLIENT: Any = typer.Option(
    parser=read_client, metavar="NAME_OR_NUMBER", help="Name or number; not needed for a single client's folder."
)
Own = Annotated[str | None, typer.Option(help="file.py:function, or frozen:NAME=FILE, if the network is your own.")]
Method = Annotated[str | None, typer.Option(help="file.py:Class, if the method is your own.")]
Folder = Annotated[Path, typer.Argument(parser=read_path, metavar="PATH", help="Folder to write the client into.")]
Onnx = Annotated[bool, typer.Option("--onnx", help="Also write model.onnx, which runs without protonorm (extra onnx).")]
Source = Annotated[
    str,
    typer.Argument(
        metavar="RUN_OR_EXPORT",
        help="A run's folder or name, an exported client, or a deployed client's folder.",
    ),
]
Images = Annotated[list[Path], typer.Argument(parser=read_path, metavar="IMAGES...", help="Picture files, or folders.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Go on without pictures that cannot be read.")]
Csv = Annotated[Path | None, path_option("Write the answers as CSV.", "--csv", metavar="FILE")]
COLUMNS = ("picture", "class", "rule", "probability", "agree")


def export(
    run: Annotated[str, typer.Argument(help="A run's folder or name, or a client's folder of a real federation.")],
    path: Folder,
    client: Annotated[str | None, CLIENT] = None,
    checkpoint: CheckpointOf = Checkpoint.chosen,
    onnx: Onnx = False,
    out: Out = None,
    network: Own = None,
    algorithm: Method = None,
    no_own_code: NoOwnCode = False,
    push_to: PushTo = None,
) -> None:
    """Export a trained client to its own folder: weights, prototypes, preprocessing, measures, a model card."""
    with reporting(no_own_code=no_own_code):
        trained = find_client(run, client, checkpoint, out, network, algorithm)
        if lost := getattr(trained.source, "lost_provenance", ""):
            warnings.warn(lost, stacklevel=1)
        folder = trained.save(path, onnx=onnx)
        say(visible(f"{title(trained)}: {folder}"))
        if push_to:
            say(f"Uploaded: {trained.push_to_hub(push_to, onnx=onnx)}")


def predict(
    source: Source,
    images: Images,
    client: Annotated[str | None, CLIENT] = None,
    checkpoint: CheckpointOf = Checkpoint.chosen,
    out: Out = None,
    network: Own = None,
    algorithm: Method = None,
    skip_bad: SkipBad = False,
    csv: Csv = None,
    as_json: Json = False,
    no_own_code: NoOwnCode = False,
) -> None:
    """Predict the class of pictures with a trained client, with its probability and the answer of each rule."""
    with reporting(quiet=as_json, no_own_code=no_own_code):
        if csv:
            require_csv_place(csv)
        trained = find_client(source, client, checkpoint, out, network, algorithm)
        paths = find_pictures(images)
        x, bad = read_pictures(paths, trained.info.input, trained.info.preprocessing.window, skip_bad=skip_bad)
        answers = trained.answers(x)
        plain = plain_answers(trained, [path for path in paths if path not in bad], answers, bad)
        if csv:
            replace(csv, answers_csv(plain).encode("utf-8", "backslashreplace"))
        if as_json:
            print_json(plain)
        elif csv:
            say(visible(f"Answers to {len(plain['pictures'])} pictures: {csv}"))
        else:
            say(answers_table(title(trained), plain, caption(trained, answers)))


def title(trained: "TrainedClient") -> str:
    """Return the client, its run and its round."""
    return f"Client {trained.name} of {trained.info.run}, after round {trained.info.round}"


def find_client(
    source: str, client: str | None, checkpoint: Checkpoint, out: Path | None, network: str | None, method: str | None
) -> "TrainedClient":
    """Load an exported client, the client of a real federation's folder, or a client of a run."""
    from protonorm.core.own_code import load_own
    from protonorm.deployment.client_folder import ClientFolder, is_client_folder
    from protonorm.inference.info import INFO
    from protonorm.inference.loading import load_client, load_from_run
    from protonorm.models import is_frozen
    from protonorm.runs.layout import find_run, runs_root
    from protonorm.runs.run import read_run

    own_network = network if is_frozen(network) else load_own(network, "network") if network else None
    own_method = load_own(method, "algorithm") if method else None
    if (Path(source) / INFO).exists():
        if is_client_folder(Path(source)):
            from protonorm.deployment.home import load_trained

            trained = load_trained(ClientFolder.open(source))
        else:
            trained = load_client(source, network=own_network, algorithm=own_method)
        if client is not None and client not in (trained.name, str(trained.id)):
            raise ValueError(f"{source} holds client {trained.name}, not client {client}.")
        if checkpoint is Checkpoint.last:
            raise ValueError(f"--checkpoint last is for runs; {source} holds a client of round {trained.info.round}.")
        return trained
    run = read_run(find_run(runs_root(out), source))
    if client is None:
        last = run.info.experiment.clients - 1
        names = [run.client_name(id) for id in range(min(last + 1, 20))]
        allowed = f"a number from 0 to {last}" if names[0] == "0" else f"one of {', '.join(names)}, or its number"
        raise ValueError(f"Which client? --client takes {allowed}.")
    id = run.find_client(client)
    return load_from_run(run, id, network=own_network, algorithm=own_method, checkpoint=checkpoint.value)


def find_pictures(paths: list[Path]) -> list[Path]:
    """List picture files, and those in folders; other files in the folders are counted and reported."""
    from protonorm.data.own.folders import pictures_in, warn_of_unused_files
    from protonorm.data.pictures import SUFFIXES

    pictures: dict[Path, None] = {}
    for path in paths:
        inside = pictures_in(path) if path.is_dir() else [path]
        if not inside:
            raise ValueError(f"{path} has no pictures in it; expected files that end in {', '.join(SUFFIXES)}.")
        if path.is_dir():
            warn_of_unused_files(path, set(inside))
        pictures |= dict.fromkeys(inside)
    return list(pictures)


def read_pictures(
    paths: list[Path], spec: "InputSpec", window: str | None = None, *, skip_bad: bool = False
) -> "tuple[NDArray[np.uint8], dict[Path, str]]":
    """Read pictures (n, H, W, C) in the size and channels of the training data; also return unreadable files."""
    from protonorm.data import pictures

    if spec.type != "uint8":
        kind = "vectors" if spec.vocabulary is None else "tokens"
        raise ValueError(f"This client was trained on {kind}, not on pictures; use its predict method in Python.")
    height, width, channels = spec.shape
    if channels not in pictures.MODE:
        raise ValueError(f"This client was trained on pictures of {channels} channels; files have 1 or 3.")
    usable, bad = pictures.read_usable(paths, (height, width), channels, pictures.read_window(window))
    if bad:
        problem = pictures.describe_errors(bad, len(paths))
        if not skip_bad or not len(usable):
            raise ValueError(problem + ("\nNo picture is left." if skip_bad else "\n--skip-bad goes on without them."))
        warnings.warn(problem, stacklevel=1)
    return usable, {paths[position]: why for position, why in bad.items()}


def plain_answers(
    trained: "TrainedClient", paths: Sequence[Path], answers: "Answers", bad: dict[Path, str]
) -> dict[str, Any]:
    """Return predictions as plain data."""
    advice = trained.info.recommended

    def of_rule(rule: "RuleAnswers", row: int) -> dict[str, Any]:
        margin = {} if rule.margin is None else {"margin": digits(rule.margin[row])}
        return {"class": trained.classes[rule.classes[row]], "confidence": digits(rule.confidence[row]), **margin}

    return {
        "run": trained.info.run,
        "client": trained.id,
        "name": trained.name,
        "round": trained.info.round,
        "rule": answers.rule,
        "recommended": advice.model_dump(mode="json"),
        "probability": f"softmax of {advice.probability} at the class",
        "confidence": "softmax of the rule's scores at its answer",
        "margin": "1 − d1/d2 of the distances to the nearest and second nearest prototype: 0 halfway, 1 on the nearest",
        "pictures": [
            {
                "picture": str(path),
                "class": trained.classes[answers.classes[row]],
                "probability": None if answers.probability is None else digits(answers.probability[row]),
                "agree": bool(answers.agree[row]),
                "rules": {name: of_rule(rule, row) for name, rule in answers.rules.items()},
            }
            for row, path in enumerate(paths)
        ],
        "skipped": [{"picture": str(path), "why": why} for path, why in bad.items()],
    }


def answers_csv(plain: dict[str, Any]) -> str:
    """Render predictions, given as plain data, as CSV: a line per picture, with names escaped against formulas."""
    pictures = plain["pictures"]
    rules = pictures[0]["rules"] if pictures else {}
    lines = [[*COLUMNS, *(f"{rule} {name}" for rule, answer in rules.items() for name in answer)]]
    for item in pictures:
        answers = [value for answer in item["rules"].values() for value in answer.values()]
        agree = "yes" if item["agree"] else "no"
        lines.append([item["picture"], item["class"], plain["rule"], item["probability"], agree, *answers])
    return csv_lines(lines)


def require_csv_place(path: Path) -> None:
    """Raise a ValueError if the path exists and does not hold predictions."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; --csv takes the name of a file.")
    if not path.parent.is_dir():
        raise ValueError(f"There is no folder {path.parent} to write {path.name} into.")
    if path.exists():
        with path.open("rb") as file:
            first = file.readline(1000)
        if not first.startswith(",".join(COLUMNS).encode()):
            raise ValueError(f"{path} exists and does not hold predictions; it is left as it is.")


def answers_table(title: str, plain: dict[str, Any], caption: str) -> Any:
    """Build the table of answers: the recommended answer to each picture, its probability, and that of each rule."""
    rules = list(dict.fromkeys([plain["rule"], *(rule for item in plain["pictures"][:1] for rule in item["rules"])]))
    rows = []
    for item in plain["pictures"]:
        probability = "" if item["probability"] is None else f"{100 * item['probability']:.0f} %"
        rows.append([item["picture"], item["class"], probability, *(_answer(item["rules"][rule]) for rule in rules)])
    return make_table(title, ["picture", "answer", "probability", *rules], rows, caption)


def _answer(answer: dict[str, Any]) -> str:
    number = f"margin {answer['margin']:.2f}" if "margin" in answer else f"{100 * answer['confidence']:.0f} %"
    return f"{answer['class']} ({number})"


def caption(trained: "TrainedClient", answers: "Answers") -> str:
    """Describe which answer is recommended and why, and the meaning of the numbers."""
    advice = trained.info.recommended
    why = "it is the method's usual rule, which no validation has chosen"
    if answers.rule != advice.rule:
        why = f"{advice.rule}, which is recommended, is not at hand"
    elif advice.validation is not None:
        whose = "this client's validation part" if advice.by == "own validation" else "the clients' validation parts"
        why = f"it was best on {whose}, {100 * advice.validation:.1f} % right"
    text = f"The answer is that of the rule {answers.rule}: {why}."
    if answers.probability is not None:
        off = "" if advice.calibration is None else f"; on validation it was {100 * advice.calibration:.1f} points off"
        text += f" Its probability is the softmax of {advice.probability} at that class{off}."
    if any(rule.margin is not None for rule in answers.rules.values()):
        text += " Rules by prototypes give a margin, no probability: 0 halfway between two prototypes, 1 on one."
    return text
