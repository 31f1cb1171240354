import math

import pytest
import torch
from torch.nn.functional import cosine_similarity

import protonorm as pn
from protonorm.algorithms.fpl import FPL, cluster, cluster_contrast
from protonorm.algorithms.parts.prototypes import class_means
from tests.algorithms.tasks import federation, first_batch_loss, server
from tests.contract.playing import same
from tests.support import spiral


@pytest.mark.parametrize("classes", [2, 5])
def test_the_contrast_of_orthogonal_clusters_by_hand(classes):
    """z ∝ c_y, one cluster for each class, the others orthogonal: log(1 + (K − 1) e^{−1/τ})."""
    clusters, y = torch.eye(classes), torch.arange(classes)
    found = cluster_contrast(3 * clusters, y, torch.arange(classes), clusters, 0.5)
    assert float(found) == pytest.approx(math.log(1 + (classes - 1) * math.exp(-2)), abs=1e-6)
    sharp = cluster_contrast(clusters.roll(1, 0), y, torch.arange(classes), clusters, 0.02)
    assert float(sharp) == pytest.approx(50, abs=1e-3)  # e⁵⁰ overflows nothing


def test_several_clusters_of_a_class_attract_together():
    """cos = 1, 0 and 0, of which the first two are the class's: −log((e² + 1)/(e² + 2)) for τ = ½."""
    z, clusters = torch.tensor([[2.0, 0.0, 0.0]]), torch.eye(3)
    found = cluster_contrast(z, torch.tensor([0]), torch.tensor([0, 0, 1]), clusters, 0.5)
    assert float(found) == pytest.approx(math.log((math.exp(2) + 2) / (math.exp(2) + 1)), abs=1e-6)


def test_a_class_without_a_cluster_adds_nothing_and_no_gradient():
    z = torch.randn(4, 3, requires_grad=True)
    y = torch.tensor([0, 1, 1, 0])
    loss = cluster_contrast(z, y, torch.tensor([1]), torch.randn(1, 3), 0.02)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0, abs=1e-5)  # class 1 has the only cluster
    assert not z.grad[[0, 3]].any()
    none = cluster_contrast(z, y, torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3), 0.02)
    assert float(none.detach()) == 0


def on_circle(degrees):
    angles = torch.tensor(degrees) * math.pi / 180
    return torch.stack([angles.cos(), angles.sin()], 1)


def test_vectors_join_their_nearest_again_and_again_but_never_all():
    """Class 0: pairs at 0°, 20°, 100° and 130°; the first two pairs join next, and the others; then all would.

    Class 1: three in a row of nearest neighbours are one cluster at once. Class 3: alone."""
    vectors = on_circle([0.0, 1.0, 20.0, 22.0, 100.0, 103.0, 130.0, 131.0, 0.0, 10.0, 15.0, 50.0])
    labels = torch.tensor([0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 3])
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    classes, means = cluster(labels[order], vectors[order], 4)
    found = {(int(k), *[round(float(x), 4) for x in mean]) for k, mean in zip(classes, means, strict=True)}
    groups = ((0, [0, 1, 2, 3]), (0, [4, 5, 6, 7]), (1, [8, 9, 10]), (3, [11]))
    assert found == {(k, *[round(float(x), 4) for x in vectors[rows].mean(0)]) for k, rows in groups}


def test_clusters_do_not_cross_classes_and_do_not_depend_on_length():
    """Two clients and two classes, all in one direction: the two of a class are each other's nearest."""
    vectors = torch.tensor([[1.0, 0.0], [1.0, 0.0], [5.0, 0.1], [5.0, 0.1]])
    classes, means = cluster(torch.tensor([0, 1, 0, 1]), vectors, 2)
    assert sorted(classes.tolist()) == [0, 1]
    torch.testing.assert_close(means, torch.tensor([[3.0, 0.05], [3.0, 0.05]]))
    vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.1], [1.0, 0.0]])  # the last is class 1's
    classes, means = cluster(torch.tensor([0, 0, 1, 1, 1]), vectors, 2)
    assert means[classes == 0].tolist() == [[0.5, 0.5]]
    empty, none = cluster(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 2), 3)
    assert (len(empty), none.shape) == (0, (0, 2))


def test_models_are_averaged_by_samples_and_prototypes_clustered():
    """(1·0 + 3·4)/4 = 3; of class 1 both clients' prototypes are one cluster, (2, 1)."""

    def reply(value, examples, classes, rows):
        return {"model.w": torch.tensor([value]), "num_examples": torch.tensor(examples),
                "classes": torch.tensor(classes), "prototypes": torch.tensor(rows)}  # fmt: skip

    replies = [reply(0.0, 1, [0, 1], [[1.0, 1.0], [1.0, 1.0]]), reply(4.0, 3, [1], [[3.0, 1.0]])]
    step = FPL().aggregate(server(), {}, iter(replies))
    assert step.state.keys() == {"model.w"}
    assert step.message["model.w"].tolist() == [3.0]
    found = zip(step.message["cluster_classes"].tolist(), step.message["clusters"].tolist(), strict=True)
    assert sorted(found) == [(0, [1.0, 1.0]), (1, [2.0, 1.0])]


def test_the_loss_of_a_batch_by_hand():
    """CE, the contrast, and the mean squared distance to the mean of the class's clusters; class 3 has none."""
    random = torch.Generator().manual_seed(1)
    clusters, classes = torch.randn(5, 2, generator=random), torch.tensor([0, 1, 1, 2, 5])
    method = FPL(tau=0.5)
    first = federation(method, batch_size=4096, lr=1e-12, rounds=1).started()[2]
    loss, ce, z, y = first_batch_loss(method, first | {"cluster_classes": classes, "clusters": clusters})
    model_ce, total = ce, 0.0
    del model_ce
    client, state, _ = federation(method, batch_size=4096, lr=1e-12, rounds=1).started()
    model = client.load(state | first).train()
    x, y = client.train.batch(torch.arange(len(client.train)))
    with torch.no_grad():
        z = model.features(x)
        total = float(torch.nn.functional.cross_entropy(model.head(z), y))
        for one, label in zip(z, y, strict=True):
            if label in classes:
                e = (cosine_similarity(one.unsqueeze(0), clusters) / 0.5).exp()
                total -= float((e[classes == label].sum() / e.sum()).log()) / len(y)
                total += float((one - clusters[classes == label].mean(0)).square().mean()) / len(y)
    assert loss == pytest.approx(total, rel=1e-4)


def test_before_the_first_aggregate_it_trains_as_fedavg(tmp_path):
    sent = []
    for method in (pn.FedAvg(), FPL()):
        client, state, message = federation(method).started()
        torch.manual_seed(0)
        sent.append({k: v for k, v in method.local_update(client, state, message).message.items() if "model" in k})
    assert same(*sent)
    assert spiral(algorithm="fpl").algorithm == FPL()


def test_prototypes_are_those_of_the_trained_model():
    method = FPL()
    client, state, message = federation(method).started()
    step = method.local_update(client, state, message)
    model, own = client.load(step.state), step.message
    assert same({name: own[name] for name in ("classes", "prototypes")}, class_means(client, model))
