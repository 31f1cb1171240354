"""Everything the page says, from the records of runs: plain data for the template and for the charts."""

from __future__ import annotations

from typing import Any

from protonorm.analysis.comparison import COLUMNS, RULES, rows, whole
from protonorm.analysis.summaries import headline
from protonorm.report.page import costs
from protonorm.report.page.accuracy import accuracy_charts, rules_of
from protonorm.report.page.clients import populations_and_runs
from protonorm.report.page.commands import commands, settings_table
from protonorm.report.page.gains import gains
from protonorm.report.page.groups import Groups
from protonorm.report.page.measures import measures
from protonorm.report.page.notices import notices, standings
from protonorm.report.page.prototypes import prototype_charts
from protonorm.report.page.provenance import origins, sources
from protonorm.report.page.summary import by_data, captions, cards, lead, table_rows
from protonorm.report.page.text import listed

METHODS = 4  # named in a title; of more, the first ones


def content(groups: Groups) -> dict[str, Any]:
    """Collect what the template needs, of each run once; `data` is for the charts."""
    groups = whole(groups)
    table = rows(groups)
    majorities = [row for row in table if row.is_majority]
    ranked = len(groups) > 1 and len(by_data(groups)) == 1
    sent = costs.traffic(groups)
    charts = {
        "accuracy": accuracy_charts(groups, majorities),
        "prototypes": prototype_charts(groups),
        "bytes": costs.byte_charts(groups),
        "seconds": [costs.seconds_chart(groups)],
    }
    bars = {"rows": sent, "conclusion": costs.traffic_conclusion(sent)}
    found = gains(groups, table)
    points = {"networks": found["networks"], "panels": found["panels"]}
    data = {"charts": charts, "traffic": bars, "gains": points, **populations_and_runs(groups)}
    return {
        "title": title(groups),
        "headline": "; ".join(dict.fromkeys(headline({name: runs}) for name, runs in groups.items())),
        "lead": lead(groups, table),
        "cards": cards(groups, table, ranked=ranked),
        "notices": notices(groups),
        "columns": [heading for heading, _ in COLUMNS.values()],
        "rows": table_rows(table, ranked=ranked),
        "captions": captions(groups, table, ranked=ranked),
        "measures": measures(groups, table),
        "rules": [(rule, RULES[rule]) for rule in rules_of(groups) if rule in RULES],
        "charts": charts,
        "gains": found,
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


def title(groups: Groups) -> str:
    """Name the page after its methods and data."""
    data = by_data(groups)
    runs = [found[0] for found in groups.values()]
    methods = dict.fromkeys(run.info.experiment.algorithm.name.split(":")[-1] for run in runs)
    names = list(groups if len(data) == 1 else methods)
    return f"{listed(names, METHODS)} on {listed(list(data))}"
