"""The client's side of the SASL mechanisms, as generators. A generator yields the client's messages, and gets the
broker's messages by `send`.

PLAIN is specified by RFC 4616, OAUTHBEARER by RFC 7628 and KIP-255, SCRAM-SHA-256 and SCRAM-SHA-512 by RFC 5802, RFC
7677 and KIP-84. Kafka uses SCRAM without channel binding, and without SASLprep: names and passwords are plain UTF-8.
"""
from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from collections.abc import Generator, Mapping

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.config import ClientConfig
from kbroker.security.scram import escape_name, keys_of_salted_password, proof_of, salted_password, verifier_of
from kbroker.security.scram_credential import LEAST_ITERATIONS

MAX_ITERATIONS = 1_000_000
"""The largest number of SCRAM iterations that the client accepts from a broker. Kafka's own limit is 16384."""

Conversation = Generator[bytes, bytes, None]


def conversation_of(config: ClientConfig, limit_ms: int) -> Conversation:
    """Return the generator for the SASL mechanism in the settings.

    For OAUTHBEARER, this may first request a token from an identity provider, which takes at most `limit_ms`.
    """
    if config.sasl_token is not None:
        return oauthbearer(config.sasl_token.token(limit_ms), config.sasl_extensions)
    return conversation(config.sasl_mechanism, config.sasl_username, config.sasl_password)


def conversation(mechanism: str, username: str, password: str, nonce: str | None = None) -> Conversation:
    """Return the generator for a mechanism with user name and password.

    The generator ends when the broker has accepted the login and, for SCRAM, has proven that it knows the password. It
    raises KafkaError(SASL_AUTHENTICATION_FAILED) if the broker refuses or gives no proof. `nonce` is only for tests.
    """
    if mechanism == 'PLAIN':
        return plain(username, password)
    return scram(mechanism, username, password, nonce or secrets.token_urlsafe(24))


def oauthbearer(token: str, extensions: Mapping[str, str]) -> Conversation:
    pairs = ''.join(f'{name}={value}\x01' for name, value in extensions.items())
    refusal = yield f'n,,\x01auth=Bearer {token}\x01{pairs}\x01'.encode()
    if refusal:
        yield b'\x01'  # the broker then fails the login with the same words
        raise KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, 'the broker refuses the token')


def plain(username: str, password: str) -> Conversation:
    yield f'\0{username}\0{password}'.encode()


def scram(mechanism: str, username: str, password: str, nonce: str) -> Conversation:
    bare = f'n={escape_name(username)},r={nonce}'
    first = yield f'n,,{bare}'.encode()
    fields = _fields(first)
    server_nonce, salt, iterations = _challenge(fields, nonce)

    keys = keys_of_salted_password(mechanism, salted_password(mechanism, password, salt, iterations))
    without_proof = f'c=biws,r={server_nonce}'
    transcript = b','.join((bare.encode(), first, without_proof.encode()))
    proof = proof_of(mechanism, keys, transcript)

    final = _fields((yield f'{without_proof},p={base64.b64encode(proof).decode()}'.encode()))
    if 'e' in final:
        raise _failed(f'the broker says {final["e"]!r}')
    expected = verifier_of(mechanism, keys.server_key, transcript)
    if not hmac.compare_digest(_base64(final.get('v', '')), expected):
        raise _failed('the broker did not prove that it knows the password')


def _challenge(fields: dict[str, str], nonce: str) -> tuple[str, bytes, int]:
    """Return the combined nonce, the salt and the number of iterations from the broker's first message."""
    if 'm' in fields:
        raise _failed('the broker asks for an extension of SCRAM that no client knows')
    server_nonce = fields.get('r', '')
    if not server_nonce.startswith(nonce) or server_nonce == nonce:
        raise _failed('the nonce of the broker does not continue that of the client')
    text = fields.get('i', '')
    iterations = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not LEAST_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise _failed(f'found {text[:20]!r} iterations, expected {LEAST_ITERATIONS} to {MAX_ITERATIONS}')
    return server_nonce, _base64(fields.get('s', '')), iterations


def _fields(message: bytes) -> dict[str, str]:
    try:
        parts = [part.partition('=') for part in message.decode().split(',')]
    except UnicodeDecodeError:
        raise _failed('found a SCRAM message that is not UTF-8') from None
    return {name: value for name, _, value in parts}


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _failed('found a SCRAM message with a field that is not base64') from None


def _failed(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, f'SCRAM authentication failed: {reason}')
