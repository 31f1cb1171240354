"""Registry of the federated learning methods; each is in its own module, imported on first use."""

from protonorm.core.registry import Entry

ALGORITHMS: dict[str, Entry] = {
    "protonorm": Entry(
        "protonorm.algorithms.protonorm:ProtoNorm",
        "prototypes, aligned by the server and upscaled by the clients",
        {"models": "any", "shares": "prototypes", "paper": "Lee et al., ICCV 2025"},
    ),
    "fedproto": Entry(
        "protonorm.algorithms.fedproto:FedProto",
        "prototypes, averaged by the server",
        {"models": "any", "shares": "prototypes", "paper": "Tan et al., AAAI 2022"},
    ),
    "fedavg": Entry(
        "protonorm.algorithms.fedavg:FedAvg",
        "whole models, averaged by the server",
        {"models": "one for all", "shares": "model", "paper": "McMahan et al., AISTATS 2017"},
    ),
    "heterofl": Entry(
        "protonorm.algorithms.heterofl:HeteroFL",
        "one model at several widths: each client trains the first channels, the server averages what overlaps",
        {"models": "one at several widths", "shares": "model", "paper": "Diao et al., ICLR 2021"},
    ),
    "fedrolex": Entry(
        "protonorm.algorithms.fedrolex:FedRolex",
        "one model at several widths: the channels that narrow clients train move on in every round",
        {"models": "one at several widths", "shares": "model", "paper": "Alam et al., NeurIPS 2022"},
    ),
    "fjord": Entry(
        "protonorm.algorithms.fjord:FjORD",
        "one model at several widths: clients train random widths up to their own, batch by batch",
        {"models": "one at several widths", "shares": "model", "paper": "Horváth et al., NeurIPS 2021"},
    ),
    "fednh": Entry(
        "protonorm.algorithms.fednh:FedNH",
        "feature extractors, averaged, and one direction a class, moved by the server",
        {"models": "one for all", "shares": "features, prototypes", "paper": "Dai et al., AAAI 2023"},
    ),
    "feduv": Entry(
        "protonorm.algorithms.feduv:FedUV",
        "whole models, kept varied and uniform by the clients' losses",
        {"models": "one for all", "shares": "model", "paper": "Son et al., CVPR 2024"},
    ),
    "fedtgp": Entry(
        "protonorm.algorithms.fedtgp:FedTGP",
        "prototypes, trained by the server to keep a margin",
        {"models": "any", "shares": "prototypes", "paper": "Zhang et al., AAAI 2024"},
    ),
    "fedorgp": Entry(
        "protonorm.algorithms.fedorgp:FedORGP",
        "prototypes, trained by the server to be orthogonal to those of other classes",
        {"models": "any", "shares": "prototypes", "paper": "Guo et al., arXiv 2025"},
    ),
    "fedsa": Entry(
        "protonorm.algorithms.fedsa:FedSA",
        "prototypes, averaged by the server, and random anchors that hardly move",
        {"models": "any", "shares": "prototypes", "paper": "Zhou et al., AAAI 2025"},
    ),
    "fedsaf": Entry(
        "protonorm.algorithms.fedsaf:FedSAF",
        "prototypes, averaged by the server; clients follow how these lie to each other, not where",
        {"models": "any", "shares": "prototypes", "paper": "arXiv 2605.05959, 2026"},
    ),
    "fedhp": Entry(
        "protonorm.algorithms.fedhp:FedHP",
        "prototypes that the clients train in the place of a head, averaged by the server",
        {"models": "any", "shares": "prototypes", "paper": "Fonio et al., ESANN 2024"},
    ),
    "feddistill": Entry(
        "protonorm.algorithms.feddistill:FedDistill",
        "mean logits of each class, averaged by the server and taught to the clients",
        {"models": "any", "shares": "logits", "paper": "Jeong et al., NeurIPS workshop 2018"},
    ),
    "fedmd": Entry(
        "protonorm.algorithms.fedmd:FedMD",
        "logits on public inputs, averaged by the server and digested by the clients",
        {"models": "any", "shares": "logits on public inputs", "paper": "Li and Wang, NeurIPS workshop 2019"},
    ),
    "fedgh": Entry(
        "protonorm.algorithms.fedgh:FedGH",
        "prototypes, on which the server trains one head for all",
        {"models": "any", "shares": "prototypes, head", "paper": "Yi et al., ACM MM 2023"},
    ),
    "fedre": Entry(
        "protonorm.algorithms.fedre:FedRE",
        "one random mixture of each client's prototypes, on which the server trains one head for all",
        {"models": "any", "shares": "mixed prototypes, head", "paper": "arXiv 2511.22265, 2025"},
    ),
    "fedgen": Entry(
        "protonorm.algorithms.fedgen:FedGen",
        "heads, averaged by the server, and features from a generator that it trains",
        {"models": "any", "shares": "head, generator", "paper": "Zhu et al., ICML 2021"},
    ),
    "lgfedavg": Entry(
        "protonorm.algorithms.lgfedavg:LGFedAvg",
        "heads, averaged by the server, on features of the client's own",
        {"models": "any", "shares": "head", "paper": "Liang et al., arXiv 2020"},
    ),
    "fml": Entry(
        "protonorm.algorithms.fml:FML",
        "a second network that travels; it and the client's own teach each other",
        {"models": "any", "shares": "second network", "paper": "Shen et al., arXiv 2020"},
    ),
    "fedkd": Entry(
        "protonorm.algorithms.fedkd:FedKD",
        "a second network that travels in factors; it and the client's own teach each other",
        {"models": "any", "shares": "second network", "paper": "Wu et al., Nature Communications 2022"},
    ),
    "fedmrl": Entry(
        "protonorm.algorithms.fedmrl:FedMRL",
        "a small second network that travels; a projector joins its features with those of the client's own",
        {"models": "any", "shares": "second network", "paper": "Yi et al., NeurIPS 2024"},
    ),
    "duet": Entry(
        "protonorm.algorithms.duet:Duet",
        "a small second network that travels; it and the client's own learn one feature space, and both answer",
        {"models": "any", "shares": "second network", "paper": "this project"},
    ),
    "targets": Entry(
        "protonorm.algorithms.targets:FixedTargets",
        "nothing: features go towards directions that all know; what an exchange of prototypes has to beat",
        {"models": "any", "shares": "nothing", "paper": "Li et al., ICCV 2023, and others"},
    ),
    "local": Entry(
        "protonorm.algorithms.local:Local",
        "every client trains alone: what federation has to beat",
        {"models": "any", "shares": "nothing", "paper": "-"},
    ),
}

TITLES = {
    "lgfedavg": "LG-FedAvg",
    "targets": "Fixed targets",
}  # where the class has another name


def display_name(name: str) -> str:
    """Return a method's name as its paper writes it: ProtoNorm for protonorm; other names are unchanged."""
    return TITLES.get(name) or (ALGORITHMS[name].target.split(":")[1] if name in ALGORITHMS else name)
