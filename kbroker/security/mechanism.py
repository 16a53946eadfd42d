"""The interface of all SASL mechanisms on the broker's side: tokens of the client in, tokens for the client out.

A `Mechanism` is what one listener serves, built from its settings. It begins an `Exchange` for each login. Neither
knows a socket, a request or a thread.
"""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

LARGEST_TOKEN_BYTES = 32 * 1024
"""The longest token. The largest legitimate one is an OAUTHBEARER message with a token of 16 KiB."""
LARGEST_NAME_BYTES = 1024
"""The longest principal name that a mechanism accepts. It bounds what log lines, ACL caches and quotas keep of it."""


class AuthenticationError(Exception):
    """A login failed. `client_text` is for the client; None stands for the generic text, `generic_text`.

    `reason` is for the log. Neither contains a part of a password, proof or bearer token. `claimed_name` is the name
    that the client tried, without a proof. It is None if the client failed before it sent one.
    """

    def __init__(self, client_text: str | None, reason: str, claimed_name: str | None = None):
        super().__init__(reason)
        self.client_text = client_text
        self.reason = reason
        self.claimed_name = claimed_name


class Login(NamedTuple):
    """The result of an exchange: the user's name, and when the credential expires (wall clock), or None."""

    name: str
    expires_ms: int | None = None


Check = Callable[[], bool]
"""A computation that takes up to milliseconds and uses no state of the broker, so a worker can run it."""


class Refusal(NamedTuple):
    """The answer to a token that is refused, after which the client may try another one.

    `error` is how the login has failed if the client leaves instead.
    """

    answer: bytes
    error: AuthenticationError


Talk = Generator[bytes | Check | Refusal, Any, tuple[bytes, Login]]
"""The course of an exchange. It first yields b'', then is sent a token for each answer that it yields, and the result
for each Check.

It returns the last answer with the login, or raises AuthenticationError.
"""


class Exchange:
    """One login in progress. After its `outcome`, or an AuthenticationError, it accepts no further token.

    The caller runs a Check that `step` or `go_on` returns, and passes the result to `go_on`.
    """

    __slots__ = ('_talk', 'outcome', 'refusal')

    def __init__(self, talk: Talk):
        self.outcome: Login | None = None
        self.refusal: AuthenticationError | None = None
        """The failure if the client leaves now: its last token was refused."""
        self._talk = talk
        next(talk)

    def step(self, token: bytes) -> bytes | Check:
        """Return the answer to a token of the client, or a Check that decides about it. Raises AuthenticationError."""
        if len(token) > LARGEST_TOKEN_BYTES:
            self._talk.close()
            raise AuthenticationError(
                None, f'found a token of {len(token)} bytes, expected at most {LARGEST_TOKEN_BYTES}')
        return self._send(token)

    def go_on(self, is_passed: bool) -> bytes | Check:
        """Return the answer after a Check with this result, or the next Check. Raises AuthenticationError."""
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
    """A mechanism as one listener serves it."""

    name: str
    warnings: tuple[str, ...] = ()
    """Weaknesses of the settings, for the log at the start."""

    @abstractmethod
    def begin(self) -> Exchange:
        """Begin a login."""

    def load(self) -> None:  # noqa: B027 - most mechanisms need none of these three
        """Load the files and addresses of the settings. It may wait for the network, so not on a running loop.

        Raises ConfigError.
        """

    def start(self) -> None:  # noqa: B027
        """Start background work; called on the loop, after `load`."""

    def close(self) -> None:  # noqa: B027
        """Stop background work; called on the loop."""


def generic_text(mechanism: str, *, is_renewal: bool = False) -> str:
    """Return Kafka's text for a failure whose cause the client does not learn."""
    again = 're-' if is_renewal else ''
    return (f'Authentication failed during {again}authentication due to invalid credentials with SASL mechanism '
            f'{mechanism}')
