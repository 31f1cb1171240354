"""Flower's node protocol as a web application, and nothing of its others; and keys as Flower writes them."""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from fastapi import FastAPI, HTTPException, Request, Response
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PushMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.error import http_error_translator
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.superlink.dependencies.linkstate import get_linkstate
from flwr.superlink.routers.fleet.router import router
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint

from protonorm.deployment.flower.envelope import MOST_OBJECTS
from protonorm.deployment.flower.gate import KEY


def application(factory: LinkStateFactory) -> FastAPI:
    """Put Flower's node protocol together, and nothing of its others."""
    chain = [
        Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
        Middleware(ProtobufTranslationMiddleware),
        Middleware(BaseHTTPMiddleware, dispatch=_own_number_only),
        Middleware(BaseHTTPMiddleware, dispatch=_own_answers_only),
    ]
    made = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, middleware=chain)
    made.state.linkstate_factory = factory
    made.state.enable_supernode_auth = True
    made.include_router(router)
    return made


async def _own_number_only(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Refuse a node's number that does not belong to the key of the request, which the gate has checked already.

    Flower's own check reads the clock once more, when all of a request is there: that may be minutes later.
    """
    found: Any = getattr(request.state, "protobuf_request", None)
    key = request.scope[KEY]
    if isinstance(found, ActivateNodeRequest):
        fits = found.public_key == key
    else:
        numbered: Any = found if isinstance(found, DeactivateNodeRequest) else getattr(found, "node", Node())
        fits = get_linkstate(request).get_node_id_by_public_key(key) == numbered.node_id
    if not fits:
        raise HTTPException(401, "Invalid SuperNode authentication")
    return await call_next(request)


async def _own_answers_only(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Refuse an answer in another client's name, which Flower would take, and one of more parts than ours have."""
    found = getattr(request.state, "protobuf_request", None)
    if isinstance(found, PushMessagesRequest):
        senders = {one.metadata.src_node_id for one in found.messages_list}
        parts = sum(1 for tree in found.message_object_trees for _ in iterate_object_tree(tree))
        if senders != {found.node.node_id} or len(found.messages_list) != 1 or parts > MOST_OBJECTS:
            raise HTTPException(401, "An answer comes from the client that was asked, and in one piece.")
    return await call_next(request)


def key_bytes(line: str) -> bytes:
    """Write a public key as Flower does."""
    key = load_ssh_public_key(line.encode())
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return public_key_to_bytes(key)
