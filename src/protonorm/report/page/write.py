"""Content of the report page, from the records of runs, and the self-contained file that it is written to.

The charts are drawn by a few hundred lines of JavaScript in this package. A plotting library would add megabytes to
every page, need WebGL for the sphere, which remote and old browsers lack, and ignore the page's dark mode; with SVG,
colours come from the style sheet and a page is small enough for e-mail.
"""

import base64
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from protonorm.algorithms import display_name
from protonorm.analysis.breakdown import headline
from protonorm.analysis.comparison import COLUMNS, RULES, Row, columns_of, display_names, rows, titled, whole
from protonorm.core.text import listed, visible
from protonorm.files import make_folder, replace
from protonorm.report.drawing import SLOTS, slots, style_rules
from protonorm.report.page.charts import charts, rules_of, traffic
from protonorm.report.page.clients import gains, populations_and_runs
from protonorm.report.page.commands import commands, origins, settings_table, sources
from protonorm.report.page.groups import Groups, by_method
from protonorm.report.page.summary import by_data, captions, cards, lead, measures, notices, standings, table_rows
from protonorm.runs.run import Run

SCRIPTS = ("draw", "tips", "lines", "dots", "heat", "bars", "gains", "sphere", "start")  # in this order
ENDINGS = (".html", ".htm")
MARK = b'<meta name="generator" content="protonorm report">'  # identifies a report page …
HEAD = 4096  # … in its first bytes
METHODS = 4  # maximum methods named in a title


def write_page(runs: Groups | Iterable[Run], path: str | Path, table: Sequence[Row] | None = None) -> Path:
    """Write the report of runs, or of a comparison's runs by method with its rows, and return its path."""
    path = Path(path)
    refuse_to_overwrite(path)
    groups = runs if isinstance(runs, Mapping) else by_method(runs)
    if not any(groups.values()):
        raise ValueError("There is nothing to report: give at least one run.")
    page = render(content(groups, table))
    make_folder(path.parent)
    replace(path, page.encode())
    return path


def refuse_to_overwrite(path: Path) -> None:
    """Raise a ValueError if the path has another suffix than a page, or exists and is not a report page."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the name of a file that ends in {' or '.join(ENDINGS)}.")
    if path.suffix.lower() not in ENDINGS:
        raise ValueError(f"The name of a report must end in {' or '.join(ENDINGS)}, got {path}.")
    if os.path.lexists(path) and not is_page(path):
        raise ValueError(f"{path} exists and is not a report of protonorm; it is left as it is. Give another name.")


def is_page(path: Path) -> bool:
    """Return whether a file is a report page."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(HEAD)
    return head.lstrip().startswith(b"<!doctype html>") and MARK in head


def render(values: dict[str, Any]) -> str:
    """Render the template of a report. Every text is escaped; only the page's own style and script may take effect.

    Invisible characters, such as marks that reverse a line, are made visible; commands contain line breaks and are
    escaped already.
    """
    values = show_hidden(values) | {"commands": values["commands"]}
    parts = "\n".join(asset(f"{name}.js") for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{parts}\n}})();'
    values |= {"slots": SLOTS, "script": Markup(script), "data": embedded(values["data"])}
    return _filled("page.html", values, f"script-src '{digest(script)}'")


def write_leakage(values: Mapping[str, Any], path: Path) -> Path:
    """Write the page of an audit; `values` are plain texts and numbers, and arrays (H, W, C) from 0 to 1."""
    refuse_to_overwrite(path)
    page = _filled("leakage.html", show_hidden(drawn(values)), "img-src data:")
    make_folder(path.parent)
    replace(path, page.encode())
    return path


def drawn(value: Any) -> Any:
    """Return plain data with arrays of pictures as the addresses of what they show."""
    if isinstance(value, np.ndarray):
        pixels, content = (255 * value).round().astype(np.uint8), BytesIO()
        Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(content, "PNG")
        return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
    if isinstance(value, Mapping):
        return {key: drawn(item) for key, item in value.items()}
    return [drawn(inner) for inner in value] if isinstance(value, list | tuple) else value


def _filled(template: str, values: dict[str, Any], sources: str) -> str:
    """Fill a template in, with the page's style and the policy of what may take effect."""
    assets = PackageLoader("protonorm.report.page", "assets")
    jinja = Environment(loader=assets, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    style = f"{asset('page.css')}\n{style_rules()}"
    sources = f"style-src '{digest(style)}'; {sources}"
    policy = f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"
    return jinja.get_template(template).render(values | {"policy": policy, "style": Markup(style)})


def show_hidden(value: Any) -> Any:
    """Escape invisible characters in all texts of plain data, each in one line."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {show_hidden(key): show_hidden(item) for key, item in value.items()}
    return [show_hidden(inner) for inner in value] if isinstance(value, list | tuple) else value


def embedded(data: dict[str, Any]) -> Markup:
    """Serialise data as JSON that cannot close the enclosing script element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)  # non-ASCII characters are escaped already
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def asset(name: str) -> str:
    """Read an asset of the package."""
    return files("protonorm.report.page").joinpath("assets", name).read_text(encoding="utf-8").strip()


def digest(text: str) -> str:
    """Return the hash of a text in the format of a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def content(groups: Groups, table: Sequence[Row] | None = None) -> dict[str, Any]:
    """Collect the template's values, with each run once; `data` is for the charts.

    `table` holds the rows of the comparison if known; methods without a run are not on the page.
    """
    groups = whole(groups)
    order = slots({name: runs[0] for name, runs in groups.items()})
    table = [row for row in (rows(groups) if table is None else table) if row.is_majority or row.method in groups]
    table = sorted(table, key=lambda row: order.get(row.method, len(order)))
    names = display_names([row.method for row in table])
    groups, table = {names[name]: groups[name] for name in order}, titled(table)
    ranked = len(groups) > 1 and len(by_data(groups)) == 1
    drawn, bars = charts(groups, [row for row in table if row.is_majority]), traffic(groups)
    won = gains(groups, table)
    points = {"networks": won["networks"], "panels": won["panels"]}
    data = {"charts": drawn, "traffic": bars, "gains": points, **populations_and_runs(groups)}
    return {
        "title": title(groups),
        "headline": "; ".join(dict.fromkeys(headline({name: runs}) for name, runs in groups.items())),
        "lead": lead(groups, table),
        "cards": cards(groups, table, ranked=ranked),
        "notices": notices(groups),
        "columns": [COLUMNS[name][0] for name in columns_of(table)],
        "rows": table_rows(table, ranked=ranked),
        "captions": captions(groups, table, ranked=ranked),
        "measures": measures(groups, table),
        "rules": [(rule, RULES[rule]) for rule in rules_of(groups) if rule in RULES],
        "charts": drawn,
        "gains": won,
        "traffic": bars,
        "spheres": bool(data["spheres"]),
        "unread": data.pop("unread"),
        "standings": standings(groups),
        "commands": commands(groups),
        "settings": settings_table(groups),
        "origins": origins(groups),
        "sources": sources(groups),
        "data": data,
    }


def figure_rows(groups: Groups, table: Sequence[Row] | None = None) -> dict[str, list[dict[str, Any]]]:
    """Return the data behind each figure of the page as rows, by the figure's name, with the numbers that are drawn."""
    data = content(groups, table)["data"]
    rows: dict[str, list[dict[str, Any]]] = {
        chart["id"]: [
            {"line": line["name"], "round": round, "value": line["y"][i]}
            | {end: line[end][i] for end in ("low", "high") if end in line}
            for line in chart["lines"]
            for i, round in enumerate(line["x"])
        ]
        for charts in data["charts"].values()
        for chart in charts
    }
    rows["traffic"] = [
        {name: value for name, value in row.items() if name != "slot"} for row in data["traffic"]["rows"]
    ]
    rows["samples"] = [
        {"population": one["name"], "client": client, "network": network, "class": name}
        | {part: one[part][i][k] for part in ("train", "validation", "test")}
        for one in data["populations"]
        for i, (client, network) in enumerate(zip(one["clients"], one["networks"], strict=True))
        for k, name in enumerate(one["classes"])
    ]
    populations = {one["name"]: one for one in data["populations"]}
    for unit, noun in (("clients", "client"), ("classes", "class")):
        rows[unit] = [
            {"method": run["method"], "seed": run["seed"], "rule": rule, "round": round, noun: name, "accuracy": value}
            for run in data["runs"]
            for rule, accuracies in run["rules"].items()
            for round, values in zip(run["rounds"], accuracies[unit], strict=True)
            for name, value in zip(populations[run["population"]][unit], values or (), strict=False)
        ]
    columns = ("client", "seed", "samples", "network", "accuracy", "reference", "gain")
    networks = data["gains"]["networks"]
    rows["gains"] = [
        {"comparison": panel["title"]} | dict(zip(columns, case, strict=True)) | {"network": networks[case[3]]}
        for panel in data["gains"]["panels"]
        for case in panel["cases"]
    ]
    rows["sphere"] = [
        {"run": one["name"], "round": round, "class": populations[one["population"]]["classes"][k]}
        | dict(zip(("x", "y", "z", "nearest", "angle"), point, strict=True))
        for one in data["spheres"]
        for round, view in zip(one["rounds"], one["views"], strict=True)
        for k, point in enumerate(view["points"])
        if point
    ]
    return {name: lines for name, lines in rows.items() if lines}


def title(groups: Groups) -> str:
    """Return the title of the page: its methods and data."""
    data = by_data(groups)
    algorithms = [runs[0].info.experiment.algorithm.name.split(":")[-1] for runs in groups.values()]
    methods = dict.fromkeys(map(display_name, algorithms))
    return f"{listed(list(groups if len(data) == 1 else methods), METHODS)} on {listed(list(data))}"
