"""Speed as ratios: everything that is compared runs side by side in one call.

Each module has `measure(tell) -> dict` of plain data, and `table(found) -> rows` for terminal and documentation.
"""

BENCHMARKS = {
    "rounds": "whole rounds against a bare loop in torch and against the usual way",
    "alignment": "every alignment method against Algorithm 1 written with K×K×d differences",
    "server": "the server's part of a round, ProtoNorm against FedTGP, from 20 to 1,000 clients",
    "workers": "whole rounds with one and with two worker processes",
    "sweep": "a sweep of twelve small runs, side by side and one after the other",
    "tune": "a search for γ against a grid of twelve values with twice the rounds",
}
