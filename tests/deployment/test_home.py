"""What a client keeps at home: its network can be used under every rule, exactly as the federation measured it."""

import numpy as np
import pytest

from protonorm.algorithms import ALGORITHMS
from protonorm.algorithms.local import Local
from protonorm.cli.options import Checkpoint
from protonorm.cli.predict import find_client
from protonorm.deployment.client_folder import read_history
from protonorm.deployment.home import MESSAGE, Home, train_alone, trained_client
from protonorm.deployment.site import open_store
from protonorm.inference.loading import load_client, load_from_run
from protonorm.runs.run import read_run
from tests.deployment.federation import Killed
from tests.deployment.sites import NAMES
from tests.deployment.test_run_federation import Organisations
from tests.support import FROZEN, run, run_folder


def homes(parties):
    return {id: Home(node._store, id) for id, node in parties.line.nodes.items()}


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "protonorm"},
        {"algorithm": "protonorm", "lr": 1.0, "validation": 0.3},  # the best round is not the last one
        {"algorithm": "fedavg", "models": "plain"},
        {"algorithm": "fml", "models": "plain"},
        *(
            pytest.param({"algorithm": name}, marks=pytest.mark.long)
            for name in sorted(ALGORITHMS.keys() - FROZEN.keys())
        ),
    ],
    ids=lambda settings: settings["algorithm"],
)
def test_predictions_are_those_of_the_record_under_every_rule(tmp_path, settings):
    """The share of right answers on the test part is the record's accuracy, to the last digit; also once saved."""
    parties = Organisations(tmp_path, **settings)
    run = parties.run()
    chosen = run.chosen.record
    for id, home in homes(parties).items():
        client = trained_client(parties.agreement, home, NAMES[id], "trial")
        assert (client.info.round, client.info.trained) == (chosen.round, chosen.round)
        assert client.classes == tuple(parties.agreement.classes)
        site = parties.line.nodes[id]._site
        rows = site.parts[0].test
        x, y = site.dataset.inputs[rows], site.dataset.labels[rows]
        again = load_client(client.save(tmp_path / f"saved-{id}"))
        for rule in run.info.rules:
            wanted = run.by_client(chosen, rule)[id]
            assert (client.predict(x, rule) == y).mean() == wanted, rule
            assert (again.predict(x, rule) == y).mean() == wanted, rule
            measured = next(one for one in client.facts.metrics if (one.part, one.rule) == ("test", rule))
            assert measured.accuracy == pytest.approx(wanted, abs=1e-6)
            assert measured.samples == len(y)


def test_the_card_says_where_the_data_stayed_only_where_they_did(tmp_path):
    parties = Organisations(tmp_path, rounds=1)
    run = parties.run()
    client = trained_client(parties.agreement, homes(parties)[1], "kyoto", "trial")
    card = (client.save(tmp_path / "saved") / "README.md").read_text()
    assert "in a real federation: its data stayed on its owner's machine" in card
    assert "it won on this client's validation part" in card
    with pytest.raises(ValueError, match=r"no network of any client: each is on its owner's machine, where `protonorm"):
        load_from_run(run, 1)


def test_each_round_is_on_record_at_home_whatever_the_server_may_know(tmp_path):
    """The owner of the second client lets nothing be told; its own history is as long as that of the others."""
    parties = Organisations(tmp_path)
    parties.line.nodes[1]._allowed = "off"
    run = parties.run()
    assert all(np.isnan(run.by_client(record, "logits")[1]) for record in run.rounds)
    for id, home in homes(parties).items():
        held = read_history(home.folder)
        assert list(held) == [1, 2, 3]
        assert all(line["metrics"]["loss"] > 0 and line["test"]["rules"]["logits"] for line in held.values())
        if id != 1:
            accuracies = [line["test"]["rules"]["logits"]["accuracy"] for line in held.values()]
            expected = [run.by_client(record, "logits")[id] for record in run.rounds]
            assert accuracies == pytest.approx(expected, abs=1e-6)


def test_a_client_that_was_away_at_the_end_has_the_message_before(tmp_path):
    """It has the last message that it got, and the state that belongs to it; the next run brings the last one."""
    parties = Organisations(tmp_path)
    parties.line.change = lambda id, header, answer: (
        (parties.line.away.update({2: "it is not connected"}) if header["round"] == 3 and id == 2 else None) or [answer]
    )
    parties.run(quorum=0.5)
    home = homes(parties)[2]
    assert home.message()[:2] == (2, 2)
    assert trained_client(parties.agreement, home, "lima", "trial").info.round == 2
    parties.line.away.clear()
    parties.run(quorum=0.5)
    assert home.message()[:2] == (parties.run().chosen.record.round,) * 2


def test_a_damaged_message_is_not_used(tmp_path):
    parties = Organisations(tmp_path, rounds=1)
    parties.run()
    home = homes(parties)[0]
    place = home.folder / MESSAGE
    assert place.stat().st_mode & 0o077 == 0
    content = bytearray(place.read_bytes())
    content[-1] ^= 1
    place.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        trained_client(parties.agreement, home, "berlin", "trial")


def test_a_folder_without_rounds_says_so(tmp_path):
    with pytest.raises(ValueError, match="There is no run"):
        find_client(str(tmp_path), "0", Checkpoint.chosen, tmp_path, None, None)
    parties = Organisations(tmp_path)
    with pytest.raises(ValueError, match="has not trained yet"):
        trained_client(parties.agreement, homes(parties)[0], "berlin", "trial")


def test_training_alone_is_local_and_goes_on_where_it_ended(tmp_path):
    """The baseline of a client with the shared beginning is the simulation's Local, digit by digit."""
    parties = Organisations(tmp_path)
    node, told = parties.line.nodes[1], []
    parts = ["validation", "test"]
    store = open_store(tmp_path / "own", parties.agreement, "alone")
    with pytest.raises(Killed):
        train_alone(node._site, store, parts, stop_after(2, told))
    train_alone(node._site, open_store(tmp_path / "own", parties.agreement, "alone"), parts, told.append)
    assert [one.split(" ")[1] for one in told] == ["1", "2", "3"]
    local = parties.experiment.model_copy(update={"algorithm": Local()})
    run(local, tmp_path / "runs")
    expected = read_run(run_folder(local, tmp_path / "runs"))
    held = read_history(store.folder)
    for record in expected.rounds:
        assert held[record.round]["test"]["rules"]["logits"]["accuracy"] == pytest.approx(
            expected.by_client(record, "logits")[1], abs=1e-6
        )


def stop_after(rounds, told):
    def tell(sentence):
        told.append(sentence)
        if len(told) == rounds:
            raise Killed

    return tell
