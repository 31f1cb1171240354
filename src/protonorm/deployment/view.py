"""How a federation or a client stands, as plain data: from its status, its record and its log. Nothing needs torch."""

from __future__ import annotations

from typing import Any

from protonorm.deployment.client_folder import ClientFolder
from protonorm.deployment.folder import AGREEMENT, FederationFolder
from protonorm.deployment.holding import holder, is_held
from protonorm.deployment.log import read_events
from protonorm.deployment.status import STATES, ClientStatus, Status
from protonorm.files import read_json
from protonorm.runs.layout import INFO
from protonorm.runs.reader import read_run

EVENTS = 200  # of the log that are looked through
SHOWN = 5  # problems that are shown


def view_federation(folder: FederationFolder) -> dict[str, Any]:
    """Tell how a federation stands."""
    found = Status.read(folder.status_file) or _nothing_yet(folder)
    known = {one.id: one for one in found.clients}
    clients = [known.get(one.id) or ClientStatus(id=one.id, name=one.name) for one in folder.roster]
    running, state = is_held(folder.server_lock), found.state_now
    figures = found.model_dump(mode="json", exclude={"format", "clients", "process", "process_began", "state", "text"})
    return {
        **figures,
        "folder": str(folder.path),
        "server": {"running": running, "process": holder(folder.server_lock), "address": folder.settings.host},
        "state": state,
        "means": STATES[state],
        "text": found.text if state == found.state else "",
        "wanted": folder.wanted.exists(),
        "quorum": folder.settings.quorum,
        "deadline": folder.settings.deadline,
        "clients": [one.model_dump(mode="json") | {"here": one.here and running} for one in clients],
        **_accuracy(folder),
        "problems": _problems(folder),
    }


def view_client(folder: ClientFolder) -> dict[str, Any]:
    """Tell how a client stands, as far as it is known on its owner's machine."""
    own = folder.settings
    events = read_events(folder.log_folder / "client.jsonl", EVENTS)
    return {
        "name": own.name,
        "folder": str(folder.path),
        "joined": folder.joined,
        "running": is_held(folder.lock),
        "process": holder(folder.lock),
        "data": own.data,
        "model": own.model,
        "allowed": own.allowed,
        "events": [{name: one[name] for name in ("time", "level", "event", "text")} for one in events[-SHOWN:]],
    }


def _nothing_yet(folder: FederationFolder) -> Status:
    rounds = read_json(folder.path / AGREEMENT).get("rounds")
    return Status(federation=folder.settings.name, agreement="", rounds=rounds if isinstance(rounds, int) else 0)


def _accuracy(folder: FederationFolder) -> dict[str, Any]:
    """Read the accuracy of each evaluated round from the record, under the method's headline rule."""
    if not (folder.run_folder / INFO).exists():
        return {"rule": None, "history": []}
    try:
        run = read_run(folder.run_folder)
    except (ValueError, OSError) as error:
        return {"rule": None, "history": [], "record": str(error)}
    rule, history = run.info.headline, []
    for record in run.rounds:
        tested, validated = record.rules.get(rule), record.validation.get(rule)
        if tested or validated:
            history.append(
                {
                    "round": record.round,
                    "test": tested.mean if tested else None,
                    "pooled": tested.pooled if tested else None,
                    "validation": validated.mean if validated else None,
                }
            )
    return {"rule": rule, "history": history}


def _problems(folder: FederationFolder) -> list[dict[str, str]]:
    events = read_events(folder.log_folder / "server.jsonl", EVENTS)
    wrong = [one for one in events if one["level"] != "info"]
    return [{name: str(one[name]) for name in ("time", "event", "text")} for one in wrong[-SHOWN:]]
