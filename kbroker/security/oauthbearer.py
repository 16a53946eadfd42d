"""OAUTHBEARER (KIP-255, RFC 7628): the client's message with its token, and the validator of unsecured tokens.

The validator of signed tokens is in `security/signed_tokens`.
"""
from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn, Protocol

from kbroker.base.clock import Clock
from kbroker.security.mechanism import AuthenticationError, Check, Exchange, Login, Mechanism, Refusal, Talk
from kbroker.security.scram import SASLNAME, unescape_name
from kbroker.settings.tls import bad_setting

NAME = 'OAUTHBEARER'
LARGEST_BEARER_BYTES = 16 * 1024
"""The largest number of bytes of a bearer token."""
MOST_ATTEMPTS = 4
"""The largest number of tokens that a client may send in one exchange. After a refusal it may send a new token."""
SHOWN_CHARACTERS = 256
"""The largest number of characters of a name that an error message for the client shows."""
GIVES_UP = b'\x01'
"""The message with which a client acknowledges that its token was refused."""

MESSAGE = re.compile(
    rb'n,(?:a=(?P<authzid>%b))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7E \t\r\n]*\x01)*)\x01' % SASLNAME, re.DOTALL)
CREDENTIAL = re.compile(r'(?P<scheme>[A-Za-z]+) (?P<token>[-_~+/.A-Za-z0-9]+=*)')
BASE64URL = re.compile(r'[A-Za-z0-9_-]+')

INVALID_TOKEN = '{"status":"invalid_token"}'

LATEST_SECONDS = 253_402_300_799
"""The end of the year 9999, in seconds since the Unix epoch."""


class TokenRefused(Exception):
    """An error: a token is refused. `status` is JSON for the client. `reason` is for the log and contains no claim."""

    def __init__(self, reason: str, status: str = INVALID_TOKEN):
        super().__init__(reason)
        self.reason = reason
        self.status = status


class Validator(Protocol):
    """The part of a mechanism that accepts or refuses bearer tokens."""

    def check_of(self, bearer: str) -> Check | None:
        """Return the Check of the token's signature, or None for a token without a signature.

        Raise TokenRefused if the token is refused even before its signature is checked.
        """

    def login_of(self, bearer: str) -> Login:
        """Return the Login for a token whose Check has passed. Raise TokenRefused if its claims are not acceptable."""

    def claimed_name(self, bearer: str) -> str | None:
        """Return the name in a token that may be forged. Return None if the token has no name."""


def converse(validator: Validator) -> Talk:
    """Run the exchange of a login. Raise AuthenticationError for a malformed message, for a refused token if the client
    sends no new token, and after MOST_ATTEMPTS refused tokens.
    """
    claimed_name, token = None, (yield b'')
    for _ in range(MOST_ATTEMPTS):
        authzid, bearer = parse_message(token)
        token = b''         # frees the memory: many logins may wait for their check
        try:
            check = validator.check_of(bearer)
            if check is not None and not (yield check):
                raise TokenRefused('the signature does not fit')
            login = validator.login_of(bearer)
        except TokenRefused as refusal:
            claimed_name = validator.claimed_name(bearer)
            error = AuthenticationError(refusal.status, f'the token is refused: {refusal.reason}', claimed_name)
            token = yield Refusal(refusal.status.encode(), error)
            if token == GIVES_UP:
                raise error from None
            continue
        if authzid not in ('', login.name):
            raise AuthenticationError(
                f'Authentication failed: Client requested an authorization id ({authzid[:SHOWN_CHARACTERS]}) that is '
                f'different from the token\'s principal name ({login.name[:SHOWN_CHARACTERS]})',
                f'found an authorization id other than the principal name {login.name!r}', login.name)
        return b'', login
    raise AuthenticationError(None, f'found {MOST_ATTEMPTS} refused tokens in one exchange', claimed_name)


def parse_message(message: bytes) -> tuple[str, str]:
    """Return the authorization id ('' if there is none) and the bearer token in the client's message.

    Raise AuthenticationError for a malformed message. The extensions, which are further KEY=VALUE pairs in the message,
    have no effect.
    """
    match = MESSAGE.fullmatch(message)
    if match is None:
        raise AuthenticationError(None, 'found something else, expected the message of OAUTHBEARER')
    pairs = [pair.decode('ascii').partition('=') for pair in match['pairs'].split(b'\x01')[:-1]]
    credentials = [value for key, _, value in pairs if key == 'auth']
    if len(credentials) != 1:
        raise AuthenticationError(None, f'found {len(credentials)} values of auth, expected one')
    credential = CREDENTIAL.fullmatch(credentials[0])
    if credential is None or credential['scheme'].lower() != 'bearer':
        raise AuthenticationError(None, 'found a value of auth that is not a bearer token')
    try:
        return unescape_name((match['authzid'] or b'').decode()), credential['token']
    except UnicodeDecodeError:
        raise AuthenticationError(None, 'found an authorization id that is not UTF-8') from None


# ---- the parts of a token

def split_token(bearer: str) -> list[str]:
    """Return the three parts of a token in compact form. Raise TokenRefused if the token has a different form."""
    if len(bearer) > LARGEST_BEARER_BYTES:
        raise TokenRefused(f'found {len(bearer)} bytes, expected at most {LARGEST_BEARER_BYTES}')
    parts = bearer.split('.')
    if len(parts) != 3 or not parts[0] or not parts[1]:
        raise TokenRefused('found something else, expected three parts with dots in between')
    return parts


def parse_object(part: str, what: str) -> dict[str, Any]:
    """Return the JSON object in one part of a token.

    Raise TokenRefused if the part is not a JSON object, or repeats a member.
    """
    if BASE64URL.fullmatch(part) is None:
        raise TokenRefused(f'found a {what} that is not base64url')
    try:
        return parse_json_object(base64.urlsafe_b64decode(part + '=' * (-len(part) % 4)).decode())
    except (binascii.Error, ValueError):
        raise TokenRefused(f'found a {what} that is not a JSON object') from None


def parse_json_object(text: str) -> dict[str, Any]:
    """Return the JSON object in a text.

    Raise ValueError if the text is not a JSON object, repeats a member, or is nested more deeply than Python can parse.
    """
    try:
        found = json.loads(text, object_pairs_hook=_members, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError('found too much nesting') from None
    if not isinstance(found, dict):
        raise ValueError('found something else, expected a JSON object')
    return found


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def take_seconds(claims: Mapping[str, Any], name: str) -> float | None:
    """Return the value of a time claim in seconds, or None if the claim is missing. Raise TokenRefused if it is no
    time.
    """
    if name not in claims:
        return None
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LATEST_SECONDS:
        raise TokenRefused(f'found a claim {name} that is not a time in seconds')
    return float(value)


def take_name(claims: Mapping[str, Any], name: str) -> str:
    """Return the principal's name in the claim `name`. Raise TokenRefused if the claim is missing or not valid."""
    value = claims.get(name)
    if not isinstance(value, str) or not value.strip():
        raise TokenRefused(f'found no text in the claim {name}')
    try:
        value.encode()
    except UnicodeEncodeError:
        raise TokenRefused(f'found a claim {name} with half a surrogate pair') from None
    return value


def name_in(bearer: str, claim: str) -> str | None:
    """Return the name in a token that may be forged. Return None if the token has no name."""
    try:
        return take_name(parse_object(split_token(bearer)[1], 'payload'), claim)
    except TokenRefused:
        return None


# ---- unsecured tokens

OPTION = 'unsecuredValidator'
OPTIONS = ('PrincipalClaimName', 'ScopeClaimName', 'RequiredScope', 'AllowableClockSkewMs')
JAAS_SETTING = 'oauthbearer.sasl.jaas.config'


class UnsecuredOAuthBearer(Mechanism):
    """OAUTHBEARER for development: it accepts tokens without a signature, so a client may log in under any name.

    `options` are the options of the login module, such as unsecuredValidatorRequiredScope.
    """

    name = NAME

    def __init__(self, options: Mapping[str, str], clock: Clock):
        for name in options:
            if name.startswith(OPTION) and name.removeprefix(OPTION) not in OPTIONS:
                raise bad_setting(JAAS_SETTING, f'found the option {name}, expected one of '
                                                f'{", ".join(OPTION + known for known in OPTIONS)}')
        self._clock = clock
        self._principal_claim = options.get(f'{OPTION}PrincipalClaimName') or 'sub'
        self._scope_claim = options.get(f'{OPTION}ScopeClaimName') or 'scope'
        self._required_scope = options.get(f'{OPTION}RequiredScope', '').split()
        skew = options.get(f'{OPTION}AllowableClockSkewMs', '0')
        if not (skew.isascii() and skew.isdecimal() and len(skew) < 13):
            raise bad_setting(JAAS_SETTING, f'{OPTION}AllowableClockSkewMs: expected milliseconds, 0 or more')
        self._skew_ms = int(skew)
        self.warnings = ('OAUTHBEARER accepts unsigned tokens: any client may use any name. For production, set '
                         'sasl.server.callback.handler.class and sasl.oauthbearer.jwks.endpoint.url',)

    def begin(self) -> Exchange:
        return Exchange(converse(self))

    def check_of(self, bearer: str) -> None:
        """Raise TokenRefused unless the token is unsigned. Return None, because an unsigned token needs no Check."""
        header_part, _, signature = split_token(bearer)
        if signature:
            raise TokenRefused('found a signature, expected an unsigned token')
        if parse_object(header_part, 'header').get('alg') != 'none':
            raise TokenRefused('found another algorithm, expected none')

    def claimed_name(self, bearer: str) -> str | None:
        return name_in(bearer, self._principal_claim)

    def login_of(self, bearer: str) -> Login:
        """Return the Login for an unsigned token. Raise TokenRefused if its claims are not acceptable."""
        claims = parse_object(split_token(bearer)[1], 'payload')
        name = take_name(claims, self._principal_claim)
        issued, expires = take_seconds(claims, 'iat'), take_seconds(claims, 'exp')
        now_ms = self._clock.wall_ms()
        if expires is None:
            raise TokenRefused('found no claim exp')
        if issued is not None and issued * 1000 > now_ms + self._skew_ms:
            raise TokenRefused('the token was issued in the future')
        if expires * 1000 <= now_ms - self._skew_ms:
            raise TokenRefused('the token has expired')
        if issued is not None and expires <= issued:
            raise TokenRefused('the token expires before it was issued')
        self._check_scope(claims)
        return Login(name, round(expires * 1000))

    def _check_scope(self, claims: Mapping[str, Any]) -> None:
        found = claims.get(self._scope_claim)
        scopes = [found] if isinstance(found, str) else [] if found is None else found
        if not isinstance(scopes, list) or not all(isinstance(scope, str) for scope in scopes):
            raise TokenRefused(f'found a claim {self._scope_claim} that is not a list of texts')
        if any(scope not in scopes for scope in self._required_scope):
            # Kafka's answer contains the required scopes as Java prints a list: [a, b].
            status = {'status': 'insufficient_scope', 'scope': f'[{", ".join(self._required_scope)}]'}
            text = ', '.join(f'{json.dumps(name)}:{json.dumps(value)}' for name, value in status.items())
            raise TokenRefused('a required scope is missing', f'{{{text}}}')
