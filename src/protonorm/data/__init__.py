"""The data sets, and the ways to assign samples to clients; these tables import neither."""

from protonorm.core.registry import Entry

DATASETS: dict[str, Entry] = {
    "fashion": Entry(
        "protonorm.data.fashion:Fashion",
        "Fashion-MNIST, 600 pictures of each class, inside the package",
        {"classes": "10", "size": "28×28×1", "samples": "6000", "models": "light", "licence": "MIT"},
    ),
    "spiral": Entry(
        "protonorm.data.spiral:Spiral",
        "six spiral arms in the plane, computed",
        {"classes": "6", "size": "2", "samples": "30000", "models": "mlp", "licence": "-"},
    ),
    "cifar10": Entry(
        "protonorm.data.published.datasets:CIFAR10",
        "small photographs; `protonorm data` prepares it",
        {"classes": "10", "size": "32×32×3", "samples": "60000", "models": "paper", "licence": "to be cited"},
    ),
    "cifar100": Entry(
        "protonorm.data.published.datasets:CIFAR100",
        "small photographs; `protonorm data` prepares it",
        {"classes": "100", "size": "32×32×3", "samples": "60000", "models": "paper", "licence": "to be cited"},
    ),
    "flowers102": Entry(
        "protonorm.data.published.datasets:Flowers102",
        "photographs of flowers; `protonorm data` prepares it",
        {"classes": "102", "size": "64×64×3", "samples": "8189", "models": "paper", "licence": "for research"},
    ),
    "tinyimagenet": Entry(
        "protonorm.data.published.datasets:TinyImageNet",
        "photographs of two hundred kinds of things; `protonorm data` prepares it",
        {"classes": "200", "size": "64×64×3", "samples": "100000", "models": "paper", "licence": "for research"},
    ),
    "fashion-mnist": Entry(
        "protonorm.data.published.datasets:FashionMNIST",
        "all of Fashion-MNIST; `protonorm data` prepares it",
        {"classes": "10", "size": "28×28×1", "samples": "70000", "models": "light", "licence": "MIT"},
    ),
    "mnist": Entry(
        "protonorm.data.published.datasets:MNIST",
        "handwritten digits; `protonorm data` prepares it",
        {"classes": "10", "size": "28×28×1", "samples": "70000", "models": "light", "licence": "CC BY-SA 3.0"},
    ),
    "folder": Entry(
        "protonorm.data.own.datasets:Folder",
        "folder:PATH, your own pictures in a folder for each class",
        {"models": "light"},
    ),
    "npz": Entry(
        "protonorm.data.own.datasets:Npz",
        "npz:PATH, your own pictures as arrays: images, labels, classes",
        {"models": "light"},
    ),
    "clients": Entry(
        "protonorm.data.own.datasets:Clients",
        "clients:PATH, data that clients own: a folder of class folders, or an npz file, for each",
        {"models": "light"},
    ),
    "array": Entry(
        "protonorm.data.own.tabular:Array",
        "array:PATH, your own vectors in an npz file: inputs or features, labels, classes",
        {"models": "tabular"},
    ),
    "table": Entry(
        "protonorm.data.own.tabular:Table",
        "table:PATH, a CSV file: dataset.label names the column of classes, dataset.text one of texts",
        {"models": "tabular"},
    ),
    "text": Entry(
        "protonorm.data.own.tabular:Text",
        "text:PATH, your own texts as numbers in an npz file: tokens, labels, classes",
        {"models": "text"},
    ),
    "hf": Entry(
        "protonorm.data.own.tabular:HuggingFace",
        "hf:PATH, a folder that Hugging Face datasets saved: pictures, vectors, tokens, texts or columns",
        {"models": "light"},
    ),
}

PARTITIONS: dict[str, Entry] = {
    "iid": Entry(
        "protonorm.data.partitions.base:IID",
        "the same mixture and the same number of samples for every client",
        {"settings": "seed"},
    ),
    "dirichlet": Entry(
        "protonorm.data.partitions.dirichlet:Dirichlet",
        "each class divided in Dirichlet shares: the paper's practical heterogeneity",
        {"settings": "alpha, least, retries, seed"},
    ),
    "pathological": Entry(
        "protonorm.data.partitions.pathological:Pathological",
        "a few classes for each client, in unequal numbers: the paper's pathological heterogeneity",
        {"settings": "classes_per_client, seed"},
    ),
}
