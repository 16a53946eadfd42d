"""Listeners that require TLS or a login, and the settings with which each client reaches them."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kbroker.testing.errors import BrokerError
from kbroker.testing.keeper import DEFAULT_LISTENERS
from kbroker.testing.report import child_environment

if TYPE_CHECKING:
    from ssl import SSLContext

    from kbroker.client import Admin

MODULES = 'org.apache.kafka.common.security'
LISTENER = 'APPLICATION'
"""The name of the listener that requires TLS or a login. The kit asks its questions on another one."""
USER = 'application'
PASSWORD = 'application-secret'
MECHANISMS = ('PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512')
HASHES = {'SCRAM-SHA-256': 'sha256', 'SCRAM-SHA-512': 'sha512'}
ITERATIONS = 4096
CERTIFICATES_LIMIT_S = 60

Tls = bool | Literal['mutual']


class Access:
    """The way in which applications reach a broker: with TLS or without, with a login or without.

    `tls` is True for TLS, and `'mutual'` if clients must also show a certificate. `sasl` is a mechanism. `certificates`
    is a directory in which `make_certificates` has made the certificates, and is needed for TLS only.
    """

    def __init__(self, tls: Tls = False, sasl: str | None = None, certificates: Path | None = None):
        if sasl is not None and sasl not in MECHANISMS:
            raise ValueError(f'sasl: found {sasl!r}, expected one of {", ".join(MECHANISMS)}')
        if tls not in (False, True, 'mutual'):
            raise ValueError(f"tls: found {tls!r}, expected True, False or 'mutual'")
        self.tls, self.sasl, self.certificates = tls, sasl, certificates

    @property
    def protocol(self) -> str:
        """The security protocol, as Kafka names it: `SASL_SSL`."""
        if self.sasl is not None:
            return 'SASL_SSL' if self.tls else 'SASL_PLAINTEXT'
        return 'SSL' if self.tls else 'PLAINTEXT'

    def listeners(self) -> dict[str, str]:
        """Return the security protocol of the listener for the application."""
        return DEFAULT_LISTENERS if self.protocol == 'PLAINTEXT' else {LISTENER: self.protocol}

    def broker_settings(self) -> dict[str, str]:
        """Return the settings of the broker for a listener of this protocol, without the listener itself."""
        settings: dict[str, str] = {}
        prefix = f'listener.name.{LISTENER.lower()}'
        if self.tls:
            settings |= {f'{prefix}.ssl.keystore.location': str(self._file('broker.pem')),
                         f'{prefix}.ssl.truststore.location': str(self._file('ca.pem')),
                         f'{prefix}.ssl.client.auth': 'required' if self.tls == 'mutual' else 'none'}
        if self.sasl is not None:
            users = f' user_{USER}="{PASSWORD}"' if self.sasl == 'PLAIN' else ''
            settings |= {'sasl.enabled.mechanisms': self.sasl,
                         f'{prefix}.{self.sasl.lower()}.sasl.jaas.config': f'{self._login_module()} required{users};'}
        return settings

    def add_user(self, admin: Admin) -> None:
        """Create the user of the clients, if the broker stores the users of the mechanism."""
        if self.sasl is None or not self.sasl.startswith('SCRAM'):
            return
        import hashlib

        from kbroker.client import ScramCredentialUpsertion
        salt = os.urandom(16)
        salted = hashlib.pbkdf2_hmac(HASHES[self.sasl], PASSWORD.encode(), salt, ITERATIONS)
        error = admin.alter_scram_credentials(USER, upsertions=[
            ScramCredentialUpsertion(self.sasl, ITERATIONS, salt, salted)])
        if error is not None:
            raise error

    def _login_module(self) -> str:
        kind = 'Plain' if self.sasl == 'PLAIN' else 'Scram'
        return f'{MODULES}.{kind.lower()}.{kind}LoginModule'

    def _file(self, name: str) -> Path:
        assert self.certificates is not None, 'TLS needs certificates'
        return self.certificates / name

    def client_config(self, bootstrap_servers: str, file: Path) -> ClientConfig:
        """Return the settings of clients for this address. `file` is the file for clients that read one."""
        return ClientConfig(self, bootstrap_servers, file)


class ClientConfig(dict[str, str]):
    """The settings with which a client reaches a broker.

    The object itself is the settings of confluent-kafka and of `kbroker.client`. `kafka_python` and `aiokafka` are
    the arguments of these clients. `properties` is a file for Java clients, and for `--command-config` of commands.
    """

    def __init__(self, access: Access, bootstrap_servers: str, file: Path):
        self._access, self._servers, self._path = access, bootstrap_servers, file
        super().__init__({'bootstrap.servers': bootstrap_servers} | self._security())

    def __repr__(self) -> str:
        return f'<ClientConfig {self._access.protocol} {self._servers}>'

    def _security(self) -> dict[str, str]:
        access = self._access
        settings = {} if access.protocol == 'PLAINTEXT' else {'security.protocol': access.protocol}
        if access.tls:
            settings['ssl.ca.location'] = str(access._file('ca.pem'))
        if access.tls == 'mutual':
            file = str(access._file(f'{USER}.pem'))
            settings |= {'ssl.certificate.location': file, 'ssl.key.location': file}
        if access.sasl is not None:
            settings |= {'sasl.mechanism': access.sasl, 'sasl.username': USER, 'sasl.password': PASSWORD}
        return settings

    @property
    def kafka_python(self) -> dict[str, Any]:
        """The arguments of the classes of kafka-python."""
        access = self._access
        arguments: dict[str, Any] = self._arguments()
        if access.tls:
            arguments['ssl_cafile'] = str(access._file('ca.pem'))
        if access.tls == 'mutual':
            arguments['ssl_certfile'] = arguments['ssl_keyfile'] = str(access._file(f'{USER}.pem'))
        return arguments

    @property
    def aiokafka(self) -> dict[str, Any]:
        """The arguments of the classes of aiokafka."""
        arguments = self._arguments()
        if self._access.tls:
            arguments['ssl_context'] = self.ssl_context()
        return arguments

    def _arguments(self) -> dict[str, Any]:
        """Return the arguments that kafka-python and aiokafka have in common."""
        access = self._access
        arguments: dict[str, Any] = {'bootstrap_servers': self._servers, 'security_protocol': access.protocol}
        if access.sasl is not None:
            arguments |= {'sasl_mechanism': access.sasl, 'sasl_plain_username': USER, 'sasl_plain_password': PASSWORD}
        return arguments

    def ssl_context(self) -> SSLContext:
        """Return a context for clients that accept one."""
        import ssl
        context = ssl.create_default_context(cafile=str(self._access._file('ca.pem')))
        if self._access.tls == 'mutual':
            context.load_cert_chain(self._access._file(f'{USER}.pem'))
        return context

    @property
    def properties(self) -> Path:
        """A file with the settings in the syntax of Java. It is written when it is first used."""
        access = self._access
        lines = {'bootstrap.servers': self._servers, 'security.protocol': access.protocol}
        if access.tls:
            lines |= {'ssl.truststore.type': 'PEM', 'ssl.truststore.location': str(access._file('ca.pem'))}
        if access.tls == 'mutual':
            lines |= {'ssl.keystore.type': 'PEM', 'ssl.keystore.location': str(access._file(f'{USER}.pem'))}
        if access.sasl is not None:
            lines |= {'sasl.mechanism': access.sasl, 'sasl.jaas.config': (
                f'{access._login_module()} required username="{USER}" password="{PASSWORD}";')}
        if not self._path.exists():
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, 'w') as file:
                file.writelines(f'{name}={value}\n' for name, value in lines.items())
        return self._path


def make_certificates(directory: Path) -> Path:
    """Make an authority, a certificate of the broker and one of its client in a directory, which is returned.

    Raise BrokerError if the program `openssl` fails or is missing.
    """
    done = subprocess.run(
        [sys.executable, '-m', 'kbroker_tools.commands.certs', 'dev', str(directory), '--client', USER],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CERTIFICATES_LIMIT_S, check=False,
        env=child_environment())
    if done.returncode:
        raise BrokerError(f'the certificates could not be made: {done.stderr.strip()}')
    return directory
