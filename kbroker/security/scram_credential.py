"""SCRAM credentials as the broker stores them (KIP-84)."""
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

MECHANISM_CODES = {'SCRAM-SHA-256': 1, 'SCRAM-SHA-512': 2}
"""Maps the name of each mechanism to its code in records and requests."""
DIGESTS = {'SCRAM-SHA-256': 'sha256', 'SCRAM-SHA-512': 'sha512'}

LEAST_ITERATIONS = 4096
MOST_ITERATIONS = 16_384
DEFAULT_ITERATIONS = 4096


class ScramCredential(NamedTuple):
    """A stored credential. The broker can check a client's proof with it, but a thief cannot log in with it."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f'ScramCredential({self.iterations} iterations)'


FindCredential = Callable[[str, str], ScramCredential | None]
"""A function that takes a mechanism and a user name. It returns the stored credential, or None."""
