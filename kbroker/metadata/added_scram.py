"""`--add-scram`: an option that writes SCRAM credentials before the first start or while the broker is stopped
(KIP-900).
"""
from __future__ import annotations

import base64
import binascii
from typing import Any

from kbroker.base.errors import LogDirectoryError
from kbroker.metadata.offline import changed_directory
from kbroker.metadata.scram_records import (
    SCRAM_SINCE,
    check_iterations,
    check_name,
    check_salt,
    check_salted_password,
    record_of,
)
from kbroker.protocol.messages import UserScramCredentialRecord
from kbroker.security.scram import credential_of, credential_of_salted_password, new_salt
from kbroker.security.scram_credential import DEFAULT_ITERATIONS, MECHANISM_CODES, ScramCredential

KEYS = ('name', 'password', 'salt', 'iterations', 'saltedpassword')


def add_offline(directory: str, records: list[UserScramCredentialRecord]) -> None:
    """Write credentials into the log directory of a stopped broker.

    Raise LogDirectoryError if the directory cannot be used, KafkaError if the metadata refuses a credential, OSError if
    the disk fails.
    """
    with changed_directory(directory) as controller:
        if controller.image.metadata_version < SCRAM_SINCE:
            raise LogDirectoryError(f'{directory}: found metadata.version {controller.image.metadata_version}, '
                                    f'expected at least {SCRAM_SINCE}')
        controller.at_once(controller.commits.write(records))


def parse_add_scram(text: str) -> UserScramCredentialRecord:
    """Return the record of `SCRAM-SHA-512=[name=NAME,password=PASSWORD]`, in the syntax of `kafka-storage`.

    The list may also contain iterations and a base64 salt. If it contains a salt, a base64 saltedpassword may replace
    the password. Raise ValueError for a malformed text, KafkaError for a credential that is not valid. The messages
    contain no part of the text that could be secret.
    """
    mechanism, _, rest = text.partition('=')
    if mechanism not in MECHANISM_CODES or not (rest.startswith('[') and rest.endswith(']')):
        raise ValueError(f'found something else, expected {" or ".join(MECHANISM_CODES)} as '
                         'MECHANISM=[name=NAME,password=PASSWORD]')
    values: dict[str, str] = {}
    for part in rest[1:-1].split(','):
        key, equals, value = part.strip().partition('=')
        if key not in KEYS or not equals:
            raise ValueError(f'found another key, expected some of {", ".join(KEYS)}')
        values[key] = value[1:-1] if len(value) > 1 and value.startswith('"') and value.endswith('"') else value
    if 'name' not in values or ('password' in values) == ('saltedpassword' in values):
        raise ValueError('expected name, and either password or saltedpassword')
    if 'saltedpassword' in values and 'salt' not in values:
        raise ValueError('found saltedpassword without salt, expected both')
    check_name(values['name'])
    return record_of(values['name'], mechanism, _credential(mechanism, values))


def _credential(mechanism: str, values: dict[str, Any]) -> ScramCredential:
    iterations = values.get('iterations', str(DEFAULT_ITERATIONS))
    if not (iterations.isascii() and iterations.isdecimal()):
        raise ValueError('found other iterations, expected a whole number')
    check_iterations(int(iterations))
    salt = _decoded(values['salt'], 'salt') if 'salt' in values else new_salt()
    check_salt(salt)
    if 'password' in values:
        if not values['password']:
            raise ValueError('found an empty password')
        return credential_of(mechanism, values['password'], salt, int(iterations))
    salted = _decoded(values['saltedpassword'], 'saltedpassword')
    check_salted_password(salted)
    return credential_of_salted_password(mechanism, salted, salt, int(iterations))


def _decoded(text: str, key: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f'found a {key} that is not base64') from None
