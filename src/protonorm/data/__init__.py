"""Registries of datasets and partitions; importing them loads no implementation."""

from protonorm.core.registry import Entry

_PREPARED = "`protonorm data` prepares it"
_PHOTOGRAPHS = f"small photographs; {_PREPARED}"
_FLOWERS = f"photographs of flowers; {_PREPARED}"
_THINGS = f"photographs of two hundred kinds of things; {_PREPARED}"
_CLIENTS = "clients:PATH, data that clients own: a folder of class folders, or an npz file, for each"
_TABLE = "table:PATH, a CSV file: dataset.label names the column of classes, dataset.text one of texts"
_SAVED = "hf:PATH, a folder that Hugging Face datasets saved: pictures, vectors, tokens, texts or columns"

PARTITIONS: dict[str, Entry] = {
    "iid": Entry(
        "protonorm.data.partitions:IID",
        "the same mixture and the same number of samples for every client",
        {"settings": "seed"},
    ),
    "dirichlet": Entry(
        "protonorm.data.partitions:Dirichlet",
        "each class divided in Dirichlet shares: the paper's practical heterogeneity",
        {"settings": "alpha, least, retries, seed"},
    ),
    "pathological": Entry(
        "protonorm.data.partitions:Pathological",
        "a few classes for each client, in unequal numbers: the paper's pathological heterogeneity",
        {"settings": "classes_per_client, seed"},
    ),
}


def _published(name: str, summary: str, classes: int, size: str, samples: int, models: str, licence: str) -> Entry:
    details = {"classes": str(classes), "size": size, "samples": str(samples), "models": models, "licence": licence}
    return Entry(f"protonorm.data.{name}", summary, details)


def _own(name: str, summary: str, models: str) -> Entry:
    return Entry(f"protonorm.data.own.datasets:{name}", summary, {"models": models})


DATASETS: dict[str, Entry] = {
    "fashion": _published(
        "builtin:Fashion",
        "Fashion-MNIST, 600 pictures of each class, inside the package",
        *(10, "28×28×1", 6000, "light", "MIT"),
    ),
    "spiral": _published("builtin:Spiral", "six spiral arms in the plane, computed", 6, "2", 30000, "mlp", "-"),
    "cifar10": _published("published.datasets:CIFAR10", _PHOTOGRAPHS, 10, "32×32×3", 60000, "paper", "to be cited"),
    "cifar100": _published("published.datasets:CIFAR100", _PHOTOGRAPHS, 100, "32×32×3", 60000, "paper", "to be cited"),
    "flowers102": _published("published.datasets:Flowers102", _FLOWERS, 102, "64×64×3", 8189, "paper", "for research"),
    "tinyimagenet": _published(
        "published.datasets:TinyImageNet", _THINGS, 200, "64×64×3", 100000, "paper", "for research"
    ),
    "fashion-mnist": _published(
        "published.datasets:FashionMNIST", f"all of Fashion-MNIST; {_PREPARED}", 10, "28×28×1", 70000, "light", "MIT"
    ),
    "mnist": _published(
        "published.datasets:MNIST", f"handwritten digits; {_PREPARED}", 10, "28×28×1", 70000, "light", "CC BY-SA 3.0"
    ),
    "folder": _own("Folder", "folder:PATH, your own pictures in a folder for each class", "light"),
    "npz": _own("Npz", "npz:PATH, your own pictures as arrays: images, labels, classes", "light"),
    "clients": _own("Clients", _CLIENTS, "light"),
    "array": _own(
        "Array", "array:PATH, your own vectors in an npz file: inputs or features, labels, classes", "tabular"
    ),
    "table": _own("Table", _TABLE, "tabular"),
    "text": _own("Text", "text:PATH, your own texts as numbers in an npz file: tokens, labels, classes", "text"),
    "hf": _own("HuggingFace", _SAVED, "light"),
}
