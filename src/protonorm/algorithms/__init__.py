"""Registry of the federated learning methods, imported on first use; methods of one family share a module."""

from protonorm.core.registry import Entry

# Class in the module of the same name, the clients' models, what is shared, and the paper.
_METHODS = {
    "protonorm": ("ProtoNorm", "any", "prototypes", "Lee et al., ICCV 2025"),
    "fedproto": ("FedProto", "any", "prototypes", "Tan et al., AAAI 2022"),
    "tinyproto": ("TinyProto", "any", "parts of prototypes", "Lee and Choi, AAAI 2026"),
    "fedavg": ("FedAvg", "one for all", "model", "McMahan et al., AISTATS 2017"),
    "fedprox": ("FedProx", "one for all", "model", "Li et al., MLSys 2020"),
    "ditto": ("Ditto", "one for all", "model", "Li et al., ICML 2021"),
    "moon": ("MOON", "one for all", "model", "Li et al., CVPR 2021"),
    "fpl": ("FPL", "one for all", "model, prototypes", "Huang et al., CVPR 2023"),
    "fedper": ("FedPer", "one for all", "features", "Arivazhagan et al., arXiv 2019"),
    "fedrep": ("FedRep", "one for all", "features", "Collins et al., ICML 2021"),
    "fedpac": ("FedPAC", "one for all", "features, prototypes, heads", "Xu et al., ICLR 2023"),
    "heterofl": ("HeteroFL", "one at several widths", "model", "Diao et al., ICLR 2021"),
    "fedrolex": ("FedRolex", "one at several widths", "model", "Alam et al., NeurIPS 2022"),
    "fjord": ("FjORD", "one at several widths", "model", "Horváth et al., NeurIPS 2021"),
    "fednh": ("FedNH", "one for all", "features, prototypes", "Dai et al., AAAI 2023"),
    "feduv": ("FedUV", "one for all", "model", "Son et al., CVPR 2024"),
    "fedtgp": ("FedTGP", "any", "prototypes", "Zhang et al., AAAI 2024"),
    "fedorgp": ("FedORGP", "any", "prototypes", "Guo et al., arXiv 2025"),
    "fedsa": ("FedSA", "any", "prototypes", "Zhou et al., AAAI 2025"),
    "fedsaf": ("FedSAF", "any", "prototypes", "arXiv 2605.05959, 2026"),
    "fedhp": ("FedHP", "any", "prototypes", "Fonio et al., ESANN 2024"),
    "feddistill": ("FedDistill", "any", "logits", "Jeong et al., NeurIPS workshop 2018"),
    "fedmd": ("FedMD", "any", "logits on public inputs", "Li and Wang, NeurIPS workshop 2019"),
    "fedl2g": ("FedL2G", "any", "guiding vectors", "Zhang et al., arXiv 2024"),
    "fedgh": ("FedGH", "any", "prototypes, head", "Yi et al., ACM MM 2023"),
    "fedre": ("FedRE", "any", "mixed prototypes, head", "arXiv 2511.22265, 2025"),
    "fedgen": ("FedGen", "any", "head, generator", "Zhu et al., ICML 2021"),
    "lgfedavg": ("LGFedAvg", "any", "head", "Liang et al., arXiv 2020"),
    "fml": ("FML", "any", "second network", "Shen et al., arXiv 2020"),
    "fedkd": ("FedKD", "any", "second network", "Wu et al., Nature Communications 2022"),
    "fedkwaz": ("FedKWAZ", "any", "means of features and logits", "NeurIPS 2025"),
    "fedmrl": ("FedMRL", "any", "second network", "Yi et al., NeurIPS 2024"),
    "duet": ("Duet", "any", "second network", "this project"),
    "afl": ("AFL", "any, frozen", "statistics of features", "He et al., CVPR 2025"),
    "fedcgs": ("FedCGS", "any, frozen", "statistics of features", "Guan et al., AAAI 2025"),
    "choir": ("Choir", "any, frozen", "statistics of features", "this project"),
    "targets": ("FixedTargets", "any", "nothing", "Li et al., ICCV 2023, and others"),
    "local": ("Local", "any", "nothing", "-"),
}

_SUMMARIES = {
    "protonorm": "prototypes, aligned by the server and upscaled by the clients",
    "fedproto": "prototypes, averaged by the server",
    "tinyproto": "a tenth of each prototype, at positions of its class, averaged by the server",
    "fedavg": "whole models, averaged by the server",
    "fedprox": "whole models, averaged by the server; clients stay near what they received",
    "ditto": "whole models, averaged by the server; each client has a personal model near the average",
    "moon": "whole models, averaged by the server; clients' features follow those of the received model",
    "fpl": "whole models, averaged by the server, and clusters of prototypes that features follow",
    "fedper": "feature extractors, averaged by the server, under heads of the clients' own",
    "fedrep": "feature extractors, averaged by the server; each client trains its own head first",
    "fedpac": "feature extractors and means of classes, averaged; each client mixes the heads of clients like itself",
    "heterofl": "one model at several widths: each client trains the first channels, the server averages what overlaps",
    "fedrolex": "one model at several widths: the channels that narrow clients train move on in every round",
    "fjord": "one model at several widths: clients train random widths up to their own, batch by batch",
    "fednh": "feature extractors, averaged, and one direction a class, moved by the server",
    "feduv": "whole models, kept varied and uniform by the clients' losses",
    "fedtgp": "prototypes, trained by the server to keep a margin",
    "fedorgp": "prototypes, trained by the server to be orthogonal to those of other classes",
    "fedsa": "prototypes, averaged by the server, and random anchors that hardly move",
    "fedsaf": "prototypes, averaged by the server; clients follow how these lie to each other, not where",
    "fedhp": "prototypes that the clients train in the place of a head, averaged by the server",
    "feddistill": "mean logits of each class, averaged by the server and taught to the clients",
    "fedmd": "logits on public inputs, averaged by the server and digested by the clients",
    "fedl2g": "vectors of each class that features or logits follow, learnt by the server from how they help",
    "fedgh": "prototypes, on which the server trains one head for all",
    "fedre": "one random mixture of each client's prototypes, on which the server trains one head for all",
    "fedgen": "heads, averaged by the server, and features from a generator that it trains",
    "lgfedavg": "heads, averaged by the server, on features of the client's own",
    "fml": "a second network that travels; it and the client's own teach each other",
    "fedkd": "a second network that travels in factors; it and the client's own teach each other",
    "fedkwaz": "means of features and logits of two networks on each client, which teach each other on mixed inputs",
    "fedmrl": "a small second network that travels; a projector joins its features with those of the client's own",
    "duet": "a small second network that travels; it and the client's own learn one feature space, and both answer",
    "afl": "second moments of frozen features, once, from which the server solves one ridge head for each trunk",
    "fedcgs": "second moments of frozen features, once, from which the server fits Gaussian classes",
    "choir": "second moments of frozen features, once; each client solves a ridge head that is drawn to the others'",
    "targets": "nothing: features go towards directions that all know; what an exchange of prototypes has to beat",
    "local": "every client trains alone: what federation has to beat",
}

# Module of a method, if that is not its name.
_MODULES = {
    **dict.fromkeys(("fedrolex", "fjord"), "heterofl"),
    **dict.fromkeys(("feduv", "fedprox", "ditto", "moon"), "fedavg"),
    **dict.fromkeys(("fedrep", "fedpac"), "fedper"),
    "tinyproto": "fedproto",
    "fedorgp": "fedtgp",
    "fedmd": "feddistill",
    "fedre": "fedgh",
    "fedgen": "lgfedavg",
    "fedkd": "fml",
    **dict.fromkeys(("afl", "fedcgs", "choir"), "analytic"),
}

ALGORITHMS: dict[str, Entry] = {
    name: Entry(
        f"protonorm.algorithms.{_MODULES.get(name, name)}:{cls}",
        _SUMMARIES[name],
        {"models": models, "shares": shares, "paper": paper},
    )
    for name, (cls, models, shares, paper) in _METHODS.items()
}

TITLES = {"lgfedavg": "LG-FedAvg", "targets": "Fixed targets"}  # where the class has another name


def display_name(name: str) -> str:
    """Return a method's name as its paper writes it: ProtoNorm for protonorm; other names are unchanged."""
    return TITLES.get(name) or (ALGORITHMS[name].target.split(":")[1] if name in ALGORITHMS else name)
