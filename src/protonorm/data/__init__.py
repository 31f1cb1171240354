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
