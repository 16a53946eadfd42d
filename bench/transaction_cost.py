"""What transactions cost a real client: the claim of the literature, on Apache Kafka and on kbroker.

    python bench/transaction_cost.py [--quick] [--rounds N] [--records N] [--peers NAMES] [--clients NAMES]

Records of 1 KB at the producer's full speed, into one partition: with a commit every 100 ms, and without transactions
(idempotent both). The claim is a loss of at most 3 percent. Then the same records are read with read_committed and
with read_uncommitted, where nothing should be lost. The clients are those of Java (ProducerPerformance,
ConsumerPerformance and EndToEndLatency, which are Kafka's own) and confluent-kafka. They turn about in each round;
figures are medians over the rounds, with the least and the most, and losses are taken within a round. Clients and
broker share this machine's processors, so broker CPU is part of what a producer loses: it is told beside the rate.
Without Java only confluent-kafka is measured,
on kbroker. With --quick the figures mean nothing.
"""
from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import click
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parent.parent)]

from broker import Stopwatch  # noqa: E402
from load_generator import LoadError  # noqa: E402
from peer_brokers import PEERS, Site, Unavailable, kafka_tool, versions  # noqa: E402

RECORD_BYTES = 1000
COMMIT_MS = 100
VALUE = os.urandom(RECORD_BYTES // 2).hex().encode()
TOOL_LIMIT_S = 300
MOST_LOST = {'producing': 0.03, 'consuming': 0.01}  # the latter is nothing, but for the noise
RATE = re.compile(r'([\d.,]+) records/sec')


@dataclasses.dataclass
class Run:
    rate: float
    broker_us: float
    others_share: float


@dataclasses.dataclass
class Sizes:
    records: int
    round_trips: int


def tool_output(main_class: str, *arguments: str) -> str:
    """LoadError with its output if the tool fails."""
    done = subprocess.run(kafka_tool(main_class, *arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=TOOL_LIMIT_S, check=False)
    if done.returncode:
        raise LoadError(f'{main_class} exited with {done.returncode}:\n{done.stdout[-2000:]}')
    return done.stdout


# ---- producing: how many records a second

def produce_with_java(address: str, topic: str, records: int, transactional: bool) -> float:
    """The steady state behind the first fifth of the records, in which Java compiles what it runs."""
    options = ['--transactional-id', topic, '--transaction-duration-ms', str(COMMIT_MS)] if transactional else []
    output = tool_output('ProducerPerformance', '--bootstrap-server', address, '--topic', topic, '--throughput', '-1',
                         '--num-records', str(records), '--warmup-records', str(records // 5),
                         '--record-size', str(RECORD_BYTES), '--command-property', 'acks=all', *options)
    rates = RATE.findall(output)
    if not rates or 'steady state' not in output:
        raise LoadError(f'ProducerPerformance says no rate:\n{output[-2000:]}')
    return float(rates[-1].replace(',', ''))


def produce_with_confluent(address: str, topic: str, records: int, transactional: bool) -> float:
    producer = Producer({'bootstrap.servers': address, 'enable.idempotence': True, 'linger.ms': 5, 'log_level': 0,
                         **({'transactional.id': topic} if transactional else {})})
    if transactional:
        producer.init_transactions(TOOL_LIMIT_S)
        producer.begin_transaction()
    began = time.perf_counter()
    commit_at = began + COMMIT_MS / 1e3
    for number in range(records):
        while True:
            try:
                producer.produce(topic, VALUE, partition=0)
                break
            except BufferError:
                producer.poll(0.01)
        if transactional and number % 100 == 0 and time.perf_counter() >= commit_at:
            producer.commit_transaction(TOOL_LIMIT_S)
            producer.begin_transaction()
            commit_at = time.perf_counter() + COMMIT_MS / 1e3
    if transactional:
        producer.commit_transaction(TOOL_LIMIT_S)
    if producer.flush(TOOL_LIMIT_S):
        raise LoadError('records are left in the producer')
    return records / (time.perf_counter() - began)


# ---- consuming

def consume_with_java(address: str, topic: str, records: int, committed: bool) -> float:
    isolation = f'isolation.level={"read_committed" if committed else "read_uncommitted"}'
    output = tool_output('ConsumerPerformance', '--bootstrap-server', address, '--topic', topic, '--num-records',
                         str(records), '--hide-header', '--command-property', isolation)
    # start, end, MB, MB/s, records, records/s, rebalance ms, fetch ms, fetch MB/s, fetch records/s
    fields = output.strip().splitlines()[-1].split(', ')
    if len(fields) != 10 or int(fields[4]) < records:
        raise LoadError(f'ConsumerPerformance did not read {records} records:\n{output[-2000:]}')
    return float(fields[9])


def consume_with_confluent(address: str, topic: str, records: int, committed: bool) -> float:
    """From the first record on: before it librdkafka waits of its own accord."""
    consumer = Consumer({'bootstrap.servers': address, 'group.id': topic, 'enable.auto.commit': False, 'log_level': 0,
                         'isolation.level': 'read_committed' if committed else 'read_uncommitted',
                         'fetch.message.max.bytes': 10_485_760, 'queued.max.messages.kbytes': 262_144})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    try:
        if consumer.poll(TOOL_LIMIT_S) is None:
            raise LoadError('nothing to consume')
        began, left = time.perf_counter(), records - 1
        while left:
            messages = consumer.consume(min(left, 10_000), 10)
            if not messages or any(message.error() for message in messages):
                raise LoadError(f'{left} records are missing')
            left -= len(messages)
        return (records - 1) / (time.perf_counter() - began)
    finally:
        consumer.close()


Work = Callable[[str, str, int, bool], float]
CLIENTS: dict[str, tuple[Work, Work]] = {
    'Java': (produce_with_java, consume_with_java),
    'confluent-kafka': (produce_with_confluent, consume_with_confluent),
}


def round_trips(site: Site, sizes: Sizes) -> str:
    """Java's EndToEndLatency: from the producer through the broker to the consumer."""
    with site.topic('latency', 1) as topic:
        output = tool_output('EndToEndLatency', site.broker.address, topic, str(sizes.round_trips), 'all',
                             str(RECORD_BYTES))
    found = re.search(r'Avg latency: ([\d.]+) ms', output)
    percentiles = re.search(r'Percentiles: (.*)', output)
    if not found or not percentiles:
        raise LoadError(f'EndToEndLatency says no latency:\n{output[-2000:]}')
    return f'average {float(found[1]):.2f} ms; {percentiles[1]}'


# ---- turns

class Bench:
    """Runs by (client, peer, what was done, whether with transactions or read_committed)."""

    def __init__(self, sizes: Sizes):
        self.sizes = sizes
        self.runs: dict[tuple[str, str, str, bool], list[Run]] = defaultdict(list)
        self.faults: list[str] = []
        self._topics = 0

    def turn(self, client: str, site: Site, number: int) -> None:
        produce, consume = CLIENTS[client]
        order = (False, True) if number % 2 == 0 else (True, False)
        with ExitStack() as stack:
            for transactional in order:
                self._topics += 1
                topic = stack.enter_context(site.topic(f'cost{self._topics}', 1))
                self._measure(client, site, 'producing', transactional, produce, topic)
                if transactional:
                    full = topic
            for committed in order:
                self._measure(client, site, 'consuming', committed, consume, full)

    def _measure(self, client: str, site: Site, what: str, flag: bool, work: Work, topic: str) -> None:
        watch = Stopwatch(site.broker.pid)
        rate = work(site.broker.address, topic, self.sizes.records, flag)
        span = watch.span()
        self.runs[client, site.peer.name, what, flag].append(
            Run(rate, span.broker_cpu_s / self.sizes.records * 1e6, span.others_share))
        click.echo(f'{client}, {site.peer.name}, {what}, {flag}: {rate:,.0f} records/s', err=True)

    def table(self) -> Iterator[str]:
        """Losses are medians of the losses within a round."""
        yield '| client | broker | | records/s without | with | loss | at most | | broker us a record | others |'
        yield '|---|---|---|--:|--:|--:|--:|---|--:|--:|'
        for client, peer, what in dict.fromkeys(key[:3] for key in self.runs):
            plain, ended = self.runs[client, peer, what, False], self.runs[client, peer, what, True]
            if not plain or not ended:
                continue
            loss = statistics.median(1 - b.rate / a.rate for a, b in zip(plain, ended, strict=False))
            words = {'producing': 'transactions of 100 ms', 'consuming': 'read_committed'}[what]
            others = statistics.median(run.others_share for run in plain + ended)
            yield (f'| {client} | {peer} | {words} | {spread(plain)} | {spread(ended)} | {loss:+.1%} | '
                   f'{MOST_LOST[what]:.0%} | {"met" if loss <= MOST_LOST[what] else "**short**"} | '
                   f'{statistics.median(run.broker_us for run in plain):.2f}, '
                   f'{statistics.median(run.broker_us for run in ended):.2f} | {others:.0%} |')


def spread(runs: list[Run]) -> str:
    rates = [run.rate for run in runs]
    return f'{statistics.median(rates):,.0f} [{min(rates):,.0f}-{max(rates):,.0f}]'


def started(stack: ExitStack, names: list[str]) -> Iterator[Site]:
    work = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
    for name in names:
        try:
            site = Site(PEERS[name], work)
        except (Unavailable, AssertionError, LoadError) as fault:
            click.echo(f'{name} is left out: {fault}', err=True)
            continue
        stack.callback(site.close)
        yield site


@click.command(help=__doc__)
@click.option('--quick', is_flag=True, help='Run everything once, to see that it works; the figures mean nothing.')
@click.option('--rounds', default=5, show_default=True)
@click.option('--records', default=1_000_000, show_default=True)
@click.option('--peers', 'names', default='kafka,kbroker', show_default=True)
@click.option('--clients', default=','.join(CLIENTS), show_default=True)
def main(quick: bool, rounds: int, records: int, names: str, clients: str) -> None:
    if unknown := {*names.split(','), *clients.split(',')} - {*PEERS, *CLIENTS}:
        raise click.ClickException(f'no such peers or clients: {", ".join(sorted(unknown))}')
    rounds, sizes = (1, Sizes(5000, 50)) if quick else (rounds, Sizes(records, 10_000))
    chosen = clients.split(',')
    if 'Java' in chosen and (shutil.which('java') is None or shutil.which('mvn') is None):
        click.echo('Java is left out: java or mvn is not to be found', err=True)
        chosen.remove('Java')
    bench, latencies = Bench(sizes), []
    with ExitStack() as stack:
        sites = list(started(stack, names.split(',')))
        for number in range(-1 if not quick else 0, rounds):  # the first round only warms up
            for client in chosen:
                for site in sites:
                    try:
                        bench.turn(client, site, number)
                    except (LoadError, OSError, subprocess.TimeoutExpired) as fault:
                        bench.faults.append(f'{client} on {site.peer.name}: {fault}')
            if number < 0:
                bench.runs.clear()
        for site in sites if 'Java' in chosen else []:
            try:
                latencies.append(f'EndToEndLatency of 1 record, {site.peer.name}: {round_trips(site, sizes)}')
            except (LoadError, subprocess.TimeoutExpired) as fault:
                bench.faults.append(f'EndToEndLatency on {site.peer.name}: {fault}')
    print(f'{os.cpu_count()} processors; {versions()}. {rounds} rounds of {sizes.records:,} records of {RECORD_BYTES} '
          'bytes, after one that warms up.\n')
    print('\n'.join([*bench.table(), '', *latencies, *(f'**failed** {fault}' for fault in bench.faults)]))


if __name__ == '__main__':
    main()
