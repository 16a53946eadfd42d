"""The interface of all SASL mechanisms on the broker's side. A mechanism receives tokens from the client, and returns
tokens for the client. A `Mechanism` is constructed from the settings of one listener. It begins an `Exchange` for each
login on this listener. Neither class uses sockets, requests or threads.
"""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

LARGEST_TOKEN_BYTES = 32 * 1024
"""The longest accepted token, in bytes. The largest valid token is an OAUTHBEARER message with a bearer token of 16
KiB.
"""
LARGEST_NAME_BYTES = 1024
"""The longest accepted principal name, in bytes.

This also limits the names in log lines, ACL caches and quotas.
"""


class AuthenticationError(Exception):
    """An error: a login failed. `client_text` is sent to the client; if it is None, the client gets `generic_text`.
    `reason` is for the log. Neither text contains any part of a password, proof or bearer token. `claimed_name` is the
    name that the client gave, which is not proven. It is None if the client failed before it sent a name.
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
"""A function that a worker thread runs. It takes up to some milliseconds, and uses no state of the broker."""


class Refusal(NamedTuple):
    """The answer to a refused token, after which the client may send a new token.

    `error` is the error of the login if the client disconnects instead.
    """

    answer: bytes
    error: AuthenticationError


Talk = Generator[bytes | Check | Refusal, Any, tuple[bytes, Login]]
"""The generator that computes the answers of an exchange. It first yields b'' and then gets the client's first token.
For each answer that it yields, it gets the client's next token; for each Check, the result of the Check.

It returns the last answer and the Login, or raises AuthenticationError.
"""


class Exchange:
    """One login in progress. After its `outcome`, or an AuthenticationError, it accepts no further token.

    If `step` or `resume` returns a Check, the caller runs it and passes the result to `resume`.
    """

    __slots__ = ('_talk', 'outcome', 'refusal')

    def __init__(self, talk: Talk):
        self.outcome: Login | None = None
        self.refusal: AuthenticationError | None = None
        """The error of the login if the client disconnects after its last token was refused; else None."""
        self._talk = talk
        next(talk)

    def step(self, token: bytes) -> bytes | Check:
        """Return the answer to a token of the client, or a Check that must run before the answer.

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
    """A SASL mechanism with the settings of one listener."""

    name: str
    warnings: tuple[str, ...] = ()
    """Warnings about weak settings. The broker logs them when it starts."""

    @abstractmethod
    def begin(self) -> Exchange:
        """Begin a login."""

    def load(self) -> None:  # noqa: B027 - most mechanisms need none of these three
        """Load the files and endpoints that the settings name. This may wait for the network, so the broker calls it
        before the event loop runs. Raise ConfigError if a file or an endpoint cannot be loaded.
        """

    def start(self) -> None:  # noqa: B027
        """Start background work. The broker calls this on the event loop, after `load`."""

    def close(self) -> None:  # noqa: B027
        """Stop background work. The broker calls this on the event loop."""


def generic_text(mechanism: str, *, is_renewal: bool = False) -> str:
    """Return Kafka's text for a failed login whose cause the client must not learn."""
    again = 're-' if is_renewal else ''
    return (f'Authentication failed during {again}authentication due to invalid credentials with SASL mechanism '
            f'{mechanism}')
