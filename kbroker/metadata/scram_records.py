"""SCRAM credentials in the metadata log (KIP-554)."""
from __future__ import annotations

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.protocol.messages import UserScramCredentialRecord
from kbroker.security.mechanism import LARGEST_NAME_BYTES
from kbroker.security.scram_credential import LEAST_ITERATIONS, MECHANISM_CODES, MOST_ITERATIONS, ScramCredential

SCRAM_SINCE = 11
"""The lowest metadata.version that allows SCRAM records."""
MECHANISM_NAMES = {code: name for name, code in MECHANISM_CODES.items()}
LARGEST_SALTED_PASSWORD_BYTES = 4096
MOST_CREDENTIALS = 100_000
LARGEST_SALT_BYTES = 1024
"""The most bytes of a salt. Any client that names a user gets the salt of that user."""


def record_of(name: str, mechanism: str, credential: ScramCredential) -> UserScramCredentialRecord:
    return UserScramCredentialRecord(
        name=name, mechanism=MECHANISM_CODES[mechanism], salt=credential.salt, stored_key=credential.stored_key,
        server_key=credential.server_key, iterations=credential.iterations)


def check_name(name: str) -> None:
    """Raise KafkaError UNACCEPTABLE_CREDENTIAL if a user name is empty, or too long for a login."""
    if not name:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, 'Username must not be empty')
    if len(name.encode()) > LARGEST_NAME_BYTES:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL,
                         f'found a user name above {LARGEST_NAME_BYTES} bytes, which could not log in')


def mechanism_name(code: int) -> str:
    """Return the name of a SCRAM mechanism. Raise KafkaError UNSUPPORTED_SASL_MECHANISM for an unknown code."""
    if code not in MECHANISM_NAMES:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, 'Unknown SCRAM mechanism')
    return MECHANISM_NAMES[code]


def check_salt(salt: bytes) -> None:
    """Raise KafkaError UNACCEPTABLE_CREDENTIAL if a salt is too long."""
    if len(salt) > LARGEST_SALT_BYTES:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL,
                         f'found a salt of {len(salt)} bytes, expected at most {LARGEST_SALT_BYTES}')


def check_salted_password(salted: bytes) -> None:
    """Raise KafkaError UNACCEPTABLE_CREDENTIAL if the length of a salted password is out of bounds.

    Like Kafka, accept other lengths than that of the mechanism's digest. The keys are derived from the salted password,
    so a client that has the salted password can log in.
    """
    if not 1 <= len(salted) <= LARGEST_SALTED_PASSWORD_BYTES:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, f'found a salted password of {len(salted)} bytes, '
                         f'expected 1 to {LARGEST_SALTED_PASSWORD_BYTES}')


def check_iterations(iterations: int) -> None:
    """Raise KafkaError UNACCEPTABLE_CREDENTIAL if the number of iterations is out of bounds."""
    if iterations < LEAST_ITERATIONS:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, 'Too few iterations')
    if iterations > MOST_ITERATIONS:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, 'Too many iterations')
