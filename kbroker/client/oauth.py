"""Bearer tokens for OAUTHBEARER. The client writes a token itself, reads it from a file, or requests it from an
identity provider.

The names of the settings are Kafka's. `sasl.oauthbearer.token.endpoint.url` is a file (`file:///path`), or the token
endpoint of the provider, which gets a client-credentials grant (RFC 6749, 4.4). Without this setting, the options
`unsecuredLogin...` of the login module describe an unsigned token, for development.
"""
from __future__ import annotations

import base64
import json
import re
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, unquote, urlencode, urlsplit

from kbroker.base.clock import Clock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.arguments import MOST_MS
from kbroker.client.errors import ClientError
from kbroker.security.web import WebError, request
from kbroker.settings.tls import bad_setting, take_store

URL = 'sasl.oauthbearer.token.endpoint.url'
LARGEST_ANSWER_BYTES = 64 * 1024
BEARER = re.compile(r'[-_~+/.A-Za-z0-9]+=*')
EXTENSION_NAME = re.compile('[A-Za-z]+')
EXTENSION_VALUE = re.compile('[\x20-\x7e\t\r\n]+')
RENEW_AT = 0.8
"""The share of its lifetime for which a token from an endpoint is reused."""
DEFAULT_LIFETIME_S = 60
"""The assumed lifetime of a token if the endpoint does not report it."""
UNSECURED = 'unsecuredLogin'


class TokenSource(ABC):
    """A source of the bearer tokens with which a client logs in."""

    @abstractmethod
    def token(self, limit_ms: int = MOST_MS) -> str:
        """Return a token for a new login. Wait at most `limit_ms` for an identity provider.

        Raise ClientError if the provider does not answer, KafkaError(SASL_AUTHENTICATION_FAILED) if the provider
        refuses or the source has no token.
        """


@dataclass(slots=True)
class UnsecuredToken(TokenSource):
    """A source of tokens that the client writes itself, without a signature."""

    claims: Mapping[str, Any] = field(repr=False)
    lifetime_s: int
    clock: Clock

    def token(self, limit_ms: int = MOST_MS) -> str:
        now_s = self.clock.wall_ms() / 1000
        claims = {**self.claims, 'iat': now_s, 'exp': now_s + self.lifetime_s}
        return f'{_part({"alg": "none"})}.{_part(claims)}.'


@dataclass(slots=True)
class FileToken(TokenSource):
    """A source that reads a token from a file at each login, because another program renews the file."""

    path: Path

    def token(self, limit_ms: int = MOST_MS) -> str:
        try:
            with self.path.open('rb') as file:
                text = file.read(LARGEST_ANSWER_BYTES).decode('ascii', 'replace').strip()
        except OSError as error:
            raise ClientError(f'{URL}: {self.path} cannot be read ({error.strerror})', True) from None
        return _checked(text, str(self.path))


@dataclass(slots=True)
class EndpointToken(TokenSource):
    """A source that requests tokens from an identity provider, and reuses each for most of its lifetime."""

    url: str
    authorization: str = field(repr=False)
    scope: str | None
    timeout_s: float
    context: ssl.SSLContext | None
    clock: Clock
    _kept: tuple[str, float] | None = field(default=None, repr=False)

    def token(self, limit_ms: int = MOST_MS) -> str:
        now_ms = self.clock.monotonic_ms()
        if self._kept is not None and now_ms < self._kept[1]:
            return self._kept[0]
        token, lifetime_s = self._ask(min(self.timeout_s, limit_ms / 1000))
        self._kept = token, now_ms + lifetime_s * 1000 * RENEW_AT
        return token

    def _ask(self, limit_s: float) -> tuple[str, float]:
        """Request a token. Return the token and its lifetime in seconds."""
        form = {'grant_type': 'client_credentials'} | ({} if self.scope is None else {'scope': self.scope})
        headers = {'Authorization': self.authorization, 'Content-Type': 'application/x-www-form-urlencoded'}
        try:
            answer = request('POST', self.url, LARGEST_ANSWER_BYTES, time.monotonic() + limit_s,
                             body=urlencode(form).encode(), headers=headers, context=self.context)
        except WebError as error:
            raise ClientError(f'{self.url}: {error}') from None
        if answer.status >= 500:
            raise ClientError(f'{self.url} answers with status {answer.status}, expected 200 and a token')
        try:
            members = json.loads(answer.body)
        except (ValueError, RecursionError):
            members = None
        if answer.status != 200 or not isinstance(members, dict) or not isinstance(members.get('access_token'), str):
            code = members.get('error') if isinstance(members, dict) else None
            shown = f' ({code})' if isinstance(code, str) and re.fullmatch('[a-z_]{1,40}', code) else ''
            raise _failed(f'{self.url} answers with status {answer.status}{shown}, expected 200 and a token')
        lifetime = members.get('expires_in', DEFAULT_LIFETIME_S)
        is_number = isinstance(lifetime, int | float) and not isinstance(lifetime, bool) and 0 <= lifetime < 2**31
        return _checked(members['access_token'], self.url), lifetime if is_number else DEFAULT_LIFETIME_S


def take_token_source(settings: dict[str, str], options: Mapping[str, str], timeout_ms: int) -> TokenSource:
    """Return the token source that the settings and the options of the login module describe. Remove these settings
    from `settings`.

    Raise ConfigError if they are missing or not valid.
    """
    url = settings.pop(URL, None)
    client_id = settings.pop('sasl.oauthbearer.client.credentials.client.id', options.get('clientId'))
    secret = settings.pop('sasl.oauthbearer.client.credentials.client.secret', options.get('clientSecret'))
    scope = settings.pop('sasl.oauthbearer.scope', options.get('scope'))
    encodes = settings.pop('sasl.oauthbearer.header.urlencode', 'false').lower() == 'true'
    if url is None:
        return _unsecured(options)
    parts = urlsplit(url)
    if parts.scheme == 'file' and parts.path.startswith('/'):
        return FileToken(Path(unquote(parts.path)))
    if parts.scheme not in ('http', 'https') or not parts.hostname or parts.username is not None:
        raise bad_setting(URL, 'found something else, expected https://HOST/PATH or file:///PATH')
    if not client_id or not secret:
        raise bad_setting('sasl.oauthbearer.client.credentials.client.id', 'found no id or no secret, expected both: '
                          f'the client asks {url} for its tokens with them')
    if encodes:
        client_id, secret = quote_plus(client_id), quote_plus(secret)
    credentials = base64.b64encode(f'{client_id}:{secret}'.encode()).decode()
    context = _context(parts.scheme, options)
    return EndpointToken(url, f'Basic {credentials}', scope, timeout_ms / 1000, context, Clock())


def take_extensions(options: Mapping[str, str]) -> dict[str, str]:
    """Return the SASL extensions in the login module's options. Raise ConfigError for a bad name or value."""
    found = {}
    for name, value in options.items():
        for prefix in (f'{UNSECURED}Extension_', 'extension_'):
            if name.startswith(prefix):
                key = name.removeprefix(prefix)
                if not EXTENSION_NAME.fullmatch(key) or key == 'auth' or not EXTENSION_VALUE.fullmatch(value):
                    raise bad_setting('sasl.jaas.config', f'found an extension {key!r} that is not valid, expected '
                                                          'letters as its name and printable ASCII as its value')
                found[key] = value
    return found


def _unsecured(options: Mapping[str, str]) -> UnsecuredToken:
    claims: dict[str, Any] = {}
    for name, value in options.items():
        for kind in ('String', 'Number', 'List'):
            prefix = f'{UNSECURED}{kind}Claim_'
            if name.startswith(prefix):
                claims[name.removeprefix(prefix)] = _claim(kind, name, value)
    principal = options.get(f'{UNSECURED}PrincipalClaimName', 'sub')
    lifetime = options.get(f'{UNSECURED}LifetimeSeconds', '3600')
    if not claims.get(principal) or not isinstance(claims[principal], str):
        raise bad_setting('sasl.jaas.config', f'found no user, expected {URL}, or for development the option '
                                              f'{UNSECURED}StringClaim_{principal}="USER"')
    if {'iat', 'exp'} & claims.keys():
        raise bad_setting('sasl.jaas.config', f'found a claim iat or exp, expected {UNSECURED}LifetimeSeconds instead')
    if not (lifetime.isascii() and lifetime.isdecimal() and len(lifetime) <= 10 and int(lifetime)):
        raise bad_setting('sasl.jaas.config', f'{UNSECURED}LifetimeSeconds: expected seconds, 1 or more')
    return UnsecuredToken(claims, int(lifetime), Clock())


def _claim(kind: str, name: str, value: str) -> Any:
    if kind == 'String':
        return value
    if kind == 'List':
        return value[1:].split(value[0]) if value else []  # the first character is the separator
    try:
        return float(value)
    except ValueError:
        raise bad_setting('sasl.jaas.config', f'{name}: found something else, expected a number') from None


def _context(scheme: str, options: Mapping[str, str]) -> ssl.SSLContext | None:
    if scheme != 'https':
        return None
    rest = {name: text for name, text in options.items() if name.startswith('ssl.')}
    try:
        return ssl.create_default_context(cadata=take_store(rest, 'ssl.truststore', 'ssl.truststore.certificates'))
    except ssl.SSLError as error:
        raise bad_setting('ssl.truststore.location', f'the certificates cannot be read ({error.reason})') from None


def _checked(token: str, where: str) -> str:
    if BEARER.fullmatch(token) is None:
        raise _failed(f'{where} holds {len(token)} characters that are not a bearer token')
    return token


def _part(value: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b'=').decode()


def _failed(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, reason)
