import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from protonorm.algorithms.parts.prototypes import class_means
from protonorm.core import one_thread, seeded
from protonorm.errors import Diverged
from tests.support import site


def draw():
    return torch.rand(1).item(), float(np.random.rand()), random.random()


def test_seeded_draws_depend_on_seed_round_and_node_alone():
    def inside(*where):
        with seeded(*where):
            return draw()

    assert inside(0, 1, 2) == inside(0, 1, 2)
    places = ((0, 1, 2), (1, 1, 2), (0, 2, 2), (0, 1, 3), (0, 1, -1), (0, 1, 2, "state"), (0, 1, 2, "workspace"))
    assert len({inside(*where) for where in places}) == len(places)


def test_the_main_stream_keeps_its_numbers():
    """torch gets the first two words of numpy's SeedSequence([seed, round, node + 1]), the others the third."""
    words = np.random.SeedSequence([3, 5, 8]).generate_state(3)
    with seeded(3, 5, 7):
        found = draw()
    torch.manual_seed(int(words[0]) << 32 | int(words[1])), np.random.seed(words[2]), random.seed(int(words[2]))
    assert found == draw()


def test_seeded_leaves_the_outer_random_state_alone():
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    expected = draw()
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    with seeded(0, 0, 0):
        draw()
    assert draw() == expected


def test_one_thread_is_for_the_inside_only():
    torch.set_num_threads(2)
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_batches_are_full_and_shuffled_unless_asked_not_to():
    client = site(0, batch_size=8).client(1)
    sizes = [len(y) for _, y in client.batches()]
    assert sizes == [8] * (len(client.train) // 8)
    still = site(0, batch_size=8, shuffle=False).client(1)
    first, again = (next(iter(still.batches()))[0] for _ in range(2))
    assert torch.equal(first, again)


def test_the_last_batch_is_dropped_or_kept():
    """A kept last batch completes the epoch, unless it is a single sample, which batch norm cannot train on."""
    client = site(0).client(1)
    for size in range(2, len(client.train) + 2):
        full, rest = divmod(len(client.train), size)
        kept = site(0, batch_size=size, last_batch="keep").client(1)
        assert [len(y) for _, y in kept.batches()] == [size] * full + [rest] * (rest > 1), size
        dropped = site(0, batch_size=size, last_batch="drop").client(1)
        assert [len(y) for _, y in dropped.batches()] == ([size] * full or [rest]), size


def test_every_epoch_has_an_order_of_its_own_and_all_samples_once():
    """Three epochs of one batch of everything; without shuffling the order is that of the data in all of them."""
    settings = {"batch_size": 1000, "epochs": 3}
    client = site(0, **settings).client(1)
    whole, labels = client.train.batch(torch.arange(len(client.train)))
    orders = [x.tolist() for x, _ in client.batches()]
    assert all(sorted(order) == sorted(whole.tolist()) for order in orders)
    assert len({str(order) for order in [whole.tolist(), *orders]}) == 4
    still = list(site(0, shuffle=False, **settings).client(1).batches())
    assert len(still) == 3
    assert all(torch.equal(x, whole) and torch.equal(y, labels) for x, y in still)


def test_a_client_smaller_than_a_batch_trains_on_all_it_has():
    client = site(0, batch_size=1000).client(1)
    assert [len(y) for _, y in client.batches()] == [len(client.train)]


def test_a_single_sample_is_a_batch_of_two_equal_rows():
    """Batch norm needs two rows; two equal rows have the mean loss of one."""
    client = site(0, epochs=3).client(1)
    client = replace(client, train=replace(client.train, index=client.train.index[:1]))
    (whole, label), batches = client.train.batch(torch.arange(1)), list(client.batches())
    assert len(batches) == 3
    assert all(torch.equal(x, whole.repeat(2, 1)) and torch.equal(y, label.repeat(2)) for x, y in batches)


def test_class_means_are_of_the_whole_training_part_in_evaluation_mode():
    client = site(0).client(1)
    found = class_means(client, client.model)
    assert not client.model.training
    x, y = client.train.batch(torch.arange(len(client.train)))
    for label, mean in zip(found["classes"], found["prototypes"], strict=True):
        torch.testing.assert_close(mean, client.model.features(x)[y == label].mean(0).detach())
    assert found["classes"].tolist() == sorted(set(y.tolist()))


def test_a_loss_that_is_not_finite_is_told_with_client_and_round():
    client = site(2, lr=1e30, epochs=3).client(7)

    def loss(x, y):
        return cross_entropy(client.model(x), y)

    with pytest.raises(Diverged, match=r"client 2 became (nan|inf) in round 7"):
        client.fit(loss, client.model)


def test_weights_that_are_not_finite_are_told_although_the_only_loss_was():
    """One batch: the loss is taken before the step that ruins the weights."""
    client = site(2, lr=1e30, batch_size=1000).client(7)

    def loss(x, y):
        return 1e20 * client.model(x).sum()

    with pytest.raises(Diverged, match="The weights of client 2 are not finite after round 7"):
        client.fit(loss, client.model)


def test_the_reported_loss_is_the_mean_over_all_batches():
    """Three batches with losses 1, 2 and 6: 3 on average, neither the first nor the last."""
    client = replace(site(0, batch_size=2, epochs=1).client(1), lr=0.0)
    client = replace(client, train=replace(client.train, index=client.train.index[:6]))
    losses = iter([1.0, 2.0, 6.0])
    assert client.fit(lambda x, y: next(losses) + 0 * client.model(x).sum(), client.model) == 3.0


def test_a_second_optimiser_takes_a_step_of_its_own_gradient_after_every_batch():
    """∂w/∂w = 1 in each of three batches and steps of 1: w = 5 − 3 = 2; gradients that added up would be 1, 2, 3."""
    client = site(0, batch_size=2, epochs=1).client(1)
    client = replace(client, train=replace(client.train, index=client.train.index[:6]))
    w = torch.tensor(5.0, requires_grad=True)
    client.fit(lambda x, y: w + 0 * client.model(x).sum(), client.model, second=torch.optim.SGD([w], 1.0))
    assert w.item() == 2.0


def test_clip_bounds_each_modules_gradient():
    client = site(0, lr=1.0, batch_size=1000).client(1)
    before = [weight.detach().clone() for weight in client.model.parameters()]

    def loss(x, y):
        return 1e3 * cross_entropy(client.model(x), y)

    client.fit(loss, client.model, clip=0.5)
    moved = torch.cat(
        [(new.detach() - old).flatten() for new, old in zip(client.model.parameters(), before, strict=True)]
    )
    assert float(moved.norm()) == pytest.approx(0.5, rel=1e-4)


def test_bfloat16_trains_and_keeps_weights_in_full():
    """The products are rounded, so the numbers differ from float32's; the loss still falls."""
    exact = site(0).client(1)
    mixed = site(0, precision="bfloat16").client(1)
    for client in (exact, mixed):
        client.load({f"model.{name}": value for name, value in site().fresh_client().model.state_dict().items()})

    def train(client):
        with seeded(0, 1, 0):
            return [client.fit(lambda x, y: cross_entropy(client.model(x), y), client.model) for _ in range(8)]

    losses, others = train(mixed), train(exact)
    assert losses != others
    assert losses[0] == pytest.approx(others[0], rel=0.05)
    assert losses[-1] < losses[0]
    assert {value.dtype for value in mixed.model.parameters()} == {torch.float32}
    assert class_means(mixed, mixed.model)["prototypes"].dtype == torch.float32
