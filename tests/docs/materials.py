"""Files that pages speak of as the reader's own: pictures, tables and texts that anybody may have, made small.

A page asks for them by a comment above the block, `files: FORM NAME WORDS`, such as `files: folder flowers rose tulip`.
"""

import numpy as np
from PIL import Image

PICTURES = 24  # of each class: enough for the usual twenty clients where there are several classes
ROWS = 240


def make(text, folder):
    """Make what a comment asks for; refuse what it cannot mean."""
    form, name, *words = text.split()
    assert form in FORMS, f"files: {form} is none of {', '.join(FORMS)}"
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    FORMS[form](path, *words)
    return name.partition("/")[0]  # what the page must speak of


def picture(path, shade=0):
    noise = np.random.default_rng(len(path.name)).integers(0, 60, (32, 32, 3))
    Image.fromarray((noise + shade).astype(np.uint8)).save(path)


def pictures(path, count="3"):
    """A folder of pictures without classes."""
    path.mkdir()
    for number in range(int(count)):
        picture(path / f"{number}.png")


def bad_picture(path):
    path.write_bytes(b"no picture")


def folder(path, *classes, count=PICTURES):
    """A folder of class folders, each class with a brightness of its own."""
    for shade, name in enumerate(classes):
        (path / name).mkdir(parents=True)
        for number in range(count):
            picture(path / name / f"{number:0{1 + shade}}.png", 190 * shade // max(len(classes) - 1, 1))


def clients(path, *names):
    """A folder for each client, with two classes in it."""
    for name in names:
        folder(path / name, "benign", "malignant", count=12)


def table(path, label):
    """A table with a column of numbers that tells the class, one of words, and the class."""
    random = np.random.default_rng(0)
    classes = random.integers(0, 2, ROWS)
    rows = [f"{2 * k + random.normal():.3f},{random.choice(['a', 'b'])},{('no', 'yes')[k]}" for k in classes]
    path.write_text("\n".join([f"first,second,{label}", *rows]) + "\n", encoding="utf-8")


def texts(path, text, label):
    """A table with a column of texts, and of their classes."""
    rows = [f"{('bad', 'good')[k % 2]} number {k},{k % 2}" for k in range(ROWS)]
    path.write_text("\n".join([f"{text},{label}", *rows]) + "\n", encoding="utf-8")


def tokens(path):
    random = np.random.default_rng(0)
    np.savez(path, tokens=random.integers(1, 50, (ROWS, 8)), labels=random.integers(0, 3, ROWS))


def vectors(path):
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, ROWS)
    np.savez(path, inputs=(random.normal(size=(ROWS, 5)) + labels[:, None]).astype(np.float32), labels=labels)


def transformer(path):
    """A vision transformer for small pictures, with random weights, as transformers saves it."""
    import transformers

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8)
    transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(path)


def saved_pictures(path):
    """What `save_to_disk` writes of pictures with their labels."""
    import datasets

    shades = [Image.fromarray(np.full((32, 32, 3), 20 + 200 * (n % 2) + n % 30, np.uint8)) for n in range(ROWS)]
    rows = {"image": shades, "label": [n % 2 for n in range(ROWS)]}
    datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image()).save_to_disk(str(path))


def saved_texts(path, text, label):
    import datasets

    rows = {text: [f"{('bad', 'good')[n % 2]} number {n}" for n in range(ROWS)], label: [n % 2 for n in range(ROWS)]}
    datasets.Dataset.from_dict(rows).save_to_disk(str(path))


def weights(path, network):
    """Weights of one of torchvision's networks, as its state; random ones, where a reader has downloaded them."""
    from safetensors.torch import save_file

    from protonorm.models.libraries import torchvision

    save_file(torchvision().models.get_model(network).state_dict(), path)


FORMS = {
    "picture": picture,
    "pictures": pictures,
    "bad-picture": bad_picture,
    "folder": folder,
    "clients": clients,
    "table": table,
    "texts": texts,
    "tokens": tokens,
    "vectors": vectors,
    "hf-pictures": saved_pictures,
    "hf-texts": saved_texts,
    "transformer": transformer,
    "weights": weights,
}
