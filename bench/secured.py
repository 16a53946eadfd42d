"""The cost of logins and access control for a client of kbroker.

    python bench/secured.py [--quick] [--rounds N] [--seconds S]

The bench measures:

- how much the p99 of one client's requests grows while other clients log in by SCRAM-SHA-512 with 4,096 iterations, 200
  times a second
- what share of its rate a load keeps if its clients log in and the broker checks each request against access control
  lists, and how much more CPU time the broker then needs for a request

Rounds with and without this work alternate, A B and then B A, so that other load on the machine affects both equally.
Each pair of rounds gives a ratio. The tables show the median, minimum and maximum of the ratios. The clients of a load
log in before the measurement begins. Needs a quiet machine. With --quick the figures are meaningless.
"""
from __future__ import annotations

import base64
import contextlib
import pathlib
import secrets
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import click

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parent.parent)]

from load_generator import Measurement, run  # noqa: E402
from peer_brokers import DELETE_AT_ONCE  # noqa: E402
from peer_cells import BATCH, SMALL_RECORD, Cell, Fill, fetch, produce, transactions  # noqa: E402
from rounds import spread  # noqa: E402
from stopping import workplace  # noqa: E402
from support.brokers.broker_process import BrokerProcess  # noqa: E402
from support.clients.raw_client import RawClient  # noqa: E402
from support.kafka.authorized_kafka import authorization_settings  # noqa: E402
from support.runner.free_ports import free_port  # noqa: E402

from kbroker.client import Acl, Admin  # noqa: E402
from kbroker.client.cluster import Cluster  # noqa: E402
from kbroker.client.config import ClientConfig  # noqa: E402
from kbroker.protocol.messages import (  # noqa: E402
    AlterUserScramCredentialsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from kbroker.security.acl_codes import Operation, PatternType, Permission, ResourceType  # noqa: E402
from kbroker.security.scram import keys_of_salted_password, proof_of, salted_password  # noqa: E402

USER, MECHANISM, MECHANISM_CODE, ITERATIONS, SALT = 'load', 'SCRAM-SHA-512', 2, 4096, b'salt of the bench'
LOGINS_A_SECOND = 200
OTHER_ACLS = 200
"""The number of ACLs of other users and topics, among which the broker has to find the ACLs of the load's user."""
FILL = Fill('plain', 8, f'produce:{BATCH},connections=8,depth=5,partitions=8,count=8000')
CELLS = (produce('16 KiB', BATCH, 8, 5), produce('300 B', SMALL_RECORD, 8, 5), fetch('64 KiB', 65_536, 8, FILL),
         transactions(64))
ONE_CLIENT = f'produce:{SMALL_RECORD},topic=one,connections=1,depth=1,partitions=1'


class Target(NamedTuple):
    """A broker, the address of its loads, and the option with which each load logs in."""

    broker: BrokerProcess
    address: str
    login: str

    def measure(self, loads: Sequence[str], seconds: float) -> Measurement:
        return run(self.address, [load + self.login for load in loads], seconds, pid=self.broker.pid)

    def ask(self, request: object, version: int) -> object:
        host, _, port = self.broker.address.rpartition(':')
        with RawClient(host, int(port)) as client:
            return client.ask(request, version)

    def create(self, topic: str, partitions: int) -> None:
        wanted = CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)
        self.ask(CreateTopicsRequest(timeout_ms=60_000, topics=[wanted]), 7)

    def delete(self, topic: str) -> None:
        self.ask(DeleteTopicsRequest(timeout_ms=60_000, topic_names=[topic]), 5)


@contextlib.contextmanager
def targets() -> Iterator[tuple[Target, Target]]:
    """Start a broker without security, and one with logins and access control."""
    directory, port = pathlib.Path(tempfile.mkdtemp()), free_port()
    common = {'kbroker.durability': 'page-cache', **DELETE_AT_ONCE}
    plain = BrokerProcess(directory / 'plain', common)
    secured = BrokerProcess(directory / 'secured', {
        **common, **authorization_settings([USER], ['ANONYMOUS']),
        'listener.name.sasl_plaintext.sasl.enabled.mechanisms': f'PLAIN,{MECHANISM}',
        'listeners': f'PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:{port}'})
    try:
        for broker in (plain, secured):
            broker.start()
        give_rights(secured.address)
        yield Target(plain, plain.address, ''), Target(secured, f'127.0.0.1:{port}', f',login={USER}')
    finally:
        plain.kill9()
        secured.kill9()


def give_rights(address: str) -> None:
    """Create the ACLs of the load, and OTHER_ACLS of other users."""
    cluster = Cluster(ClientConfig.load(address))
    own = [(ResourceType.TOPIC, Operation.ALL), (ResourceType.TRANSACTIONAL_ID, Operation.ALL)]
    others = [(ResourceType.TOPIC, f'other-{number}', f'User:other-{number}') for number in range(OTHER_ACLS)]
    Admin(cluster).create_acls([
        Acl(kind, '*', PatternType.LITERAL, f'User:{USER}', '*', operation, Permission.ALLOW)
        for kind, operation in own] + [
        Acl(kind, name, PatternType.LITERAL, user, '*', Operation.READ, Permission.ALLOW)
        for kind, name, user in others])
    cluster.close()


# ---- rounds

def pairs(rounds: int, first: Callable[[int], Measurement],
          second: Callable[[int], Measurement]) -> Iterator[tuple[Measurement, Measurement]]:
    """Call both functions in each round, and yield their measurements. The two functions take turns in beginning a
    round."""
    for number in range(rounds):
        if number % 2:
            later = second(number)
            yield first(number), later
        else:
            sooner = first(number)
            yield sooner, second(number)


def measured(target: Target, cell: Cell, number: int, seconds: float) -> Measurement:
    """Measure a cell on its own topic. If the cell reads, fill the topic first."""
    topic = f'cell-{number}'
    target.create(topic, cell.partitions)
    try:
        if cell.fill is not None:
            target.measure([f'{cell.fill.load},topic={topic}'], 60)
        return target.measure(cell.bound_loads(topic), seconds)
    finally:
        target.delete(topic)


def rate(found: Measurement) -> float:
    return found.loads[0].count / found.seconds


def broker_us(found: Measurement) -> float:
    return found.broker_cpu_s / found.loads[0].count * 1e6


# ---- logins

def log_in(address: str, salted: bytes) -> None:
    """Log in once by SCRAM. The caller has salted the password, so the login takes the client little CPU time."""
    host, _, port = address.rpartition(':')
    keys = keys_of_salted_password(MECHANISM, salted)
    bare = f'n={USER},r={secrets.token_hex(12)}'.encode()
    with RawClient(host, int(port)) as client:
        client.ask(SaslHandshakeRequest(mechanism=MECHANISM), 1)
        challenge = client.ask(SaslAuthenticateRequest(auth_bytes=b'n,,' + bare), 2).auth_bytes
        final = b'c=biws,' + challenge.split(b',')[0]
        proof = base64.b64encode(proof_of(MECHANISM, keys, b','.join((bare, challenge, final))))
        answer = client.ask(SaslAuthenticateRequest(auth_bytes=final + b',p=' + proof), 2)
        assert not answer.error_code, answer


class Logins:
    """Logs in repeatedly in a thread, LOGINS_A_SECOND times a second."""

    def __init__(self, address: str, salted: bytes):
        self.count = 0
        self._address, self._salted = address, salted
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Logins:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        self._thread.join()
        self.seconds = time.monotonic() - self._began

    def _work(self) -> None:
        while not self._has_ended.is_set():
            log_in(self._address, self._salted)
            self.count += 1
            self._has_ended.wait(max(0, self._began + self.count / LOGINS_A_SECOND - time.monotonic()))


def measure_logins(target: Target, rounds: int, seconds: float) -> Iterator[str]:
    """Yield the table of a client's latency, without logins and while other clients log in."""
    salted = salted_password(MECHANISM, 'password', SALT, ITERATIONS)
    request = AlterUserScramCredentialsRequest
    target.ask(request(deletions=[], upsertions=[request.ScramCredentialUpsertion(
        name=USER, mechanism=MECHANISM_CODE, iterations=ITERATIONS, salt=SALT, salted_password=salted)]), 0)
    target.create('one', 1)
    rates: list[float] = []

    def beside_logins(_: int) -> Measurement:
        with Logins(target.address, salted) as logins:
            found = target.measure([ONE_CLIENT], seconds)
        rates.append(logins.count / logins.seconds)
        return found

    found = list(pairs(rounds, lambda _: target.measure([ONE_CLIENT], seconds), beside_logins))
    alone, beside = ([pair[place].loads[0].p99_us / 1000 for pair in found] for place in (0, 1))
    yield '| logins a second | p99 alone, ms | p99 beside the logins, ms | added, ms |'
    yield '|--:|--:|--:|--:|'
    yield (f'| {spread(rates, ".0f")} | {spread(alone)} | {spread(beside)} | '
           f'{spread([more - less for less, more in zip(alone, beside, strict=True)])} |')


def measure_cells(plain: Target, secured: Target, rounds: int, seconds: float) -> Iterator[str]:
    """Yield the table of the loads with and without security."""
    yield '| load | requests/s without | requests/s with | rate kept | broker CPU per request, with to without |'
    yield '|---|--:|--:|--:|--:|'
    for cell in CELLS:
        found = list(pairs(rounds, lambda number, cell=cell: measured(plain, cell, number, seconds),
                           lambda number, cell=cell: measured(secured, cell, number, seconds)))
        rates = [[rate(pair[place]) for pair in found] for place in (0, 1)]
        cpu = [broker_us(with_) / broker_us(without) for without, with_ in found]
        yield (f'| {cell.name} | {statistics.median(rates[0]):,.0f} | {statistics.median(rates[1]):,.0f} | '
               f'{spread([with_ / without for without, with_ in zip(*rates, strict=True)])} | {spread(cpu)} |')


@click.command(help=__doc__)
@click.option('--rounds', default=6, show_default=True)
@click.option('--seconds', default=2.0, show_default=True)
@click.option('--quick', is_flag=True, help='Run everything once, to see that it works; the figures are meaningless.')
def main(rounds: int, seconds: float, quick: bool) -> None:
    if quick:
        rounds, seconds = 1, 0.3
    with workplace(), targets() as (plain, secured):
        for line in measure_logins(secured, rounds, seconds):
            click.echo(line)
        click.echo()
        for line in measure_cells(plain, secured, rounds, seconds):
            click.echo(line)


if __name__ == '__main__':
    main()
