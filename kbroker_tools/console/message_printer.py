"""The printer of kbroker-consume and kbroker-share-consume. It prints records from a source to standard output."""
from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from kbroker.base.errors import CorruptLogError
from kbroker_tools.base.render import warn
from kbroker_tools.console.message_format import WORDS
from kbroker_tools.console.message_text import FORMATTERS

if TYPE_CHECKING:
    from kbroker.client.consumed import DeliveredRecords
    from kbroker.record.records import Record
    from kbroker_tools.console.message_source import Source
    from kbroker_tools.console.message_text import BatchFormatter

    OnError = Callable[[DeliveredRecords, Record, CorruptLogError], None]

# ---- options that both commands have

max_messages_option = click.option(
    '--max-messages', type=click.IntRange(0), metavar='N', help='Stop after this many records.')
timeout_option = click.option(
    '--timeout-ms', type=click.IntRange(0), metavar='MS', help='Stop if no record arrives for this long.')
formatter_option = click.option(
    '--formatter', default='default', metavar='NAME',
    help=f'The format of a record: {", ".join(FORMATTERS)}; or the name of its class in Kafka.')
format_option = click.option(
    '--format', 'template', metavar='TEXT',
    help=f'The format of a record, as in kcat: {WORDS}. \\n, \\t, \\r, \\0 and \\xHH are escapes. Nothing is added, '
         'so end it with \\n.')
formatter_property_option = click.option(
    '--formatter-property', '--property', 'formatter_property', multiple=True, metavar='NAME=VALUE',
    help='The parts to show: print.timestamp, print.partition, print.offset, print.delivery, print.epoch, '
         'print.headers, print.key, print.value (true), key.separator (tab), line.separator, headers.separator (,), '
         'null.literal (null).')
command_property_option = click.option(
    '--command-property', '--consumer-property', 'command_property', multiple=True, metavar='NAME=VALUE',
    help="A setting of the consumer, under Kafka's name. An unknown one has no effect.")


# ---- printing


def report_skipped(batch: DeliveredRecords, record: Record, error: CorruptLogError) -> None:
    warn(f'Error processing message, skipping this message: {error}')


class Printer:
    """A printer of records. `count` is the number of records that were processed, including records that were not
    shown."""

    def __init__(self, shown: BatchFormatter, max_messages: int | None, on_error: OnError | None = None):
        """`on_error` is called with each record that cannot be shown. If `on_error` is None, the error of such a record
        ends the printing."""
        self.count = 0
        self._shown = shown
        self._on_error = on_error
        self._left = max_messages

    def print_all(self, source: Source) -> None:
        """Print records until the source ends or `max_messages` records were shown. Pass the records that were not
        shown to `source.unread`."""
        if self._left == 0:
            return
        for batches in source.batches():
            unshown = deque(batches)
            try:
                while unshown and self._left != 0:
                    self._print_first(unshown)
            finally:
                for batch in reversed(unshown):
                    source.unread(batch)
            if self._left == 0:
                return

    def print_and_close(self, source: Source) -> None:
        """Print all records, close the source, and report how many records were processed."""
        try:
            self.print_all(source)
        finally:
            try:
                source.close()
            finally:    # also after a second Ctrl-C, which ends a `close` that waits for a broker
                warn(f'Processed a total of {self.count} messages')

    def _print_first(self, unshown: deque[DeliveredRecords]) -> None:
        batch = unshown[0]
        records = batch.records if self._left is None else batch.records[:self._left]
        texts = []
        try:
            for record in records:
                texts.append(self._text(batch, record))
        finally:
            self.count += len(texts)
            try:
                sys.stdout.buffer.write(b''.join(texts))
                sys.stdout.buffer.flush()
            finally:    # after an interrupt, too: the records are shown before the write returns
                self._note_shown(unshown, len(texts))

    def _note_shown(self, unshown: deque[DeliveredRecords], count: int) -> None:
        if self._left is not None:
            self._left -= count
        rest = unshown[0].records[count:]
        if rest:
            unshown[0] = unshown[0]._replace(records=rest)
        else:
            unshown.popleft()

    def _text(self, batch: DeliveredRecords, record: Record) -> bytes:
        try:
            return self._shown.text(batch, record)
        except CorruptLogError as error:
            if self._on_error is None:
                raise
            self._on_error(batch, record, error)
            return b''
