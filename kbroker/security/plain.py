"""PLAIN (RFC 4616). The login module's options have users and passwords: `user_alice="password of alice"`."""
from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping

from kbroker.security.mechanism import AuthenticationError, Exchange, Login, Mechanism, Talk

USER_OPTION = 'user_'
FAILED = 'Authentication failed: '
# The error texts are Kafka's, including the `:` that the tests of Kafka's clients expect.
NO_USER = FAILED + 'username not specified'
NO_PASSWORD = FAILED + 'password not specified'
WRONG = FAILED + 'Invalid username or password'
OTHER_AUTHZID = FAILED + 'Client requested an authorization id that is different from username'

PARTS = 3
COUNTED_PARTS = 4
"""The number up to which Kafka counts the parts of a token in its error text."""


class Plain(Mechanism):
    """PLAIN with users in memory. Only digests of the passwords are kept, so a memory dump does not show them."""

    name = 'PLAIN'

    def __init__(self, options: Mapping[str, str]):
        self._digests = {name.removeprefix(USER_OPTION): _digest(password.encode())
                         for name, password in options.items() if name.startswith(USER_OPTION)}
        self._unknown = secrets.token_bytes(32)
        if not self._digests:
            self.warnings = ('the listener has no PLAIN users: expected options user_NAME="PASSWORD" in '
                             'plain.sasl.jaas.config',)

    def begin(self) -> Exchange:
        return Exchange(_converse(self._digests, self._unknown))


def _converse(digests: Mapping[str, bytes], unknown: bytes) -> Talk:
    token = yield b''
    authzid, username, password = _parts(token)
    if not username:
        raise AuthenticationError(NO_USER, 'found no user name')
    if not password:
        raise AuthenticationError(NO_PASSWORD, 'found no password', username)
    # For an unknown user, a digest is also computed and compared, so that the time does not show which users exist.
    expected = digests.get(username, unknown)
    if not hmac.compare_digest(_digest(password.encode()), expected):
        raise AuthenticationError(WRONG, f'found an unknown user or a wrong password, user {username!r}', username)
    if authzid not in ('', username):
        raise AuthenticationError(
            OTHER_AUTHZID, f'found an authorization id other than the user name {username!r}', username)
    return b'', Login(username)


def _parts(token: bytes) -> list[str]:
    parts = token.split(b'\0', COUNTED_PARTS - 1)
    if len(parts) != PARTS:
        raise AuthenticationError(f'Invalid SASL/PLAIN response: expected {PARTS} tokens, got {len(parts)}',
                                  f'found {len(parts)} parts, expected {PARTS}')
    try:
        return [part.decode() for part in parts]
    except UnicodeDecodeError:
        raise AuthenticationError(None, 'found a message that is not UTF-8') from None


def _digest(password: bytes) -> bytes:
    return hashlib.sha256(password).digest()
