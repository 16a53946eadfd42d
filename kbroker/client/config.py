"""The connection settings of a client, with Kafka's names, read from a Java properties file or a mapping.

Settings for other modules (`acks`, `linger.ms`, `auto.offset.reset` ...) are kept in `properties`. An unknown name that
begins with `sasl.` or `ssl.` is rejected, because ignoring it could weaken the security.
"""
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kbroker.base.errors import ConfigError
from kbroker.client.arguments import MOST_MS
from kbroker.settings.jaas import JaasError, LoginModule, parse_jaas
from kbroker.settings.properties import read_properties, read_text
from kbroker.settings.tls import (
    TLS_VERSIONS,
    bad_setting,
    take_inline_pem,
    take_pem_file,
    take_store,
    take_tls_versions,
)

if TYPE_CHECKING:
    from kbroker.client.oauth import TokenSource

CLIENT_ID = 'kbroker-tools'
SECURITY_PROTOCOLS = ('PLAINTEXT', 'SSL', 'SASL_PLAINTEXT', 'SASL_SSL')
LOGIN_MODULES = {'PLAIN': 'PlainLoginModule', 'SCRAM-SHA-256': 'ScramLoginModule',
                 'SCRAM-SHA-512': 'ScramLoginModule', 'OAUTHBEARER': 'OAuthBearerLoginModule'}
SASL_MECHANISMS = tuple(LOGIN_MODULES)
OAUTH_PACKAGE = 'org.apache.kafka.common.security.oauthbearer.'
LOGIN_HANDLERS = tuple(OAUTH_PACKAGE + name for name in (
    'OAuthBearerLoginCallbackHandler', 'secured.OAuthBearerLoginCallbackHandler',
    'internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler'))
TOKEN_RETRIEVERS = tuple(OAUTH_PACKAGE + name for name in (
    'DefaultJwtRetriever', 'FileJwtRetriever', 'ClientCredentialsJwtRetriever'))
UNUSED_OAUTH_SETTINGS = (
    'sasl.login.connect.timeout.ms', 'sasl.login.refresh.buffer.seconds', 'sasl.login.refresh.min.period.seconds',
    'sasl.login.refresh.window.factor', 'sasl.login.refresh.window.jitter', 'sasl.login.retry.backoff.ms',
    'sasl.login.retry.backoff.max.ms', 'sasl.oauthbearer.scope.claim.name', 'sasl.oauthbearer.sub.claim.name')
"""Settings of Kafka's clients about refreshing tokens. They have no effect, because each login requests a new token if
it needs one.
"""

TIMES = {
    'request_timeout_ms': 'request.timeout.ms', 'default_api_timeout_ms': 'default.api.timeout.ms',
    'connection_setup_timeout_ms': 'socket.connection.setup.timeout.ms', 'retry_backoff_ms': 'retry.backoff.ms',
    'retry_backoff_max_ms': 'retry.backoff.max.ms', 'connections_max_idle_ms': 'connections.max.idle.ms'}
"""Maps each field of ClientConfig that is a time to its setting. The fields have the defaults."""
CONNECTION_SETTINGS = ('bootstrap.servers', 'client.id', 'security.protocol', *TIMES.values())
"""The settings that every client accepts, whatever its security.protocol."""
SECURITY_SETTINGS = (
    'sasl.mechanism', 'sasl.jaas.config', 'sasl.username', 'sasl.password', 'sasl.login.callback.handler.class',
    'sasl.login.read.timeout.ms', 'sasl.oauthbearer.token.endpoint.url', 'sasl.oauthbearer.jwt.retriever.class',
    'sasl.oauthbearer.client.credentials.client.id', 'sasl.oauthbearer.client.credentials.client.secret',
    'sasl.oauthbearer.scope', 'sasl.oauthbearer.header.urlencode', 'ssl.truststore.location', 'ssl.truststore.type',
    'ssl.truststore.certificates', 'ssl.keystore.location', 'ssl.keystore.type', 'ssl.keystore.key',
    'ssl.keystore.certificate.chain', 'ssl.key.password', 'ssl.ca.location', 'ssl.certificate.location',
    'ssl.key.location', 'ssl.crl.location', 'ssl.enabled.protocols', 'ssl.endpoint.identification.algorithm')
"""The settings of TLS and SASL, which take effect only with some values of security.protocol."""

# As in Kafka's clients, an address may begin with a protocol (`SSL://`), which is ignored.
ADDRESS = re.compile(r'(?:[\w.%-]*://)?(?:\[([\w.%:-]+)\]|([\w.%-]+)):(\d+)')


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """The TLS settings of a connection. A PEM text comes from a file or from the setting itself."""

    trusted_certificates: str | None = None
    """The trusted certificates in PEM; None if the trusted certificates of the system are used."""
    certificate_chain: str | None = None
    private_key: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    checks_host_name: bool = True
    enabled_protocols: tuple[str, ...] = TLS_VERSIONS
    revocation_lists: str | None = None
    """Certificate revocation lists in PEM; None if revocation is not checked."""


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The settings of a client. Times are in milliseconds. The defaults are those of Kafka's clients."""

    bootstrap: tuple[tuple[str, int], ...]
    client_id: str = CLIENT_ID
    security_protocol: str = 'PLAINTEXT'
    sasl_mechanism: str = 'PLAIN'
    sasl_username: str = ''
    sasl_password: str = field(default='', repr=False)
    sasl_token: TokenSource | None = None
    """The source of bearer tokens for OAUTHBEARER; None for a different mechanism."""
    sasl_extensions: Mapping[str, str] = field(default_factory=dict)
    tls: TlsConfig = TlsConfig()
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    """The longest time for which an operation is retried."""
    connection_setup_timeout_ms: int = 10_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1000
    connections_max_idle_ms: int = 540_000
    """The idle time after which a connection is closed.

    It is shorter than the ten minutes after which brokers close idle connections.
    """
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_tls(self) -> bool:
        return self.security_protocol in ('SSL', 'SASL_SSL')

    @property
    def is_sasl(self) -> bool:
        return self.security_protocol in ('SASL_PLAINTEXT', 'SASL_SSL')

    @classmethod
    def load(cls, bootstrap_server: str | None, command_config: Path | None = None,
             overrides: Mapping[str, str] | None = None) -> ClientConfig:
        """Load settings. `overrides` take precedence over the file, and `bootstrap_server` over `bootstrap.servers`.

        Raise ConfigError for a bad setting, OSError for a file that cannot be read.
        """
        settings: dict[str, str] = {}
        if command_config is not None:
            settings = read_client_file(command_config)
        settings |= overrides or {}
        if bootstrap_server is not None:
            settings['bootstrap.servers'] = bootstrap_server
        return cls.from_settings(settings)

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> ClientConfig:
        """Return the config of these settings.

        Raise ConfigError for a bad setting, OSError for a certificate or key file that cannot be read.
        """
        rest = dict(settings)
        protocol = _one_of(rest, 'security.protocol', SECURITY_PROTOCOLS, 'PLAINTEXT', upper=True)
        sasl = _read_sasl(rest) if protocol.startswith('SASL') else {}
        tls = read_tls(rest) if protocol.endswith('SSL') else TlsConfig()
        if protocol in ('SSL', 'SASL_SSL', 'SASL_PLAINTEXT'):
            _refuse_unknown(rest, protocol)
        times: dict[str, Any] = {each.name: _milliseconds(rest, TIMES[each.name], cast(int, each.default))
                                 for each in fields(cls) if each.name in TIMES}
        return cls(
            bootstrap=parse_addresses(rest.pop('bootstrap.servers', '')),
            client_id=rest.pop('client.id', CLIENT_ID),
            security_protocol=protocol, **sasl, tls=tls,
            **times, properties=rest)


def read_client_file(file: Path) -> dict[str, str]:
    """Return the settings of a client's file.

    Raise ConfigError if the file is malformed, OSError if it cannot be read.
    """
    try:
        return read_properties(read_text(file))[0]
    except ValueError as error:
        raise ConfigError('command-config', f'{file}: {error}') from None


def parse_addresses(text: str) -> tuple[tuple[str, int], ...]:
    """Return (host, port) pairs from a text such as `host:9092,[::1]:9092`. Raise ConfigError for any other text."""
    addresses = []
    for part in filter(None, (part.strip() for part in text.split(','))):
        match = ADDRESS.fullmatch(part)
        if match is None or not 0 < int(match[3]) < 65536:
            raise ConfigError('bootstrap.servers', f'bootstrap server: found {part!r}, expected HOST:PORT')
        addresses.append((match[1] or match[2], int(match[3])))
    if not addresses:
        raise ConfigError('bootstrap.servers', 'bootstrap server: found none, expected HOST:PORT')
    return tuple(addresses)


# ---- SASL

def parse_login_module(text: str, mechanism: str) -> LoginModule:
    """Parse `sasl.jaas.config`.

    Raise ConfigError for a bad text. The message omits the text, which contains secrets.
    """
    try:
        module = parse_jaas(text)
    except JaasError as error:
        raise bad_setting('sasl.jaas.config', str(error)) from None
    if module.short_name != LOGIN_MODULES[mechanism]:
        raise bad_setting('sasl.jaas.config', f'found another login module, expected {LOGIN_MODULES[mechanism]} for '
                                              f'{mechanism}')
    return module


def _read_sasl(settings: dict[str, str]) -> dict[str, Any]:
    """Return the fields of ClientConfig that have the SASL settings."""
    if 'sasl.mechanism' not in settings:
        raise bad_setting('sasl.mechanism', f'found none, expected one of {", ".join(SASL_MECHANISMS)}')
    mechanism = _one_of(settings, 'sasl.mechanism', SASL_MECHANISMS, '', upper=True)
    jaas = settings.pop('sasl.jaas.config', None)
    options = {} if jaas is None else parse_login_module(jaas, mechanism).options
    if mechanism == 'OAUTHBEARER':
        return {'sasl_mechanism': mechanism, **_read_oauth(settings, options)}
    username, password = settings.pop('sasl.username', None), settings.pop('sasl.password', None)
    if jaas is not None:
        username, password = options.get('username'), options.get('password')
        if username is None or password is None:
            raise bad_setting('sasl.jaas.config', f'expected the options username="..." and password="..." of '
                                                  f'{LOGIN_MODULES[mechanism]}, then ;')
    if username is None or password is None:
        raise bad_setting('sasl.jaas.config', 'found none, expected it, or sasl.username and sasl.password')
    return {'sasl_mechanism': mechanism, 'sasl_username': username, 'sasl_password': password}


def _read_oauth(settings: dict[str, str], options: Mapping[str, str]) -> dict[str, Any]:
    from kbroker.client.oauth import take_extensions, take_token_source  # slow to import, and rarely used

    if 'sasl.login.callback.handler.class' in settings:
        _one_of(settings, 'sasl.login.callback.handler.class', LOGIN_HANDLERS, '', upper=False)
    if 'sasl.oauthbearer.jwt.retriever.class' in settings:
        _one_of(settings, 'sasl.oauthbearer.jwt.retriever.class', TOKEN_RETRIEVERS, '', upper=False)
    for name in UNUSED_OAUTH_SETTINGS:
        settings.pop(name, None)
    timeout_ms = _milliseconds(settings, 'sasl.login.read.timeout.ms', 10_000)
    return {'sasl_token': take_token_source(settings, options, timeout_ms), 'sasl_extensions': take_extensions(options)}


# ---- TLS

def read_tls(settings: dict[str, str]) -> TlsConfig:
    """Remove the settings of TLS, and return them. Raise ConfigError for a bad setting, OSError for a file that cannot
    be read."""
    algorithm = settings.pop('ssl.endpoint.identification.algorithm', 'https')
    if algorithm.lower() not in ('https', ''):
        raise bad_setting('ssl.endpoint.identification.algorithm', f'found {algorithm!r}, expected https, or nothing')
    trusted = take_store(settings, 'ssl.truststore', 'ssl.truststore.certificates')
    if trusted is None:
        trusted = take_pem_file(settings, 'ssl.ca.location')
    key_pair = take_store(settings, 'ssl.keystore', 'ssl.keystore.key')
    chain = (take_inline_pem(settings, 'ssl.keystore.certificate.chain')
             or take_pem_file(settings, 'ssl.certificate.location'))
    key = key_pair or take_pem_file(settings, 'ssl.key.location')
    if chain is not None and key is None:
        raise bad_setting('ssl.keystore.key', 'found a certificate chain without a key, expected both')
    settings.pop('ssl.protocol', None)
    return TlsConfig(trusted, chain if chain is not None else key, key, settings.pop('ssl.key.password', None),
                     algorithm != '', take_tls_versions(settings), take_pem_file(settings, 'ssl.crl.location'))


# ---- values

def _one_of(settings: dict[str, str], name: str, values: tuple[str, ...], default: str, *, upper: bool) -> str:
    found = settings.pop(name, default)
    value = found.strip().upper() if upper else found.strip()
    if value not in values:
        raise bad_setting(name, f'found {found!r}, expected one of {", ".join(values)}')
    return value


def _milliseconds(settings: dict[str, str], name: str, default: int) -> int:
    text = settings.pop(name, str(default))
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value <= MOST_MS:
        raise bad_setting(name, f'found {text!r}, expected milliseconds, 0 to {MOST_MS}')
    return value


def _refuse_unknown(settings: Mapping[str, str], protocol: str) -> None:
    parts = tuple(part for part, name in (('ssl.', 'SSL'), ('sasl.', 'SASL')) if name in protocol.split('_'))
    for name in settings:
        if name.startswith(parts):
            raise bad_setting(name, 'this client does not know this setting; take it out of the settings')
