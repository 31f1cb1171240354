"""The paper's networks: their sizes, their features at any width, and what those can be."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from protonorm.models import FAMILIES, MODELS
from protonorm.models.split import Cut

# Parameters without the decision layer, at 3×32×32. By hand for ResNet-8: stem 3·64·49 + 128 = 9536; block of 64
# 2·(64·64·9 + 128) = 73984; of 128: 64·128·9 + 128·128·9 + 64·128 + 3·256 = 230144; of 256: 128·256·9 + 256·256·9
# + 128·256 + 3·512 = 919040; together 1232704. The CNN: 2432 + 51264 + 1600·512 + 512 = 873408.
BASES = {
    "resnet8": 1_232_704,
    "mobilenet_v2": 2_223_872,
    "shufflenet_v2": 1_253_604,
    "efficientnet_b0": 4_007_548,
    "resnet18": 11_176_512,
    "cnn4": 873_408,
}
WIDTHS = {
    "resnet8": 256,
    "mobilenet_v2": 1280,
    "shufflenet_v2": 1024,
    "efficientnet_b0": 1280,
    "resnet18": 512,
    "cnn4": 512,
}


def build(name, shape=(3, 32, 32), feature_dim=512, num_classes=10):
    torch.manual_seed(0)
    return MODELS[name].load()(shape, feature_dim, num_classes)


def parameters(module):
    return sum(weight.numel() for weight in module.parameters())


def pictures(count, shape=(3, 32, 32)):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))


def linear(head):
    return next(layer for layer in head.modules() if isinstance(layer, nn.Linear))


def test_families():
    assert FAMILIES["paper"].models == ("resnet8", "mobilenet_v2", "shufflenet_v2", "efficientnet_b0")
    assert FAMILIES["cnn"].models == ("cnn4",)
    assert FAMILIES["resnet18"].models == ("resnet18",)
    assert {FAMILIES[name].feature_dim for name in ("paper", "cnn", "resnet18")} == {512}


@pytest.mark.parametrize("name", BASES)
def test_size_and_features_of_any_width(name):
    """The pool has no parameters, so that d changes nothing but the head."""
    model = build(name, num_classes=7)
    assert parameters(model.features) == BASES[name]
    assert parameters(model.head) == 512 * 7 + 7
    base, cut = model.features
    assert cut.width == WIDTHS[name]
    with torch.no_grad():
        wide = base(pictures(4))
    assert wide.shape == (4, WIDTHS[name])
    for feature_dim in (2, 64, 512, 1024):
        assert Cut("fc", cut.width, feature_dim)(wide).shape == (4, feature_dim)
    assert model(pictures(4)).shape == (4, 7)


@pytest.mark.parametrize("feature_dim", [2, 64, 1024])
def test_other_widths_are_built(feature_dim):
    model = build("resnet8", feature_dim=feature_dim)
    assert model.features(pictures(2)).shape == (2, feature_dim)
    assert linear(model.head).in_features == feature_dim


@pytest.mark.parametrize(("name", "shape"), [(name, (1, 28, 28)) for name in BASES] + [("cnn4", (3, 64, 64))])
def test_other_pictures_train(name, shape):
    """One channel, and sides that are no multiple of 32: every weight gets a gradient from a batch of two."""
    model = build(name, shape, feature_dim=64)
    cross_entropy(model(pictures(2, shape)), torch.tensor([0, 1])).backward()
    for weight in model.parameters():
        assert weight.grad is not None
        assert weight.grad.isfinite().all()


def test_one_channel_leaves_the_rest_as_it_is():
    """A stem for one channel has a third of the weights, spread as those for three."""
    one, three = build("mobilenet_v2", (1, 32, 32)), build("mobilenet_v2")
    stems = [next(layer for layer in model.modules() if isinstance(layer, nn.Conv2d)) for model in (one, three)]
    assert parameters(three) - parameters(one) == 2 * 32 * 9
    spreads = [stem.weight.std().item() for stem in stems]
    assert spreads[0] == pytest.approx(spreads[1], rel=0.2)


@pytest.mark.parametrize(("side", "count"), [(16, 64), (32, 1600), (64, 10816), (28, 1024)])
def test_the_cnn_takes_any_side(side, count):
    """Each convolution takes 4 pixels of a side, each pooling halves it: 32 to 28, 14, 10, 5, and 64 · 5 · 5 = 1600."""
    model = build("cnn4", (3, side, side))
    assert next(layer for layer in model.features.modules() if isinstance(layer, nn.Linear)).in_features == count
    assert model(pictures(2, (3, side, side))).shape == (2, 10)


def test_the_cnn_at_64():
    assert parameters(build("cnn4", (3, 64, 64)).features) == 5_592_000


def test_resnet8_gives_every_feature_twice():
    """256 features become 512: z[2k] = z[2k+1]."""
    z = build("resnet8").eval().features(pictures(4))
    assert torch.equal(z[:, 0::2], z[:, 1::2])
    assert z[:, 0::2].unique(dim=1).shape[1] > 200


def test_resnet8_on_paper():
    """32×32 ends in maps of 2×2, one block a stage."""
    base = build("resnet8").features[0]
    maps = base[:-2](pictures(2))
    assert maps.shape == (2, 256, 2, 2)
    assert sum(type(layer).__name__ == "Block" for layer in base) == 3


def test_the_windows_of_the_cut():
    """Output i averages inputs floor(iL/d) to ceil((i+1)L/d) − 1: 1280 to 512 in overlapping triples."""
    x = torch.randn(3, 1280, dtype=torch.float64)
    z = Cut("fc", 1280, 512)(x)
    for i in (0, 1, 2, 255, 511):
        start, end = i * 1280 // 512, -(-(i + 1) * 1280 // 512)
        assert end - start == 3
        assert torch.allclose(z[:, i], x[:, start:end].mean(1))
    assert torch.equal(Cut("fc", 512, 512)(x[:, :512]), x[:, :512])
    assert repr(Cut("fc", 1280, 512)) == "Cut('fc', 1280 -> 512)"


@pytest.mark.parametrize("name", ["resnet8", "mobilenet_v2", "shufflenet_v2", "resnet18", "cnn4"])
def test_features_behind_relu_are_never_negative(name):
    with torch.no_grad():
        z = build(name).features(pictures(8))
    assert z.min() >= 0
    assert z.max() > 0


def test_features_behind_silu_can_be():
    with torch.no_grad():
        z = build("efficientnet_b0").features(pictures(8))
    assert -0.279 < z.min() < 0  # SiLU's minimum is −0.2785


def test_where_the_dropout_is():
    """MobileNetV2's stays in the base, before the pool; EfficientNet's is the head's, and leaves the features alone."""
    model = build("mobilenet_v2")
    assert any(isinstance(layer, nn.Dropout) for layer in model.features.modules())
    assert isinstance(model.head, nn.Linear)
    model = build("efficientnet_b0")
    assert [type(layer) for layer in model.head] == [nn.Dropout, nn.Linear]
    assert not any(isinstance(layer, nn.Dropout) for layer in model.features.modules())
    z = torch.ones(4, 512)
    model.train().head(z)
    assert torch.equal(z, torch.ones(4, 512))


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("shape", [(2,), (3, 8, 32)])
def test_other_shapes_are_refused(name, shape):
    with pytest.raises(ValueError, match="takes pictures"):
        build(name, shape)


@pytest.mark.parametrize("name", ["resnet8", "shufflenet_v2"])
def test_same_seed_same_weights(name):
    one, same = build(name).state_dict(), build(name).state_dict()
    assert all(torch.equal(one[key], same[key]) for key in one)
