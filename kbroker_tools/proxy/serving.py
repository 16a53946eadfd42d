"""`kbroker-proxy`: a proxy until a signal ends it."""
from __future__ import annotations

import os
import signal
import ssl
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker_tools.base.certificates import CA_DAYS, Workshop, alternative_name
from kbroker_tools.base.command import ToolError
from kbroker_tools.proxy.dialing import dialer
from kbroker_tools.proxy.nodes import TopicNames, VirtualBrokers
from kbroker_tools.proxy.relay import Front, Proxy, in_url
from kbroker_tools.proxy.traffic import Traffic

LOOK_S = 0.5
LOCAL_HOSTS = ('localhost', '127.0.0.1', '::1')


@dataclass(frozen=True)
class Options:
    """The options of the command."""

    host: str
    port: int
    nodes: int | None = None
    tls_directory: Path | None = None


@dataclass(frozen=True)
class Known:
    """The cluster behind the proxy, as it was at the start."""

    brokers: dict[int, tuple[str, int]]
    cluster_id: str | None
    names: TopicNames


def ask_cluster(config: ClientConfig) -> Known:
    """Return the brokers and topics of the cluster.

    Raise ClientError if no broker can be reached, KafkaError if it refuses the credentials.
    """
    with closing(Cluster(config)) as cluster:
        answer = cluster.refresh()
        names = TopicNames()
        for topic in answer.topics:
            names.learn(topic.topic_id, topic.name)
        brokers = {node.node_id: (node.host, node.port) for node in cluster.nodes.values()}
        return Known(brokers, cluster.cluster_id, names)


def virtual_brokers(count: int, known: Known) -> VirtualBrokers:
    """Return the virtual brokers. Raise ToolError if there is not one broker behind them."""
    if len(known.brokers) != 1:
        ids = ', '.join(map(str, sorted(known.brokers)))
        raise ToolError(f'--nodes: found a cluster of {len(known.brokers)} brokers ({ids}), expected one broker: '
                        'leave --nodes out, and the proxy stands in front of all of them')
    return VirtualBrokers(count, next(iter(known.brokers)), known.names)


def front_of(options: Options) -> Front:
    """Return the side of the clients, with a new certificate if it speaks TLS."""
    return Front(options.host, options.port, None if options.tls_directory is None else
                 server_context(options.tls_directory, options.host))


def server_context(directory: Path, host: str) -> ssl.SSLContext:
    """Return the TLS context of the proxy. Make the files in the directory that do not exist: `ca.pem`, which clients
    trust, and the key and certificate of the proxy."""
    hosts = dict.fromkeys([*([host] if host not in ('', '0.0.0.0', '::') else ()), *LOCAL_HOSTS])
    os.umask(0o077)     # only the owner of the keys may read them
    directory.mkdir(parents=True, exist_ok=True)
    workshop = Workshop(directory.resolve(), CA_DAYS)
    workshop.make_authority()
    workshop.make('proxy', 'kbroker-proxy', 'serverAuth', 'subjectAltName=' + ','.join(map(alternative_name, hosts)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(workshop.directory / 'proxy.pem')
    return context


def open_proxy(config: ClientConfig, options: Options, known: Known, traffic: Traffic | None,
               nodes: VirtualBrokers | None, *, own_thread: bool) -> Proxy:
    """Return the running proxy. Raise OSError if a port is not available."""
    brokers = list(known.brokers.values()) if len(known.brokers) == 1 else list(config.bootstrap)
    proxy = Proxy(brokers, front=front_of(options), dial=dialer(config), handler=traffic,
                  nodes=() if nodes is None else nodes.ids, own_thread=own_thread)
    if traffic is not None:
        traffic.proxy = proxy
    if nodes is None and len(known.brokers) > 1:
        for _, address in sorted(known.brokers.items()):
            proxy.route(*address)
    return proxy


def describe(proxy: Proxy, config: ClientConfig, nodes: VirtualBrokers | None) -> str:
    """Return the line that says that the proxy is ready."""
    behind = ','.join(in_url(host, port) for host, port in config.bootstrap)
    as_several = '' if nodes is None else f' as the brokers {", ".join(map(str, nodes.ids))}'
    return f'listening on {proxy.address} for {behind}{as_several}'


def serve(config: ClientConfig, options: Options, note: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, without a control port. `note` prints a line."""
    known = ask_cluster(config)
    nodes = None if options.nodes is None else virtual_brokers(options.nodes, known)
    traffic = None if nodes is None else Traffic(known.names, None, nodes)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with closing(open_proxy(config, options, known, traffic, nodes, own_thread=True)) as proxy:
        note(describe(proxy, config, nodes))
        reported: str | None = None
        while not stop.wait(LOOK_S):
            if proxy.problem is not None:
                raise ToolError(f'the proxy failed: {proxy.problem!r}')
            if proxy.unreachable != reported:
                reported = proxy.unreachable
                if reported is not None:
                    note(f'a client was disconnected: {reported}')


