"""The clients of one actor: they act with states that rest on its node; each new state goes along with the reply."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from protonorm.core.task import Order
from protonorm.engines.host import Host
from protonorm.engines.processes.handover import rebuild
from protonorm.engines.processes.wire import tell_error
from protonorm.engines.ray.code import NodeCode
from protonorm.engines.ray.frames import pack, unpack
from protonorm.engines.ray.node_folder import ArrayFacts, NodeFolder
from protonorm.runs.states import FolderStore
from protonorm.tensors import Tensors


def open_player(content: bytes, node: NodeFolder, states: Path) -> tuple[Player | None, bytes]:
    """Build the simulation from what was told and from this node's arrays; say so, or what went wrong."""
    torch.set_num_threads(1)
    told, _, _ = unpack(content)
    code = NodeCode(node.folder / "code")
    try:
        arrays = {facts.name: node.open(facts) for facts in (ArrayFacts(*one) for one in told["arrays"])}
        task, population = rebuild(told, arrays, code.resolve)
        store = FolderStore(states, told["key"], told["cache"])
        return Player(Host(task, population, store), store, code), pack({"ready": True})
    except Exception as error:  # whatever it is, the driver must hear of it
        return None, pack(tell_error(error))


class Player:
    """What the driver can ask for."""

    def __init__(self, host: Host, store: FolderStore, code: NodeCode) -> None:
        self._host, self._store, self._code = host, store, code
        self._number = 0  # of the message that was heard last
        self._message: Tensors = {}

    def act(self, content: bytes, message: bytes) -> bytes:
        """Do what an order asks for, from the state that it names: asked twice, it gives the same twice."""
        header, own, state = unpack(content)
        if message and header["message"] != self._number:
            self._number, self._message = header["message"], unpack(message)[1]
        elif not header["own"] and header["message"] != self._number:
            return pack({"lacks": "message"})
        order = Order(*header["order"])
        if state:
            self._store.copy_in(order.id, order.trained, state)
        elif order.trained and not self._store.has(order.id, order.trained):
            return pack({"lacks": "state"})
        start = time.perf_counter()
        try:
            told, tensors, file = self._act(header, order, own if header["own"] else self._message)
        except Exception as error:  # whatever it is, the driver must hear of it
            said = tell_error(error)
            return pack(said | {"text": self._code.translate(said["text"])})
        return pack(told | {"seconds": time.perf_counter() - start}, tensors, file)

    def commit(self, content: bytes) -> None:
        """Drop what the committed round has replaced, and the states of clients that have gone elsewhere."""
        header, _, _ = unpack(content)
        self._host.commit(header["round"], set(header["replied"]))
        for id in header["gone"]:
            self._store.keep_only(id, 0)

    def _act(self, header: dict[str, Any], order: Order, message: Tensors) -> tuple[dict[str, Any], Tensors, bytes]:
        if header["verb"] == "train":
            reply = self._host.train(order, message)
            return {"metrics": dict(reply.metrics)}, reply.message, self._store.copy_out(order.id, order.round)
        return {}, self._host.evaluate(order, message, header["parts"]).counts, b""
