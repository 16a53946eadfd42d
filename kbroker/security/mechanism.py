"""The interface of all SASL mechanisms on the broker's side. They receive tokens of the client, and return tokens for
the client.

A `Mechanism` is built from the settings of one listener, which serves it. It begins an `Exchange` for each login.
Neither class knows sockets, requests or threads.
"""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

LARGEST_TOKEN_BYTES = 32 * 1024
"""The longest token. The largest legitimate token is an OAUTHBEARER message with a bearer token of 16 KiB."""
LARGEST_NAME_BYTES = 1024
"""The longest principal name that a mechanism accepts.

This also bounds the names in log lines, ACL caches and quotas.
"""


class AuthenticationError(Exception):
    """A login failed.

    `client_text` is for the client; if it is None, the client gets `generic_text`. `reason` is for the log. Neither
    contains a part of a password, proof or bearer token. `claimed_name` is the name that the client gave, without a
    proof. It is None if the client failed before it sent a name.
    """

    def __init__(self, client_text: str | None, reason: str, claimed_name: str | None = None):
        super().__init__(reason)
        self.client_text = client_text
        self.reason = reason
        self.claimed_name = claimed_name


class Login(NamedTuple):
    """The result of an exchange: the user's name, and the wall-clock time at which the credential expires, or None."""

    name: str
    expires_ms: int | None = None


Check = Callable[[], bool]
"""A computation for a worker. It takes up to milliseconds and uses no state of the broker."""


class Refusal(NamedTuple):
    """The answer to a refused token, after which the client may send another token.

    `error` is the login's failure if the client leaves instead.
    """

    answer: bytes
    error: AuthenticationError


Talk = Generator[bytes | Check | Refusal, Any, tuple[bytes, Login]]
"""The generator behind an exchange. It first yields b''. The exchange then sends it a token for each answer that it
yields, and the result for each Check.

It returns the last answer with the login, or raises AuthenticationError.
"""


class Exchange:
    """One login in progress. After its `outcome`, or an AuthenticationError, it accepts no further token.

    If `step` or `resume` returns a Check, the caller runs it and passes the result to `resume`.
    """

    __slots__ = ('_talk', 'outcome', 'refusal')

    def __init__(self, talk: Talk):
        self.outcome: Login | None = None
        self.refusal: AuthenticationError | None = None
        """The failure of the login if the client leaves now, after the refusal of its last token."""
        self._talk = talk
        next(talk)

    def step(self, token: bytes) -> bytes | Check:
        """Return the answer to a token of the client, or a Check to run before the answer.

        Raise AuthenticationError if the login fails.
        """
        if len(token) > LARGEST_TOKEN_BYTES:
            self._talk.close()
            raise AuthenticationError(
                None, f'found a token of {len(token)} bytes, expected at most {LARGEST_TOKEN_BYTES}')
        return self._send(token)

    def resume(self, is_passed: bool) -> bytes | Check:
        """Continue the exchange with the result of a Check. Return the answer to the client, or the next Check to run.

        Raise AuthenticationError if the login fails.
        """
        return self._send(is_passed)

    def _send(self, value: bytes | bool) -> bytes | Check:
        try:
            found = self._talk.send(value)
            if not isinstance(found, Refusal):
                return found
            self.refusal = found.error
            return found.answer
        except StopIteration as end:
            if end.value is None:
                raise AuthenticationError(None, 'found a token after the end of the exchange') from None
            answer, login = end.value
            if len(login.name.encode()) > LARGEST_NAME_BYTES:
                raise AuthenticationError(
                    None, f'found a principal name above {LARGEST_NAME_BYTES} bytes', login.name) from None
            self.outcome = login
            return bytes(answer)


class Mechanism(ABC):
    """A mechanism with the settings of one listener."""

    name: str
    warnings: tuple[str, ...] = ()
    """Warnings about weak settings, for the log at the start."""

    @abstractmethod
    def begin(self) -> Exchange:
        """Begin a login."""

    def load(self) -> None:  # noqa: B027 - most mechanisms need none of these three
        """Load the files and endpoints that the settings name. This may wait for the network, so call it before the
        loop runs.

        Raise ConfigError if one cannot be loaded.
        """

    def start(self) -> None:  # noqa: B027
        """Start background work. Called on the loop, after `load`."""

    def close(self) -> None:  # noqa: B027
        """Stop background work. Called on the loop."""


def generic_text(mechanism: str, *, is_renewal: bool = False) -> str:
    """Return Kafka's text for a failure whose cause the client must not learn."""
    again = 're-' if is_renewal else ''
    return (f'Authentication failed during {again}authentication due to invalid credentials with SASL mechanism '
            f'{mechanism}')
