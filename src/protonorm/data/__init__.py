"""The data sets and the ways to deal them out; these tables are also the tables of contents, and import neither."""

from protonorm.registry import Entry

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
        "protonorm.data.published:CIFAR10",
        "small photographs; `protonorm data` prepares it",
        {"classes": "10", "size": "32×32×3", "samples": "60000", "models": "paper", "licence": "to be cited"},
    ),
    "cifar100": Entry(
        "protonorm.data.published:CIFAR100",
        "small photographs; `protonorm data` prepares it",
        {"classes": "100", "size": "32×32×3", "samples": "60000", "models": "paper", "licence": "to be cited"},
    ),
    "flowers102": Entry(
        "protonorm.data.published:Flowers102",
        "photographs of flowers; `protonorm data` prepares it",
        {"classes": "102", "size": "64×64×3", "samples": "8189", "models": "paper", "licence": "for research"},
    ),
    "tinyimagenet": Entry(
        "protonorm.data.published:TinyImageNet",
        "photographs of two hundred kinds of things; `protonorm data` prepares it",
        {"classes": "200", "size": "64×64×3", "samples": "100000", "models": "paper", "licence": "for research"},
    ),
    "fashion-mnist": Entry(
        "protonorm.data.published:FashionMNIST",
        "all of Fashion-MNIST; `protonorm data` prepares it",
        {"classes": "10", "size": "28×28×1", "samples": "70000", "models": "light", "licence": "MIT"},
    ),
    "mnist": Entry(
        "protonorm.data.published:MNIST",
        "handwritten digits; `protonorm data` prepares it",
        {"classes": "10", "size": "28×28×1", "samples": "70000", "models": "light", "licence": "CC BY-SA 3.0"},
    ),
    "folder": Entry(
        "protonorm.data.own:Folder",
        "folder:PATH, your own pictures, a folder for each class",
        {"models": "light"},
    ),
    "npz": Entry(
        "protonorm.data.own:Npz",
        "npz:PATH, your own pictures as arrays: images, labels, classes",
        {"models": "light"},
    ),
    "clients": Entry(
        "protonorm.data.own:Clients",
        "clients:PATH, data dealt out already: a folder of class folders, or an npz file, for each client",
        {"models": "light"},
    ),
}

PARTITIONS: dict[str, Entry] = {
    "iid": Entry(
        "protonorm.data.partition:IID",
        "every client the same mixture and the same number of samples",
        {"settings": "seed"},
    ),
    "dirichlet": Entry(
        "protonorm.data.dirichlet:Dirichlet",
        "each class in Dirichlet shares: the paper's practical heterogeneity",
        {"settings": "alpha, least, retries, seed"},
    ),
    "pathological": Entry(
        "protonorm.data.pathological:Pathological",
        "a few classes to each client, in unequal numbers: the paper's pathological heterogeneity",
        {"settings": "classes_per_client, seed"},
    ),
}
