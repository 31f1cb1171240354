import numpy as np
import pytest
import torch
from experiments.reproduction.communication import formula, group_sizes, round_floats, task_of

from protonorm.algorithms import ALGORITHMS
from protonorm.algorithms.local import Local
from protonorm.core import Field, Schema, Task
from protonorm.models.choose import Recipe
from protonorm.runs.schema import Traffic
from protonorm.session.build import build
from tests.records import made
from tests.support import run, spiral

SHAPE = (1, 16, 16)  # of a picture


def task(algorithm, classes=100, width=512):
    """A task in which all clients have the network `plain`."""
    built = ALGORITHMS[algorithm].load()()
    names = tuple(f"class {k}" for k in range(classes))
    network = Recipe("plain", SHAPE, width, classes)
    shared = network if built.auxiliary or not built.heterogeneous else None
    return Task(algorithm=built, classes=names, feature_dim=width, rounds=2, seed=0, shared_network=shared)


def counts(clients, classes, held):
    """Give clients samples of so many classes in all, as evenly as can be, so that every class has an owner."""
    train = np.zeros((clients, classes), dtype=np.int64)
    train.flat[np.arange(held) * 7 % train.size] = 1  # 7 and the size have no common divisor
    assert np.count_nonzero(train) == held
    assert train.any(0).all()
    return train


@pytest.mark.parametrize(
    ("algorithm", "numbers"),
    [
        *((name, 1_495_552) for name in ("protonorm", "fedproto", "fedtgp", "fedorgp", "fedsaf")),
        ("feddistill", 292_100),
        ("fedsa", 2_519_552),
        ("fedhp", 2_048_000),
        ("fedre", 1_037_161),
        ("fedmd", 4_000_000),
        ("targets", 0),
    ],
)
def test_the_example_of_the_paper_by_hand(algorithm, numbers):
    """M = 20, K = 100, d = 512, Σ K_i = 921: prototypes (921 + 20 · 100)·512 = 1,495,552, logits (921 + 2000)·100.

    FedSA adds anchors down, 20 · 100 · 512; FedHP sends all rows both ways, 2 · 20 · 100 · 512; FedRE one vector and
    K_i weights up, 20 · 512 + 921, and a head down, 20 · (100 · 512 + 100); FedMD 2 · 20 · 1000 · 100 logits.
    """
    found = round_floats(task(algorithm), counts(20, 100, 921))
    assert found.up + found.down == numbers


def test_heads_models_and_generators_by_hand():
    """M = 3, K = 4, d = 5: a head has 5 · 4 + 4 = 24 numbers. FedGen's generator has q = 32 and h = 512:

    (32 + 4)·512 + 512 numbers of its first layer, 4 · 512 of batch norm with its statistics, (512 + 1)·5 of its second.
    """
    train, generator = np.eye(3, 4, dtype=np.int64), 36 * 512 + 5 * 512 + 513 * 5
    small = {name: round_floats(task(name, 4, 5), train) for name in ("lgfedavg", "fedgen", "fedgh", "local")}
    assert small["lgfedavg"] == Traffic(up=3 * 24, down=3 * 24)
    assert small["fedgen"] == Traffic(up=3 * 24, down=3 * (24 + generator))
    assert small["fedgh"] == Traffic(up=3 * 5, down=3 * 24)
    assert small["local"] == Traffic(up=0, down=0)


def test_whole_models_are_counted_with_the_statistics_of_batch_norm():
    """Without the count of batches, which is a whole number."""
    network = Recipe("plain", SHAPE, 5, 4)()
    weights = sum(value.numel() for value in network.state_dict().values() if value.is_floating_point())
    features = sum(value.numel() for value in network.features.state_dict().values() if value.is_floating_point())
    train = np.eye(3, 4, dtype=np.int64)
    for name in ("fedavg", "feduv", "fml", "fedkd", "fedmrl"):
        assert round_floats(task(name, 4, 5), train) == Traffic(up=3 * weights, down=3 * weights)
    up, down = 3 * (features + 1) + 3 * 5, 3 * (features + 1 + 4 * 5)
    assert round_floats(task("fednh", 4, 5), train) == Traffic(up=up, down=down)


def test_a_class_that_nobody_holds_is_not_sent_down():
    """Four classes, of which clients hold one and two: K_i·d = 5 and 10 up, K'·d = 10 down to each of two."""
    train = np.array([[3, 0, 0, 0], [1, 2, 0, 0]])
    assert round_floats(task("protonorm", 4, 5), train) == Traffic(up=15, down=20)
    assert round_floats(task("protonorm", 4, 5), train, cohort=[1]) == Traffic(up=10, down=10)


def test_formulas_are_written_in_the_symbols_of_the_schema():
    found = {name: formula(task(name, 4, 5)) for name in ALGORITHMS}
    assert found["protonorm"] == found["fedproto"] == ("K_i·d", "K'·d")
    assert found["fedtgp"] == ("K_i·d", "K·d")
    assert found["feddistill"] == ("K_i·K", "K'·K")
    assert found["fedavg"] == found["feduv"] == ("|model|", "|model|")
    assert found["fednh"] == ("|model.features| + 1 + K_i·d", "|model.features| + 1 + K·d")
    assert found["fedgen"] == ("K·d + K", "|generator| + K·d + K")
    assert found["fedgh"] == ("K_i·d", "K·d + K")
    assert found["fedre"] == ("K_i + d", "K·d + K")
    assert found["fedsa"] == ("K_i·d", "K·d + K'·d")
    assert found["fedmrl"] == ("|small|", "|small|")
    assert found["local"] == ("0", "0")
    assert group_sizes(task("fedgen", 4, 5)) == {"|generator|": 36 * 512 + 5 * 512 + 513 * 5}


def test_equal_terms_are_counted_and_whole_numbers_are_left_out():
    class Twice(Local):
        def schema(self, task):
            one, two = {"a": Field(("K_i", "d"))}, {"b": Field(("K_i", "d"))}
            return Schema(up=((one,), (two,), ({"n": Field((), torch.int64)},)), exact={"d": task.feature_dim})

    twice = Task(algorithm=Twice(), classes=("x", "y"), feature_dim=7, rounds=1, seed=0)
    assert formula(twice).up == "2·K_i·d"
    assert round_floats(twice, np.array([[1, 1]])) == Traffic(up=2 * 2 * 7, down=0)


def test_a_recorded_run_has_the_task_that_it_was_made_with(tmp_path):
    for name in ("fednh", "fedgen", "fml", "fedmrl"):
        experiment = spiral(algorithm=name, rounds=0)
        found, wanted = task_of(run(experiment, out=tmp_path).run), build(experiment)[0]
        assert found.schema == wanted.schema
        assert found.algorithm == wanted.algorithm


def test_a_users_own_method_or_network_is_refused(tmp_path):
    own = made(tmp_path / "a", method={"name": "protonorm_own_median:Median", "source": "ab"})
    with pytest.raises(ValueError, match="the user's own, protonorm_own_median:Median"):
        task_of(own)
    network = made(tmp_path / "b", method={"name": "fml"}, auxiliary={"name": "mine:net", "source": "ab"})
    with pytest.raises(ValueError, match="the user's own, mine:net"):
        task_of(network)
