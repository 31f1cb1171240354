import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from protonorm.algorithms.lgfedavg import FedGen, Generator, draw
from protonorm.tensors import floats, snapshot, strip_prefix
from tests.algorithms.tasks import federation, server, task_of
from tests.support import count_floats, pictures, run, spiral

HEAD = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])  # (K, d) = (3, 2)


def constant(method, vector, classes=3):
    """Weights with which the generator makes one vector, whatever label and noise are."""
    generator = Generator(method.noise, classes, method.hidden, len(vector))
    torch.nn.init.zeros_(generator.layers[3].weight)
    generator.layers[3].bias.data = torch.tensor(vector)
    return floats(snapshot("generator", generator))


def reply(weight, counts):
    return {"head.weight": torch.as_tensor(weight), "counts": torch.tensor(counts)}


def test_the_servers_loss_by_hand():
    """Features (ln 2, 0) have the logits (ln 2, 0, −ln 2), p = (2, 1, ½)/3.5; the only label is 0: ln(3.5/2)."""
    method = FedGen(server_steps=1, noise=4, hidden=8)
    state = {"head.weight": HEAD} | constant(method, [math.log(2.0), 0.0])
    step = method.aggregate(server(), state, iter([reply(HEAD, [5, 0, 0])]))
    assert step.metrics["generator.loss"] == pytest.approx(math.log(1.75))


def test_the_servers_first_step_by_hand():
    """From features 0, p = (⅓, ⅓, ⅓) and label 0: the gradient of the features is Σ_k (p_k − y_k) w_k.

    That is −w_0 = (−1, 0), for the rows of the head sum to zero. Adam's first step has the length of the
    learning rate along every coordinate with a gradient, so the last bias becomes (lr, 0).
    """
    method = FedGen(server_steps=1, server_lr=0.01, noise=4, hidden=8)
    state = {"head.weight": HEAD} | constant(method, [0.0, 0.0])
    step = method.aggregate(server(), state, iter([reply(HEAD, [5, 0, 0])]))
    torch.testing.assert_close(step.state["generator.layers.3.bias"], torch.tensor([0.01, 0.0]), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(step.message["head.weight"], HEAD)  # the head is averaged, never trained by the server


def test_heads_are_averaged_by_numbers_of_samples_and_counts_are_added():
    """n = 1 and 3: (1·0 + 3·4)/4 = 3. The logits of the generated zero features are zero, their loss is ln 3."""
    method = FedGen(server_steps=1, noise=4, hidden=8)
    state = {"head.weight": HEAD} | constant(method, [0.0, 0.0])
    replies = [reply(torch.zeros(3, 2), [1, 0, 0]), reply(torch.full((3, 2), 4.0), [0, 2, 1])]
    step = method.aggregate(server(), state, iter(replies))
    assert step.message["head.weight"].tolist() == [[3.0, 3.0]] * 3
    assert step.message["counts"].tolist() == [1, 2, 1]
    assert step.metrics["generator.loss"] == pytest.approx(math.log(3.0))


def test_the_average_of_logits_is_what_the_average_head_gives():
    """The paper's ensemble Σ n_i g_i(z)/Σ n_i, for heads that are linear: 1·(w·z) and 3·(3w·z), over 4, are 2.5 w·z.

    At z = (ln 2, 0) the logits are 2.5·(ln 2, 0, −ln 2): the loss of label 0 is ln(1 + 2^−2.5 + 2^−5).
    """
    method = FedGen(server_steps=1, noise=4, hidden=8)
    state = {"head.weight": HEAD} | constant(method, [math.log(2.0), 0.0])
    step = method.aggregate(server(), state, iter([reply(HEAD, [1, 0, 0]), reply(3 * HEAD, [3, 0, 0])]))
    assert step.metrics["generator.loss"] == pytest.approx(math.log(1 + 2**-2.5 + 2**-5))


def first_loss(method, message):
    """One step on one batch of everything with lr → 0: the loss at the start, under the received head."""
    client, state, said = federation(method, batch_size=4096, lr=1e-12).started()
    said |= message
    loss = method.local_update(client, state, said).metrics["loss"]
    client.load(method.receive(client, state, said)).train()
    x, y = client.train.batch(torch.arange(len(client.train)))
    with torch.no_grad():
        return loss, float(cross_entropy(client.model(x), y)), client.model.head


def test_the_clients_loss():
    """The generator makes (1, −2) for every label, and all labels are 4: CE + α·(−log softmax(g(1, −2))_4)."""
    method = FedGen(alpha=2.5, noise=4, hidden=8)
    message = constant(method, [1.0, -2.0], classes=6) | {"counts": torch.tensor([0, 0, 0, 0, 7, 0])}
    loss, ce, head = first_loss(method, message)
    generated = -head(torch.tensor([1.0, -2.0])).log_softmax(0)[4]
    assert loss == pytest.approx(ce + 2.5 * generated.item(), rel=1e-5)


def test_before_the_generator_has_learnt_the_loss_is_cross_entropy():
    """Round 1: head.* alone is said."""
    loss, ce, _ = first_loss(FedGen(), {})
    assert loss == pytest.approx(ce, rel=1e-6)


def test_generated_features_teach_the_head_and_nothing_else():
    """With α enormous and lr tiny the head moves and the generator that was received stays as it was."""
    method = FedGen(alpha=1e6, noise=4, hidden=8)
    client, state, message = federation(method, lr=1e-6).started()
    message |= constant(method, [1.0, -2.0], classes=6) | {"counts": torch.ones(6, dtype=torch.int64)}
    kept = {name: value.clone() for name, value in message.items()}
    step = method.local_update(client, state, message)
    assert float((step.state["model.head.weight"] - message["head.weight"]).abs().max()) > 0.1
    torch.testing.assert_close(
        step.state["model.features.0.weight"], state["model.features.0.weight"], atol=1e-3, rtol=0
    )
    assert all(torch.equal(message[name], kept[name]) for name in kept)


def test_the_trained_generator_is_kept_and_said():
    """The next round starts from it: with a learning rate of almost nothing it stays where the last round left it."""
    torch.manual_seed(0)
    one = federation(FedGen())
    state = FedGen().init_server(one.server()).state
    said = reply(torch.randn(6, 2), [1] * 6)
    first = FedGen().aggregate(one.server(1), state, iter([said]))
    assert not torch.equal(first.state["generator.layers.0.weight"], state["generator.layers.0.weight"])
    second = FedGen(server_lr=1e-12, server_steps=1).aggregate(one.server(2), first.state, iter([said]))
    for name in ("generator.layers.0.weight", "generator.layers.3.bias"):
        assert torch.equal(first.message[name], first.state[name])
        torch.testing.assert_close(second.message[name], first.message[name])


def test_the_generator_learns_features_that_the_head_knows():
    torch.manual_seed(0)
    method = FedGen()
    state = method.init_server(federation(method).server()).state
    head = torch.tensor([[math.cos(k), math.sin(k)] for k in range(6)])
    step = method.aggregate(server(classes=6), state | {"head.weight": head}, iter([reply(head, [1] * 6)]))
    generator = Generator(method.noise, 6, method.hidden, 2)
    generator.load_state_dict(generator.state_dict() | strip_prefix(step.message, "generator"))
    labels = torch.arange(6).repeat(20)
    found = (generator.eval()(labels) @ head.T).argmax(1)
    assert float((found == labels).float().mean()) > 0.9


def test_labels_are_drawn_by_their_counts():
    """Counts 0, 1, 3: never 0, and 2 three times as often as 1, within five deviations of 10 000 draws (5·√(n/4·¾))."""
    torch.manual_seed(0)
    found = torch.bincount(draw(torch.tensor([0, 1, 3]), 10_000), minlength=3)
    assert found[0] == 0
    assert abs(int(found[2]) - 7500) < 5 * math.sqrt(10_000 * 0.25 * 0.75)


def test_floats_of_the_messages():
    """K = 6, d = 2, q = 4, h = 8, no bias in the head: up K·d = 12, and down as much and the generator.

    Its parameters: (q + K)·h + 3h + (h + 1)·d = 80 + 24 + 18 = 122; with batch norm's 2h statistics 138.
    """
    method = FedGen(noise=4, hidden=8)
    one = federation(method)
    begun, (client, state, _) = method.init_server(one.server()), one.started()
    step = method.local_update(client, state, begun.message)
    down = method.aggregate(one.server(1), begun.state, iter([step.message])).message
    assert (count_floats(begun.message), count_floats(step.message), count_floats(down)) == (12, 12, 12 + 138)
    assert set(down.keys() - floats(down).keys()) == {"counts"}
    schema = one.task.schema
    assert (schema.numbers(schema.up, {}), schema.numbers(schema.down, {})) == (12, 12 + 138)
    schema.check_up(step.message, "It")
    for said in (begun.message, down):
        schema.check_down(said)
    assert int(step.message["counts"].sum()) == len(client.train)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (reply(torch.full((3, 2), math.nan), [1, 0, 0]), "holds head.weight with numbers that are not finite"),
        (reply(torch.zeros(3, 4), [1, 0, 0]), r"holds head.weight of shape \(3, 4\)"),
        (reply(HEAD, [1, 0]), r"holds counts of shape \(2,\)"),
        (reply(HEAD, [2, -1, 0]), "holds counts from -1 to 2; expected whole numbers from 0 to 2147483647"),
        (reply(HEAD, [0.5, 0.5, 0.0]), "holds counts as torch.float32"),
        (reply(HEAD, [1, 0, 0]) | {"head.bias": torch.zeros(3)}, "holds head.bias, which is not expected"),
        ({"head.weight": HEAD}, "lacks counts"),
        (reply(HEAD, [0, 0, 0]), "holds counts with nothing but zeros"),
    ],
)
def test_a_bad_reply_is_refused_with_a_sentence(bad, sentence):
    schema = task_of(FedGen(noise=4, hidden=8), head_bias=False).schema
    schema.check_up(reply(HEAD, [1, 0, 0]), "It")
    with pytest.raises(ValueError, match=f"It {sentence}"):
        schema.check_up(bad, "It")


def test_generator_and_counts_come_together_or_not_at_all():
    method = FedGen(noise=4, hidden=8)
    schema, generator = task_of(method, head_bias=False).schema, constant(method, [0.0, 0.0])
    counts = {"counts": torch.tensor([1, 2, 3])}
    schema.check_down({"head.weight": HEAD})
    schema.check_down({"head.weight": HEAD} | generator | counts)
    with pytest.raises(ValueError, match="The server's message lacks counts"):
        schema.check_down({"head.weight": HEAD} | generator)
    with pytest.raises(ValueError, match="lacks generator.layers.0.bias"):
        schema.check_down({"head.weight": HEAD} | counts)
    with pytest.raises(ValueError, match="lacks head.weight"):
        schema.check_down(generator | counts)


def test_asking_for_the_schema_draws_no_random_number():
    """It may be asked for anywhere, also in the middle of a round."""
    before = torch.get_rng_state()
    assert task_of(FedGen()).schema.down
    assert torch.equal(torch.get_rng_state(), before)


def test_different_networks_on_pictures(tmp_path):
    settings = {"dataset": pictures([0, 1, 2] * 24, 3), "models": "light", "feature_dim": 4}
    history = run(spiral(algorithm=FedGen(), **settings, clients=4, rounds=2), out=tmp_path).history
    assert history[-1].bytes.up == 4 * (4 * (3 * 4 + 3) + 3 * 8)  # K·d + K floats and K counts of each client
