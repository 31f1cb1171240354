"""Commands `inspect`, `cluster check`, `doctor gpu` and `bench`: networks, clusters, devices and speed."""

import re
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Annotated

import typer

from protonorm.cli.console import Column, make_table, print_json, reporting, say, say_findings
from protonorm.cli.options import Json, NoOwnCode, Settings, SkipBad, Workers, with_skip_bad
from protonorm.cli.progress import Display
from protonorm.core.text import visible

WIDEST, MAX_CLASSES = 2**16, 2**20
LARGEST = 2**24  # maximum numbers of a sample: sixteen samples are examined
HEADINGS = ("width", "features", "base", "head", "MACs", "negative", "smallest")  # of numbers
ABOUT = (
    "Cut at: the layer that the head replaces; – where a network is written as base and head. "
    "Width: features there, averaged or repeated to d. Base, head: parameters. "
    "MACs: multiplications and additions of one sample's forward pass, in convolutions and matrix products. "
    "Negative: share of features below zero, and the smallest, as seen with random weights on random inputs."
)
NETWORK = "A network or a family as in models=…, torchvision:NAME, timm:NAME, file.py:function."
SHAPE = "Channels × height × width (3x32x32), a vector's length, or tokens × vocabulary."


def inspect(
    model: Annotated[str, typer.Argument(help=NETWORK)],
    shape: Annotated[str, typer.Option(help=SHAPE)] = "3x32x32",
    feature_dim: Annotated[int, typer.Option("--d", min=1, max=WIDEST, help="Width of the decision layer.")] = 512,
    classes: Annotated[int, typer.Option(min=1, max=MAX_CLASSES, help="Number of classes.")] = 10,
    layer: Annotated[str | None, typer.Option(help="Layer to cut at; the last linear one if not given.")] = None,
    as_json: Json = False,
    no_own_code: NoOwnCode = False,
) -> None:
    """Show where a network is split, its size and cost, and whether its features can be negative."""
    with reporting(no_own_code=no_own_code):
        size = read_shape(shape)
        from protonorm.models.choose import chosen, networks
        from protonorm.models.split import examine

        examined = [examine(item, size, feature_dim, classes, layer) for item in networks(chosen(model))]
        if as_json:
            settings = {"shape": list(size), "feature_dim": feature_dim, "classes": classes}
            print_json(settings | {"networks": [facts._asdict() for facts in examined]})
            return
        rows = []
        for facts in examined:
            numbers = [str(facts.width), f"(B, {facts.feature_dim})", f"{facts.base:,}", f"{facts.head:,}"]
            numbers += [f"{facts.macs / 1e6:.1f} M", f"{100 * facts.negative:.0f} %", f"{facts.smallest:.1g}"]
            rows.append([facts.network, facts.layer or "–", *numbers])
        columns = [Column("network"), Column("cut at"), *(Column(name, "right", no_wrap=True) for name in HEADINGS)]
        say(make_table(f"Samples of shape {'×'.join(map(str, size))}, {classes} classes", columns, rows, ABOUT))


def read_shape(text: str) -> tuple[int, ...]:
    """Parse 3x32x32, 3×32×32 or 2."""
    from protonorm.core.text import shortened

    if not re.fullmatch(r"[1-9][0-9]{0,8}([x×,][1-9][0-9]{0,8})*", text.lower()):
        raise ValueError(f"--shape must be numbers such as 3x32x32, or 2 for vectors, got {shortened(text)}.")
    size = tuple(map(int, re.split("[x×,]", text.lower())))
    if prod(size) > LARGEST:
        raise ValueError(f"--shape must have at most {LARGEST} numbers in a sample, got {shortened(text)}.")
    return size


cluster = typer.Typer(no_args_is_help=True, help="Manage the Ray cluster that RAY_ADDRESS names.")

Benchmarks = Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Benchmarks, or `all`; a list without.")]
TO = "Folder for results; benchmarks/results in a checkout, else ./bench-results."
To = Annotated[Path | None, typer.Option(help=TO)]
RayName = Annotated[str, typer.Option("--engine", help="`ray`, perhaps with what each actor gets: ray:num_gpus=0.5.")]


@cluster.command()
def check(
    settings: Settings = None,
    engine: RayName = "ray",
    workers: Workers = None,
    skip_bad: SkipBad = False,
    as_json: Json = False,
    no_own_code: NoOwnCode = False,
) -> None:
    """Check whether a cluster can run an experiment: versions, data, memory, and a dry step on every node."""
    with reporting(quiet=as_json, no_own_code=no_own_code):
        from protonorm.config.experiment import Experiment
        from protonorm.config.methods import read_experiment
        from protonorm.engines.choice import ActorSettings, read_engine

        chosen = read_engine(engine)
        if chosen.name != "ray":
            raise ValueError(f"--engine must be ray for a cluster, got {chosen.name}.")
        settings_given = read_experiment(with_skip_bad(settings, skip_bad))
        settings_given.pop("tracker", None)
        experiment = Experiment.of(settings_given)
        from protonorm.engines.ray.check import check_cluster
        from protonorm.session.build import build

        findings = check_cluster(*build(experiment), ActorSettings(**chosen.settings), workers)
        say_findings(findings, as_json=as_json)


doctor = typer.Typer(no_args_is_help=True, help="Diagnose this machine.")


@doctor.command()
def gpu(
    device: Annotated[str, typer.Option(help="Device to check: cuda, cuda:1; cpu shows what is checked.")] = "cuda",
    as_json: Json = False,
) -> None:
    """Check a GPU in two minutes: networks and methods against the CPU, memory, pictures a second, what to report."""
    with reporting(quiet=as_json):
        from protonorm.session.gpu import diagnose

        say_findings(diagnose(device), as_json=as_json)


def bench(names: Benchmarks = None, to: To = None, as_json: Json = False) -> None:
    """Measure speed: the candidates of a benchmark run side by side, and results are saved as JSON."""
    from protonorm.config.kinds import bundled

    with reporting(quiet=as_json):
        package = bundled("benchmarks")
        benchmarks: dict[str, str] = package.BENCHMARKS
        if not names:
            caption = "protonorm bench NAME… runs some, protonorm bench all runs all; alone is best."
            table = make_table("Benchmarks", ["name", "what is compared"], list(benchmarks.items()), caption)
            print_json({"benchmarks": benchmarks}) if as_json else say(table)
            return
        kept, results = {}, import_module(f"{package.__name__}.results")
        selected = results.chosen([name for name in names if name != "all"])
        for name in list(benchmarks) if "all" in names else selected:
            folder = results.place(to)
            module, measured = results.run(name, Display(quiet=as_json).say, f"protonorm bench {name}", folder)
            rows, path = module.table(measured), results.keep(name, measured, folder)
            kept[name] = measured | {"file": str(path)}
            if not as_json:
                machine, title = measured["machine"], benchmarks[name][0].upper() + benchmarks[name][1:]
                caption = f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}."
                say(make_table(title, rows[0], rows[1:], caption))
                say(visible(f"Kept: {path}"))
        if as_json:
            print_json(kept)
