"""Users' own files with something wrong in them: the file, the words that name it, and what the sentence must hold."""

METHOD = """
from dataclasses import dataclass

import protonorm as pn


@dataclass(frozen=True)
class Inner:
    eta: float = 0.5


@dataclass(frozen=True)
class Mine(pn.Algorithm):
    mu: float = 1.0
    inner: Inner = Inner()

    def schema(self, task):
        return pn.Schema()

    def local_update(self, client, state, message):
        return pn.Step(dict(state), {})

    def aggregate(self, server, state, replies):
        list(replies)
        return pn.Step({}, {})
"""

DATA = """
from dataclasses import dataclass

import numpy as np

import protonorm as pn


@dataclass(frozen=True)
class Rings:
    points: int = 30

    def load(self):
        labels = np.repeat(np.arange(3), self.points)
        return pn.Dataset("rings", np.zeros((len(labels), 2), np.float32), labels, ("a", "b", "c"))
"""

NETWORK = """
from torch import nn


def small(shape, feature_dim, num_classes):
    return nn.Sequential(nn.Linear(shape[0], 8), nn.ReLU(), nn.Linear(8, num_classes))
"""

SHARES = """
class Shares:
    seed = 1

    def assign(self, labels):
        return []
"""

MINE, RINGS, NET = "algorithm=own.py:Mine", "dataset=own.py:Rings", "models=own.py:small"

OWN = {
    "an unknown setting of a method": (
        METHOD,
        [MINE, "algorithm.nu=2"],
        "'algorithm.nu'; did you mean 'mu'? Known: inner, mu.",
    ),
    "a setting of something else": (METHOD, [MINE, "algorithm.gamma=2"], "has no setting 'algorithm.gamma'; "),
    "an unknown setting inside": (METHOD, [MINE, "algorithm.inner.etta=2"], "did you mean 'inner.eta'?"),
    "a wrong value of a bare setting": (METHOD, [MINE, "mu=much"], "algorithm.mu must "),
    "a wrong value": (METHOD, [MINE, "algorithm.mu=much"], "algorithm.mu must "),
    "a typo in a method's name": (METHOD, ["algorithm=own.py:Mein"], "has no algorithm 'Mein'; did you mean 'Mine'?"),
    "no name": (METHOD, ["algorithm=own.py:"], "has no algorithm ''; known: Inner, Mine."),
    "a method that lacks a function": (
        METHOD.replace("def aggregate", "def aggregat"),
        [MINE],
        "own.py:Mine is not an algorithm yet: it lacks aggregate(server, state, replies).",
    ),
    "a method with other arguments": (
        METHOD.replace("client, state, message", "client"),
        [MINE],
        "own.py, line 20: local_update(client) has other arguments than expected: local_update(client, state, mess",
    ),
    "a method that is no algorithm": (
        METHOD.replace("(pn.Algorithm)", ""),
        [MINE],
        "expected a name or an object of pn.Algorithm",
    ),
    "a method with a strange type": (
        METHOD.replace("mu: float", "mu: pn.Client"),
        [MINE, "algorithm.mu=2"],
        "must have fields that are numbers, texts, true or false, or lists",
    ),
    "an object that is given settings": (
        f"{METHOD}\nmine = Mine()\n",
        ["algorithm=own.py:mine", "algorithm.mu=2"],
        "not a class, so that it takes no settings",
    ),
    "an unknown setting of data": (
        DATA,
        [RINGS, "dataset.nope=3"],
        "dataset own.py:Rings has no setting 'dataset.nope'; known: points.",
    ),
    "data that need a setting": (
        DATA.replace(" = 30", ""),
        [RINGS],
        "dataset own.py:Rings needs the setting dataset.points.",
    ),
    "data whose load takes more": (
        DATA.replace("load(self)", "load(self, split)"),
        [RINGS],
        "own.py, line 13: load(split) has other arguments than expected: load().",
    ),
    "data without load": (
        DATA.replace("def load", "def read"),
        [RINGS],
        "is not a dataset: expected a name, or an object with load()",
    ),
    "data that are None": (
        DATA.replace("return pn.Dataset", "pn.Dataset"),
        [RINGS],
        "load() of Rings gives a NoneType; expected a pn.Dataset.",
    ),
    "data that fail when they are made": (
        f"{DATA}\n    def __post_init__(self):\n        {{}}['colour']\n",
        [RINGS],
        "own.py, line 18: KeyError: 'colour'.",
    ),
    "data of a plain class with settings": (
        "class Rings:\n    def __init__(self):\n        self.points = 3\n\n    def load(self):\n        pass\n",
        [RINGS],
        "Rings holds points, but is no dataclass",
    ),
    "settings of a plain class": (
        "class Rings:\n    def load(self):\n        pass\n",
        [RINGS, "dataset.points=3"],
        "'dataset.points'; it has none. Settings are the fields of a dataclass, and it is none.",
    ),
    "a partition with other arguments": (
        SHARES,
        ["partition=own.py:Shares"],
        "own.py, line 5: assign(labels) has other arguments than expected: assign(labels, clients).",
    ),
    "a partition without a seed": (
        SHARES.replace("seed = 1", "sed = 1").replace("labels)", "labels, clients)"),
        ["partition=own.py:Shares"],
        "Shares is not a partition yet: it lacks the setting seed",
    ),
    "a typo in a network's name": (
        NETWORK,
        ["models=own.py:smal"],
        "has no network 'smal'; did you mean 'small'? Known: small.",
    ),
    "a typo beside imported networks": (
        "from torch.nn import Linear, ReLU\n",
        ["models=own.py:smal"],
        "has no network 'smal'; known: Linear, ReLU.",
    ),
    "a file with nothing in it": ("x = 3\n", [NET], "has no network 'small'; it defines no function and no class."),
    "a network with other arguments": (
        NETWORK.replace("feature_dim, num_classes)", "classes)"),
        [NET],
        "own.py, line 5: small(shape, classes) has other arguments than expected: small(shape, feature_dim, num_c",
    ),
    "a network that cannot be made": (
        NETWORK.replace("shape[0], 8", "width, 8"),
        [NET],
        "The network own.py:small cannot be made for samples of shape (2,): ",
    ),
    "a network that is none": (NETWORK.replace("return", "x ="), [NET], "own.py:small gives a NoneType; expected"),
    "a network that does not fit": (
        NETWORK.replace("shape[0], 8", "77, 8"),
        [NET],
        "does not take samples of shape (2,): ",
    ),
    "a network that is a number": ("small = 3\n", [NET], "3 is neither a network's name nor a function"),
    "a syntax error": ("x = 1\ndef small(:\n", [NET], "own.py, line 2: this is not valid Python: invalid syntax."),
    "a library that is not there": (
        "import no_such_library\n",
        [NET],
        "own.py, line 1: it imports 'no_such_library', which is not installed.",
    ),
    "a name that a library lacks": (
        "from math import tau, taw\n",
        [NET],
        "own.py, line 1: it imports what is not there: ",
    ),
    "a neighbour": ("\nimport beside\n", [NET], "own.py, line 2: it imports 'beside', which lies beside it"),
    "a mistake at the top": (
        "x = 1\ny = x + z\n",
        [NET],
        "own.py, line 2: it fails when it is imported: NameError: name 'z' is not defined.",
    ),
    "an end of the program": (
        "import sys\nsys.exit(1)\n",
        [NET],
        "own.py, line 2: it ends the program when it is imported",
    ),
    "a file that is not text": ("\0", [NET], "this is not valid Python"),
}

RUNNING = {
    "a mistake while training": (
        METHOD.replace("return pn.Step(dict(state), {})", "return state['nothing']"),
        [MINE],
        "own.py, line 21, in local_update: KeyError: 'nothing'. PROTONORM_DEBUG=1 shows how it came there.",
    ),
    "a wrong value while training": (
        METHOD.replace("return pn.Step(dict(state), {})", "a, b = [1]"),
        [MINE],
        "own.py, line 21, in local_update: not enough values to unpack",
    ),
    "a mistake while data are loaded": (
        DATA.replace("labels = np", "labels = nq"),
        [RINGS],
        "own.py, line 14, in load: NameError: ",
    ),
}
