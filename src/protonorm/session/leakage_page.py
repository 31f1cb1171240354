"""What an audit of messages found: the sentence, the table and the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protonorm.core.text import counted
from protonorm.report.page.write import write_leakage
from protonorm.session.leakage import CANDIDATES, Audit, Findings, Search


def verdict(audits: Sequence[Audit], policy: str) -> str:
    """Return one sentence on what the messages reveal, for people who decide."""
    whole = sum(len(audit.before.searches) for audit in audits)
    before, after = (sum(search.found for findings in part for search in findings.searches) for part in parts(audits))
    start = (
        f"From the messages as they are, the server can pick {before} of {counted(whole, 'picture')} that were looked "
        f"for out of {CANDIDATES} similar ones"
    )
    return f"{start}; with {policy}, {after}." if policy else f"{start}; no policy is set."


def parts(audits: Sequence[Audit]) -> tuple[list[Findings], list[Findings]]:
    """Return the findings before and after the policy."""
    return [audit.before for audit in audits], [audit.after for audit in audits]


HEADINGS = ("client", "message", "classes sent", "presence", "membership", "found", "one picture", "many")
LEGEND = (
    "Presence: the chance that a class the client has stands out against one that it lacks (50 % is a guess). "
    "Membership: the chance that a sample of its training part is nearer to the message than another of its class. "
    f"Found: pictures that come first among {CANDIDATES + 1}. One picture, many: mean PSNR in dB of what is computed "
    "from the message where a class has a single picture or several, and of the mean picture of the class without any "
    "message; higher is closer."
)


def rows_for(audits: Sequence[Audit], policy: str) -> list[list[str]]:
    """Return a row of cells for each client and message."""
    return [
        [audit.client, name, *_cells(findings)]
        for audit in audits
        for name, findings in (("as it is", audit.before), (policy, audit.after))[: 2 if policy else 1]
    ]


def _cells(findings: Findings) -> list[str]:
    found = sum(search.found for search in findings.searches)
    presence = "–" if findings.presence is None else f"{findings.presence:.0%}"
    groups = [[one for one in findings.searches if (one.samples == 1) == single] for single in (True, False)]
    shares = [str(findings.classes), presence, f"{findings.membership:.0%}", f"{found} of {len(findings.searches)}"]
    return [*shares, *map(_decibels, groups)]


def _decibels(searches: Sequence[Search]) -> str:
    pairs = [(one.psnr, one.guess) for one in searches if one.psnr is not None and one.guess is not None]
    return " against ".join(f"{sum(values) / len(values):.1f}" for values in zip(*pairs, strict=True)) or "–"


def plain_audit(audit: Audit) -> dict[str, Any]:
    """Return an audit as plain data, without pictures."""
    pictures = ("picture", "inverted")
    plain: dict[str, Any] = {"client": audit.client}
    for name, findings in (("before", audit.before), ("after", audit.after)):
        found = [
            {key: value for key, value in one._asdict().items() if key not in pictures} for one in findings.searches
        ]
        plain[name] = findings._asdict() | {"searches": found}
    return plain


def write_page(audits: Sequence[Audit], policy: str, title: str, path: Path) -> Path:
    """Write the page of an audit, with a gallery of the pictures that were looked for."""
    values = {"title": title, "verdict": verdict(audits, policy), "headings": HEADINGS, "legend": LEGEND}
    gallery = [
        {"name": one.client, "pictures": list(map(_shown, one.before.searches, one.after.searches))} for one in audits
    ]
    return write_leakage(values | {"rows": rows_for(audits, policy), "clients": gallery, "policy_name": policy}, path)


def _shown(before: Search, after: Search) -> dict[str, Any]:
    """Return a picture of the gallery as plain data."""
    pictures = {"true": before.picture, "before": before.inverted, "after": after.inverted}
    quality = ["nothing is sent" if one.psnr is None else f"{one.psnr:.1f} dB" for one in (before, after)]
    ranks = [f"{one.rank} of {one.candidates}" for one in (before, after)]
    return {
        "name": before.name,
        "samples": counted(before.samples, "training sample"),
        "search": "; with the policy ".join(ranks if after is not before else ranks[:1]),
        "quality": quality[0],
        "quality_after": quality[1],
        **{name: picture.numpy() if len(picture) else "" for name, picture in pictures.items()},
    }
