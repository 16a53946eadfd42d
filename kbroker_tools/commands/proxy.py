"""kbroker-proxy. It stands between clients and any Kafka broker, holds requests or makes them fail, and can let one
broker appear as several."""
from __future__ import annotations

import sys
from pathlib import Path

import click

from kbroker_tools.base.command import SETTINGS, Command, ToolError, version_option
from kbroker_tools.cluster.opening import live_cluster_options

PROGRAM = 'kbroker-proxy'
LISTEN = '127.0.0.1:19092'
MOST_NODES = 100


@click.command(cls=Command, context_settings=SETTINGS)
@live_cluster_options
@click.option('--listen', default=LISTEN, show_default=True, metavar='HOST:PORT',
              help='The address for clients. Further brokers get the next ports. An empty host means every interface, '
                   'port 0 free ports.')
@click.option('--nodes', type=click.IntRange(1, MOST_NODES), metavar='N',
              help='Let one broker appear as N brokers with the ids 1 to N, on N ports.')
@click.option('--tls', 'tls_directory', type=click.Path(file_okay=False, path_type=Path), metavar='DIR',
              help='Speak TLS with the clients. DIR gets a new key and certificate, and ca.pem, which the clients have '
                   'to trust, unless it has them.')
@click.option('--control', metavar='HOST:PORT',
              help='Serve the control port: holds, faults, the requests of the clients, and stops of nodes.')
@click.option('--control-token-file', type=click.Path(dir_okay=False, path_type=Path), metavar='FILE',
              help='The file with the token that clients of --control need. Without it, the address must be one of '
                   'loopback.')
@version_option
def main(bootstrap_server: str, command_config: Path | None, listen: str, nodes: int | None,
         tls_directory: Path | None, control: str | None, control_token_file: Path | None) -> None:
    """Stand between clients and a Kafka broker or cluster.

    The addresses in all answers become those of the proxy. TLS and the login at the broker come from --command-config,
    so clients need neither. With --nodes, a test of failover needs no cluster.
    """
    from kbroker.client.config import ClientConfig
    from kbroker_tools.base.render import warn
    from kbroker_tools.proxy import serving
    host, port = address_of('--listen', listen)
    if control is None and control_token_file is not None:
        raise ToolError('--control-token-file: found no --control, expected its address, too: --control HOST:PORT')
    config = ClientConfig.load(bootstrap_server, command_config)
    options = serving.Options(host, port, nodes, tls_directory)

    def note(text: str) -> None:
        warn(f'{PROGRAM}: {text}')

    if control is None:
        serving.serve(config, options, note)
        return
    if sys.platform != 'linux':
        raise ToolError(f'--control: found the system {sys.platform}, expected Linux, whose epoll the control port '
                        'needs')
    from kbroker_tools.proxy import controlling
    controlling.serve(config, options, controlling.ControlAddress(*address_of('--control', control),
                                                                  control_token_file), note)


def address_of(option: str, text: str) -> tuple[str, int]:
    """Return (host, port) of an option. Raise click.BadParameter for any other text."""
    from kbroker.base.errors import ConfigError
    from kbroker.settings.listeners import parse_listener
    try:
        found = parse_listener(option, f'PROXY://{text}')
    except ConfigError:
        raise click.BadParameter(f'found {text!r}, expected HOST:PORT, an IPv6 host in brackets',
                                 param_hint=option) from None
    return found.host, found.port


if __name__ == '__main__':
    main(prog_name=PROGRAM)
