"""Speed as ratios: everything that is compared runs side by side in one call.

Each module has `measure(notify) -> dict` of plain data, and `table(result) -> rows` for terminal and documentation.
"""

BENCHMARKS = {
    "rounds": "whole rounds against a bare loop in torch and against the usual way",
    "alignment": "every alignment method against Algorithm 1 written with K×K×d differences",
    "server": "the server's part of a round, ProtoNorm against FedTGP, from 20 to 1,000 clients",
    "workers": "whole rounds with one and with two worker processes",
    "engines": "whole rounds on every engine: serial, two worker processes, two actors of Ray",
    "scale": "rounds, memory and disk with 20 to 10,000 clients, of whom 20 take part in a round",
    "trunks": "frozen trunks: features of all pictures, a second start, and rounds on features and on pictures",
    "commits": "the commit of a round, the first and the last of 2,000",
    "fold": "the messages of a thousand to a million clients through ProtoNorm's aggregate",
    "masks": "secure sums: what a client computes in a round, by its steps, with 5 to 100 members",
    "capacity": "what one server can take in, and align, from ten to 100,000 classes",
    "sweep": "a sweep of twelve small runs, side by side and one after the other",
    "deployment": "a round over the network with four clients, against Flower's own processes",
    "attacks": "lying clients against each rule of combination, by the accuracy of the honest ones",
    "tune": "a search for γ against a grid of twelve values with twice the rounds",
}
