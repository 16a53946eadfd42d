"""kbroker-certs. It makes certificates and settings files for a broker under development, with the program `openssl`.

Existing files are not changed, so a second run can add a client. Only the owner of the files can read them.
"""
from __future__ import annotations

import os
from pathlib import Path

import click

from kbroker_tools.base.certificates import CA_DAYS, NAME, Workshop, alternative_name
from kbroker_tools.base.command import SETTINGS, Group, ToolError, version_option

PORT = 9093
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
    names = 'subjectAltName=' + ','.join(map(alternative_name, hosts))
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


def _in_url(host: str) -> str:
    return f'[{host}]' if ':' in host else host


def _bound(hosts: tuple[str, ...]) -> str:
    """Return the address to which the broker binds. It is a loopback address if all hosts are loopback addresses.
    Otherwise it means every network interface."""
    local = {'localhost', '127.0.0.1'}
    return f'127.0.0.1:{PORT}' if local.issuperset(hosts) else f':{PORT}'


if __name__ == '__main__':
    main(prog_name='kbroker-certs')
