"""The methods: one file each; this table is also the table of contents. Listing it imports none of them."""

from protonorm.registry import Entry

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
    "local": Entry(
        "protonorm.algorithms.local:Local",
        "every client trains alone: what federation has to beat",
        {"models": "any", "shares": "nothing", "paper": "-"},
    ),
}
