"""Write docs/communication.md: what each method sends in a round, by its schema and as counted from the messages."""

import tempfile
from pathlib import Path

import numpy as np
from experiments.reproduction.communication import formula, group_sizes, round_floats

import protonorm as pn
from protonorm.algorithms import ALGORITHMS
from protonorm.session.build import build

PAGE = Path(__file__).parent.parent / "docs" / "communication.md"
FROZEN = ("afl", "fedcgs", "choir")  # their networks have frozen trunks
SETTINGS = {"dataset": "fashion", "models": "plain", "clients": 20, "rounds": 2}

HEAD = """# Communication

The floating numbers that client i sends (*up*) and is sent (*down*) in a round follow from a method's `schema`. K are
the classes, d the features, K_i the classes in client i's training part, K' those that anybody has to train on; |…| are
the numbers of a network or of a part of it, batch norm's statistics counted, which the formulas of papers leave out.

The *numbers by schema* are those of a round in which everybody takes part and the server knows all K' classes, up and
down together over all clients. The *numbers measured* were counted from the messages of the second round of

<!-- test: algorithm=fedproto dataset.samples=200 clients=4 -->
```bash
protonorm run algorithm=… dataset=fashion models=plain clients=20 rounds=2
```

that is with K = K' = {classes}, d = {width}, Σ K_i = {held} and
{sizes}.
*Other bytes* are class numbers, counts and the like. Every line of a run's `metrics.jsonl` has these counts (`floats`,
`bytes`). `tools/communication_table.py` writes this page.

| method | up | down | numbers by schema | numbers measured | bytes measured | of these other bytes |
|---|---|---|---|---|---|---|
"""

FOOT = """
FedKD's numbers by schema are a bound: those of the whole student, r = 1. A matrix travels in factors where that is
shorter, with ranks that depend on training: `floats.up` and `floats.down` in each round's record say how much.
`server.ratio` is the r of what the server publishes after a round, which goes down in the next one.

HeteroFL, FedRolex and FjORD send parameters alone, the smaller |model|: batch norm's statistics stay with the client.
Narrower clients, as with `models=plain@1,0.5`, send less up, and the numbers by schema are a bound. FedMRL's small
network has 128 features. With `gamma=auto` ProtoNorm's server sends one number more to each client.

TinyProto's s are the positions of a class. C are FPL's clusters, counted as if no two prototypes were in one.
FedPAC's N are the clients of a round. FedL2G's K_i are the classes of one batch, counted as if it had all of a
client's classes. FedKWAZ's are those of the full batches of training.

AFL, FedCGS and Choir send statistics of frozen features, once: P(P + 1)/2 + P·K numbers for each trunk, P = D + 1, and
are sent a head of P·K, or Choir the sums.
"""


def main() -> None:
    """Run two rounds of every method and write the page."""
    lines: list[str] = []
    groups: dict[int, dict[str, None]] = {}  # names of the groups of each size
    with tempfile.TemporaryDirectory() as folder:
        for name in (name for name in ALGORITHMS if name not in FROZEN):
            experiment = pn.Experiment.of(SETTINGS | {"algorithm": name})
            last = pn.run(experiment, out=folder).run.rounds[-1]
            task, population = build(experiment)
            train = population.facts().train
            for group, size in group_sizes(task).items():
                groups.setdefault(size, {})[group] = None
            counted, written = round_floats(task, train), formula(task)
            floats, octets = last.floats.up + last.floats.down, last.bytes.up + last.bytes.down
            numbers = [counted.up + counted.down, floats, octets, octets - 4 * floats]
            cells = [name, *(text.replace("|", "\\|") for text in written), *(f"{number:,}" for number in numbers)]
            lines.append(f"| {' | '.join(cells)} |")
    head = HEAD.format(
        classes=task.num_classes,
        width=task.feature_dim,
        held=int(np.count_nonzero(train)),
        sizes=", ".join(f"{' = '.join(names)} = {size:,}" for size, names in groups.items() if size > 1),
    )
    PAGE.write_text(head + "\n".join(lines) + "\n" + FOOT, encoding="utf-8")


main()
