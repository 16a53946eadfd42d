"""kbroker.client compared with other clients in Python: records per CPU second of the client, and records per second.

    python bench/clients.py [--quick] [--rounds N] [--seconds S]

Every client is a process that stays connected to one kbroker, which answers from the page cache. In each round each
client produces for S seconds to its own partition, and reads a partition that was filled before. The order of the
clients changes from round to round, so that other load on the machine affects all of them equally. CPU is user and
system time of the client's process, with its threads. Each round gives a ratio to confluent-kafka; the tables show the
median, minimum and maximum of these ratios. `bench/client_loads.py` has the programs and their settings. Takes about
three minutes. With --quick the figures are meaningless.
"""
from __future__ import annotations

import pathlib
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import click

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parent.parent)]

from broker import running_broker  # noqa: E402
from client_loads import Work  # noqa: E402
from peer_brokers import DELETE_AT_ONCE  # noqa: E402
from rounds import spread  # noqa: E402
from stopping import workplace  # noqa: E402

from kbroker.client import Admin, Producer  # noqa: E402

SIZES = (100, 1024)
FILL_BYTES = 60_000_000
SLOW = {'kafka-python': 10, 'aiokafka': 10}
"""Maps each slow client to a divisor. The client reads only the number of records in the partition divided by it."""


class Load(NamedTuple):
    """A client of `client_loads.py`, and the batch.size with which it runs."""

    name: str
    label: str
    batch_bytes: int = 65_536

    @property
    def is_rival(self) -> bool:
        return self.name.startswith('confluent')


PRODUCERS = (
    *(Load(name, label, batch_bytes) for batch_bytes in (65_536, 1_000_000) for name, label in (
        ('kbroker', 'kbroker.client, send'), ('kbroker-batches', 'kbroker.client, send_batch'),
        ('confluent', 'confluent-kafka, produce'), ('confluent-batches', 'confluent-kafka, produce_batch'))),
    Load('aiokafka', 'aiokafka'), Load('kafka-python', 'kafka-python'))
CONSUMERS = (
    Load('kbroker', 'kbroker.client, columns'), Load('kbroker-batches', 'kbroker.client, each value of a column'),
    Load('kbroker-records', 'kbroker.client, records()'), Load('confluent', 'confluent-kafka, consume'),
    Load('aiokafka', 'aiokafka'), Load('kafka-python', 'kafka-python'))

Clients = Mapping[Load, 'Process']
Round = dict[Load, Work]


class Process:
    """The process of a client, to which the bench sends commands."""

    def __init__(self, load: Load, address: str):
        self._name = load.label
        program = pathlib.Path(__file__).parent / 'client_loads.py'
        self._process = subprocess.Popen([sys.executable, str(program), load.name, str(load.batch_bytes), address],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def await_start(self) -> None:
        if self._answer() != 'ready':
            raise click.ClickException(f'{self._name} did not start')

    def work(self, *words: object) -> Work:
        assert self._process.stdin is not None
        print(*words, file=self._process.stdin, flush=True)
        records, seconds, cpu_s = self._answer().split()
        return Work(int(records), float(seconds), float(cpu_s))

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise click.ClickException(f'{self._name} ended before it answered')
        return line

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def filled(address: str, size: int, fill_bytes: int) -> int:
    """Fill the partition that the consumers read. Return the number of its records."""
    records = fill_bytes // size
    with Admin(address) as admin:
        admin.create_topics({f'read-{size}': 1})
    with Producer(address, batch_size=65_536) as producer:
        producer.send_batch(f'read-{size}', [b'x' * size] * records)
    return records


def produced(clients: Clients, loads: Sequence[Load], address: str, size: int, seconds: float) -> Round:
    found = {}
    for load in loads:
        topic = f'{load.name}-{load.batch_bytes}-{size}'
        with Admin(address) as admin:
            admin.create_topics({topic: 1})
            clients[load].work('produce', topic, size, seconds / 10)     # the connection, and the metadata
            found[load] = clients[load].work('produce', topic, size, seconds)
            admin.delete_topics([topic])
    return found


def consumed(clients: Clients, loads: Sequence[Load], size: int, records: int) -> Round:
    return {load: clients[load].work('consume', f'read-{size}', records // SLOW.get(load.name, 1)) for load in loads}


def rounds_of(clients: Clients, address: str, size: int, rounds: int, seconds: float,
              fill_bytes: int) -> tuple[list[Round], list[Round]]:
    """Run the rounds. Return (the rounds of producing, the rounds of consuming)."""
    records = filled(address, size, fill_bytes)
    consumed(clients, CONSUMERS, size, records)    # the first connection, and the page cache
    both: tuple[list[Round], list[Round]] = [], []
    for number in range(rounds):
        order = 1 if number % 2 else -1
        both[0].append(produced(clients, PRODUCERS[::order], address, size, seconds))
        both[1].append(consumed(clients, CONSUMERS[::order], size, records))
    return both


def per_cpu_second(work: Work) -> float:
    return work.records / work.cpu_s


def ratios(rounds: Sequence[Round], load: Load) -> list[float]:
    """Return for each round the ratio of `load` to the best load of confluent-kafka with the same batch.size."""
    return [per_cpu_second(found[load]) / max(per_cpu_second(work) for rival, work in found.items()
                                              if rival.is_rival and rival.batch_bytes == load.batch_bytes)
            for found in rounds]


def table(title: str, loads: Sequence[Load], rounds: Sequence[Round]) -> Iterator[str]:
    yield f'\n| {title} | batch.size | records per CPU second | CPU us per record | records/s | to confluent-kafka |'
    yield '|---|--:|--:|--:|--:|--:|'
    for load in loads:
        rates = [per_cpu_second(found[load]) for found in rounds]
        speeds = [found[load].records / found[load].seconds for found in rounds]
        yield (f'| {load.label} | {load.batch_bytes:,} | {statistics.median(rates):,.0f} | '
               f'{1e6 / statistics.median(rates):.2f} | {statistics.median(speeds):,.0f} | '
               f'{spread(ratios(rounds, load), ".2f")} |')


@click.command(help=__doc__)
@click.option('--rounds', default=5, show_default=True)
@click.option('--seconds', default=0.6, show_default=True)
@click.option('--quick', is_flag=True, help='Run everything once, to see that it works; the figures are meaningless.')
def main(rounds: int, seconds: float, quick: bool) -> None:
    fill_bytes = FILL_BYTES
    if quick:
        rounds, seconds, fill_bytes = 1, 0.05, 2_000_000
    with workplace(), running_broker('page-cache', DELETE_AT_ONCE) as broker:
        clients: dict[Load, Process] = {}
        try:
            clients |= {load: Process(load, broker.address) for load in {*PRODUCERS, *CONSUMERS}}
            for client in clients.values():
                client.await_start()
            for size in SIZES:
                both = rounds_of(clients, broker.address, size, rounds, seconds, fill_bytes)
                for title, loads, found in zip(('produce', 'consume'), (PRODUCERS, CONSUMERS), both, strict=True):
                    for line in table(f'{title} {size:,} B', loads, found):
                        click.echo(line)
        finally:
            for client in clients.values():
                client.close()


if __name__ == '__main__':
    main()
