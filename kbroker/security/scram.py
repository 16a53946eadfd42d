"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677). Like Kafka (KIP-84), the broker uses neither channel binding
nor SASLprep.

The key derivation is used by both sides of a login, and by the commands that store credentials.

An unknown user gets a challenge that looks like the challenge of a known user. Its salt is computed from the name and a
secret of the broker, so each login gets an equal salt, as for a known user. The login fails only at the client's last
message.
"""
from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from typing import NamedTuple

from kbroker.security.mechanism import LARGEST_NAME_BYTES, AuthenticationError, Exchange, Login, Mechanism, Talk
from kbroker.security.plain import OTHER_AUTHZID
from kbroker.security.scram_credential import (
    DEFAULT_ITERATIONS,
    DIGESTS,
    LEAST_ITERATIONS,
    FindCredential,
    ScramCredential,
)

LARGEST_MESSAGE_BYTES = 8 * 1024
"""The longest message of a client, in bytes. The first message may contain the longest name twice, with each character
escaped. A login in progress keeps this message.
"""
RANDOM_BITS = 130
"""The number of random bits in a salt or a nonce, as in Kafka."""
LONGEST_BASE36 = 26
BASE36 = '0123456789abcdefghijklmnopqrstuvwxyz'


class Keys(NamedTuple):
    """The three keys of RFC 5802. A thief of `client_key` can log in; a thief of `server_key` can pose as the
    broker.
    """

    client_key: bytes
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return 'Keys(...)'


# ---- keys

def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Return the salted password of RFC 5802, by PBKDF2-HMAC. The computation takes milliseconds, without the GIL."""
    return hashlib.pbkdf2_hmac(DIGESTS[mechanism], password.encode(), salt, iterations)


def keys_of_salted_password(mechanism: str, salted: bytes) -> Keys:
    digest = DIGESTS[mechanism]
    client_key = hmac.digest(salted, b'Client Key', digest)
    return Keys(client_key, hashlib.new(digest, client_key).digest(), hmac.digest(salted, b'Server Key', digest))


def credential_of_salted_password(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    _, stored_key, server_key = keys_of_salted_password(mechanism, salted)
    return ScramCredential(salt, stored_key, server_key, iterations)


def credential_of(mechanism: str, password: str, salt: bytes, iterations: int) -> ScramCredential:
    """Return the credential that a broker stores for a password."""
    return credential_of_salted_password(mechanism, salted_password(mechanism, password, salt, iterations), salt,
                                         iterations)


def new_salt() -> bytes:
    """Return a random salt of the kind that Kafka's commands generate."""
    return _base36(secrets.randbits(RANDOM_BITS)).encode()


def proof_of(mechanism: str, keys: Keys, transcript: bytes) -> bytes:
    """Return the client's proof for `transcript`, the messages of the login so far."""
    digest = DIGESTS[mechanism]
    return _xor(keys.client_key, hmac.digest(keys.stored_key, transcript, digest))


def verifier_of(mechanism: str, server_key: bytes, transcript: bytes) -> bytes:
    """Return the broker's proof for `transcript`, the messages of the login so far."""
    return hmac.digest(server_key, transcript, DIGESTS[mechanism])


def escape_name(name: str) -> str:
    """Return a name with `,` and `=` escaped, which is a `saslname` of RFC 5802."""
    return name.replace('=', '=3D').replace(',', '=2C')


def unescape_name(saslname: str) -> str:
    return saslname.replace('=2C', ',').replace('=3D', '=')


# ---- messages of the client. They are matched as bytes, because the proof covers the bytes that were sent.

SASLNAME = rb'(?:[^=,\0]|=2C|=3D)+'
EXTENSIONS = rb'(?:,[A-Za-z]+=[^,\0]*)*'
BASE64 = rb'(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?'
NONCE = rb'[\x21-\x2B\x2D-\x7E]+'
FIRST_MESSAGE = re.compile(
    rb'(?P<header>n,(?:a=(?P<authzid>%b))?,)(?P<bare>n=(?P<name>%b),r=(?P<nonce>%b)(?P<extensions>%b))'
    % (SASLNAME, SASLNAME, NONCE, EXTENSIONS), re.DOTALL)
FINAL_MESSAGE = re.compile(
    rb'(?P<without_proof>c=(?P<binding>%b),r=(?P<nonce>%b)(?P<extensions>%b)),p=(?P<proof>%b)'
    % (BASE64, NONCE, EXTENSIONS, BASE64), re.DOTALL)
MANDATORY_EXTENSION = re.compile(rb',m=')
DELEGATION_TOKEN = b',tokenauth=true'


class Scram(Mechanism):
    """One of the two SCRAM mechanisms. Its credentials are in the metadata log. `secret` has random bytes that no
    client knows. It does not change when the broker restarts.
    """

    def __init__(self, name: str, find_credential: FindCredential, secret: bytes):
        self.name = name
        self._find_credential = find_credential
        self._secret = secret

    def begin(self) -> Exchange:
        return Exchange(_converse(self.name, self._find_credential, self._secret,
                                  _base36(secrets.randbits(RANDOM_BITS)).encode()))


def _converse(mechanism: str, find_credential: FindCredential, secret: bytes, server_nonce: bytes) -> Talk:
    token = yield b''
    check_length(token)
    first = FIRST_MESSAGE.fullmatch(token)
    if first is None or MANDATORY_EXTENSION.search(first['extensions']):
        raise AuthenticationError(None, 'found something else, expected the first message of SCRAM: '
                                        'n,[a=NAME],n=NAME,r=NONCE, without channel binding')
    name = _name(first['name'])
    if len(name.encode()) > LARGEST_NAME_BYTES:
        raise AuthenticationError(None, f'found a user name above {LARGEST_NAME_BYTES} bytes')
    if first['authzid'] is not None and _name(first['authzid']) != name:
        raise AuthenticationError(OTHER_AUTHZID, f'found an authorization id other than the user name {name!r}', name)

    # Known and unknown names cause equal computations, so that the time does not show which users exist.
    made_up = made_up_credential(mechanism, name, secret)
    credential = find_credential(mechanism, name) or made_up
    is_known = all((credential is not made_up, credential.iterations >= LEAST_ITERATIONS,
                    DELEGATION_TOKEN not in first['extensions']))
    salt, stored_key, server_key, iterations = (made_up, credential)[is_known]

    nonce = first['nonce'] + server_nonce
    challenge = b'r=%b,s=%b,i=%d' % (nonce, base64.b64encode(salt), iterations)
    token = yield challenge
    check_length(token)
    final = FINAL_MESSAGE.fullmatch(token)
    if final is None or MANDATORY_EXTENSION.search(final['extensions']):
        raise AuthenticationError(
            None, f'found something else, expected the final message of SCRAM, user {name!r}', name)
    if final['nonce'] != nonce:
        raise AuthenticationError(None, f'found the nonce of another exchange, user {name!r}', name)
    if final['binding'] != base64.b64encode(first['header']):
        raise AuthenticationError(
            None, f'found a channel binding other than that of the first message, user {name!r}', name)

    transcript = b','.join((first['bare'], challenge, final['without_proof']))
    # The credential may have changed since the challenge. A login with the old password must fail.
    is_in_force = find_credential(mechanism, name) == (None if credential is made_up else credential)
    is_proven = _proves(base64.b64decode(final['proof']), stored_key, transcript, DIGESTS[mechanism])
    if not (is_proven and is_known and is_in_force):
        raise AuthenticationError(None, f'found an unknown user or a wrong password, user {name!r}', name)
    return b'v=' + base64.b64encode(verifier_of(mechanism, server_key, transcript)), Login(name)


def check_length(message: bytes) -> None:
    """Raise AuthenticationError for a message that is longer than any valid message."""
    if len(message) > LARGEST_MESSAGE_BYTES:
        raise AuthenticationError(
            None, f'found a message of SCRAM of {len(message)} bytes, expected at most {LARGEST_MESSAGE_BYTES}')


def made_up_credential(mechanism: str, name: str, secret: bytes) -> ScramCredential:
    """Return a credential for a user that does not exist. Each call with this user returns an equal credential, and no
    password fits it.
    """
    seed = hmac.digest(secret, mechanism.encode() + b'\0' + name.encode(), 'sha512')
    salt = _base36(int.from_bytes(seed[:17]) >> (17 * 8 - RANDOM_BITS)).encode()
    key = hashlib.new(DIGESTS[mechanism], seed).digest()
    return ScramCredential(salt, key, key, DEFAULT_ITERATIONS)


def _proves(proof: bytes, stored_key: bytes, transcript: bytes, digest: str) -> bool:
    """Return whether the client key with which the proof was computed belongs to `stored_key`."""
    signature = hmac.digest(stored_key, transcript, digest)
    if len(proof) != len(signature):
        return False
    return hmac.compare_digest(hashlib.new(digest, _xor(proof, signature)).digest(), stored_key)


def _name(saslname: bytes) -> str:
    try:
        return unescape_name(saslname.decode())
    except UnicodeDecodeError:
        raise AuthenticationError(None, 'found a name that is not UTF-8') from None


def _xor(left: bytes, right: bytes) -> bytes:
    return (int.from_bytes(left) ^ int.from_bytes(right)).to_bytes(len(left))


def _base36(number: int) -> str:
    digits: list[str] = []
    while number or not digits:
        number, digit = divmod(number, 36)
        digits.append(BASE36[digit])
    return ''.join(reversed(digits))
