"""OAUTHBEARER with signed tokens (JWT), whose keys a JSON Web Key Set holds: a file, or an endpoint of the identity
provider.

The signature itself is checked by joserfc. Everything that decides *which* key and algorithm may check it stands here:

* The algorithm must be one of `ALGORITHMS`, all of them with public keys. So neither `none` nor an HMAC with a public
  key as its secret can pass.
* The key must have the token's key id, fit the algorithm by type and curve, and be made for signatures. Exactly one key
  must be left.

The keys are loaded before the start, and again on a thread of their own: the loop never waits for them. A set that
cannot be read leaves the old one in force.
"""
from __future__ import annotations

import base64
import logging
import ssl
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from joserfc import jws
from joserfc.errors import JoseError, UnsupportedAlgorithmError
from joserfc.jwa import JWSAlgModel
from joserfc.jwk import ECKey, OKPKey, RSAKey

from kbroker.base.clock import Clock, Timer
from kbroker.security.mechanism import Check, Exchange, Login, Mechanism
from kbroker.security.oauthbearer import (
    BASE64URL,
    LARGEST_BEARER_BYTES,
    NAME,
    TokenRefused,
    converse,
    name_in,
    parse_json_object,
    parse_object,
    split_token,
    take_name,
    take_seconds,
)
from kbroker.security.surroundings import Background
from kbroker.security.web import WebError, get
from kbroker.settings.tls import bad_setting, take_store

logger = logging.getLogger(__name__)

LARGEST_SET_BYTES = 1024 * 1024
MOST_KEYS = 100
LEAST_RSA_BITS = 2048
MOST_RSA_BITS = 8192
"""Larger keys cost milliseconds for each token."""

KEY_ID_PAUSE_MS = 60_000
"""A key id that stays unknown is looked up again after this time."""
REFRESH_PAUSE_MS = 5_000
"""The least time between two refreshes for unknown key ids: clients choose the ids."""
MOST_UNKNOWN_KEY_IDS = 16
LONGEST_KEY_ID = 1000
FILE_CHECK_MS = 5_000
"""The time between two looks at the modification time of a file."""
FETCH_TIMEOUT_S = 10.0


class Fit(NamedTuple):
    """The keys that an algorithm uses: JWK's `kty`, and `crv` where there are curves."""

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
    """The algorithms, and headers as identity providers write them: with members of their own."""

    max_header_length = LARGEST_BEARER_BYTES
    max_payload_length = LARGEST_BEARER_BYTES

    def __init__(self) -> None:
        super().__init__(algorithms=tuple(ALGORITHMS), strict_check_header=False)

    def get_alg(self, name: str) -> JWSAlgModel:
        if name not in ALGORITHMS:
            raise UnsupportedAlgorithmError(name)
        # Without the warning that RFC 9864 renamed EdDSA: identity providers use the old name.
        return self.algorithms[name]


REGISTRY = _Registry()


# ---- keys

class Key(NamedTuple):
    """A usable key of the set."""

    key_id: str | None
    algorithm: str | None
    """The only algorithm, if the set names one."""
    key_type: str
    curve: str | None
    key: RSAKey | ECKey | OKPKey

    def fits(self, algorithm: str) -> bool:
        key_type, curves = ALGORITHMS[algorithm]
        return (self.key_type == key_type and self.algorithm in (None, algorithm)
                and (not curves or self.curve in curves))


class KeySetError(Exception):
    """A key set cannot be loaded. The message names the place, what was found and what was expected."""


def parse_keys(text: bytes) -> tuple[list[Key], list[str]]:
    """Return the usable keys of a JSON Web Key Set, and why others are left out. Raises KeySetError."""
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
    """Return the key of one row. Raises ValueError with the reason why it is not usable."""
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


# ---- places of a key set

class Place:
    """A file or an endpoint that holds a key set. `read` runs on a worker thread.

    `tls` has the `ssl.` options of the login module, with the certificates that an https: endpoint is verified against.
    """

    def __init__(self, url: str, tls: Mapping[str, str]):
        parts = urlsplit(url)
        self.url = url
        self.is_file = parts.scheme == 'file'
        self._path = Path(unquote(parts.path))
        self._read_version: tuple[int, int, int] | None = None
        if parts.scheme not in ('file', 'http', 'https') or (not self.is_file and not parts.hostname) or (
                self.is_file and (parts.netloc not in ('', 'localhost') or not self._path.is_absolute())):
            raise bad_setting('sasl.oauthbearer.jwks.endpoint.url',
                              'found something else, expected https://HOST/PATH, http://HOST/PATH or file:///PATH')
        if parts.username is not None or parts.password is not None:
            raise bad_setting('sasl.oauthbearer.jwks.endpoint.url', 'found a user in the address, expected none')
        self._context = _tls_context(tls) if parts.scheme == 'https' else None

    @property
    def is_plain_http(self) -> bool:
        return self.url.startswith('http:')

    def read(self, *, always: bool = True) -> bytes | None:
        """Return the bytes of the set; without `always`, None for a file that did not change. Raises KeySetError."""
        try:
            return self._read_file(always) if self.is_file else get(
                self.url, LARGEST_SET_BYTES, FETCH_TIMEOUT_S, self._context)
        except (OSError, WebError) as error:
            raise KeySetError(f'{self.url}: {error.strerror if isinstance(error, OSError) else error}') from None

    def _read_file(self, always: bool) -> bytes | None:
        status = self._path.stat()
        version = status.st_mtime_ns, status.st_size, status.st_ino
        if version == self._read_version and not always:
            return None
        with self._path.open('rb') as file:
            text = file.read(LARGEST_SET_BYTES + 1)
        if len(text) > LARGEST_SET_BYTES:
            raise WebError(f'found more than {LARGEST_SET_BYTES} bytes')
        self._read_version = version
        return text


def _tls_context(options: Mapping[str, str]) -> ssl.SSLContext:
    rest = dict(options)
    try:
        certificates = take_store(rest, 'ssl.truststore', 'ssl.truststore.certificates')
        context = ssl.create_default_context(cadata=certificates)
    except (OSError, ssl.SSLError) as error:
        raise bad_setting('ssl.truststore.location', f'the certificates cannot be read ({error.strerror})') from None
    if rest:
        raise bad_setting(min(rest), 'this option of the login module is not served for the address of the key set')
    return context


@dataclass(frozen=True, slots=True)
class RefreshSettings:
    """The times at which the key set is loaded again."""

    refresh_ms: int = 3_600_000
    backoff_ms: int = 100
    most_backoff_ms: int = 10_000


class KeySet:
    """The keys in force. `load` fills it first; from `find` on it belongs to the loop."""

    def __init__(self, place: Place, clock: Clock, background: Background, settings: RefreshSettings):
        self._place = place
        self._clock = clock
        self._background = background
        self._settings = settings
        self._keys: list[Key] = []
        self._unknown: OrderedDict[str, int] = OrderedDict()
        """The time at which a refresh for a key id began, in ms of the monotonic clock."""
        self._last_search_ms: int | None = None
        self._is_fetching = False
        self._is_closed = False
        self._failures = 0
        self._timer: Timer | None = None

    def load(self) -> None:
        """Load the set for the first time; may block. Raises ConfigError."""
        try:
            keys, left_out = parse_keys(self._place.read() or b'')
        except KeySetError as error:
            raise bad_setting('sasl.oauthbearer.jwks.endpoint.url', f'the key set cannot be loaded: {error}') from None
        self._adopt(keys, left_out)

    def find(self, key_id: str | None, algorithm: str) -> Key:
        """Return the one key for a token. For an unknown key id, begin to load the set again. Raises TokenRefused."""
        with_id = [key for key in self._keys if key_id is None or key.key_id == key_id]
        if key_id is not None and not with_id:
            self._look_for(key_id)
            raise TokenRefused('found an unknown key id; the key set is loaded again')
        fitting = [key for key in with_id if key.fits(algorithm)]
        if len(fitting) != 1:
            raise TokenRefused(f'found {len(fitting)} keys for the key id and algorithm {algorithm}, expected one')
        return fitting[0]

    def start(self) -> None:
        """Begin the regular refreshes."""
        self._schedule(self._regular_pause_ms)

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _regular_pause_ms(self) -> int:
        return min(FILE_CHECK_MS, self._settings.refresh_ms) if self._place.is_file else self._settings.refresh_ms

    def _schedule(self, pause_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._background.timers.after(pause_ms, self._refresh)

    def _look_for(self, key_id: str) -> None:
        """Refresh for an unknown key id, unless that happened lately."""
        now_ms = self._clock.monotonic_ms()
        looked_ms = self._unknown.get(key_id)
        if len(key_id) > LONGEST_KEY_ID or (looked_ms is not None and now_ms - looked_ms < KEY_ID_PAUSE_MS):
            return
        if self._last_search_ms is not None and now_ms - self._last_search_ms < REFRESH_PAUSE_MS:
            return
        self._last_search_ms = self._unknown[key_id] = now_ms
        self._unknown.move_to_end(key_id)
        if len(self._unknown) > MOST_UNKNOWN_KEY_IDS:
            self._unknown.popitem(last=False)
        self._refresh()

    def _refresh(self) -> None:
        if self._is_fetching or self._is_closed:
            return
        self._is_fetching = True
        place = self._place

        def job() -> tuple[list[Key], list[str]] | None:
            text = place.read(always=False)
            return None if text is None else parse_keys(text)

        self._background.submit(job, self._refreshed)

    def _refreshed(self, result: Any) -> None:
        self._is_fetching = False
        if self._is_closed:
            return
        if isinstance(result, Exception):
            self._failed(result)
            return
        if self._failures:
            logger.info('%s: the key set is loaded again', self._place.url)
        self._failures = 0
        if result is not None:
            self._adopt(*result)
        self._schedule(self._regular_pause_ms)

    def _failed(self, error: Exception) -> None:
        pause_ms = min(self._settings.backoff_ms << min(self._failures, 20), self._settings.most_backoff_ms)
        if not self._failures:
            logger.warning('the key set cannot be loaded again; the old keys stay in force: %s', error,
                           exc_info=None if isinstance(error, KeySetError) else error)
        self._failures += 1
        self._schedule(pause_ms)

    def _adopt(self, keys: list[Key], left_out: list[str]) -> None:
        self._keys = keys
        for reason in left_out:
            logger.warning('%s: left out %s', self._place.url, reason)


# ---- the mechanism

def signature_fits(bearer: str, key: RSAKey | ECKey | OKPKey) -> bool:
    """Return whether the key made the token's signature. Takes 0.3 to 2.4 ms for the usual keys."""
    try:
        jws.deserialize_compact(bearer, key, registry=REGISTRY)
    except (JoseError, ValueError, RecursionError):     # joserfc parses the header again, a few calls deeper
        return False
    return True


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """The claims that a token must have."""

    issuer: str | None = None
    audiences: tuple[str, ...] = ()
    skew_seconds: int = 30
    name_claim: str = 'sub'


class SignedOAuthBearer(Mechanism):
    """OAUTHBEARER with tokens that an identity provider signed."""

    name = NAME

    def __init__(self, keys: KeySet, settings: TokenSettings, clock: Clock, warnings: Iterable[str] = ()):
        self._keys = keys
        self._settings = settings
        self._clock = clock
        self.warnings = tuple(warnings)

    def begin(self) -> Exchange:
        return Exchange(converse(self))

    def load(self) -> None:
        self._keys.load()

    def start(self) -> None:
        self._keys.start()

    def close(self) -> None:
        self._keys.close()

    def check_of(self, bearer: str) -> Check:
        """Return the check of the token's signature, with the key that is in force now. Raises TokenRefused."""
        header_part, _, signature = split_token(bearer)
        if not signature:
            raise TokenRefused('found no signature')
        header = parse_object(header_part, 'header')
        algorithm, key_id = header.get('alg'), header.get('kid')
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise TokenRefused(f'found another algorithm, expected one of {", ".join(ALGORITHMS)}')
        if key_id is not None and not isinstance(key_id, str):
            raise TokenRefused('found a key id that is not a text')
        if 'crit' in header or 'b64' in header:
            raise TokenRefused('found a header that asks for an extension')
        return partial(signature_fits, bearer, self._keys.find(key_id, algorithm).key)

    def claimed_name(self, bearer: str) -> str | None:
        return name_in(bearer, self._settings.name_claim)

    def login_of(self, bearer: str) -> Login:
        """Return the login of a token whose signature fits. Raises TokenRefused."""
        return self._check_claims(parse_object(split_token(bearer)[1], 'payload'))

    def _check_claims(self, claims: Mapping[str, Any]) -> Login:
        wanted, now = self._settings, self._clock.wall_ms() / 1000
        expires, issued, not_before = (take_seconds(claims, name) for name in ('exp', 'iat', 'nbf'))
        if expires is None or issued is None:
            raise TokenRefused('found no claim exp or no claim iat')
        if expires <= now - wanted.skew_seconds:
            raise TokenRefused('the token has expired')
        if issued > now + wanted.skew_seconds:
            raise TokenRefused('the token was issued in the future')
        if not_before is not None and not_before > now + wanted.skew_seconds:
            raise TokenRefused('the token is not yet valid')
        if wanted.issuer is not None and claims.get('iss') != wanted.issuer:
            raise TokenRefused('found another issuer')
        self._check_audience(claims.get('aud'))
        return Login(take_name(claims, wanted.name_claim).strip(), round(expires * 1000))

    def _check_audience(self, found: Any) -> None:
        audiences = [found] if isinstance(found, str) else [] if found is None else found
        if not isinstance(audiences, list) or not all(isinstance(each, str) for each in audiences):
            raise TokenRefused('found a claim aud that is not a list of texts')
        wanted = self._settings.audiences
        # Without expected audiences, only a token without an audience can be meant for this broker.
        fits = bool(set(wanted) & set(audiences)) if wanted else not audiences
        if not fits:
            raise TokenRefused('found another audience')
