"""Why a client cannot speak with the server: what Flower, HTTP or TLS say becomes one of few errors, in a sentence."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError

from protonorm.core.types import shortened
from protonorm.deployment.flower.gate import TAKEN
from protonorm.errors import Failed

EXPIRED, NOT_YET, OTHER_NAME, OTHER_ADDRESS = 10, 9, 62, 64  # of OpenSSL's X509_V_ERR
NO_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "UNSUPPORTED_PROTOCOL"}


class Refused(Failed):
    """The server, or this side, will not have it: trying again changes nothing."""


class Taken(Refused):
    """A client with the same key is there, or was there a moment ago."""


class Restarted(Failed):
    """The server has forgotten that this client is there: tell it again."""


class Withdrawn(Failed):
    """The server no longer has this request, or waits for this answer: ask for another."""


class Unreachable(Failed):
    """Nobody answers; that may change."""


class TooLarge(Exception):
    """An answer of the server is larger than the agreement allows."""


@contextmanager
def explain(address: str, plaintext: bool) -> Iterator[None]:
    """Turn what goes wrong in a conversation into one of ours."""
    try:
        yield
    except TooLarge as error:
        raise Refused(str(error)) from None
    except httpx.HTTPStatusError as error:
        raise of_status(error.response) from None
    except (httpx.TransportError, ssl.SSLError) as error:
        raise of_transport(error, address, plaintext) from None
    except (ObjectPullError, ObjectPushError):
        raise Withdrawn("The server no longer has this request.") from None
    except (ValueError, httpx.HTTPError) as error:
        raise Refused(f"What answers at {address} is no server of a federation ({shortened(str(error))}).") from None


def of_status(response: httpx.Response) -> Failed:
    """Say what a refusal by HTTP means."""
    said = _detail(response)
    if response.status_code == TAKEN:
        return Taken("A client with the same key is connected already; a key belongs to one client alone.")
    if response.status_code == 401 and "Invalid SuperNode authentication" in said:
        return Restarted("The server was started again and does not know that this client is there.")
    if response.status_code in (401, 411, 413):
        return Refused(said or "The server refuses this client.")
    if response.status_code == 403:
        return Withdrawn("The server no longer waits for this answer.")
    if response.status_code == 404:
        return Refused("What answers at this address is no server of a federation.")
    return Unreachable(f"The server has trouble of its own: HTTP status {response.status_code}.")


def of_transport(error: Exception, address: str, plaintext: bool) -> Failed:
    """Say why there is no connection."""
    for one in _causes(error):
        if isinstance(one, ssl.SSLCertVerificationError):
            return Refused(_certificate(one, address))
        if isinstance(one, ssl.SSLError) and one.reason in NO_TLS:
            return Refused(f"What answers at {address} does not speak TLS, and this client speaks nothing else.")
    if plaintext and isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
        return Refused(f"The server at {address} does not answer in plaintext; it expects TLS.")
    reason = "it takes too long" if isinstance(error, httpx.TimeoutException) else shortened(str(error) or "no answer")
    return Unreachable(f"The server at {address} cannot be reached: {reason.rstrip('.')}.")


def _certificate(error: ssl.SSLCertVerificationError, address: str) -> str:
    if error.verify_code == EXPIRED:
        return f"The certificate of the server at {address} has expired, or this machine's clock is wrong."
    if error.verify_code == NOT_YET:
        return f"The certificate of the server at {address} is not valid yet, or this machine's clock is wrong."
    if error.verify_code in (OTHER_NAME, OTHER_ADDRESS):
        return f"The certificate of the server is not for {address.rpartition(':')[0]}."
    return f"The certificate of the server at {address} is not from the federation's authority."


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _detail(response: httpx.Response) -> str:
    try:
        found = json.loads(response.text[:4096])
    except ValueError:
        return ""
    detail = found.get("detail") if isinstance(found, dict) else None
    return shortened(detail, 300) if isinstance(detail, str) else ""
