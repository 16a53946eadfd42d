"""The settings of a schema registry's client, with the names that Confluent's clients use."""
from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from kbroker.base.errors import ConfigError
from kbroker.base.suggestions import did_you_mean
from kbroker.client.config import TlsConfig, read_tls
from kbroker.settings.properties import read_properties, read_text
from kbroker_tools.registry.errors import RegistryError

PREFIX = 'schema.registry.'
"""The beginning of names in Java's clients. Every setting may have it, and none but `schema.registry.url` needs it."""
TIMES = {'http.connect.timeout.ms': 10_000, 'http.read.timeout.ms': 60_000, 'retries.wait.ms': 1000,
         'retries.max.wait.ms': 20_000}
TLS = ('ssl.truststore.location', 'ssl.truststore.type', 'ssl.truststore.certificates', 'ssl.keystore.location',
       'ssl.keystore.type', 'ssl.keystore.key', 'ssl.keystore.certificate.chain', 'ssl.key.password', 'ssl.ca.location',
       'ssl.certificate.location', 'ssl.key.location', 'ssl.crl.location', 'ssl.enabled.protocols',
       'ssl.endpoint.identification.algorithm')
KNOWN = ('schema.registry.url', 'basic.auth.credentials.source', 'basic.auth.user.info',
         'bearer.auth.credentials.source', 'bearer.auth.token', 'bearer.auth.logical.cluster',
         'bearer.auth.identity.pool.id', 'max.retries', *TIMES, *TLS)
BEARER_HEADERS = {'bearer.auth.logical.cluster': 'target-sr-cluster',
                  'bearer.auth.identity.pool.id': 'Confluent-Identity-Pool-Id'}
MOST_RETRIES = 100
MOST_MS = 3_600_000


@dataclass(frozen=True)
class RegistrySettings:
    """The addresses of a registry, and how the client logs in. It can be pickled, and it has the content of files
    instead of their names, because tasks on other machines use it too."""

    urls: tuple[str, ...]
    """URLs without credentials and without a slash at the end. The client tries them in turn."""
    headers: tuple[tuple[str, str], ...]
    """The headers of each request. They have the password or the token."""
    tls: TlsConfig
    max_retries: int
    connect_timeout_s: float
    read_timeout_s: float
    retry_wait_s: float
    retry_max_wait_s: float

    def __repr__(self) -> str:
        return f'RegistrySettings({",".join(self.urls)})'

    @classmethod
    def load(cls, path: Path, url: str | None = None) -> RegistrySettings:
        """Return the settings in a properties file. Raise RegistryError if one is wrong, and OSError if the file cannot
        be read."""
        return cls.of(read_registry_file(path), url)

    @classmethod
    def of(cls, settings: Mapping[str, str], url: str | None = None) -> RegistrySettings:
        """Return the settings of a mapping, as in a properties file. A `url` takes precedence over the mapping's.

        Raise RegistryError if a setting is wrong, and OSError if a file of certificates cannot be read.
        """
        rest = {f'{PREFIX}url' if name == 'url' else name: text.strip()
                for given, text in settings.items() for name in [given.removeprefix(PREFIX)]}
        if url is not None:
            rest[f'{PREFIX}url'] = url
        urls, credentials = _urls(rest.pop(f'{PREFIX}url', ''))
        times = {name: _number(rest, name, default, MOST_MS) / 1000 for name, default in TIMES.items()}
        retries = _number(rest, 'max.retries', 3, MOST_RETRIES)
        headers = _login(rest, credentials)
        try:
            tls = read_tls(rest)
        except ConfigError as error:
            raise RegistryError(str(error), error.name) from None
        for name in rest:
            hint = did_you_mean(name, KNOWN, ': ')
            raise RegistryError(f'{name}: the client of a schema registry does not have this setting{hint}', name)
        return cls(urls, headers, tls, retries, times['http.connect.timeout.ms'], times['http.read.timeout.ms'],
                   times['retries.wait.ms'], times['retries.max.wait.ms'])


def read_registry_file(path: Path) -> dict[str, str]:
    """Return the settings in a properties file. Raise RegistryError if it is malformed, OSError if it cannot be
    read."""
    try:
        return read_properties(read_text(path))[0]
    except ValueError as error:
        raise RegistryError(f'{path}: {error}') from None


def _urls(text: str) -> tuple[tuple[str, ...], str | None]:
    """Return the URLs without credentials, and the credentials of the first URL that has some."""
    found, credentials = [], None
    for each in filter(None, (part.strip() for part in text.split(','))):
        try:
            parts = urlsplit(each)
            bad = parts.scheme not in ('http', 'https') or not parts.hostname or parts.query or parts.fragment
            port = parts.port
        except ValueError:
            bad = True
        if bad:
            raise _wrong(f'{PREFIX}url', 'found a text that is not a URL of a registry, expected '
                                         'http://HOST:PORT or https://HOST/PATH')
        if parts.username is not None and credentials is None:
            credentials = f'{unquote(parts.username)}:{unquote(parts.password or "")}'
        host = f'[{parts.hostname}]' if ':' in str(parts.hostname) else parts.hostname
        found.append(f'{parts.scheme}://{host}{f":{port}" if port else ""}{parts.path.rstrip("/")}')
    if not found:
        raise _wrong(f'{PREFIX}url', 'found none, expected the URL of the schema registry: set it in the file of '
                                     '--registry-config, or write registry:URL')
    return tuple(found), credentials


def _login(rest: dict[str, str], in_url: str | None) -> tuple[tuple[str, str], ...]:
    """Remove the settings of the login. Return the headers that log in."""
    source = rest.pop('basic.auth.credentials.source', '').upper()
    basic = rest.pop('basic.auth.user.info', None)
    if source not in ('', 'URL', 'USER_INFO'):
        raise _wrong('basic.auth.credentials.source', f'found {source}, expected URL or USER_INFO')
    if source == 'USER_INFO' and basic is None:
        raise _wrong('basic.auth.user.info', 'found none, expected USER:PASSWORD')
    if basic is not None and in_url is not None:
        raise _wrong('basic.auth.user.info', 'found together with a user in schema.registry.url, expected one of them')
    if basic is not None and ':' not in basic:
        raise _wrong('basic.auth.user.info', 'found a text without a colon, expected USER:PASSWORD')
    basic = basic if basic is not None else in_url
    bearer_source = rest.pop('bearer.auth.credentials.source', '').upper()
    if bearer_source not in ('', 'STATIC_TOKEN'):
        raise _wrong('bearer.auth.credentials.source', f'found {bearer_source}, expected STATIC_TOKEN')
    token = rest.pop('bearer.auth.token', None)
    if bearer_source and token is None:
        raise _wrong('bearer.auth.token', 'found none, expected a token')
    more = tuple((header, rest.pop(name)) for name, header in BEARER_HEADERS.items() if name in rest)
    if token is not None and basic is not None:
        raise _wrong('bearer.auth.token', 'found together with basic authentication, expected one of them')
    if more and token is None:
        raise _wrong('bearer.auth.token', 'found none, expected it beside the other settings of bearer.auth')
    if token is not None:
        headers = (('Authorization', f'Bearer {token}'), *more)
    elif basic is not None:
        headers = (('Authorization', f'Basic {base64.b64encode(basic.encode()).decode()}'),)
    else:
        headers = ()
    for _, text in headers:
        if not (text.isascii() and text.isprintable()):
            raise _wrong('bearer.auth.token', 'found characters that a header cannot have, expected printable ASCII')
    return headers


def _number(rest: dict[str, str], name: str, default: int, most: int) -> int:
    text = rest.pop(name, str(default))
    value = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else -1
    if not 0 <= value <= most:
        raise _wrong(name, f'found {text!r}, expected 0 to {most}')
    return value


def _wrong(name: str, message: str) -> RegistryError:
    return RegistryError(f'{name}: {message}', name)
