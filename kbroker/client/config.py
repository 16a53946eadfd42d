"""Where a cluster is and how to speak with it: client settings under Kafka's names, read from Java's properties.

What does not concern the connection (`acks`, `linger.ms`, `auto.offset.reset` ...) is kept in `properties` for
whoever knows it. A `sasl.` or `ssl.` name that is not known here is refused: skipping it might weaken the security
that it asks for.
"""
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kbroker.errors import ConfigError
from kbroker.properties import read_properties

CLIENT_ID = 'kbroker-tools'
SECURITY_PROTOCOLS = ('PLAINTEXT', 'SSL', 'SASL_PLAINTEXT', 'SASL_SSL')
SASL_MECHANISMS = ('PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512')
LOGIN_MODULES = ('PlainLoginModule', 'ScramLoginModule')
TLS_VERSIONS = ('TLSv1.2', 'TLSv1.3')

# As Kafka's clients read it: a protocol before the address is allowed, and not heeded.
ADDRESS = re.compile(r'(?:[\w.%-]*://)?(?:\[([\w.%:-]+)\]|([\w.%-]+)):(\d+)')
JAAS_ENTRY = re.compile(r'\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*?);\s*',
                        re.DOTALL | re.IGNORECASE)
JAAS_OPTION = re.compile(r'\s*([\w.-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))', re.DOTALL)
PEM_BLOCK = re.compile(r'-----BEGIN ([A-Z0-9 ]+)-----([ -~\s]*?)-----END \1-----', re.ASCII)


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """What secures a connection; the PEM texts are the content of a file or given in the settings themselves."""

    trusted_certificates: str | None = None
    """PEM; None trusts what the machine trusts."""
    certificate_chain: str | None = None
    private_key: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    checks_host_name: bool = True
    enabled_protocols: tuple[str, ...] = TLS_VERSIONS


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Times are in milliseconds; the defaults are those of Kafka's clients."""

    bootstrap: tuple[tuple[str, int], ...]
    client_id: str = CLIENT_ID
    security_protocol: str = 'PLAINTEXT'
    sasl_mechanism: str = 'PLAIN'
    sasl_username: str = ''
    sasl_password: str = field(default='', repr=False)
    tls: TlsConfig = TlsConfig()
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    """How long an operation is tried again for."""
    connection_setup_timeout_ms: int = 10_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1000
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
        """The settings of a file, those of `overrides` before them, `bootstrap_server` before `bootstrap.servers`.

        Raises ConfigError, and OSError for a file that cannot be read.
        """
        settings: dict[str, str] = {}
        if command_config is not None:
            try:
                settings, _ = read_properties(command_config.read_text('utf-8'))
            except ValueError as error:
                raise ConfigError('command-config', f'{command_config}: {error}') from None
        settings |= overrides or {}
        if bootstrap_server is not None:
            settings['bootstrap.servers'] = bootstrap_server
        return cls.from_settings(settings)

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> ClientConfig:
        """Raises ConfigError, and OSError for a certificate or key file that cannot be read."""
        rest = dict(settings)
        protocol = _one_of(rest, 'security.protocol', SECURITY_PROTOCOLS, 'PLAINTEXT', upper=True)
        mechanism, username, password = 'PLAIN', '', ''
        if protocol.startswith('SASL'):
            mechanism, username, password = _read_sasl(rest)
        tls = _read_tls(rest) if protocol.endswith('SSL') else TlsConfig()
        if protocol in ('SSL', 'SASL_SSL', 'SASL_PLAINTEXT'):
            _refuse_unknown(rest, protocol)
        return cls(
            bootstrap=parse_addresses(rest.pop('bootstrap.servers', '')),
            client_id=rest.pop('client.id', CLIENT_ID),
            security_protocol=protocol, sasl_mechanism=mechanism, sasl_username=username, sasl_password=password,
            tls=tls,
            request_timeout_ms=_milliseconds(rest, 'request.timeout.ms', 30_000),
            default_api_timeout_ms=_milliseconds(rest, 'default.api.timeout.ms', 60_000),
            connection_setup_timeout_ms=_milliseconds(rest, 'socket.connection.setup.timeout.ms', 10_000),
            retry_backoff_ms=_milliseconds(rest, 'retry.backoff.ms', 100),
            retry_backoff_max_ms=_milliseconds(rest, 'retry.backoff.max.ms', 1000),
            properties=rest)


def parse_addresses(text: str) -> tuple[tuple[str, int], ...]:
    """`host:port,[::1]:9092` as pairs. Raises ConfigError."""
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

def parse_jaas(text: str) -> tuple[str, str]:
    """User name and password out of `sasl.jaas.config`: one entry of Kafka's PLAIN or SCRAM login module.

    Raises ConfigError; what is found in the text is not repeated, for there is a password in it.
    """
    entry = JAAS_ENTRY.fullmatch(text)
    if entry is None:
        raise _bad('sasl.jaas.config', 'found something else, expected: MODULE required username="..." password="...";')
    module = entry[1].rpartition('.')[2]
    if module not in LOGIN_MODULES:
        raise _bad('sasl.jaas.config', f'found {entry[1]}, expected one of {", ".join(LOGIN_MODULES)}')
    options, position = {}, 0
    while match := JAAS_OPTION.match(entry[2], position):
        quoted, plain = match[2], match[3]
        options[match[1]] = plain if quoted is None else re.sub(r'\\(.)', r'\1', quoted, flags=re.DOTALL)
        position = match.end()
    if entry[2][position:].strip() or not {'username', 'password'} <= options.keys():
        raise _bad('sasl.jaas.config', f'expected the options username="..." and password="..." of {module}, then ;')
    return options['username'], options['password']


def _read_sasl(settings: dict[str, str]) -> tuple[str, str, str]:
    """(mechanism, user name, password), from the login module's entry or from two settings of their own."""
    if 'sasl.mechanism' not in settings:
        raise _bad('sasl.mechanism', f'found none, expected one of {", ".join(SASL_MECHANISMS)}')
    mechanism = _one_of(settings, 'sasl.mechanism', SASL_MECHANISMS, '', upper=True)
    jaas = settings.pop('sasl.jaas.config', None)
    username, password = settings.pop('sasl.username', None), settings.pop('sasl.password', None)
    if jaas is not None:
        username, password = parse_jaas(jaas)
    if username is None or password is None:
        raise _bad('sasl.jaas.config', 'found none, expected it, or sasl.username and sasl.password')
    return mechanism, username, password


# ---- TLS

def _read_tls(settings: dict[str, str]) -> TlsConfig:
    algorithm = settings.pop('ssl.endpoint.identification.algorithm', 'https')
    if algorithm.lower() not in ('https', ''):
        raise _bad('ssl.endpoint.identification.algorithm', f'found {algorithm!r}, expected https, or nothing')
    trusted = _pem(settings, 'ssl.truststore', 'ssl.truststore.certificates')
    if trusted is None:
        trusted = _read_pem(settings, 'ssl.ca.location')
    key_pair = _pem(settings, 'ssl.keystore', 'ssl.keystore.key')
    chain = _inline_pem(settings, 'ssl.keystore.certificate.chain') or _read_pem(settings, 'ssl.certificate.location')
    key = key_pair or _read_pem(settings, 'ssl.key.location')
    if chain is not None and key is None:
        raise _bad('ssl.keystore.key', 'found a certificate chain without a key, expected both')
    settings.pop('ssl.protocol', None)
    return TlsConfig(trusted, chain if chain is not None else key, key, settings.pop('ssl.key.password', None),
                     algorithm != '', _tls_versions(settings))


def _pem(settings: dict[str, str], store: str, inline: str) -> str | None:
    """The PEM text of a store: of the file at its location, or given in the setting `inline` itself."""
    kind = settings.pop(f'{store}.type', '').upper()
    location = settings.get(f'{store}.location')
    if kind not in ('', 'PEM') or (location is not None and not _looks_like_pem(Path(location))):
        raise _bad(f'{store}.type', f'found {kind or "a file that is not PEM"}, expected PEM: convert the store with '
                                    'keytool -exportcert -rfc (certificates) or openssl pkcs12 (keys)')
    if settings.pop(f'{store}.password', None) is not None:
        raise _bad(f'{store}.password', 'a PEM store has no password; ssl.key.password opens an encrypted key')
    text = _inline_pem(settings, inline)
    if text is not None and location is not None:
        raise _bad(inline, f'found beside {store}.location, expected one of them')
    return text if text is not None else _read_pem(settings, f'{store}.location')


def _looks_like_pem(path: Path) -> bool:
    return b'-----BEGIN ' in path.read_bytes()


def _inline_pem(settings: dict[str, str], name: str) -> str | None:
    text = settings.pop(name, None)
    return None if text is None else _pem_blocks(text, f'{name}: the value')


def _read_pem(settings: dict[str, str], name: str) -> str | None:
    location = settings.pop(name, None)
    return None if location is None else _pem_blocks(Path(location).read_text('latin-1'), f'{name}: {location}')


def _pem_blocks(text: str, where: str) -> str:
    """The blocks of a PEM text as OpenSSL wants them: without remarks, and in lines even if they came in a single one.

    Java's clients take both. ConfigError when there is no block.
    """
    blocks = []
    for label, body in PEM_BLOCK.findall(text):
        # A colon stands in the headers of an old encrypted key, which are lines by themselves.
        data = ''.join(body.split())
        lines = body.strip().splitlines() if ':' in body else [data[at:at + 64] for at in range(0, len(data), 64)]
        blocks.append('\n'.join([f'-----BEGIN {label}-----', *lines, f'-----END {label}-----', '']))
    if not blocks:
        raise ConfigError(where.partition(':')[0], f'{where} holds no PEM (-----BEGIN ...)')
    return ''.join(blocks)


def _tls_versions(settings: dict[str, str]) -> tuple[str, ...]:
    text = settings.pop('ssl.enabled.protocols', ','.join(TLS_VERSIONS))
    found = {part.strip() for part in text.split(',')}
    versions = tuple(version for version in TLS_VERSIONS if version in found)
    if not versions:
        raise _bad('ssl.enabled.protocols', f'found {text!r}, expected some of {", ".join(TLS_VERSIONS)}')
    return versions


# ---- values

def _bad(name: str, message: str) -> ConfigError:
    return ConfigError(name, f'{name}: {message}')


def _one_of(settings: dict[str, str], name: str, values: tuple[str, ...], default: str, *, upper: bool) -> str:
    found = settings.pop(name, default)
    value = found.strip().upper() if upper else found.strip()
    if value not in values:
        raise _bad(name, f'found {found!r}, expected one of {", ".join(values)}')
    return value


def _milliseconds(settings: dict[str, str], name: str, default: int) -> int:
    text = settings.pop(name, str(default))
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**31:
        raise _bad(name, f'found {text!r}, expected milliseconds, 0 to {2**31 - 1}')
    return value


def _refuse_unknown(settings: Mapping[str, str], protocol: str) -> None:
    parts = tuple(part for part, name in (('ssl.', 'SSL'), ('sasl.', 'SASL')) if name in protocol.split('_'))
    for name in settings:
        if name.startswith(parts):
            raise _bad(name, 'this client does not know this setting; take it out of the settings')
