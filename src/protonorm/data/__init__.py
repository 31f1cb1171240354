"""Registries of datasets and partitions; importing them loads no implementation."""

from protonorm.core.registry import Entry


def _partition(name: str, summary: str, settings: str = "") -> Entry:
    return Entry(f"protonorm.data.{name}", summary, {"settings": f"{settings}, seed".lstrip(", ")})


_IID = "the same mixture and the same number of samples for every client"
_DIRICHLET = "each class divided in Dirichlet shares: the paper's practical heterogeneity"
_PATHOLOGICAL = "a few classes for each client, in unequal numbers: the paper's pathological heterogeneity"
_QUANTITY = "the same mixture for all, in unequal numbers"
_FEATURE = "all classes, from dark to light or along a column"
_NATURAL = "samples of one domain, writer or site, as the data's groups say"
_INDEX = "what a file says: positions for each client, or owners of samples"

PARTITIONS: dict[str, Entry] = {
    "iid": _partition("partitions:IID", _IID),
    "dirichlet": _partition("partitions:Dirichlet", _DIRICHLET, "alpha, least, retries"),
    "pathological": _partition("partitions:Pathological", _PATHOLOGICAL, "classes_per_client"),
    "quantity": _partition("assignments:Quantity", _QUANTITY, "alpha, least, retries"),
    "feature": _partition("assignments:Feature", _FEATURE, "strictness, column"),
    "natural": _partition("assignments:Natural", _NATURAL),
    "index": _partition("assignments:Index", _INDEX, "path"),
}


def _shipped(name: str, summary: str, classes: int, size: str, samples: int, models: str, licence: str) -> Entry:
    details = {"classes": str(classes), "size": size, "samples": str(samples), "models": models, "licence": licence}
    return Entry(f"protonorm.data.{name}", summary, details)


def _published(name: str, summary: str, classes: int, size: str, samples: int, models: str, licence: str) -> Entry:
    summary = f"{summary}; `protonorm data` prepares it"
    return _shipped(f"published.datasets:{name}", summary, classes, size, samples, models, licence)


def _own(name: str, summary: str, models: str) -> Entry:
    return Entry(f"protonorm.data.own.datasets:{name}", summary, {"models": models})


_FASHION = "Fashion-MNIST, 600 pictures of each class, inside the package"
_THINGS = "photographs of two hundred kinds of things"
_CLIENTS = "clients:PATH, data that clients own: a folder of class folders, or an npz file, for each"
_DOMAINS = "domains:PATH, several data sets as domains: laid out as those of clients, for partition=natural"
_PFLLIB = "pfllib:PATH, a partition that PFLlib or HtFLlib wrote: config.json, train/I.npz, test/I.npz"
_ARRAY = "array:PATH, your own vectors in an npz file: inputs or features, labels, classes"
_TABLE = "table:PATH, a CSV file: dataset.label names the column of classes, dataset.text one of texts"
_SAVED = "hf:PATH, a folder that Hugging Face datasets saved: pictures, vectors, tokens, texts or columns"

DATASETS: dict[str, Entry] = {
    "fashion": _shipped("builtin:Fashion", _FASHION, 10, "28×28×1", 6000, "light", "MIT"),
    "spiral": _shipped("builtin:Spiral", "six spiral arms in the plane, computed", 6, "2", 30000, "mlp", "-"),
    "cifar10": _published("CIFAR10", "small photographs", 10, "32×32×3", 60000, "paper", "to be cited"),
    "cifar100": _published("CIFAR100", "small photographs", 100, "32×32×3", 60000, "paper", "to be cited"),
    "flowers102": _published("Flowers102", "photographs of flowers", 102, "64×64×3", 8189, "paper", "for research"),
    "tinyimagenet": _published("TinyImageNet", _THINGS, 200, "64×64×3", 100000, "paper", "for research"),
    "fashion-mnist": _published("FashionMNIST", "all of Fashion-MNIST", 10, "28×28×1", 70000, "light", "MIT"),
    "mnist": _published("MNIST", "handwritten digits", 10, "28×28×1", 70000, "light", "CC BY-SA 3.0"),
    "folder": _own("Folder", "folder:PATH, your own pictures in a folder for each class", "light"),
    "npz": _own("Npz", "npz:PATH, your own pictures as arrays: images, labels, classes", "light"),
    "clients": _own("Clients", _CLIENTS, "light"),
    "domains": _own("Domains", _DOMAINS, "light"),
    "pfllib": _own("PFLlib", _PFLLIB, "light"),
    "array": _own("Array", _ARRAY, "tabular"),
    "table": _own("Table", _TABLE, "tabular"),
    "text": _own("Text", "text:PATH, your own texts as numbers in an npz file: tokens, labels, classes", "text"),
    "hf": _own("HuggingFace", _SAVED, "light"),
}
