"""Logins without a broker: a mechanism and a client exchange tokens directly."""
from __future__ import annotations

from kbroker.security.mechanism import Exchange


def answer_of(exchange: Exchange, token: bytes) -> bytes:
    """Return the answer to a token of the client. This thread runs the checks for which a broker has a worker."""
    found = exchange.step(token)
    while not isinstance(found, bytes):
        found = exchange.resume(found())
    return found
