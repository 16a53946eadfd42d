"""kbroker-perf. It measures throughput and latency, with the options of kafka-producer-perf-test,
kafka-consumer-perf-test and kafka-e2e-latency."""
from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kbroker_tools.base.command import SETTINGS, Group, ToolError, output_options, version_option
from kbroker_tools.base.latency import Latencies
from kbroker_tools.base.render import Output
from kbroker_tools.cluster.opening import bootstrap_option, command_config_option, profile_option
from kbroker_tools.console.line_reader import parse_properties

if TYPE_CHECKING:
    from kbroker.base.errors import KafkaError
    from kbroker.client.consumer import Consumer
    from kbroker.client.outcomes import Delivery
    from kbroker.client.producer import Producer

F = TypeVar('F', bound=Callable[..., Any])

MIB = 1024 * 1024
DEFAULT_TRANSACTION_MS = 3000
POLL_MS = 100
LETTERS = b'ABCDEFGHIJKLMNOPQRSTUVWXYZ'
PAYLOADS = 1000
"""The number of different random payloads. Making one costs more than sending it."""
WARM_UP_RECORDS = 1
"""The records that `end-to-end` sends before it measures: they open connections and create the topic."""


@click.group(cls=Group, context_settings=SETTINGS)
@version_option
def main() -> None:
    """Measure the throughput and the latency of a broker."""


# ---- options

def settings_options(kafka_name: str, *file_names: str) -> Callable[[F], F]:
    """Return a decorator that adds the options for settings of the client, and those of the broker."""
    def decorate(function: F) -> F:
        for option in (
            output_options,
            click.argument('more', nargs=-1, metavar='[NAME=VALUE]...'),
            click.option('--command-property', kafka_name, 'properties', multiple=True, metavar='NAME=VALUE',
                         help="A setting of the client, under Kafka's name; may be repeated, and further words may "
                              'follow.'),
            profile_option,
            command_config_option(*file_names, help_text='Settings of the client and the connection, as properties.'),
            bootstrap_option(),
        ):
            function = option(function)
        return function

    return decorate


def overrides_of(properties: tuple[str, ...], more: tuple[str, ...]) -> dict[str, str]:
    """Return the settings on the command line. Kafka's tools take several words after one option."""
    if more and not properties:
        raise click.UsageError(f'found the word {more[0]!r}, expected an option; settings follow --command-property')
    return parse_properties('--command-property', (*properties, *more))


@contextmanager
def open_producer(place: Mapping[str, Any], overrides: Mapping[str, str],
                  on_delivery: Callable[[Delivery], None] | None = None) -> Iterator[Producer]:
    from kbroker.client.cluster import Cluster
    from kbroker.client.config import ClientConfig
    from kbroker.client.producer import Producer
    from kbroker.client.stream_settings import ProducerSettings
    config = ClientConfig.load(place['bootstrap_server'], place['command_config'], overrides)
    cluster = Cluster(config)
    try:
        with Producer(cluster, ProducerSettings.from_properties(dict(config.properties)), on_delivery) as producer:
            yield producer
    finally:
        cluster.close()


@contextmanager
def open_consumer(place: Mapping[str, Any], overrides: Mapping[str, str], topic: str,
                  at_end: bool = False) -> Iterator[Consumer]:
    """Yield a consumer of all partitions of a topic. With `group.id`, the group assigns the partitions."""
    from kbroker.client.cluster import Cluster
    from kbroker.client.config import ClientConfig
    from kbroker.client.consumer import Consumer
    from kbroker.client.stream_settings import ConsumerSettings
    given = {'auto.offset.reset': 'latest' if at_end else 'earliest', **overrides}
    config = ClientConfig.load(place['bootstrap_server'], place['command_config'], given)
    settings = ConsumerSettings.from_properties(dict(config.properties))
    cluster = Cluster(config)
    try:
        with Consumer(cluster, settings) as consumer:
            if settings.group_id is not None:
                consumer.subscribe([topic])
            else:
                found = cluster.retrying(lambda: cluster.topics([topic]), f'topic {topic}')
                consumer.assign((topic, partition) for partition in found[topic].partitions)
                if at_end:      # the end of now, and not that of the first fetch
                    for (_, partition), offset in consumer.end_offsets(consumer.assignment).items():
                        consumer.seek(topic, partition, offset)
            yield consumer
    finally:
        cluster.close()


# ---- produce

@dataclass
class Sending:
    """The measurement of a producer: the latency of each record from its `send` to the answer."""

    output: Output
    interval_s: float
    latencies: Latencies = field(default_factory=Latencies)
    commits: Latencies = field(default_factory=Latencies)
    size_bytes: int = 0
    failed: int = 0
    first_error: KafkaError | None = None
    began: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self._window, self._window_began, self._window_bytes = Latencies(), self.began, 0

    def on_delivery(self, delivery: Delivery) -> None:
        if delivery.error is not None:
            self.failed += delivery.records_count
            self.first_error = self.first_error or delivery.error
            return
        now_ns = time.perf_counter_ns()
        for sent_ns, size_bytes in delivery.contexts:
            latency_us = (now_ns - sent_ns) // 1000
            self.latencies.add(latency_us)
            self._window.add(latency_us)
            self.size_bytes += size_bytes
            self._window_bytes += size_bytes

    def report_if_due(self, now: float) -> None:
        """Print a line about the last interval, if it is over."""
        if now - self._window_began < self.interval_s:
            return
        self._print(self._window, self._window_bytes, now - self._window_began, is_total=False)
        self.output.stream.flush()
        self._window, self._window_began, self._window_bytes = Latencies(), now, 0

    def report(self) -> None:
        self._print(self.latencies, self.size_bytes, time.perf_counter() - self.began, is_total=True)

    def _print(self, found: Latencies, size_bytes: int, seconds: float, is_total: bool) -> None:
        rate = found.count / seconds if seconds else 0.0
        mib_rate = size_bytes / MIB / seconds if seconds else 0.0
        if self.output.as_json:
            commits = {'commits': self.commits.as_fields()} if is_total and self.commits.count else {}
            self.output.row({'kind': 'total' if is_total else 'interval', 'records': found.count,
                             'records_per_second': round(rate, 1), 'mb_per_second': round(mib_rate, 3),
                             'seconds': round(seconds, 3), 'latency': found.as_fields(), 'failed': self.failed,
                             **commits})
            return
        text = (f'{found.count} records sent, {rate:.1f} records/sec ({mib_rate:.2f} MB/sec), '
                f'{found.mean_us / 1000:.2f} ms avg latency, {found.max_us / 1000:.2f} ms max latency')
        if not is_total:
            self.output.line(text + '.')
            return
        self.output.line(text + ', ' + ', '.join(
            f'{found.percentile(percent) / 1000:.2f} ms {percent:g}th' for percent in (50, 95, 99, 99.9)) + '.')
        for line in found.lines('latency of records'):
            self.output.line(line)
        if self.commits.count:
            for line in self.commits.lines('latency of commits'):
                self.output.line(line)


def _delimiter(context: click.Context, _: click.Parameter, text: str) -> bytes:
    """Return the delimiter as bytes. Kafka's tool takes it as a regular expression; here, only escapes are special."""
    found = text.replace('\\n', '\n').replace('\\t', '\t').replace('\\r', '\r').encode()
    if not found:
        raise click.BadParameter('found an empty text, expected at least one character')
    return found


@main.command()
@click.option('--topic', required=True, metavar='TOPIC', help='The topic to write to.')
@click.option('--num-records', type=click.IntRange(1), required=True, metavar='N', help='How many records to write.')
@click.option('--record-size', type=click.IntRange(1), metavar='BYTES', help='The size of each value, in random '
              'capital letters.')
@click.option('--payload-file', type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar='FILE',
              help='A file of values, from which each value is chosen at random.')
@click.option('--payload-delimiter', default='\\n', show_default=True, callback=_delimiter, metavar='TEXT',
              help='The end of each value in the file.')
@click.option('--payload-monotonic', is_flag=True, help='Write the numbers from 0 on.')
@click.option('--throughput', type=float, default=-1, show_default=True, metavar='N', help='The most records per '
              'second; -1 is no limit.')
@click.option('--transactional-id', metavar='ID', help='Write in transactions of this id.')
@click.option('--transaction-duration-ms', type=click.IntRange(1), metavar='MS', help='Commit a transaction that is '
              f'open for this time.  [default: {DEFAULT_TRANSACTION_MS}, with a transactional id]')
@click.option('--reporting-interval', type=click.IntRange(1), default=5000, show_default=True, metavar='MS',
              help='How often a line is printed.')
@click.option('--print-metrics', is_flag=True, help='Print the counts of the producer at the end.')
@settings_options('--producer-props', '--producer.config')
def produce(topic: str, num_records: int, record_size: int | None, payload_file: Path | None, payload_delimiter: bytes,
            payload_monotonic: bool, throughput: float, transactional_id: str | None,
            transaction_duration_ms: int | None, reporting_interval: int, print_metrics: bool,
            properties: tuple[str, ...], more: tuple[str, ...], as_json: bool, **place: Any) -> None:
    """Write records as fast as the broker takes them, or at a given rate, and print throughput and latencies.

    The options and the first lines are those of kafka-producer-perf-test. A histogram follows.
    """
    values = values_of(num_records, record_size, payload_file, payload_delimiter, payload_monotonic)
    overrides = overrides_of(properties, more)
    name = transactional_id or overrides.get('transactional.id')
    if transaction_duration_ms is not None and name is None:
        name = f'kbroker-perf-{random.getrandbits(32):08x}'
    if name is not None:
        overrides['transactional.id'] = name
    duration_s = (transaction_duration_ms or DEFAULT_TRANSACTION_MS) / 1000 if name is not None else None
    output = Output(as_json)
    sending = Sending(output, reporting_interval / 1000)
    try:
        with open_producer(place, overrides, sending.on_delivery) as producer:
            sending.began = time.perf_counter()
            send_all(producer, topic, values, throughput, duration_s, sending)
            stats = producer.stats()
    except KeyboardInterrupt:
        sending.report()    # a run without an end is measured until Ctrl-C
        raise
    sending.report()
    if print_metrics:
        for count, number in sorted(stats.items()):
            output.row({'kind': 'metric', 'name': count, 'value': number}) if as_json else output.line(
                f'{count:<40} : {number}')
    if sending.failed:
        raise ToolError(f'{sending.failed:,} of {num_records:,} records were not written: {sending.first_error}')


def values_of(count: int, size_bytes: int | None, file: Path | None, delimiter: bytes,
              is_monotonic: bool) -> Iterator[bytes]:
    """Return an iterator over the values to write. Raise click.UsageError unless one kind of values is chosen."""
    if (size_bytes is not None) + (file is not None) + is_monotonic != 1:
        raise click.UsageError('give exactly one of --record-size, --payload-file and --payload-monotonic')
    if is_monotonic:
        return (b'%d' % number for number in range(count))
    if file is not None:
        values = [part for part in file.read_bytes().split(delimiter) if part]
        if not values:
            raise ToolError(f'{file}: found no value, expected at least one')
    else:
        assert size_bytes is not None
        values = [bytes(random.choices(LETTERS, k=size_bytes)) for _ in range(min(PAYLOADS, count))]
    return (random.choice(values) for _ in range(count))


def send_all(producer: Producer, topic: str, values: Iterator[bytes], throughput: float, duration_s: float | None,
             sending: Sending) -> None:
    """Send the values, at most `throughput` per second. With `duration_s`, commit after each such time."""
    began = transaction_began = time.perf_counter()
    is_open = False
    for number, value in enumerate(values):
        now = time.perf_counter()
        if throughput > 0:
            while (wait_s := began + number / throughput - now) > 0:
                producer.poll(min(int(wait_s * 1000) + 1, POLL_MS) if wait_s > 0.001 else 0)
                now = time.perf_counter()
                sending.report_if_due(now)
        if duration_s is not None:
            if is_open and now - transaction_began >= duration_s:
                commit(producer, sending)
                is_open = False
            if not is_open:
                producer.begin_transaction()
                is_open, transaction_began = True, now
        producer.send(topic, value, context=(time.perf_counter_ns(), len(value)))
        sending.report_if_due(now)
    if is_open:
        commit(producer, sending)
    producer.flush()


def commit(producer: Producer, sending: Sending) -> None:
    began_ns = time.perf_counter_ns()
    producer.commit_transaction()
    sending.commits.add((time.perf_counter_ns() - began_ns) // 1000)


# ---- consume

CSV_HEADINGS = ('start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, '
                'rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec')


@main.command()
@click.option('--topic', required=True, metavar='TOPIC', help='The topic to read.')
@click.option('--num-records', '--messages', 'num_records', type=click.IntRange(1), required=True, metavar='N',
              help='How many records to read.')
@click.option('--group', metavar='GROUP', help='Read as a member of this group.  [default: read all partitions, '
              'without a group]')
@click.option('--fetch-size', type=click.IntRange(1), default=MIB, show_default=True, metavar='BYTES',
              help='The most bytes of a partition in one request.')
@click.option('--from-latest', is_flag=True, help='Begin at the end of the log.')
@click.option('--timeout', type=click.IntRange(1), default=10_000, show_default=True, metavar='MS',
              help='The longest wait for the next records.')
@click.option('--isolation-level', type=click.Choice(['read_uncommitted', 'read_committed']),
              default='read_uncommitted', show_default=True, help='read_committed leaves out aborted records.')
@click.option('--show-detailed-stats', is_flag=True, help='Print a line after each --reporting-interval.')
@click.option('--reporting-interval', type=click.IntRange(1), default=5000, show_default=True, metavar='MS',
              help='How often a line is printed.')
@click.option('--hide-header', is_flag=True, help='Leave out the headings.')
@click.option('--print-metrics', is_flag=True, help='Print the counts of the consumer at the end.')
@settings_options('--consumer-props', '--consumer.config')
def consume(topic: str, num_records: int, group: str | None, fetch_size: int, from_latest: bool, timeout: int,
            isolation_level: str, show_detailed_stats: bool, reporting_interval: int, hide_header: bool,
            print_metrics: bool, properties: tuple[str, ...], more: tuple[str, ...], as_json: bool,
            **place: Any) -> None:
    """Read records, and print throughput and the latencies of polls.

    The options and the first lines are those of kafka-consumer-perf-test. A histogram follows: how long each poll
    waited for records.
    """
    overrides = {'max.partition.fetch.bytes': str(fetch_size), 'isolation.level': isolation_level,
                 **overrides_of(properties, more), **({'group.id': group} if group is not None else {})}
    output, polls = Output(as_json), Latencies()
    with open_consumer(place, overrides, topic, from_latest) as consumer:
        reading = Reading(consumer, output)
        if not hide_header and not as_json:
            output.line(CSV_HEADINGS)
        while reading.records < num_records:
            began_ns = time.perf_counter_ns()
            batches = consumer.poll(timeout)
            if not batches:
                break
            polls.add((time.perf_counter_ns() - began_ns) // 1000)
            reading.add(sum(map(len, batches)))
            if show_detailed_stats:
                reading.report_if_due(reporting_interval / 1000)
        stats = consumer.stats()
        reading.report(polls)
    if print_metrics:
        for count, number in sorted(stats.items()):
            output.row({'kind': 'metric', 'name': count, 'value': number}) if as_json else output.line(
                f'{count:<40} : {number}')
    if reading.records < num_records:
        raise ToolError(f'found {reading.records:,} records, expected {num_records:,}: no record arrived for '
                        f'{timeout} ms (--timeout)')


class Reading:
    """The measurement of a consumer, in the columns of Kafka's tool."""

    def __init__(self, consumer: Consumer, output: Output):
        self._consumer, self._output = consumer, output
        self._began, self._began_wall = time.perf_counter(), time.time()
        self._first: float | None = None
        self._window_began, self._window_records, self._window_bytes = self._began, 0, 0
        self.records = 0

    def add(self, records: int) -> None:
        if self._first is None:
            self._first = time.perf_counter()
        self.records += records

    def report_if_due(self, interval_s: float) -> None:
        now = time.perf_counter()
        if now - self._window_began < interval_s:
            return
        size_bytes = self._consumer.stats()['bytes_consumed_total']
        self._print('interval', now - self._window_began, self.records - self._window_records,
                    size_bytes - self._window_bytes, 0.0)
        self._window_began, self._window_records, self._window_bytes = now, self.records, size_bytes

    def report(self, polls: Latencies) -> None:
        now = time.perf_counter()
        joined_s = (self._first or now) - self._began
        self._print('total', now - self._began, self.records, self._consumer.stats()['bytes_consumed_total'], joined_s,
                    polls)

    def _print(self, kind: str, seconds: float, records: int, size_bytes: int, joined_s: float,
               polls: Latencies | None = None) -> None:
        mib, fetch_s = size_bytes / MIB, max(seconds - joined_s, 1e-9)
        if self._output.as_json:
            self._output.row({'kind': kind, 'records': records, 'records_per_second': round(records / seconds, 1),
                              'mb_per_second': round(mib / seconds, 3), 'seconds': round(seconds, 3),
                              'until_first_record_ms': round(joined_s * 1000),
                              **({} if polls is None else {'poll': polls.as_fields()})})
            return
        end = self._began_wall + time.perf_counter() - self._began
        self._output.line(', '.join([
            _clock(end - seconds), _clock(end), f'{mib:.4f}', f'{mib / seconds:.4f}', str(records),
            f'{records / seconds:.4f}', str(round(joined_s * 1000)), str(round(fetch_s * 1000)), f'{mib / fetch_s:.4f}',
            f'{records / fetch_s:.4f}']))
        for line in polls.lines('latency of polls') if polls is not None else ():
            self._output.line(line)


def _clock(seconds: float) -> str:
    """Return a time as Kafka's tool prints it, in the time zone of this machine."""
    return f'{time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))}:{int(seconds % 1 * 1000):03d}'


# ---- end to end

@main.command('end-to-end')
@click.option('--topic', required=True, metavar='TOPIC', help='The topic to write to and to read.')
@click.option('--num-records', type=click.IntRange(1), required=True, metavar='N', help='How many records to send.')
@click.option('--producer-acks', type=click.Choice(['1', 'all', '-1']), default='all', show_default=True,
              help='The acknowledgement that the producer waits for.')
@click.option('--record-size', type=click.IntRange(1), required=True, metavar='BYTES', help='The size of each value.')
@click.option('--transactional-id', metavar='ID', help='Write each record in a transaction of its own, and read it '
              'with read_committed.')
@click.option('--timeout', type=click.IntRange(1), default=60_000, show_default=True, metavar='MS',
              help='The longest wait for a record.')
@settings_options('--client-props')
def end_to_end(topic: str, num_records: int, producer_acks: str, record_size: int, transactional_id: str | None,
               timeout: int, properties: tuple[str, ...], more: tuple[str, ...], as_json: bool, **place: Any) -> None:
    """Send one record after another, wait until a consumer has each, and print the latencies.

    The options and the last lines are those of kafka-e2e-latency. The first record opens connections and does not
    count.
    """
    given = overrides_of(properties, more)
    output, latencies = Output(as_json), Latencies()
    sent = {'acks': producer_acks, 'linger.ms': '0', **given}
    read = {'isolation.level': 'read_committed' if transactional_id is not None else 'read_uncommitted',
            'fetch.max.wait.ms': '100', **given, 'group.id': ''}
    if transactional_id is not None:
        sent['transactional.id'] = transactional_id
    with open_producer(place, sent) as producer:
        number = -WARM_UP_RECORDS
        with open_consumer(place, read, topic, at_end=True) as consumer:
            while number < num_records:
                value = bytes(random.choices(LETTERS, k=record_size))
                began_ns = time.perf_counter_ns()
                send_one(producer, topic, value, transactional_id is not None)
                await_value(consumer, value, timeout)
                latency_us = (time.perf_counter_ns() - began_ns) // 1000
                if number >= 0:
                    latencies.add(latency_us)
                    if number % 1000 == 0 and not as_json:
                        output.line(f'{number}\t{latency_us / 1000:.3f}')
                number += 1
    if as_json:
        output.row({'kind': 'total', 'latency': latencies.as_fields()})
        return
    output.line(f'Avg latency: {latencies.mean_us / 1000:.4f} ms')
    output.line('Percentiles: ' + ', '.join(f'{percent:g}th = {latencies.percentile(percent) / 1000:.3f}'
                                            for percent in (50, 99, 99.9)))
    for line in latencies.lines('latency from send to poll'):
        output.line(line)


def send_one(producer: Producer, topic: str, value: bytes, in_transaction: bool) -> None:
    if in_transaction:
        with producer.transaction():
            producer.send(topic, value)
    else:
        producer.send(topic, value)
        producer.flush()


def await_value(consumer: Consumer, value: bytes, timeout_ms: int) -> None:
    """Read until a record has this value. Raise ToolError if another record arrives, or none within the time."""
    batches = consumer.poll(timeout_ms)
    if not batches:
        raise ToolError(f'no record arrived within {timeout_ms} ms (--timeout)')
    found = [bytes(each) if each is not None else None for batch in batches for each in batch.values]
    if found != [value]:
        raise ToolError(f'found {len(found)} records that differ from the one that was sent, expected a topic to which '
                        'nothing else writes')


if __name__ == '__main__':
    main(prog_name='kbroker-perf')
