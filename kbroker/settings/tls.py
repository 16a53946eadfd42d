"""Kafka's `ssl.` settings, for servers and clients.

Keys and certificates are PEM texts, in files or in the settings themselves (KIP-651).

Each function removes the settings that it reads from `settings`, so that only unknown settings remain. All functions
raise ConfigError for a bad setting, OSError for a file that cannot be read.
"""
from __future__ import annotations

import re
from pathlib import Path

from kbroker.base.errors import ConfigError

TLS_VERSIONS = ('TLSv1.2', 'TLSv1.3')
CONVERT_TO_PEM = 'convert the store with keytool -exportcert -rfc (certificates) or openssl pkcs12 (keys)'
NO_STORE_PASSWORD = 'a PEM store has no password; ssl.key.password opens an encrypted key'
PEM_BLOCK = r'-----BEGIN ([A-Z0-9 ]+)-----([ -~\s]*?)-----END \1-----'
"""The pattern is compiled at its first use, because a start without TLS does not need it."""


def bad_setting(name: str, message: str) -> ConfigError:
    return ConfigError(name, f'{name}: {message}')


def take_store(settings: dict[str, str], store: str, inline: str) -> str | None:
    """Return the PEM text of the store `ssl.keystore` or `ssl.truststore`, or None if it is not set.

    The text is in the file that the store's location names, or in the setting `inline`.
    """
    kind = settings.pop(f'{store}.type', '').upper()
    location = settings.get(f'{store}.location')
    if kind not in ('', 'PEM') or (location is not None and not _looks_like_pem(Path(location))):
        raise bad_setting(f'{store}.type',
                          f'found {kind or "a file that is not PEM"}, expected PEM: {CONVERT_TO_PEM}')
    if settings.pop(f'{store}.password', None) is not None:
        raise bad_setting(f'{store}.password', NO_STORE_PASSWORD)
    text = take_inline_pem(settings, inline)
    if text is not None and location is not None:
            raise bad_setting(inline, f'found together with {store}.location, expected one of them')
    return text if text is not None else take_pem_file(settings, f'{store}.location')


def _looks_like_pem(path: Path) -> bool:
    return b'-----BEGIN ' in path.read_bytes()


def take_inline_pem(settings: dict[str, str], name: str) -> str | None:
    text = settings.pop(name, None)
    return None if text is None else _pem_blocks(text, f'{name}: the value')


def take_pem_file(settings: dict[str, str], name: str) -> str | None:
    location = settings.pop(name, None)
    return None if location is None else _pem_blocks(Path(location).read_text('latin-1'), f'{name}: {location}')


def _pem_blocks(text: str, where: str) -> str:
    """Return the blocks of a PEM text in the form that OpenSSL needs: without remarks, and split into lines.

    Java also accepts remarks, and blocks on a single line. Raise ConfigError if the text has no block.
    """
    blocks = []
    for label, body in re.findall(PEM_BLOCK, text, re.ASCII):
        # A colon occurs only in the headers of an old encrypted key. The lines of these headers must be kept.
        data = ''.join(body.split())
        lines = body.strip().splitlines() if ':' in body else [data[at:at + 64] for at in range(0, len(data), 64)]
        blocks.append('\n'.join([f'-----BEGIN {label}-----', *lines, f'-----END {label}-----', '']))
    if not blocks:
        raise ConfigError(where.partition(':')[0], f'{where} holds no PEM (-----BEGIN ...)')
    return ''.join(blocks)


def take_tls_versions(settings: dict[str, str]) -> tuple[str, ...]:
    """Return the supported versions among `ssl.enabled.protocols`.

    Without that setting, return all supported versions.
    """
    text = settings.pop('ssl.enabled.protocols', ','.join(TLS_VERSIONS))
    found = {part.strip() for part in text.split(',')}
    versions = tuple(version for version in TLS_VERSIONS if version in found)
    if not versions:
        raise bad_setting('ssl.enabled.protocols', f'found {text!r}, expected some of {", ".join(TLS_VERSIONS)}')
    return versions
