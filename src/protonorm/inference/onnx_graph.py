"""A trained client as an ONNX graph, for programs that have neither protonorm nor torch. Needs protonorm[onnx]."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from protonorm.inference.info import ClientInfo
from protonorm.inference.module import ClientModule, differ, probe

NEEDED = ("onnx", "onnxscript", "onnxruntime")
INPUT = "inputs"
TRIED = (1, 5)  # numbers of inputs that the finished graph is tried with; it was made with two


class Outputs(nn.Module):
    """Give scores as a tuple, in the order of the rules: a graph's outputs have an order."""

    def __init__(self, module: ClientModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Score inputs."""
        return tuple(self.module(x).values())


def onnx_graph(info: ClientInfo, module: ClientModule) -> bytes:
    """Write the module as ONNX, and try it: `inputs` as stored to scores (n, K), an output for each rule."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise ValueError(f"ONNX needs {', '.join(missing)}, not installed here: pip install 'protonorm[onnx]'.")
    onnx: Any = import_module("onnx")
    try:
        with _quiet(), torch.no_grad():
            made: Any = torch.onnx.export(
                Outputs(module),
                (probe(info, 2),),
                input_names=[INPUT],
                output_names=list(module.rules),
                dynamic_shapes=({0: torch.export.Dim("n")},),
                dynamo=True,
                verbose=False,
            )
            graph = made.model_proto
    except Exception as error:  # whatever an exporter meets in a network
        said = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ValueError(f"The network {info.network_name} cannot be written as ONNX: {said}.") from error
    onnx.helper.set_model_props(graph, _properties(info))
    content: bytes = graph.SerializeToString()
    _try(content, info, module)
    return content


def _properties(info: ClientInfo) -> dict[str, str]:
    """Say in the file what its numbers mean."""
    return {
        "classes": json.dumps(info.classes),
        "rule": info.recommended.rule,
        "probability": info.recommended.probability,
        "preprocessing": json.dumps(info.preprocessing.model_dump(mode="json")),
        "client": info.name,
        "run": info.run,
        "round": str(info.round),
    }


@torch.no_grad()
def _try(content: bytes, info: ClientInfo, module: ClientModule) -> None:
    """Refuse a graph whose scores are not those of the module."""
    runtime: Any = import_module("onnxruntime")
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    for count in TRIED:
        x = probe(info, count)
        found = dict(zip(module.rules, map(torch.from_numpy, session.run(None, {INPUT: x.numpy()})), strict=True))
        if differ(found, module(x)):
            raise ValueError(
                f"The network {info.network_name} gives other scores as ONNX than here; it was not written."
            )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the exporter says of its own work to itself."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
