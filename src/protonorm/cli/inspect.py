"""The command `inspect`: what a network is, before it is trained."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Annotated

import typer

from protonorm.cli.console import print_json, reporting, say
from protonorm.cli.options import Json, NoOwnCode

WIDEST, MOST_CLASSES = 2**16, 2**20
LARGEST = 2**24  # numbers of a sample: sixteen of them are looked at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from protonorm.models.facts import Facts


def inspect(
    model: Annotated[
        str,
        typer.Argument(
            help="A network or a family as in models=…, also torchvision:NAME, timm:NAME, file.py:function."
        ),
    ],
    shape: Annotated[
        str,
        typer.Option(
            help="Of one sample: channels × height × width (3x32x32), a vector's length, or tokens × vocabulary."
        ),
    ] = "3x32x32",
    feature_dim: Annotated[int, typer.Option("--d", min=1, max=WIDEST, help="Width of the decision layer.")] = 512,
    classes: Annotated[int, typer.Option(min=1, max=MOST_CLASSES, help="Number of classes.")] = 10,
    layer: Annotated[str | None, typer.Option(help="Layer to cut at; the last linear one if not given.")] = None,
    as_json: Json = False,
    no_own_code: NoOwnCode = False,
) -> None:
    """Show where a network is cut, how large it is, what it costs, and whether its features can be negative."""
    with reporting(no_own_code=no_own_code):
        size = read_shape(shape)
        from protonorm.models.choose import chosen, networks
        from protonorm.models.facts import examine

        found = [examine(item, size, feature_dim, classes, layer) for item in networks(chosen(model))]
        if as_json:
            settings = {"shape": list(size), "feature_dim": feature_dim, "classes": classes}
            print_json(settings | {"networks": [facts.plain() for facts in found]})
        else:
            say(facts_table(found, size, classes))


def read_shape(text: str) -> tuple[int, ...]:
    """Read 3x32x32, 3×32×32 or 2."""
    from protonorm.core.types import shortened

    if not re.fullmatch(r"[1-9][0-9]{0,8}([x×,][1-9][0-9]{0,8})*", text.lower()):
        raise ValueError(
            f"--shape {shortened(text)} is refused: expected numbers such as 3x32x32 for pictures, or 2 for vectors."
        )
    size = tuple(map(int, re.split("[x×,]", text.lower())))
    if prod(size) > LARGEST:
        raise ValueError(f"--shape {shortened(text)} is refused: a sample of {LARGEST} numbers is the largest.")
    return size


def facts_table(found: Sequence[Facts], shape: tuple[int, ...], classes: int) -> Table:
    """Show networks, a line each."""
    from protonorm.cli.tables import Column, make_table

    rows = []
    for facts in found:
        numbers = [str(facts.width), f"(B, {facts.feature_dim})", f"{facts.base:,}", f"{facts.head:,}"]
        numbers += [f"{facts.macs / 1e6:.1f} M", f"{100 * facts.negative:.0f} %", f"{facts.smallest:.1g}"]
        rows.append([facts.network, facts.layer or "–", *numbers])
    headings = ("width", "features", "base", "head", "MACs", "negative", "smallest")
    columns = [Column("network"), Column("cut at"), *(Column(heading, "right", no_wrap=True) for heading in headings)]
    title = f"Samples of shape {'×'.join(map(str, shape))}, {classes} classes"
    caption = (
        "Cut at: the layer that the head replaces; – where a network is written as base and head. "
        "Width: features there, averaged or repeated to d. Base, head: parameters. "
        "MACs: multiplications and additions of one sample's forward pass, in convolutions and matrix products. "
        "Negative: share of features below zero, and the smallest, as seen with random weights on random inputs."
    )
    return make_table(title, columns, rows, caption)
