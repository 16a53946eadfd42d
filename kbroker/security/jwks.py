"""Reads a JSON Web Key Set, which has the keys of signed tokens (JWT), and checks signatures.

The library joserfc checks the signature itself. This module and `key_source.KeySet.find` decide *which* key and
algorithm are used for a token:

* The algorithm must be one of `ALGORITHMS`, all of which use public keys. So a token with the algorithm `none` is
  refused, and so is an HMAC whose secret is a public key.
* The key must have the key id that the token names, a type and a curve that fit the algorithm, and signing as its use.
  Exactly one key must meet these conditions.
"""
from __future__ import annotations

import base64
from typing import Any, NamedTuple

from joserfc import jws
from joserfc.errors import JoseError, UnsupportedAlgorithmError
from joserfc.jwa import JWSAlgModel
from joserfc.jwk import ECKey, OKPKey, RSAKey

from kbroker.security.oauthbearer import BASE64URL, LARGEST_BEARER_BYTES, parse_json_object

MOST_KEYS = 100
LEAST_RSA_BITS = 2048
MOST_RSA_BITS = 8192
"""The largest accepted RSA key. A larger key would cost milliseconds for each token."""

class Fit(NamedTuple):
    """The keys with which an algorithm works: their JWK members `kty` and, for keys with curves, `crv`."""

    key_type: str
    curves: tuple[str, ...] = ()


ALGORITHMS = {
    **{name: Fit('RSA') for name in ('RS256', 'RS384', 'RS512', 'PS256', 'PS384', 'PS512')},
    'ES256': Fit('EC', ('P-256',)), 'ES384': Fit('EC', ('P-384',)), 'ES512': Fit('EC', ('P-521',)),
    'EdDSA': Fit('OKP', ('Ed25519', 'Ed448')), 'Ed25519': Fit('OKP', ('Ed25519',)), 'Ed448': Fit('OKP', ('Ed448',)),
}
KEY_CLASSES: dict[str, type[RSAKey | ECKey | OKPKey]] = {'RSA': RSAKey, 'EC': ECKey, 'OKP': OKPKey}
CURVES = {curve for fit in ALGORITHMS.values() for curve in fit.curves}


class _Registry(jws.JWSRegistry):
    """The accepted algorithms. Token headers may have members that only the identity provider knows."""

    max_header_length = LARGEST_BEARER_BYTES
    max_payload_length = LARGEST_BEARER_BYTES

    def __init__(self) -> None:
        super().__init__(algorithms=tuple(ALGORITHMS), strict_check_header=False)

    def get_alg(self, name: str) -> JWSAlgModel:
        if name not in ALGORITHMS:
            raise UnsupportedAlgorithmError(name)
        # This avoids joserfc's warning that RFC 9864 renamed EdDSA: identity providers still use the old name.
        return self.algorithms[name]


REGISTRY = _Registry()


class Key(NamedTuple):
    """A usable key of the key set."""

    key_id: str | None
    algorithm: str | None
    """The only algorithm for which the key may be used, or None if the set does not restrict it."""
    key_type: str
    curve: str | None
    key: RSAKey | ECKey | OKPKey

    def fits(self, algorithm: str) -> bool:
        key_type, curves = ALGORITHMS[algorithm]
        return (self.key_type == key_type and self.algorithm in (None, algorithm)
                and (not curves or self.curve in curves))


class KeySetError(Exception):
    """An error: a key set cannot be loaded. The message names the place, what was found, and what was expected."""


def parse_keys(text: bytes) -> tuple[list[Key], list[str]]:
    """Return the usable keys of a JSON Web Key Set, and a reason for each key that is skipped.

    Raise KeySetError if the text is not a key set or no key is usable.
    """
    try:
        rows = parse_json_object(text.decode()).get('keys')
    except ValueError:
        raise KeySetError('found something else, expected a JSON Web Key Set') from None
    if not isinstance(rows, list) or len(rows) > MOST_KEYS:
        raise KeySetError(f'found {len(rows) if isinstance(rows, list) else "no list of"} keys, expected 1 to '
                          f'{MOST_KEYS}')
    keys, left_out = [], []
    for number, row in enumerate(rows, 1):
        try:
            keys.append(_key(row))
        except ValueError as error:
            left_out.append(f'key {number}: {error}')
    if not keys:
        raise KeySetError('found no usable key' + ''.join(f'; {reason}' for reason in left_out[:3]))
    return keys, left_out


def _key(row: Any) -> Key:
    """Return the key that one row describes. Raise ValueError with the reason if the key is not usable."""
    if not isinstance(row, dict):
        raise ValueError('found something else, expected a JSON object')
    key_type, curve, algorithm, key_id, use = (row.get(name) for name in ('kty', 'crv', 'alg', 'kid', 'use'))
    if any(each is not None and not isinstance(each, str) for each in (key_type, curve, algorithm, key_id, use)):
        raise ValueError('found something else, expected kty, crv, alg, kid and use as texts')
    if key_type not in KEY_CLASSES:
        raise ValueError(f'found another key type, expected one of {", ".join(KEY_CLASSES)}')
    if key_type != 'RSA' and curve not in CURVES:
        raise ValueError(f'found another curve, expected one of {", ".join(sorted(CURVES))}')
    if algorithm is not None and algorithm not in ALGORITHMS:
        raise ValueError(f'found another algorithm, expected one of {", ".join(ALGORITHMS)}')
    operations = row.get('key_ops', ['verify'])
    if use not in (None, 'sig') or not isinstance(operations, list) or 'verify' not in operations:
        raise ValueError('it is not made for signatures')
    if 'd' in row:
        raise ValueError('found a private key, expected public ones only')
    members = {name: row[name] for name in ('kty', 'crv', 'n', 'e', 'x', 'y') if name in row}
    size = _bits(members.get('n'))
    if key_type == 'RSA' and not LEAST_RSA_BITS <= size <= MOST_RSA_BITS:
        raise ValueError(f'found an RSA key of {size} bits, expected {LEAST_RSA_BITS} to {MOST_RSA_BITS}')
    try:
        key = KEY_CLASSES[key_type].import_key(members)
    except (JoseError, ValueError, TypeError, ArithmeticError, AttributeError):
        raise ValueError('its numbers are not a key') from None
    return Key(key_id, algorithm, key_type, curve, key)


def _bits(modulus: Any) -> int:
    if not isinstance(modulus, str) or BASE64URL.fullmatch(modulus) is None:
        return 0
    return int.from_bytes(base64.urlsafe_b64decode(modulus + '=' * (-len(modulus) % 4))).bit_length()


def signature_fits(bearer: str, key: RSAKey | ECKey | OKPKey) -> bool:
    """Return whether the signature of a token was made with this key. This takes 0.3 to 2.4 ms for the usual keys."""
    try:
        jws.deserialize_compact(bearer, key, registry=REGISTRY)
    except (JoseError, ValueError, RecursionError):     # joserfc parses the header again, at a deeper recursion
        return False
    return True
