"""An end-to-end benchmark of figures that a user sees. kbroker and confluent-kafka are processes on this machine.

    python bench/broker.py [--quick]

The benchmark needs a quiet machine: broker and client share its processors, so all other work affects every figure. The
last column shows how much other work the machine did. Records are 1 KiB, in one partition, written by an idempotent
producer. CPU is the broker's own time, which noise affects least. With --quick everything runs once, in a few seconds,
and the figures are meaningless.
"""
import os
import pathlib
import platform
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click
import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / 'tests'))

from support.brokers.broker_process import BrokerProcess

TICKS_PER_S = os.sysconf('SC_CLK_TCK')
VALUE = os.urandom(512).hex().encode()
API_VERSIONS_V0 = struct.pack('>ihhih', 10, 18, 0, 1, -1)
LIMIT_S = 60
ANSWER_LIMIT_S = 120
DURABILITIES = ('page-cache', 'disk')


@dataclass
class Row:
    """One row of the table: a description, its figures, and the load of other programs on the machine."""

    name: str
    figures: str
    noise: str


@dataclass
class Span:
    """The wall time and CPU times between two readings of the clocks. A share is relative to the time of all processors
    together."""

    seconds: float
    broker_cpu_s: float
    others_share: float
    steal_share: float

    def noise(self) -> str:
        return f'{self.others_share:.0%} others, {self.steal_share:.0%} steal'


class Stopwatch:
    """Measures wall time, the CPU time of the broker with the given process id, and the CPU time of unrelated
    processes.

    Without a process id, brokers that end during the measurement count as part of the bench.
    """

    def __init__(self, pid: int | None = None):
        self._pid = pid
        self._began = self._look()

    def _look(self) -> tuple[float, float, float, float, float]:
        user, nice, system, _idle, _io_wait, irq, soft_irq, steal, *_ = machine_cpu_s()
        busy = user + nice + system + irq + soft_irq
        broker_s = process_cpu_s(self._pid) if self._pid is not None else 0
        return time.perf_counter(), broker_s, sum(os.times()[:4]), busy, steal

    def span(self) -> Span:
        seconds, broker_s, own_s, busy_s, steal_s = (
            now - then for now, then in zip(self._look(), self._began, strict=True))
        available_s = seconds * (os.cpu_count() or 1)
        return Span(seconds, broker_s, max(0.0, busy_s - broker_s - own_s) / available_s, steal_s / available_s)


def machine_cpu_s() -> list[float]:
    with open('/proc/stat') as file:
        return [int(ticks) / TICKS_PER_S for ticks in file.readline().split()[1:]]


def process_cpu_s(pid: int) -> float:
    """Return the user and system time of a process."""
    with open(f'/proc/{pid}/stat') as file:
        fields = file.read().rpartition(')')[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def resident_mb(pid: int) -> float:
    with open(f'/proc/{pid}/statm') as file:
        return int(file.read().split()[1]) * os.sysconf('SC_PAGE_SIZE') / 1e6


@contextmanager
def running_broker(durability: str, settings: Mapping[str, str] | None = None) -> Iterator[BrokerProcess]:
    with tempfile.TemporaryDirectory() as directory:
        broker = BrokerProcess(pathlib.Path(directory) / 'data', {'kbroker.durability': durability, **(settings or {})})
        broker.start()
        try:
            yield broker
        finally:
            broker.kill9()


def measure_start(times: int) -> list[Row]:
    """Measure the time from the start of the process to its first ApiVersions response, on an empty and on an existing
    directory."""
    found: dict[str, list[float]] = {'empty': [], 'existing': []}
    with running_broker('disk') as broker:
        idle_mb = resident_mb(broker.pid)
        broker.stop()
        watch = Stopwatch()
        for number in range(times):
            for kind, data in ('empty', f'data{number}'), ('existing', 'data'):
                broker.directory = broker.directory.with_name(data)
                found[kind].append(timed(lambda: first_answer(broker)))
                broker.stop()
        noise = watch.span().noise()
    rows = [Row(f'start to first answer, {kind} directory, {times} times',
                f'median {statistics.median(seconds) * 1e3:.0f} ms, least {min(seconds) * 1e3:.0f} ms', noise)
            for kind, seconds in found.items()]
    return [*rows, Row('resident when idle', f'{idle_mb:.0f} MB', '')]


def first_answer(broker: Any) -> None:
    """Start a broker, and wait for its first response."""
    broker.start()
    host, _, port = broker.address.rpartition(':')
    with socket.create_connection((host, int(port)), ANSWER_LIMIT_S) as connection:
        connection.sendall(API_VERSIONS_V0)
        assert connection.recv(65_536)


def create_topic(address: str, name: str) -> None:
    admin = AdminClient({'bootstrap.servers': address})
    admin.create_topics([NewTopic(name, 1)])[name].result(LIMIT_S)


def measure_produce(broker: BrokerProcess, durability: str, records: int) -> Row:
    create_topic(broker.address, 'produced')
    producer = Producer({'bootstrap.servers': broker.address, 'enable.idempotence': True, 'linger.ms': 5,
                         'queue.buffering.max.messages': 100_000, 'queue.buffering.max.kbytes': 1_048_576})
    produce_all(producer, 'produced', min(records, 1000))
    watch = Stopwatch(broker.pid)
    produce_all(producer, 'produced', records)
    return row_of_records(f'produce, {durability}', watch.span(), records)


def produce_all(producer: Producer, topic: str, records: int) -> None:
    for _ in range(records):
        while True:
            try:
                producer.produce(topic, VALUE, partition=0)
                break
            except BufferError:
                producer.poll(0.01)
    assert producer.flush(LIMIT_S) == 0


def measure_consume(broker: BrokerProcess, durability: str, records: int) -> Row:
    """Measure the rate of a consumer. The time begins at the first record, because librdkafka waits half a second
    before it."""
    consumer = Consumer({'bootstrap.servers': broker.address, 'group.id': 'bench', 'enable.auto.commit': False,
                         'fetch.message.max.bytes': 10_485_760, 'queued.max.messages.kbytes': 262_144})
    consumer.assign([TopicPartition('produced', 0, OFFSET_BEGINNING)])
    assert consumer.poll(LIMIT_S) is not None
    watch = Stopwatch(broker.pid)
    left = records
    while left:
        messages = consumer.consume(min(left, 10_000), LIMIT_S)
        assert messages, f'{left} records are missing'
        assert all(message.error() is None for message in messages)
        left -= len(messages)
    span = watch.span()
    consumer.close()
    return row_of_records(f'consume, {durability}', span, records)


def row_of_records(name: str, span: Span, records: int) -> Row:
    return Row(f'{name}, {records} records',
               f'{records / span.seconds:,.0f}/s, {span.broker_cpu_s / records * 1e6:.2f} us CPU each', span.noise())


def measure_transactions(broker: BrokerProcess, durability: str, transactions: int) -> Row:
    """Measure consecutive transactions of one record each."""
    create_topic(broker.address, 'transacted')
    producer = Producer({'bootstrap.servers': broker.address, 'transactional.id': 'bench', 'linger.ms': 0})
    producer.init_transactions(LIMIT_S)
    run_transaction(producer)
    watch = Stopwatch(broker.pid)
    seconds = sorted(timed(lambda: run_transaction(producer)) for _ in range(transactions))
    span = watch.span()
    return Row(f'transactions of one record, {durability}, {transactions} in series',
               f'{transactions / span.seconds:,.0f}/s, p50 {seconds[len(seconds) // 2] * 1e3:.1f} ms, '
               f'p99 {seconds[len(seconds) * 99 // 100] * 1e3:.1f} ms, '
               f'{span.broker_cpu_s / transactions * 1e6:.0f} us CPU each', span.noise())


def run_transaction(producer: Producer) -> None:
    producer.begin_transaction()
    producer.produce('transacted', VALUE, partition=0)
    producer.commit_transaction(LIMIT_S)


def timed(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


@click.command(help=__doc__)
@click.option('--quick', is_flag=True, help='Run everything once, to see that it works; the figures are meaningless.')
@click.option('--records', default=500_000, show_default=True, help='The number of records to produce and consume.')
@click.option('--transactions', default=1000, show_default=True)
@click.option('--starts', default=10, show_default=True)
def main(quick: bool, records: int, transactions: int, starts: int) -> None:
    if quick:
        records, transactions, starts = 2000, 20, 1
    os.environ.pop('PYTHONDONTWRITEBYTECODE', None)  # a broker starts from bytecode, as when it is installed
    load = os.getloadavg()[0]
    if load > 1 and not quick:
        click.echo(f'The load average is {load:.1f}: this machine is not quiet, the figures are unreliable.', err=True)
    rows = measure_start(starts)
    for durability in DURABILITIES:
        with running_broker(durability) as broker:
            rows.append(measure_produce(broker, durability, records))
            rows.append(measure_consume(broker, durability, records))
            rows.append(measure_transactions(broker, durability, transactions))
    print(f'{os.cpu_count()} processors, Python {platform.python_version()}, '
          f'librdkafka {confluent_kafka.libversion()[0]}, load average before {load:.2f}\n')
    print('| what | figures | noise |\n|---|---|---|')
    for row in rows:
        print(f'| {row.name} | {row.figures} | {row.noise} |')


if __name__ == '__main__':
    main()
