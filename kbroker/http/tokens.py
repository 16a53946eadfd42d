"""The token that clients of an HTTP server show, and the file that holds it."""
from __future__ import annotations

import logging
from pathlib import Path

from kbroker.base.errors import ConfigError
from kbroker.base.lean_dataclasses import dataclass
from kbroker.settings.file_modes import check_secret_file

MOST_TOKEN_BYTES = 4096
LEAST_TOKEN_CHARACTERS = 16

logger = logging.getLogger('kbroker')


@dataclass(frozen=True)
class Token:
    """A secret, and the name of the setting or the option whose file holds it."""

    text: str
    source: str


def read_token(path: str, source: str, *, allows_readable: bool) -> Token:
    """Return the token in a file. `source` is the name of the setting or the option that names the file.

    Raise ConfigError if the file holds no token, or if every user may read it and not `allows_readable`; OSError if it
    cannot be read.
    """
    for warning in check_secret_file(path, 'the token', allows_readable):
        logger.warning('%s', warning)
    with Path(path).open('rb') as file:
        token = file.read(MOST_TOKEN_BYTES).strip()
    if len(token) < LEAST_TOKEN_CHARACTERS or not token.isascii() or len(token.split()) != 1:
        raise ConfigError(source, f'{source}: found {len(token)} bytes in {path}, expected one word of at least '
                          f'{LEAST_TOKEN_CHARACTERS} ASCII characters, such as those of `openssl rand -hex 32`')
    return Token(token.decode(), source)
