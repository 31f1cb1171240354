"""The command `cluster check`: whether a Ray cluster can run an experiment."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from protonorm.cli.commands import Command, Commands
from protonorm.cli.console import FAILED, complain, print_json, reporting, say
from protonorm.cli.options import Json, NoOwnCode, Workers
from protonorm.cli.run import Words

cluster = typer.Typer(cls=Commands, no_args_is_help=True, help="Look after the Ray cluster that RAY_ADDRESS names.")

RayName = Annotated[str, typer.Option("--engine", help="`ray`, perhaps with what each actor gets: ray:num_gpus=0.5.")]


@cluster.callback()
def _group() -> None:
    """Look after the Ray cluster that RAY_ADDRESS names."""


@cluster.command(cls=Command)
def check(
    settings: Words = None,
    engine: RayName = "ray",
    workers: Workers = None,
    as_json: Json = False,
    no_own_code: NoOwnCode = False,
) -> None:
    """Say whether a cluster can run an experiment: versions, data, memory, and a dry step on every node."""
    with reporting(quiet=as_json, no_own_code=no_own_code):
        from protonorm.config.experiment import Experiment
        from protonorm.config.parsing import read_settings
        from protonorm.engines.choice import read_engine

        chosen = read_engine(engine)
        if chosen.name != "ray":
            raise ValueError(f"--engine {chosen.name} is refused: a cluster has the engine ray.")
        given = read_settings(settings or [])
        given.pop("tracker", None)
        found = _check(Experiment.of(given), chosen.settings, workers, quiet=as_json)
        if as_json:
            print_json({"ok": all(ok for ok, _ in found), "findings": [{"ok": ok, "text": text} for ok, text in found]})
        if not all(ok for ok, _ in found):
            raise typer.Exit(FAILED)


def _check(experiment: Any, options: dict[str, Any], workers: int | None, *, quiet: bool) -> list[tuple[bool, str]]:
    """Say each finding as soon as it is known: good ones as answers, problems as complaints."""
    from protonorm.engines.ray.check import check_cluster
    from protonorm.engines.ray.settings import ActorSettings
    from protonorm.session.build import build

    task, population = build(experiment)
    found: list[tuple[bool, str]] = []
    for finding in check_cluster(task, population, ActorSettings(**options), workers):
        found.append((finding.ok, finding.text))
        if not quiet:
            (say if finding.ok else complain)(finding.text)
    return found
