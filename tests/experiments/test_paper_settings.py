"""What the files of `experiments` run, against the settings of the paper, typed by hand from its text.

Nothing here is computed from the files that it checks. Sources are section 5.1 ("20 clients, each participating in all
300 communication rounds", "learning rate of 0.01, batch size of 32, and one local epoch", "75% for training", "d =
512", "momentum coefficient μ=0.9 and learning rate η=0.1 with 95% decay every 10 iterations", "λ=1 as in FedProto",
"γ values of 100, 200, 200, and 400 for CIFAR-10, CIFAR-100, Flowers-102 and Tiny ImageNet", "three separate runs"),
the headings of tables 1 to 5, section 3.2 for the spiral, and the supplement's table of hyper-parameters.

Two things the paper does not say. How many classes a client has in the pathological setting: 2 of CIFAR-10 is that of
the authors' program, 10 of CIFAR-100 and 20 of Tiny ImageNet are those of PFLlib, which it is built on. And which
setting tables 4 and 5 use: their numbers at γ = 200, 400 and 1.0 are those of table 1's practical setting.
"""

import pytest
from experiments.reproduction.cells import find_studies
from experiments.reproduction.profiles import PROFILES, PROTOCOLS

from protonorm.config.components import registered_name
from protonorm.config.experiment import Experiment
from protonorm.config.kinds import bundled
from protonorm.models.choose import networks

# column | data set | split | α | classes a client | networks | d | clients | rounds | γ of ProtoNorm
COLUMNS = {
    "table1": """
        Pathological setting: CIFAR-10           | cifar10      | pathological | -   | 2  | four | 512 | 20 | 300 | 100
        Pathological setting: CIFAR-100          | cifar100     | pathological | -   | 10 | four | 512 | 20 | 300 | 200
        Pathological setting: Tiny ImageNet      | tinyimagenet | pathological | -   | 20 | four | 512 | 20 | 300 | 400
        Practical setting (α=0.1): CIFAR-10      | cifar10      | dirichlet    | 0.1 | -  | four | 512 | 20 | 300 | 100
        Practical setting (α=0.1): CIFAR-100     | cifar100     | dirichlet    | 0.1 | -  | four | 512 | 20 | 300 | 200
        Practical setting (α=0.1): Flowers-102   | flowers102   | dirichlet    | 0.1 | -  | four | 512 | 20 | 300 | 200
        Practical setting (α=0.1): Tiny ImageNet | tinyimagenet | dirichlet    | 0.1 | -  | four | 512 | 20 | 300 | 400
    """,
    "table2": """
        Data heterogeneity (α): 0.01  | cifar100 | dirichlet | 0.01 | - | four | 512  | 20  | 300 | 200
        Data heterogeneity (α): 0.5   | cifar100 | dirichlet | 0.5  | - | four | 512  | 20  | 300 | 200
        Data heterogeneity (α): 1.0   | cifar100 | dirichlet | 1.0  | - | four | 512  | 20  | 300 | 200
        Decision layer dim. (d): 64   | cifar100 | dirichlet | 0.1  | - | four | 64   | 20  | 300 | 200
        Decision layer dim. (d): 1024 | cifar100 | dirichlet | 0.1  | - | four | 1024 | 20  | 300 | 200
        Number of clients (M): 50     | cifar100 | dirichlet | 0.1  | - | four | 512  | 50  | 300 | 200
        Number of clients (M): 100    | cifar100 | dirichlet | 0.1  | - | four | 512  | 100 | 300 | 200
    """,
    "table3": """
        4-layer CNN: CIFAR-100     | cifar100     | dirichlet | 0.1 | - | CNN       | 512 | 20 | 300 | 200
        4-layer CNN: Flowers-102   | flowers102   | dirichlet | 0.1 | - | CNN       | 512 | 20 | 300 | 200
        4-layer CNN: Tiny ImageNet | tinyimagenet | dirichlet | 0.1 | - | CNN       | 512 | 20 | 300 | 400
        ResNet-18: CIFAR-100       | cifar100     | dirichlet | 0.1 | - | ResNet-18 | 512 | 20 | 300 | 200
        ResNet-18: Flowers-102     | flowers102   | dirichlet | 0.1 | - | ResNet-18 | 512 | 20 | 300 | 200
        ResNet-18: Tiny ImageNet   | tinyimagenet | dirichlet | 0.1 | - | ResNet-18 | 512 | 20 | 300 | 400
    """,
}

# Tables 4 and 5, whose columns are values of γ: table, row | data set | method | the values; the practical setting.
ROWS = """
table4, CIFAR-100           | cifar100     | protonorm | 1 200 400 600 800 1000
table4, Flowers-102         | flowers102   | protonorm | 1 200 400 600 800 1000
table4, Tiny ImageNet       | tinyimagenet | protonorm | 1 200 400 600 800 1000
table5, CIFAR-10, FedProto  | cifar10      | fedproto  | 1.0 1.1 1.2 1.3 1.4
table5, CIFAR-10, FedTGP    | cifar10      | fedtgp    | 1.0 1.1 1.2 1.3 1.4
table5, CIFAR-100, FedProto | cifar100     | fedproto  | 1.0 1.1 1.2 1.3 1.4
table5, CIFAR-100, FedTGP   | cifar100     | fedtgp    | 1.0 1.1 1.2 1.3 1.4
"""

METHODS = {  # rows of tables 1 to 3, and what the paper says of each; γ is 1 where nothing is scaled
    "LG-FedAvg": ("lgfedavg", {}),
    "FML": ("fml", {"alpha": 0.5, "beta": 0.5}),
    "FedKD": ("fedkd", {"t_start": 0.95, "t_end": 0.98}),
    "FedDistill": ("feddistill", {"lam": 1}),  # the supplement calls it γ, the weight of the logit regulariser
    "FedProto": ("fedproto", {"lam": 1, "gamma": 1}),
    "FedTGP": ("fedtgp", {"lam": 1, "gamma": 1}),
    "FedNH": ("fednh", {"rho": 0.9}),
    "FedUV": ("feduv", {"mu": 2.5, "lam": 0.5}),
    "ProtoNorm": ("protonorm", {"lam": 1, "upscaling": True, "alignment": "paper"}),  # γ is in COLUMNS
    "Local": ("local", {}),  # not in the paper
    "FedAvg": ("fedavg", {}),  # nor this
}
BESIDE = {"table1": ("Local",), "table2": ("Local",), "table3": ("Local", "FedAvg")}
PRINTED = {
    "table1": ("LG-FedAvg", "FML", "FedKD", "FedDistill", "FedProto", "FedTGP", "ProtoNorm"),
    "table2": ("LG-FedAvg", "FML", "FedKD", "FedDistill", "FedProto", "FedTGP", "ProtoNorm"),
    "table3": ("FedNH", "FedUV", "ProtoNorm"),
}
NETWORKS = {
    "four": {"resnet8", "efficientnet_b0", "shufflenet_v2", "mobilenet_v2"},
    "CNN": {"cnn4"},
    "ResNet-18": {"resnet18"},
}
TRAINING = {"participation": 1.0, "epochs": 1, "batch_size": 32, "lr": 0.01, "train": 0.75, "validation": 0.0}
ALIGNMENT = {"mu": 0.9, "eta": 0.1, "decay": 0.95, "decay_every": 10, "patience": 10}

STUDIES = {study.name: study for study in find_studies(["all"])}


def lines(text):
    return [[part.strip() for part in line.split("|")] for line in text.strip().splitlines()]


def printed_cells():
    """List every cell of tables 1 to 5 as the literal tables have it: study, row, column, setting, method, fields."""
    for study, text in COLUMNS.items():
        for column, *setting, gamma in lines(text):
            for row in (*PRINTED[study], *BESIDE[study]):
                method, fields = METHODS[row]
                more = {"gamma": float(gamma)} if method == "protonorm" else {}
                yield study, row, column, setting, method, fields | more
    for place, dataset, method, gammas in lines(ROWS):
        study, row = place.split(", ", 1)
        setting = [dataset, "dirichlet", "0.1", "-", "four", "512", "20", "300"]
        for gamma in gammas.split():
            yield study, row, f"Scaling factor (γ): {gamma}", setting, method, {"lam": 1, "gamma": float(gamma)}


def experiments(study):
    """Make the experiments of a study as printed."""
    return {
        cell.place: Experiment.of(STUDIES[study].settings(cell, PROFILES["paper"], PROTOCOLS["paper"], 0))
        for cell in STUDIES[study].cells
    }


def setting_of(experiment):
    """Write an experiment's setting as a line of COLUMNS has it, with its networks as a set."""
    split = registered_name("partition", experiment.partition)
    alpha = str(experiment.partition.alpha) if split == "dirichlet" else "-"
    classes = str(experiment.partition.classes_per_client) if split == "pathological" else "-"
    numbers = [str(one) for one in (experiment.feature_dim, experiment.clients, experiment.rounds)]
    return [registered_name("dataset", experiment.dataset), split, alpha, classes,
            set(networks(experiment.models)), *numbers]  # fmt: skip


def assert_as_printed(experiment, setting, method, fields):
    wanted = [*setting[:4], NETWORKS[setting[4]], *setting[5:]]
    assert setting_of(experiment) == wanted
    assert experiment.dataset.samples is None  # all of them
    assert registered_name("algorithm", experiment.algorithm) == method
    assert {name: getattr(experiment.algorithm, name) for name in fields} == fields
    assert {name: getattr(experiment, name) for name in TRAINING} == TRAINING
    if method == "protonorm":
        assert {name: getattr(experiment.algorithm.schedule, name) for name in ALIGNMENT} == ALIGNMENT


@pytest.mark.parametrize("study", ["table1", "table2", "table3", "table4", "table5"])
def test_every_cell_of_a_table_is_run_as_the_paper_says(study):
    found = experiments(study)
    wanted = {(row, column): rest for name, row, column, *rest in printed_cells() if name == study}
    assert found.keys() == wanted.keys()
    for place, (setting, method, fields) in wanted.items():
        assert_as_printed(found[place], setting, method, fields)


def test_the_literal_tables_have_as_many_cells_as_the_paper_prints():
    """7 methods in 7 columns, twice; 3 methods in 6 columns; 3 rows of 6 values of γ; 4 rows of 5."""
    counts = dict.fromkeys(("table1", "table2", "table3", "table4", "table5"), 0)
    for study, row, *_ in printed_cells():
        counts[study] += row not in BESIDE.get(study, ())
    assert counts == {"table1": 49, "table2": 49, "table3": 18, "table4": 18, "table5": 20}


def test_numbers_are_averages_over_three_distinct_seeds():
    assert len(set(PROFILES["paper"].seeds)) == 3


FIGURES = """
convergence, CIFAR-10, d=64, ProtoNorm   | cifar10  | protonorm | 64  | 100
convergence, CIFAR-10, d=512, ProtoNorm  | cifar10  | protonorm | 512 | 100
convergence, CIFAR-100, d=64, ProtoNorm  | cifar100 | protonorm | 64  | 200
convergence, CIFAR-100, d=512, ProtoNorm | cifar100 | protonorm | 512 | 200
distances, CIFAR-10, ProtoNorm           | cifar10  | protonorm | 512 | 100
distances, CIFAR-100, ProtoNorm          | cifar100 | protonorm | 512 | 200
margins, FedProto, CIFAR-10              | cifar10  | fedproto  | 512 | 1
margins, FedTGP, CIFAR-10                | cifar10  | fedtgp    | 512 | 1
margins, ProtoNorm, CIFAR-10             | cifar10  | protonorm | 512 | 100
margins, FedProto, CIFAR-100             | cifar100 | fedproto  | 512 | 1
margins, FedTGP, CIFAR-100               | cifar100 | fedtgp    | 512 | 1
margins, ProtoNorm, CIFAR-100            | cifar100 | protonorm | 512 | 200
"""


@pytest.mark.parametrize("study", ["convergence", "distances", "margins"])
def test_figures_of_training_are_run_as_the_paper_says(study):
    """The practical setting; widths and data sets as the captions and section 5.4 name them, where they do."""
    found = {f"{study}, {row}, {column}": one for (row, column), one in experiments(study).items()}
    wanted = {place: rest for place, *rest in lines(FIGURES) if place.startswith(study)}
    assert found.keys() == wanted.keys()
    for place, (dataset, method, width, gamma) in wanted.items():
        setting = [dataset, "dirichlet", "0.1", "-", "four", width, "20", "300"]
        assert_as_printed(found[place], setting, method, {"lam": 1, "gamma": float(gamma)})


# row | method | split | α | γ | start; λ = 0.5 is in the names of two of the supplement's pictures
SPIRAL = """
FedProto (IID)                       | fedproto  | iid       | -   | 1  | equal
FedProto (non-IID)                   | fedproto  | dirichlet | 0.1 | 1  | equal
ProtoNorm (non-IID, γ=1)             | protonorm | dirichlet | 0.1 | 1  | equal
ProtoNorm (non-IID, γ=10)            | protonorm | dirichlet | 0.1 | 10 | equal
FedProto (IID), own start            | fedproto  | iid       | -   | 1  | own
FedProto (non-IID), own start        | fedproto  | dirichlet | 0.1 | 1  | own
ProtoNorm (non-IID, γ=1), own start  | protonorm | dirichlet | 0.1 | 1  | own
ProtoNorm (non-IID, γ=10), own start | protonorm | dirichlet | 0.1 | 10 | own
"""


@pytest.mark.parametrize(("study", "shown"), [("spiral", slice(8)), ("spiral_clients", slice(2, 4))])
def test_the_spiral_is_run_as_the_paper_says(study, shown):
    """Section 3.2: six classes with 5000 points each, a 5-layer perceptron with d = 2, 10 clients, 200 rounds."""
    found = experiments(study)
    wanted = {(row, "spiral"): rest for row, *rest in lines(SPIRAL)[shown]}
    assert found.keys() == wanted.keys()
    for place, (method, split, alpha, gamma, start) in wanted.items():
        one = found[place]
        assert one.start == start
        assert setting_of(one) == ["spiral", split, alpha, "-", {"mlp"}, "2", "10", "200"]
        assert one.dataset.points == 5000
        assert (registered_name("algorithm", one.algorithm), one.algorithm.lam) == (method, 0.5)
        assert one.algorithm.gamma == float(gamma)


def test_partitions_are_those_of_the_supplement():
    """C.3: CIFAR-10 and CIFAR-100, four values of α, 20 clients; nothing is trained."""
    found = {place: setting_of(one) for place, one in experiments("partitions").items()}
    assert found == {
        (row, f"α={alpha}"): [dataset, "dirichlet", number, "-", NETWORKS["four"], "512", "20", "0"]
        for row, dataset in (("CIFAR-10", "cifar10"), ("CIFAR-100", "cifar100"))
        for alpha, number in (("0.01", "0.01"), ("0.1", "0.1"), ("0.5", "0.5"), ("1", "1.0"))
    }


def test_hyper_parameters_are_those_of_the_supplement():
    """C.1, each printed value and our default."""
    (table,) = STUDIES["hyperparameters"].tables(None)
    found = [(row, entries[0].text.split(" (")[0], entries[1].text, entries[2].text) for row, entries in table.rows]
    assert found == [
        ("FML", "α", "0.5", "0.5"),
        ("FML", "β", "0.5", "0.5"),
        ("FedKD", "T start", "0.95", "0.95"),
        ("FedKD", "T end", "0.98", "0.98"),
        ("FedDistill", "γ", "1", "1"),
        ("FedNH", "ρ", "0.9", "0.9"),
        ("FedUV", "μ", "2.5", "2.5"),
        ("FedUV", "λ", "0.5", "0.5"),
    ]


def test_formulas_of_communication_are_those_of_the_supplement():
    """D, with PBFL approaches and FedNH and FedUV written out; M, K, d and |w_i| are a table's, so that 2 rounds do."""
    formulas = bundled("experiments").communication.FORMULAS
    assert formulas == {
        "FedNH": "Σ |w_i|·2",
        "FedUV": "Σ |w_i|·2",
        "LG-FedAvg": "Σ |φ_i|·2",
        "FML": "M·(|θ_aux| + |φ_aux|)·2",
        "FedKD": "M·(|θ_aux| + |φ_aux|)·2·r",
        "FedDistill": "Σ (K_i + K)·K",
        "FedProto": "Σ (K_i + K)·d",
        "FedTGP": "Σ (K_i + K)·d",
        "ProtoNorm": "Σ (K_i + K)·d",
    }
    found = {place: setting_of(one) for place, one in experiments("communication").items()}
    setting = ["cifar100", "dirichlet", "0.1", "-", {"cnn4"}, "512", "20", "2"]
    assert found == {(row, "second round"): setting for row in formulas}
