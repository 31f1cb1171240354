"""Write docs/communication.md: what each method sends in a round, by formula and as measured from the messages."""

import tempfile
from pathlib import Path

import protonorm as pn
from protonorm.algorithms import ALGORITHMS
from protonorm.communication import FORMULAS, sizes
from protonorm.setup import Setup

PAGE = Path(__file__).parent.parent / "docs" / "communication.md"
SETTINGS = {"dataset": "fashion", "models": "plain", "clients": 20, "rounds": 2}

HEAD = """# Communication

What a round sends, up and down together, over all clients: the floating numbers by the formula of the paper's table
(M clients, K classes, d features, K_i classes in client i's training part, |θ| features, |φ| head, |w| = |θ| + |φ|),
and as counted from the messages of the second round of

```bash
protonorm run algorithm=… dataset=fashion models=plain clients=20 rounds=2
```

that is with K = {classes}, d = {width}, Σ K_i = {held}, |θ| = {features:,}, |φ| = {head:,}. *Other bytes* are class
numbers, counts and the like. Batch norm's statistics are counted in |θ|; the paper's formulas leave them out. Every
line of a run's `metrics.jsonl` has these counts (`floats`, `bytes`). `tools/communication_table.py` writes this page.

| method | formula | numbers by formula | numbers measured | bytes measured | of these other bytes |
|---|---|---|---|---|---|
"""

FOOT = """
FedKD's formula stands at r = 1; its real r follows from the ranks and is in each round's record as `server.ratio`.
A layer is sent in factors only where that is shorter.
With participation below one, only the round's cohort counts.
"""


def main() -> None:
    """Run two rounds of every method and write the page."""
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ALGORITHMS:
            experiment = pn.Experiment.of(SETTINGS | {"algorithm": name})
            last = pn.run(experiment, out=folder).history[-1]
            found, formula = sizes(Setup(experiment)), FORMULAS[name]
            floats, octets = sum(last["floats"].values()), sum(last["bytes"].values())
            cells = [formula.up(found) + formula.down(found), floats, octets, octets - 4 * floats]
            text = formula.text.replace("|", "\\|")
            lines.append(f"| {name} | {text} | " + " | ".join(f"{number:,}" for number in cells) + " |")
    PAGE.write_text(HEAD.format(**found._asdict()) + "\n".join(lines) + "\n" + FOOT, encoding="utf-8")


main()
