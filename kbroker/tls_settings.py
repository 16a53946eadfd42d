"""Kafka's `ssl.` settings, of either side of a connection (KIP-651: PEM, in files or in the settings themselves).

Each function takes what it reads out of `settings`, so that what is left is not known. All raise ConfigError, and
OSError for a file that cannot be read.
"""
from __future__ import annotations

import re
from pathlib import Path

from kbroker.errors import ConfigError

TLS_VERSIONS = ('TLSv1.2', 'TLSv1.3')
CONVERT_TO_PEM = 'convert the store with keytool -exportcert -rfc (certificates) or openssl pkcs12 (keys)'
NO_STORE_PASSWORD = 'a PEM store has no password; ssl.key.password opens an encrypted key'
PEM_BLOCK = re.compile(r'-----BEGIN ([A-Z0-9 ]+)-----([ -~\s]*?)-----END \1-----', re.ASCII)


def bad_setting(name: str, message: str) -> ConfigError:
    return ConfigError(name, f'{name}: {message}')


def take_store(settings: dict[str, str], store: str, inline: str) -> str | None:
    """The PEM text of `ssl.keystore` or `ssl.truststore`: of the file at its location, or of the setting `inline`."""
    kind = settings.pop(f'{store}.type', '').upper()
    location = settings.get(f'{store}.location')
    if kind not in ('', 'PEM') or (location is not None and not _looks_like_pem(Path(location))):
        raise bad_setting(f'{store}.type',
                          f'found {kind or "a file that is not PEM"}, expected PEM: {CONVERT_TO_PEM}')
    if settings.pop(f'{store}.password', None) is not None:
        raise bad_setting(f'{store}.password', NO_STORE_PASSWORD)
    text = take_inline_pem(settings, inline)
    if text is not None and location is not None:
        raise bad_setting(inline, f'found beside {store}.location, expected one of them')
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
    """The blocks of a PEM text as OpenSSL wants them: without remarks, and in lines even if they came in a single one.

    Java takes both. ConfigError when there is no block.
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


def take_tls_versions(settings: dict[str, str]) -> tuple[str, ...]:
    """`ssl.enabled.protocols`, as far as it names versions that are still spoken; all of them by default."""
    text = settings.pop('ssl.enabled.protocols', ','.join(TLS_VERSIONS))
    found = {part.strip() for part in text.split(',')}
    versions = tuple(version for version in TLS_VERSIONS if version in found)
    if not versions:
        raise bad_setting('ssl.enabled.protocols', f'found {text!r}, expected some of {", ".join(TLS_VERSIONS)}')
    return versions
