"""Chosen settings as commands that run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protonorm.report.page.commands import shell_text
from protonorm.report.page.text import setting_text
from protonorm.search.grid import Point, Settings, real_name


def commands(points: Sequence[Point]) -> list[str]:
    """Write the commands that run chosen settings: methods that share all other settings are compared in one."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(str((point.problem, _common(point))), []).append(point)
    return [command for group in groups.values() for command in _commands(group)]


def _commands(points: Sequence[Point]) -> list[str]:
    seeds, common = list(points[0].experiments), _common(points[0])
    words = [f"{name}={setting_text(value)}" for name, value in common.items()]
    fields = [_fields(point) for point in points]
    comma = any("," in value for own in fields for value in own.values())  # it parts the fields of a method
    if (len(points) == 1 and len(seeds) == 1) or comma or "auxiliary" in common:
        return [
            shell_text("run", [*_method_words(point, own), *words, f"seed={seed}"])
            for point, own in zip(points, fields, strict=True)
            for seed in seeds
        ]
    methods = [_method_word(point.method, own) for point, own in zip(points, fields, strict=True)]
    return [shell_text("compare", [*methods, *words, f"seeds={','.join(map(str, seeds))}"])]


def _common(point: Point) -> Settings:
    """List a point's settings that are not the method's own, named as a command takes them."""
    given = point.fixed | point.chosen
    return {name: value for name, value in given.items() if not real_name(point.method, name).startswith("algorithm.")}


def _fields(point: Point) -> dict[str, str]:
    """Write the settings of a point's method that were given as words of their own."""
    named = {real_name(point.method, name): value for name, value in (point.fixed | point.chosen).items()}
    return {
        name.removeprefix("algorithm."): setting_text(value)
        for name, value in named.items()
        if name.startswith("algorithm.")
    }


def _method_word(method: str, fields: Mapping[str, str]) -> str:
    """Add settings to a method as `compare` takes them: protonorm:gamma=50,lam=2."""
    if not fields:
        return method
    name, known = _parted(method)
    return f"{name}:{','.join(f'{field}={value}' for field, value in (known | dict(fields)).items())}"


def _method_words(point: Point, fields: Mapping[str, str]) -> list[str]:
    """Write a method as `run` takes it."""
    name, known = _parted(point.method)
    return [f"algorithm={name}", *(f"algorithm.{field}={value}" for field, value in (known | dict(fields)).items())]


def _parted(method: str) -> tuple[str, dict[str, str]]:
    """Part a method's name from the settings that were given with it."""
    name, _, fields = method.partition(":")
    if name.endswith(".py"):
        own, _, fields = fields.partition(":")
        name = f"{name}:{own}"
    return name, dict(field.split("=", 1) for field in fields.split(",") if field)
