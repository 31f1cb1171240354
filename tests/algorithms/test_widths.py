"""What HeteroFL, FedRolex and FjORD share, and each of them."""

import numpy as np
import pytest
import torch
from torch import nn

import protonorm as pn
from protonorm.algorithms.heterofl import (
    FedRolex,
    FjORD,
    HeteroFL,
    OwnClasses,
    cut,
    indices_of,
    measure,
    new_statistics,
    pixels,
    window,
)
from protonorm.core import Order
from protonorm.federation.client import train_step
from protonorm.models.choose import Recipe
from tests.algorithms.tasks import Federation, server
from tests.contract.playing import played, same, server_step
from tests.support import build, cases, contents, pictures, run, run_folder

ALL = torch.arange(10)


def test_windows_move_down_and_come_round():
    """C = 8 channels, three of them: {0, 1, 2}, then {7, 0, 1}, then {6, 7, 0}; in eight turns each is there thrice."""
    assert [window(8, 3, 1, turn).tolist() for turn in (0, 1, 2)] == [[0, 1, 2], [7, 0, 1], [6, 7, 0]]
    seen = torch.cat([window(8, 3, 1, turn) for turn in range(8)])
    assert torch.bincount(seen).tolist() == [3] * 8
    assert window(4, 4, 1, 3).tolist() == [0, 1, 2, 3]


def test_a_flattened_channel_is_all_its_pixels():
    """Three channels of four pixels, two of them: columns 0 to 7; a turn later channels 2 and 0."""
    assert window(12, 8, 4, 0).tolist() == list(range(8))
    assert window(12, 8, 4, 1).tolist() == [8, 9, 10, 11, 0, 1, 2, 3]


def backwards(tensors):
    return dict(reversed(tensors.items()))


def square(value, size):
    return {"model.w": torch.full((size, size), float(value))}


def averaged(whole, replies, method=HeteroFL, round=1):
    """Aggregate replies of clients of all classes on a server with the whole model."""
    return method().aggregate(server(round), whole, [{"classes": ALL} | reply for reply in replies]).message


def test_what_overlaps_is_averaged_and_the_rest_is_the_widest_clients():
    """A 4×4 weight of 0: one client has all of it at 2, one the first half of each axis at 6: 4 there, 2 elsewhere."""
    found = averaged(square(0, 4), [square(2, 4), square(6, 2)])["model.w"]
    wanted = torch.full((4, 4), 2.0)
    wanted[:2, :2] = 4.0
    assert torch.equal(found, wanted)
    counted = [square(2, 4) | {"num_examples": torch.tensor(3)}, square(6, 2)]
    weighted = averaged(square(0, 4), counted)["model.w"]
    assert weighted[0].tolist() == [3.0, 3.0, 2.0, 2.0]


def test_what_nobody_has_stays():
    found = averaged(square(9, 4), [square(6, 2)], FedRolex, 2)["model.w"]  # channels 3 and 0
    assert found.tolist() == [[6, 9, 9, 6], [9, 9, 9, 9], [9, 9, 9, 9], [6, 9, 9, 6]]
    assert torch.equal(averaged(square(9, 4), [])["model.w"], torch.full((4, 4), 9.0))


def test_the_server_knows_whose_turn_it_is():
    """After round 2 a part of two channels is that of channels 3 and 0; HeteroFL's is always 0 and 1."""
    for method, rows in ((FedRolex(), [6, 9, 9, 6]), (HeteroFL(), [6, 6, 9, 9])):
        replies = [square(6, 2) | {"classes": ALL}]
        assert method.aggregate(server(2), square(9, 4), iter(replies)).message["model.w"][0].tolist() == rows


@pytest.mark.parametrize("method", [HeteroFL(), FedRolex()])
def test_statistics_are_those_of_the_last_round_alone(method):
    one = Federation(*build(tiny(method)))
    first, second = (played(one.task, one.population, rounds)["after"][0] for rounds in (1, 2))
    counted = [name for name in first if name.endswith("num_batches_tracked")]
    assert counted
    assert all(int(first[name]) == int(second[name]) > 0 for name in counted)


def test_a_heads_rows_are_of_those_who_have_the_class():
    """Three classes at 0; a client with class 0 says 2 everywhere, one with 0 and 2 says 6: rows 4, 0 and 6."""
    whole = {"model.head.weight": torch.zeros(3, 2), "model.head.bias": torch.zeros(3)}
    said = [
        ({name: torch.full_like(one, value) for name, one in whole.items()}, c) for value, c in ((2, [0]), (6, [0, 2]))
    ]
    found = averaged(whole, [weights | {"classes": torch.tensor(classes)} for weights, classes in said])
    assert found["model.head.bias"].tolist() == [4.0, 0.0, 6.0]
    assert found["model.head.weight"].tolist() == [[4.0, 4.0], [0.0, 0.0], [6.0, 6.0]]


def weights(name, shape=(1, 16, 16)):
    model = Recipe(name, shape, 6, 4)()
    return model, {f"model.{key}": value.detach() for key, value in model.named_parameters()}


@pytest.mark.parametrize("turn", [0, 3])
@pytest.mark.parametrize(
    ("name", "shape"),
    [("plain", (1, 16, 16)), ("residual", (1, 16, 16)), ("cnn4", (1, 16, 16)), ("cnn4", (1, 28, 28)), ("mlp", (2,))],
)
def test_a_part_computes_what_the_whole_does_without_the_other_channels(name, shape, turn):
    """Silence in the whole network all weights that the part lacks: both give the same logits, also behind a flattening
    and beside shortcuts. Statistics of batch norm are 0 and 1 in both."""
    torch.manual_seed(0)
    (whole, every), (part, like) = weights(name, shape), weights(f"{name}@0.5", shape)
    counts = pixels(whole)
    assert counts == pixels(part)
    small = cut(every, like, turn, counts)
    part.load_state_dict({key: small.get(f"model.{key}", value) for key, value in part.state_dict().items()})
    silent = {key: torch.zeros_like(value) for key, value in every.items()}
    for key, place in indices_of(every, like, turn, counts).items():
        at = place if len(place) == 1 else (place[0].unsqueeze(1), place[1])
        silent[key][at] = every[key][at]
    whole.load_state_dict({key: silent.get(f"model.{key}", value) for key, value in whole.state_dict().items()})
    x = torch.randn(3, *shape)
    torch.testing.assert_close(part.eval()(x), whole.eval()(x), atol=1e-5, rtol=1e-4)
    assert sum(one.numel() for one in small.values()) < sum(one.numel() for one in every.values())


def test_a_channel_has_as_many_columns_as_pixels_behind_a_flattening_and_one_elsewhere():
    """Of 28 × 28 pixels convolutions of 5 × 5 and poolings leave 12 × 12 and then 4 × 4 in `cnn4`, of 16 × 16 one. The
    others take the mean of all pixels. d = 6 is no layer's width, nor are the two numbers of a point."""
    counts = {side: pixels(weights("cnn4", (1, side, side))[0]) for side in (28, 16)}
    assert {side: found["model.features.0.7.weight"] for side, found in counts.items()} == {28: 16, 16: 1}
    for name, shape, ends in (
        ("plain", (1, 28, 28), {1, 6}),
        ("residual", (1, 28, 28), {1, 6}),
        ("mlp", (2,), {2, 1, 6}),
    ):
        assert set(pixels(weights(name, shape)[0]).values()) == ends
    assert pixels(weights("dense")[0]) == {}


LARGE = pictures(list(range(4)) * 12, 4, side=28)  # of which `cnn4` leaves 16 pixels a channel
KINDS = {"heterofl": HeteroFL(), "fedrolex": FedRolex(), "fjord": FjORD()}
SEVERAL = [{"models": "plain@1,0.5,0.25"}, {"models": "plain@1,0.3"}, {"models": "cnn4@1,0.5", "dataset": LARGE}]


@pytest.mark.parametrize("settings", SEVERAL, ids=lambda one: one["models"])
@pytest.mark.parametrize("method", [HeteroFL(), FedRolex(), FjORD()])
def test_the_order_of_tensors_does_not_matter(method, settings):
    """Safetensors have an order of their own: a client's third round and the server's after it with all reversed."""
    one = Federation(*build(tiny(method, **settings)))
    seen = played(one.task, one.population, 3)
    site, order = one.population.site(1), Order(1, 3, 2)
    state, reply = train_step(one.task, site, order, backwards(seen["before"][1]), backwards(seen["said"]))
    assert same(state, seen["after"][1])
    assert same(reply.message, seen["replies"][1].message)
    said = [backwards(reply.message) for reply in seen["replies"].values()]
    step = server_step(one.task, 3, backwards(seen["held"]), said)
    assert same(step.message, seen["step"].message)
    assert same(step.state, seen["step"].state)
    received = [
        one.method.receive(site.client(3), *given)
        for given in ((state, step.message), (backwards(state), backwards(step.message)))
    ]
    assert same(*received)


@pytest.mark.parametrize("settings", SEVERAL, ids=lambda one: one["models"])
@pytest.mark.parametrize("method", [HeteroFL(), FedRolex(), FjORD()])
def test_parts_go_back_to_where_they_were_cut_out(method, settings):
    """Clients that do not learn leave the whole model as it was, whosever turn it is, and receive what they have."""
    one = Federation(*build(tiny(method, **settings, lr=1e-30)))
    first, seen = one.started()[2], played(one.task, one.population, 3)
    torch.testing.assert_close(seen["step"].message, first)
    for id, state in seen["after"].items():
        found = one.method.receive(one.population.site(id).client(3), state, seen["step"].message)
        torch.testing.assert_close({name: found[name] for name in first}, {name: state[name] for name in first})


PAIRS = {f"{name}-{settings['models']}": (method, settings) for name, method in KINDS.items() for settings in SEVERAL}


@pytest.mark.parametrize(
    ("method", "settings"), cases(PAIRS, ("heterofl-cnn4@1,0.5", "fedrolex-plain@1,0.3", "fjord-plain@1,0.5,0.25"))
)
def test_processes_and_resumed_runs_give_the_bytes_of_an_unbroken_one(tmp_path, method, settings):
    experiment = tiny(method, **settings)
    whole = run(experiment, out=tmp_path / "whole")

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(experiment, out=tmp_path / "broken", watch=stop)
    run(experiment, out=tmp_path / "broken", engine="processes", workers=2)
    assert contents(run_folder(experiment, tmp_path / "broken")) == contents(run_folder(experiment, tmp_path / "whole"))
    x = experiment.dataset.load().inputs[:4]
    narrow = whole.trained("last")[1]
    again = pn.load_client(narrow.save(tmp_path / "narrow"))
    np.testing.assert_array_equal(again.scores(x)["received"], narrow.scores(x)["received"])


def test_absent_classes_are_zero_in_training_and_never_predicted():
    head = OwnClasses(nn.Identity(), torch.tensor([0, 2]), 3)
    z = torch.tensor([[-1.0, 5.0, -2.0]])
    assert head.train()(z).tolist() == [[-1.0, 0.0, -2.0]]
    assert head.eval()(z).tolist() == [[-1.0, -torch.inf, -2.0]]


def test_new_statistics_are_the_plain_mean_over_batches():
    """Batches of mean 2 and 6: the running mean is 4, whatever was there before; afterwards all is as it was."""
    layer = nn.BatchNorm1d(1, momentum=0.3)
    layer.running_mean.fill_(100.0)
    with new_statistics(layer):
        for value in (2.0, 6.0):
            layer(torch.tensor([[value - 1], [value + 1]]))
    assert layer.running_mean.item() == pytest.approx(4.0)
    assert layer.running_var.item() == pytest.approx(2.0)
    assert layer.momentum == 0.3
    assert not layer._forward_pre_hooks


def tiny(algorithm, **more):
    settings = {
        "dataset": pictures(list(range(4)) * 12, 4),
        "models": "plain@1,0.5,0.25",
        "feature_dim": 6,
        "clients": 3,
    }
    settings |= {"rounds": 3, "batch_size": 4, "partition": "iid", "algorithm": algorithm}
    return pn.Experiment.of(settings | more)


@pytest.mark.parametrize("method", [HeteroFL(), FedRolex(), FjORD()])
def test_each_client_has_a_network_of_its_own_width(tmp_path, method):
    """24 channels, 12 and 6 in the first layer; each sub-network is tested, alone and as received."""
    result = run(tiny(method), out=tmp_path)
    found = [client.state["model.features.0.0.weight"].shape[0] for client in result.clients]
    assert found == [24, 12, 6]
    assert result.clients[1].message["model.features.0.0.weight"].shape[0] == 24
    record = result.history[-1]
    assert record.rules["received"] is not None
    assert record.floats.down == 3 * sum(one.numel() for one in result.clients[0].message.values())
    assert record.floats.up < record.floats.down
    again = pn.load_client(result.clients[2].save(tmp_path / "narrow"))
    x = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 1), dtype=np.uint8)
    for rule in ("logits", "received"):
        np.testing.assert_array_equal(again.scores(x)[rule], result.clients[2].scores(x)[rule])


def test_rolling_channels_are_others_in_the_second_round():
    """A client that does not learn gets, in its second round, the channels before those of its first."""
    method = FedRolex(masked=False)
    one = Federation(*build(tiny(method, lr=1e-30)))
    message = one.started(2)[2]
    site, state = one.population.site(2), one.started(2)[1]
    first = one.method.local_update(site.client(1), state, message).state
    second = one.method.local_update(site.client(2), first, message).state
    whole = message["model.features.0.0.weight"]
    torch.testing.assert_close(first["model.features.0.0.weight"], whole[:6])
    torch.testing.assert_close(second["model.features.0.0.weight"], whole[[23, 0, 1, 2, 3, 4]])
    assert (int(first["turn"]), int(second["turn"])) == (0, 1)


def test_of_equal_widths_with_all_classes_it_is_a_uniform_average():
    """As FedAvg's, if all clients had as many samples; the first round of both methods is the same."""
    one = Federation(*build(tiny(HeteroFL(), models="plain", partition="iid")))
    seen = played(one.task, one.population, 1)
    replies = [reply.message for reply in seen["replies"].values()]
    for name, value in seen["step"].message.items():
        if not name.startswith("model.head."):  # few samples: not everybody has every class
            torch.testing.assert_close(value, torch.stack([reply[name] for reply in replies]).mean(0))
    rolling = Federation(*build(tiny(FedRolex(), models="plain", partition="iid")))
    assert same(
        played(rolling.task, rolling.population, 2)["step"].message, played(one.task, one.population, 2)["step"].message
    )


def test_samples_may_weigh():
    replies = [
        square(2, 2) | {"num_examples": torch.tensor(3), "classes": ALL},
        square(6, 2) | {"num_examples": torch.tensor(1), "classes": ALL},
    ]
    assert HeteroFL().aggregate(server(), square(0, 2), iter(replies)).message["model.w"][0, 0].item() == 3.0


@pytest.mark.parametrize("method", ["heterofl", "fedrolex", "fjord"])
def test_different_kinds_of_networks_are_refused_with_a_sentence(method):
    with pytest.raises(
        ValueError, match=r"cuts the clients' networks out of one.* such as models=plain@1,0.5,0.25, but"
    ):
        tiny(method, models="light")


def test_what_is_wider_than_the_whole_is_refused():
    task = build(tiny(HeteroFL()))[0]
    said = {name: value.clone() for name, value in task.algorithm.init_server(task.server(0)).message.items()}
    said["classes"] = torch.tensor([0])
    task.schema.check_up(said, "It")
    said["model.features.0.0.weight"] = torch.zeros(25, 1, 3, 3)
    with pytest.raises(ValueError, match=r"of shape \(25, 1, 3, 3\); expected \(24, 1, 3, 3\) at most"):
        task.schema.check_up(said, "It")


# ---- FjORD ----------------------------------------------------------------------------------------------------------


def test_masks_are_those_of_the_widths_up_to_the_clients_own():
    """Four steps: a client of width ½ draws ¼ and ½. Its first layer has 12 channels, a quarter of all 24 are 6."""
    model, _ = weights("plain@0.5")
    masks = FjORD(steps=4).masks(model)
    assert [int(one["features.0.0.weight"][:, 0, 0, 0].sum()) for one in masks] == [6, 12]
    assert [int(one["head.weight"].sum()) for one in masks] == [24, 24]  # d = 6 and K = 4 have no widths
    columns = masks[0]["features.1.0.weight"][0, :, 0, 0]
    assert columns.tolist() == [1.0] * 6 + [0.0] * 6
    assert len(FjORD(steps=4).masks(weights("plain")[0])) == 4
    assert len(FjORD(steps=5).masks(model)) == 3  # 1/5, 2/5, and its own


def test_only_channels_of_the_drawn_width_are_trained():
    """Steps of one half, always the narrower drawn: the second half of the channels stays as it was received."""
    one = Federation(*build(tiny(FjORD(steps=2), models="plain", lr=0.1)))
    client, state, message = one.started()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(np.random, "randint", lambda count: 0)
        after = one.method.local_update(client, state, message).state["model.features.0.0.weight"]
    before = message["model.features.0.0.weight"]
    assert not torch.equal(after[:12], before[:12])
    assert torch.equal(after[12:], before[12:])


def test_every_width_is_drawn():
    one = Federation(*build(tiny(FjORD(steps=2), models="plain", lr=0.1, epochs=4)))
    client, state, message = one.started()
    after = one.method.local_update(client, state, message).state["model.features.0.0.weight"]
    assert not torch.equal(after[12:], message["model.features.0.0.weight"][12:])


def test_a_width_is_drawn_for_every_batch():
    """In each of three epochs as many as there are full batches of four; of two widths."""
    one = Federation(*build(tiny(FjORD(steps=2), models="plain", epochs=3)))
    client, state, message = one.started()
    drawn = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(np.random, "randint", lambda count: drawn.append(count) or 0)
        one.method.local_update(client, state, message)
    assert drawn == [2] * (3 * (len(client.train) // 4))
    assert len(drawn) > 3


def test_a_distilled_network_learns_whole_too():
    """With the narrower one always drawn the second half still learns, from the labels; both losses are counted."""
    found = {}
    for distillation in (False, True):
        one = Federation(*build(tiny(FjORD(steps=2, distillation=distillation), models="plain", lr=0.1)))
        client, state, message = one.started()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(np.random, "randint", lambda count: 0)
            step = one.method.local_update(client, state, message)
        moved = not torch.equal(step.state["model.features.0.0.weight"][12:], message["model.features.0.0.weight"][12:])
        found[distillation] = moved, step.metrics["loss"]
    assert (found[False][0], found[True][0]) == (False, True)
    assert found[True][1] > 1.3 * found[False][1]


def test_a_teacher_is_not_moved_by_its_pupil():
    """Of one width alone both networks are the same: the second loss has no gradient, and all is as without it."""
    found = []
    for distillation in (False, True):
        one = Federation(*build(tiny(FjORD(steps=1, distillation=distillation), models="plain", lr=0.1)))
        client, state, message = one.started()
        torch.manual_seed(0)
        found.append(one.method.local_update(client, state, message).state["model.features.0.0.weight"])
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)


def test_statistics_are_measured_at_the_clients_own_width():
    one = Federation(*build(tiny(FjORD(), models="plain")))
    client, state, message = one.started()
    after = one.method.local_update(client, state, message).state
    model = client.load(after)
    kept = {name: value.clone() for name, value in model.state_dict().items() if "running_mean" in name}
    measure(client, model)  # of the same samples with the same weights
    for name, value in kept.items():
        assert torch.equal(model.state_dict()[name], value)
        assert bool((value != 0).all())


def test_parts_are_averaged_by_samples_with_all_rows_of_the_head():
    replies = [
        {"model.head.weight": torch.full((3, 2), value), "num_examples": torch.tensor(count)}
        for value, count in ((2.0, 3), (6.0, 1))
    ]
    found = FjORD().aggregate(server(), {"model.head.weight": torch.zeros(3, 2)}, iter(replies)).message
    assert found["model.head.weight"].tolist() == [[3.0, 3.0]] * 3


def test_a_network_of_one_width_is_refused_by_fjord():
    with pytest.raises(ValueError, match="FjORD trains a network at several widths"):
        build(tiny(FjORD(), models="dense"))
