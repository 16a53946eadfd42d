"""kbroker-certs. It makes certificates and settings files for a broker under development, with the program `openssl`.

Existing files are not changed, so a second run can add a client. Only the owner of the files can read them.
"""
from __future__ import annotations

import ipaddress
import os
import re
import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path

import click

from kbroker_tools.base.command import SETTINGS, Group, ToolError, version_option

CA_DAYS = 3650
PORT = 9093
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
BROKER_SETTINGS = """\
# A broker for development: every client shows a certificate of {directory}/ca.pem.
listeners=SSL://{bound}
advertised.listeners=SSL://{advertised}
ssl.keystore.location={directory}/broker.pem
ssl.truststore.location={directory}/ca.pem
ssl.client.auth=required
# The name of a client is the common name of its certificate.
ssl.principal.mapping.rules=RULE:^CN=([^,+]+).*$/$1/
authorizer.class.name=StandardAuthorizer
super.users=User:{administrator}
"""
CLIENT_SETTINGS = """\
security.protocol=SSL
ssl.keystore.type=PEM
ssl.keystore.location={directory}/{name}.pem
ssl.truststore.type=PEM
ssl.truststore.location={directory}/ca.pem
"""


@click.group(cls=Group, context_settings=SETTINGS)
@version_option
def main() -> None:
    """Make certificates for a broker under development."""


@main.command()
@click.argument('directory', type=click.Path(file_okay=False, path_type=Path), metavar='DIR')
@click.option('--host', 'hosts', multiple=True, default=('localhost', '127.0.0.1'),
              metavar='NAME',
              help='A name or address of the broker; repeatable. Clients connect to the first one.'
                   '  [default: localhost, 127.0.0.1]')
@click.option('--client', 'clients', multiple=True, default=('admin',), metavar='NAME',
              help='A client; repeatable. The first one may do everything.  [default: admin]')
@click.option('--days', default=365, type=click.IntRange(1, CA_DAYS), metavar='N',
              help='The days for which the certificates of broker and clients are valid.  [default: 365]')
def dev(directory: Path, hosts: tuple[str, ...], clients: tuple[str, ...], days: int) -> None:
    """Make an authority, keys with certificates, and settings files in DIR.

    DIR gets ca.pem and ca.key, broker.pem with broker.properties, and NAME.pem with NAME.properties of each client.
    Files that exist stay as they are. Not for production: the key of the authority is in the same directory as the
    other keys.
    """
    for name in clients:
        if not NAME.fullmatch(name) or name in ('ca', 'broker'):
            raise ToolError(f'--client: found {name!r}, expected letters, digits, dots and dashes, not ca or broker')
    names = 'subjectAltName=' + ','.join(map(_alternative_name, hosts))
    os.umask(0o077)
    directory.mkdir(parents=True, exist_ok=True)
    workshop = Workshop(directory.resolve(), days)
    workshop.make_authority()
    workshop.make('broker', 'broker', 'serverAuth', names)
    for name in clients:
        workshop.make(name, name, 'clientAuth', '')
    workshop.write('broker.properties', BROKER_SETTINGS.format(
        directory=workshop.directory, bound=_bound(hosts), advertised=f'{_in_url(hosts[0])}:{PORT}',
        administrator=clients[0]))
    for name in clients:
        workshop.write(f'{name}.properties', CLIENT_SETTINGS.format(directory=workshop.directory, name=name))
    for made in workshop.made:
        click.echo(made)


def _alternative_name(host: str) -> str:
    try:
        return f'IP:{ipaddress.ip_address(host)}'
    except ValueError:
        if not NAME.fullmatch(host):
            raise ToolError(f'--host: found {host!r}, expected a name or an address') from None
        return f'DNS:{host}'


def _in_url(host: str) -> str:
    return f'[{host}]' if ':' in host else host


def _bound(hosts: tuple[str, ...]) -> str:
    """Return the address to which the broker binds. It is a loopback address if all hosts are loopback addresses.
    Otherwise it means every network interface."""
    local = {'localhost', '127.0.0.1'}
    return f'127.0.0.1:{PORT}' if local.issuperset(hosts) else f':{PORT}'


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


if __name__ == '__main__':
    main(prog_name='kbroker-certs')
