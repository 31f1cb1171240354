"""The policy in a client's folder: what it allows, what it changes, and what `--check` shows of it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from protonorm.core.frames import encode_body
from protonorm.core.privacy import Gaussian
from protonorm.core.training import MinimumCount
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.client_folder import POLICY
from protonorm.deployment.messages import RequestHeader, read_answer_header, write_request
from protonorm.deployment.owner import OwnerPolicy, preview
from protonorm.deployment.settings import ClientSettings
from protonorm.deployment.site import make_site
from tests.deployment.test_node import AGREEMENT, node_of
from tests.support import pictures

TERMS = {"algorithm": "protonorm", "classes": ["a", "b"], "feature_dim": 8, "rounds": 3, "seed": 0}


def policy(tmp_path, text):
    (tmp_path / POLICY).write_text(text)
    return OwnerPolicy.read(tmp_path / POLICY)


def test_the_policy_of_the_documentation_is_understood(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text("utf-8")
    found = policy(tmp_path, page.partition("```yaml\n")[2].partition("```")[0])
    assert {name for name, _ in found.lines()} == OwnerPolicy.model_fields.keys()
    found.check(Agreement.of(TERMS))


def test_without_a_file_there_is_no_policy_and_an_empty_one_allows_everything(tmp_path):
    assert OwnerPolicy.read(tmp_path / POLICY) is None
    free = policy(tmp_path, "evaluation: classes\n")
    free.check(Agreement.of(TERMS))
    own = ClientSettings.of({"name": "clinic", "allowed": "accuracy"})
    assert free.within(own) == own


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("methods: [fedproto, targets]", "allows the methods fedproto and targets, got protonorm"),
        ("rounds: 2", "allows 2 rounds at most, got 3"),
        ("combine: [mean]", "combined by mean, got trust"),
    ],
)
def test_an_agreement_beyond_the_policy_is_refused(tmp_path, text, sentence):
    with pytest.raises(ValueError, match=sentence):
        policy(tmp_path, text).check(Agreement.of(TERMS))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("method: [fedproto]", r"policy\.yaml has no setting 'method'; did you mean 'methods'"),
        ("methods: [fedprot]", r"policy\.yaml: Unknown algorithm 'fedprot'"),
        ("rounds: many", "rounds"),
        ("protect: gauss", "Unknown protection 'gauss'"),
        ("evaluation: all", "evaluation"),
        ("received: -1", "received"),
    ],
)
def test_what_is_not_understood_is_refused(tmp_path, text, sentence):
    with pytest.raises(ValueError, match=sentence):
        policy(tmp_path, text)


def test_settings_cannot_go_beyond_the_policy(tmp_path):
    """The policy's step replaces that of the settings; of what is told the lesser counts."""
    found = policy(tmp_path, "protect: {name: minimum_count, least: 7}\nevaluation: accuracy\n")
    for given, told in (("off", "off"), ("accuracy", "accuracy"), ("classes", "accuracy")):
        own = found.within(ClientSettings.of({"name": "clinic", "protect": "none", "allowed": given}))
        assert (own.protect, own.allowed) == (MinimumCount(least=7), told)
    counted = policy(tmp_path, "protect: minimum_count").within(
        ClientSettings.of({"name": "clinic", "allowed": "classes"})
    )
    assert counted.allowed == "accuracy"  # counts by class would tell of the classes that are kept back
    assert policy(tmp_path, "evaluation: off").within(own).allowed == "off"
    assert dict(found.lines())["evaluation"] == "accuracy"


def test_a_policy_that_leaves_messages_alone_is_shown(tmp_path):
    """It is written as in its file."""
    found = policy(tmp_path, "rounds: 2\nloss: false\n")
    assert dict(found.lines()) == {"rounds": "2", "evaluation": "classes", "loss": "false"}
    step = policy(tmp_path, "protect: {name: minimum_count, least: 7}")
    assert dict(step.lines())["protect"] == '{"name": "minimum_count", "least": 7}'


@pytest.fixture
def data(tmp_path):
    data = pictures([0] * 12 + [1] * 4, 3, side=16)
    np.savez(tmp_path / "own.npz", images=data.inputs, labels=data.labels, classes=np.array(data.classes))
    return f"npz:{tmp_path}/own.npz"


@pytest.mark.parametrize(
    ("protect", "sent", "line"),
    [
        (MinimumCount(least=5), ["yes", "no", "no"], "without noise"),
        (
            Gaussian(bounds="message", noise=10.0, epsilon=0.6),
            ["with noise"] * 3,
            "2 of 5 messages: ε = 0 is spent, 0.546 afterwards",
        ),
    ],
)
def test_a_preview_has_the_samples_of_each_class_and_what_is_sent(data, protect, sent, line):
    """9 + 3 training samples; ε of two rounds of σ = 10 is 0.546, of three 0.69."""
    own = ClientSettings.of({"name": "clinic"}).training.model_copy(
        update={"protect": protect, "validation": 0.0, "split": "random"}
    )
    rows, lines = preview(make_site(AGREEMENT, 2, data, "plain", own))
    assert [row[2] for row in rows] == sent
    counts = [int(row[1]) for row in rows]
    assert (sum(counts), counts[2]) == (12, 0)
    meaning = "K_i is the number of classes in it (3 at most) and d = 8 is the width of the features"
    assert lines[0] == f"A message has classes (K_i) and prototypes (K_i, d): {meaning}."
    assert line in lines[1]


def test_a_preview_of_a_whole_network_names_it_and_counts_its_numbers(data):
    terms = {"algorithm": "fedavg", "shared_network": "plain", "input": {"shape": [16, 16, 1], "type": "uint8"}}
    site = make_site(Agreement.of({**TERMS, "classes": AGREEMENT.classes} | terms), 2, data, "plain")
    line = preview(site)[1][0]
    sent = [value for name, value in site.fresh_client().model.state_dict().items() if value.is_floating_point()]
    numbers = sum(value.numel() for value in sent)
    said = f"model ({len(sent)} tensors of the network plain, {numbers:,} numbers) and num_examples (1)"
    assert line == f"A message has {said}."


def test_a_preview_of_a_secure_sum_says_that_messages_are_masked(data):
    members = [f"SHA256:{'a' * 42}{one}" for one in "AEI"]
    terms = Agreement.of(AGREEMENT.plain() | {"combine": "secure_sum", "members": members})
    _, (_, line) = preview(make_site(terms, 2, data, "plain"))
    assert line.startswith("Messages are masked before they are sent: the server learns the sum of 3 members or more")


def test_what_the_server_publishes_is_checked(data, tmp_path):
    site = make_site(AGREEMENT, 2, data, "plain")
    node = node_of(site, tmp_path, received=2.0)
    header = {"format": 1, "agreement": AGREEMENT.digest, "client": 2, "round": 1, "kind": "train", "trained": 0}
    for size, refused in ((1.0, False), (3.0, True)):
        body = encode_body({"classes": torch.arange(3), "prototypes": torch.full((3, 8), size)})
        answer, _ = read_answer_header(node.answer(write_request(RequestHeader.model_validate(header), body)))
        assert ("larger than the client's owner allows" in answer.declined) == refused
