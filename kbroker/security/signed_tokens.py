"""OAUTHBEARER with signed tokens (JWT), whose keys are in a JSON Web Key Set.

The module `jwks` decides which key and algorithm are used to check a signature. The module `key_source` loads the keys.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from kbroker.base.clock import Clock
from kbroker.security.jwks import ALGORITHMS, signature_fits
from kbroker.security.key_source import KeySet
from kbroker.security.mechanism import Check, Exchange, Login, Mechanism
from kbroker.security.oauthbearer import (
    NAME,
    TokenRefused,
    converse,
    name_in,
    parse_object,
    split_token,
    take_name,
    take_seconds,
)


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """The conditions that the claims of a token must meet. The broker does not verify the issuer if `issuer` is None,
    nor the audience if `audiences` is empty.
    """

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
        """Return the Check of the token's signature. It uses the key that is now in force. Raise TokenRefused if no key
        fits.
        """
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
        """Return the Login for a token whose signature was accepted. Raise TokenRefused if its claims are not
        acceptable.
        """
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
        wanted = self._settings.audiences
        if not wanted:
            return
        audiences = [found] if isinstance(found, str) else [] if found is None else found
        if not isinstance(audiences, list) or not all(isinstance(each, str) for each in audiences):
            raise TokenRefused('found a claim aud that is not a list of texts')
        if not set(wanted) & set(audiences):
            raise TokenRefused('found another audience')
