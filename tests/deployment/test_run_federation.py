"""A whole federation by its agreement and its clients' names: its record, what is told meanwhile, and the page."""

import json

import numpy as np
import pytest

import protonorm as pn
from protonorm import tensors
from protonorm.analysis.breakdown import class_rows
from protonorm.cli.run_tables import clients_table, plain_clients
from protonorm.core.training import Training
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.events import Event
from protonorm.deployment.federation import run_federation
from protonorm.deployment.site import make_site
from protonorm.errors import Diverged
from protonorm.report.page import write_page
from protonorm.runs.layout import stamp
from protonorm.runs.run import read_run
from protonorm.session.build import build
from tests.contract.playing import same
from tests.deployment.federation import Line
from tests.deployment.sites import NAMES, agreement_of, make_nodes, simulated, write_clients
from tests.support import run, run_folder


class Organisations:
    """Three clients that read their own files, with networks of their own, and nothing else in common."""

    def __init__(self, folder, **settings):
        self.folder, self.data = folder, write_clients(folder / "organisations")
        self.experiment = simulated(self.data, **{"models": "plain", "rounds": 3, "lr": 0.01} | settings)
        task, _ = build(self.experiment)
        self.agreement = agreement_of(task, ("test", "validation"))
        training = Training(validation=self.experiment.validation, lr=0.01, batch_size=4)
        sites = [
            make_site(self.agreement, id, f"npz:{self.data}/{name}.npz", "plain", training)
            for id, name in enumerate(NAMES)
        ]
        self.line = Line(make_nodes(self.agreement, sites, folder / "nodes"))
        self.told: list[Event] = []

    def run(self, **options):
        usual = {"clients": NAMES, "notify": self.told.append, "clock": lambda: self.line.now}
        return run_federation(self.agreement, self.line, self.folder / "federation" / "run", **usual | options)


def test_the_result_is_that_of_the_simulation_that_has_all_data(tmp_path):
    """Every round's record and arrays, and what the server remembers and says, are equal; only the run's key is not."""
    parties = Organisations(tmp_path)
    found = parties.run()
    run(parties.experiment, tmp_path / "runs")
    expected = read_run(run_folder(parties.experiment, tmp_path / "runs"))
    assert len(found.rounds) == 3
    for ours, theirs in zip(found.rounds, expected.rounds, strict=True):
        assert ours.model_dump(exclude={"arrays"}) == theirs.model_dump(exclude={"arrays"})
        left, right = found.arrays(ours), expected.arrays(theirs)
        assert left.keys() == right.keys()
        assert all(np.array_equal(left[name], right[name], equal_nan=True) for name in left)
    held = [
        tensors.load(one.folder / "server.safetensors", stamp(one.info.key, "server", 3)) for one in (found, expected)
    ]
    assert same(*held)
    assert found.finished
    assert found.info.client_names == list(NAMES)
    assert parties.line.sent[-4]["parts"] == ["validation", "test"]  # as a simulation has them, not as they were agreed


def test_what_happens_is_told_in_its_order(tmp_path):
    parties = Organisations(tmp_path, rounds=2)
    parties.run()
    told = [(event.what, event.round) for event in parties.told if event.client is None]
    assert told == [
        ("started", 0),
        ("round", 1),
        ("committed", 1),
        ("round", 2),
        ("evaluated", 1),
        ("committed", 2),
        ("evaluated", 2),
        ("finished", 2),
    ]
    committed = next(event for event in parties.told if event.what == "committed")
    assert (committed.numbers["replied"], committed.numbers["lost"]) == (3, 0)
    asked, answered = (
        [one for one in parties.told if (one.what, one.round) == (what, 1)] for what in ("asked", "answered")
    )
    assert committed.numbers["bytes_down"] == sum(one.numbers["bytes"] for one in asked)
    assert committed.numbers["bytes_up"] == sum(one.numbers["bytes"] for one in answered)
    assert [one.client for one in answered] == [2, 1, 0]
    assert "client lima has answered" in answered[0].sentence
    rules = next(event for event in parties.told if event.what == "evaluated").numbers
    assert (
        rules["test.nearest-global"] == read_run(tmp_path / "federation" / "run").rounds[0].rules["nearest-global"].mean
    )
    json.dumps([event._asdict() for event in parties.told], allow_nan=False)


def test_a_finished_federation_is_found_done(tmp_path):
    parties = Organisations(tmp_path, rounds=2)
    first = parties.run()
    asked = len(parties.line.sent)
    again = parties.run()
    assert [(one["kind"], one["round"]) for one in parties.line.sent[asked:]] == [
        ("keep", first.chosen.record.round)
    ] * 3
    assert again.rounds == first.rounds
    assert [start.done for start in again.starts] == [0, 2]


def test_the_page_and_the_table_tell_of_the_server_s_record_alone(tmp_path):
    """Nobody's samples are counted in it, and nothing says that there are none."""
    found = Organisations(tmp_path, rounds=2).run()
    page = write_page({"protonorm": [found]}, tmp_path / "page.html").read_text()
    assert "kyoto" in page
    assert '"known":false' in page.replace(" ", "")
    assert not found.knows_samples
    columns = [list(map(str, column.cells)) for column in clients_table(found, None).columns]
    assert columns[:4] == [list(NAMES), ["–"] * 3, ["–"] * 3, ["its owner's"] * 3]
    counted = ("train", "validation", "test", "classes")
    assert {row[name] for row in plain_clients(found, None) for name in counted} == {None}
    assert {row[name] for row in class_rows(found) for name in ("clients", "train", "validation", "test")} == {None}
    assert ">None<" not in pn.Result(None, found)._repr_html_()


def test_another_agreement_or_roster_does_not_go_on_in_the_same_folder(tmp_path):
    parties = Organisations(tmp_path, rounds=2)
    parties.run()
    with pytest.raises(ValueError, match="another experiment"):
        parties.run(clients=("oslo", *NAMES[1:]))
    parties.agreement = Agreement.of({**parties.agreement.plain(), "seed": 5})
    with pytest.raises(ValueError, match="another experiment"):
        parties.run()


def test_a_federation_without_clients_does_not_begin(tmp_path):
    with pytest.raises(ValueError, match="no clients yet"):
        Organisations(tmp_path).run(clients=())


def test_a_server_that_leaves_the_finite_numbers_says_so_and_keeps_its_rounds(tmp_path, monkeypatch):
    """From round 2 on the method's aggregate gives NaN."""
    parties = Organisations(tmp_path, rounds=3)
    kind = type(parties.agreement.task.algorithm)
    honest = kind.aggregate

    def aggregate(self, server, state, replies):
        step = honest(self, server, state, replies)
        if server.round < 2:
            return step
        return step._replace(message=step.message | {"prototypes": step.message["prototypes"] * np.nan})

    monkeypatch.setattr(kind, "aggregate", aggregate)
    with pytest.raises(Diverged, match="after round 2 is not finite: prototypes"):
        parties.run()
    found = read_run(tmp_path / "federation" / "run")
    assert [record.round for record in found.rounds] == [1]
    assert found.failure.round == 2
    assert parties.told[-1].what == "failed"
    monkeypatch.undo()
    assert parties.run().finished
