"""kbroker-produce. It writes lines of standard input as records to a topic, with the options of kafka-console-producer.

It has two more options: `--partition`, and `--transactional-id`, which writes the lines in transactions.
"""
from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker_tools.base.command import SETTINGS, Command, ToolError, version_option
from kbroker_tools.base.render import warn
from kbroker_tools.cluster.opening import bootstrap_option, command_config_option, profile_option
from kbroker_tools.console.line_reader import LineReader, LineSplitter, parse_properties
from kbroker_tools.console.registry_values import EncodingReader, encodings_of, registry_options, schema_options

if TYPE_CHECKING:
    from kbroker.client.outcomes import Delivery
    from kbroker.client.producer import Producer

F = TypeVar('F', bound=Callable[..., Any])

READ_BYTES = 256 * 1024
CONSOLE_LINGER_MS = 1000
INT32_MAX = 2**31 - 1
CODECS = ('none', 'gzip', 'snappy', 'lz4', 'zstd')

# Maps command-line options to the settings of the producer that they set.
SETTING_OF_OPTION = {
    'acks': 'acks', 'batch_size': 'batch.size', 'compression_codec': 'compression.type', 'timeout': 'linger.ms',
    'message_send_max_retries': 'retries', 'retry_backoff_ms': 'retry.backoff.ms',
    'request_timeout_ms': 'request.timeout.ms', 'max_block_ms': 'max.block.ms', 'max_memory_bytes': 'buffer.memory',
    'transactional_id': 'transactional.id',
}


def producer_options(function: F) -> F:
    for option in reversed((
        click.option('--acks', '--request-required-acks', 'acks', metavar='all|1|0',
                     help='The acknowledgement after which a record counts as written.  [default: all]'),
        click.option('--batch-size', type=click.IntRange(0), metavar='BYTES',
                     help='The largest size of a batch of one partition.  [default: 16384]'),
        click.option('--compression-codec', is_flag=False, flag_value='gzip', type=click.Choice(CODECS),
                     help='The compression of batches; gzip if no codec is named.'),
        click.option('--timeout', type=click.IntRange(0), metavar='MS',
                     help=f'The longest wait of a record for others to fill a batch.  [default: {CONSOLE_LINGER_MS}]'),
        click.option('--message-send-max-retries', type=click.IntRange(0), metavar='N',
                     help='The most retries of a batch.  [default: until delivery.timeout.ms]'),
        click.option('--retry-backoff-ms', type=click.IntRange(0), metavar='MS', help='The pause before a retry.'),
        click.option('--request-timeout-ms', type=click.IntRange(1), metavar='MS',
                     help='The longest wait for a response.'),
        click.option('--max-block-ms', type=click.IntRange(0), metavar='MS',
                     help='The longest wait for a topic, a coordinator or space in the buffer.'),
        click.option('--max-memory-bytes', type=click.IntRange(0), metavar='BYTES',
                     help='The size of the buffer.  [default: 33554432]'),
        click.option('--command-property', '--producer-property', 'command_property', multiple=True,
                     metavar='NAME=VALUE', help="A setting of the producer, under Kafka's name. An unknown one has no "
                     'effect.'),
        command_config_option('--producer.config', help_text='Settings of the producer and the connection, as '
                              'properties.'),
        profile_option,
    )):
        function = option(function)
    return function


@click.command(cls=Command, context_settings=SETTINGS)
@bootstrap_option('The broker to write to.')
@click.option('--topic', required=True, metavar='TOPIC', help='The topic to write to.')
@click.option('--partition', type=click.IntRange(0, INT32_MAX), metavar='N',
              help='The partition for all lines.  [default: by key, else another one for each batch]')
@click.option('--reader-property', '--property', 'reader_property', multiple=True, metavar='NAME=VALUE',
              help='The parts of a line: parse.key, key.separator (tab), parse.headers, headers.delimiter (tab), '
                   'headers.separator (,), headers.key.separator (:), null.marker, ignore.error.')
@click.option('--sync', is_flag=True, help='Wait until each line is written before reading the next one.')
@click.option('--transactional-id', metavar='ID', help='Write the lines in transactions of this id.')
@click.option('--commit-every', type=click.IntRange(1), metavar='N',
              help='Commit after this many lines.  [default: once, at the end of the input]')
@registry_options
@schema_options
@producer_options
@version_option
def main(bootstrap_server: str, topic: str, partition: int | None, reader_property: tuple[str, ...], sync: bool,
         commit_every: int | None, command_property: tuple[str, ...], command_config: Path | None,
         **options: Any) -> None:
    """Write the lines of standard input to a topic.

    With --transactional-id, the last transaction is committed at the end of the input. After an error or Ctrl-C, the
    open transaction is aborted. An error message has the number of the line. After Ctrl-C, the command waits until all
    lines that it has read are written. A second Ctrl-C ends the wait.

    With --value-format, a line is JSON. It becomes a value with the id of its schema in a registry. The first line that
    does not fit the schema ends the command. Lines before it are written, unless they are in an open transaction.
    """
    overrides = parse_properties('--command-property', command_property) | {
        setting: str(options[name]) for name, setting in SETTING_OF_OPTION.items() if options[name] is not None}
    properties = parse_properties('--reader-property', reader_property)
    lines = LineReader(properties)
    if commit_every is not None and 'transactional.id' not in overrides:
        raise click.UsageError('--commit-every needs --transactional-id')
    encodings = encodings_of(options, topic)
    if 'key' in encodings and not lines.parses_key:
        raise click.UsageError('--key-format needs --reader-property parse.key=true')
    reader = EncodingReader(lines, encodings) if encodings else lines
    with open_writer(bootstrap_server, command_config, overrides, topic, partition) as writer:
        writer.write(reader, sync, commit_every)


def open_writer(bootstrap_server: str, command_config: Path | None, overrides: Mapping[str, str], topic: str,
                partition: int | None) -> Writer:
    from kbroker.client.cluster import Cluster
    from kbroker.client.config import ClientConfig
    from kbroker.client.producer import Producer
    from kbroker.client.stream_settings import ProducerSettings
    config = ClientConfig.load(bootstrap_server, command_config, overrides)
    properties = {'linger.ms': str(CONSOLE_LINGER_MS), **config.properties}
    writer = Writer(topic, partition)
    writer.producer = Producer(Cluster(config), ProducerSettings.from_properties(properties), writer.on_delivery)
    return writer


class Writer:
    """A writer of lines to a topic. As a context manager, it writes all lines when the block ends, or aborts their
    transaction."""

    producer: Producer

    def __init__(self, topic: str, partition: int | None):
        self._topic = topic
        self._partition = partition
        self._lines = 0
        self._written = 0
        self._committed = 0
        self._transactions = 0
        self._has_failed = False

    def write(self, reader: LineReader | EncodingReader, sync: bool, commit_every: int | None) -> None:
        producer, topic, partition = self.producer, self._topic, self._partition
        is_transactional = producer.transactions.is_transactional
        if is_transactional:
            producer.init_transactions()
        for lines in self._read():
            for line in lines:
                self._lines += 1
                if is_transactional and not self._is_in_transaction:
                    producer.begin_transaction()
                key, value, headers = reader.read(line, self._lines)
                try:
                    producer.send(topic, value, key, headers, partition=partition, context=self._lines)
                except KafkaError as error:
                    if error.code != ErrorCode.MESSAGE_TOO_LARGE:
                        raise
                    self._refuse(error)
                if sync:
                    producer.flush()
                if commit_every is not None and self._lines % commit_every == 0:
                    self._commit()
        if self._is_in_transaction:
            self._commit()

    def _refuse(self, error: KafkaError) -> None:
        """Report and skip a line that is larger than max.request.size, as Kafka's tool does. In a transaction, raise
        ToolError instead."""
        if self.producer.transactions.is_transactional:
            raise ToolError(f'line {self._lines}: {error}')
        self._has_failed = True
        warn(f'line {self._lines} was not written: {error}')

    def on_delivery(self, delivery: Delivery) -> None:
        """Count delivered lines, and report lines that could not be delivered. In a transaction, the first failure ends
        the command with its error."""
        if delivery.error is None:
            self._written += delivery.records_count
        elif not self.producer.transactions.is_transactional:
            self._has_failed = True
            self._report_failures(delivery)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write the lines that were read, or abort their transaction. If this fails while another error is being
        raised, the first error is kept."""
        is_open = self._is_in_transaction
        try:
            if not is_open:
                self.producer.flush()
            else:
                self.producer.abort_transaction()
                self._written = self._committed
                warn(f'The open transaction of {self.producer.settings.transactional_id} was aborted.')
        except Exception as error:
            if kind is None:
                raise
            if is_open:
                settings = self.producer.settings
                warn(f'The open transaction of {settings.transactional_id} could not be aborted ({error}): it stays '
                      'open, and holds up read_committed consumers, until its timeout of '
                      f'{settings.transaction_timeout_ms} ms.')
        self._report_count()
        if kind is None and self._has_failed:
            raise ToolError(f'{self._lines - self._written} of {self._lines} lines were not written')

    @property
    def _is_in_transaction(self) -> bool:
        return self.producer.transactions.state.name in ('IN_TRANSACTION', 'ABORTABLE_ERROR')

    def _commit(self) -> None:
        self.producer.commit_transaction()
        self._transactions += 1
        self._committed = self._written

    def _read(self) -> Iterator[list[bytes]]:
        """Yield the input in the parts in which it arrives. While no input arrives, send the batches that have waited
        long enough."""
        splitter = LineSplitter()
        source = sys.stdin.fileno()
        prompts = sys.stdin.isatty() and sys.stdout.isatty()
        while True:
            if prompts:
                print('>', end='', flush=True)
            while not self.producer.poll(None, wake_on=source):
                pass
            data = os.read(source, READ_BYTES)
            if not data:
                yield list(splitter.finish())
                return
            yield splitter.feed(data)

    def _report_failures(self, delivery: Delivery) -> None:
        for index, message in delivery.record_errors.items():
            warn(f'line {delivery.contexts[index]} was not written: {message}')
        if not delivery.record_errors:
            first, last = delivery.contexts[0], delivery.contexts[-1]
            lines = f'line {first} was' if first == last else f'lines {first} to {last} were'
            warn(f'{lines} not written: {delivery.error}')

    def _report_count(self) -> None:
        if sys.stderr.isatty():
            transactions = f' in {self._transactions} transactions' if self._transactions else ''
            warn(f'{self._written} lines written to {self._topic}{transactions}')


if __name__ == '__main__':
    main(prog_name='kbroker-produce')
