"""Keys and certificates for development, made with the program `openssl`."""
from __future__ import annotations

import ipaddress
import os
import re
import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path

from kbroker_tools.base.command import ToolError

CA_DAYS = 3650
NAME = re.compile(r'[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?')
NEW_KEY = ('-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes')
CONFIGURATION = '[req]\ndistinguished_name=dn\n[dn]\n'
"""A complete configuration for `openssl req`. The system's own configuration then has no effect."""
AUTHORITY = """
[authority]
basicConstraints=critical,CA:TRUE,pathlen:0
keyUsage=critical,keyCertSign,cRLSign
subjectKeyIdentifier=hash
"""
LEAF = """
[leaf]
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage={usage}
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
{names}
"""


def alternative_name(host: str) -> str:
    """Return the subject alternative name for a host. Raise ToolError if it is neither a name nor an address."""
    try:
        return f'IP:{ipaddress.ip_address(host)}'
    except ValueError:
        if not NAME.fullmatch(host):
            raise ToolError(f'--host: found {host!r}, expected a name or an address') from None
        return f'DNS:{host}'


class Workshop:
    """A directory of keys and certificates. Its methods create the files with the program `openssl`."""

    def __init__(self, directory: Path, days: int):
        self.directory = directory
        self.made: list[Path] = []
        self._days = days
        program = shutil.which('openssl')
        if program is None:
            raise ToolError('found no program openssl, which makes the certificates: install the package openssl')
        self._program = program

    def make_authority(self) -> None:
        """Create `ca.key` and `ca.pem`, unless they exist."""
        key, certificate = self.directory / 'ca.key', self.directory / 'ca.pem'
        if key.exists() and certificate.exists():
            return
        if certificate.exists():
            raise ToolError(f'{certificate}: found no {key.name} beside it, which signs the certificates')
        with self._file(CONFIGURATION + AUTHORITY) as configuration:
            self._run('req', '-x509', *NEW_KEY, '-config', configuration, '-extensions', 'authority', '-days',
                      str(CA_DAYS), '-subj', '/CN=kbroker development', '-keyout', str(key), '-out', str(certificate))
        self.made += [certificate, key]

    def make(self, file: str, subject: str, usage: str, names: str) -> None:
        """Create `file`.pem with a key and the certificate for it, unless the file exists."""
        path = self.directory / f'{file}.pem'
        if path.exists():
            return
        with (self._file(CONFIGURATION + LEAF.format(usage=usage, names=names)) as configuration,
              self._file('') as request, self._file('') as key, self._file('') as certificate):
            self._run('req', '-new', *NEW_KEY, '-config', configuration, '-subj', f'/CN={subject}', '-keyout', key,
                      '-out', request)
            self._run('x509', '-req', '-in', request, '-CA', str(self.directory / 'ca.pem'), '-CAkey',
                      str(self.directory / 'ca.key'), '-set_serial', str(secrets.randbits(120)), '-days',
                      str(self._days), '-sha256', '-extfile', configuration, '-extensions', 'leaf', '-out',
                      certificate)
            self.write(path.name, Path(key).read_text() + Path(certificate).read_text())

    def write(self, name: str, text: str) -> None:
        """Create a file that only its owner can read, unless it exists."""
        path = self.directory / name
        if path.exists():
            return
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, 'w') as file:
            file.write(text)
        self.made.append(path)

    def _file(self, text: str) -> TemporaryPath:
        return TemporaryPath(self.directory, text)

    def _run(self, *arguments: str) -> None:
        done = subprocess.run([self._program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              check=False)
        if done.returncode:
            raise ToolError(f'openssl {arguments[0]} failed: {" ".join(done.stderr.split())}')


class TemporaryPath:
    """The path of a temporary file with some text. Only the owner of the file can read it."""

    def __init__(self, directory: Path, text: str):
        handle, self._path = tempfile.mkstemp(dir=directory)
        with os.fdopen(handle, 'w') as file:
            file.write(text)

    def __enter__(self) -> str:
        return self._path

    def __exit__(self, *_: object) -> None:
        os.unlink(self._path)
