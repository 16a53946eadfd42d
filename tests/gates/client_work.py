"""Sends or consumes records without a broker, so that callgrind counts only the work of the client.

Arguments: `send`, `send_batch` or `consume`, and a number of records.
"""
import os
import pathlib
import sys
from collections.abc import Callable
from types import SimpleNamespace

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from callgrind import count_from_now_on
from support.brokers.fake_cluster import FakeCluster

from kbroker.base.clock import ManualClock
from kbroker.client.consumed import FetchedPartition, FetchedRecords
from kbroker.client.producer import Producer
from kbroker.client.stream_settings import ProducerSettings
from kbroker.record.batch import encode_batch

VALUE = b'x' * 100
BATCH_BYTES = 16 << 20
"""A batch size so large that no batch becomes full, which would send it during the run."""
ROWS_OF_A_BATCH = 100
POLL_RECORDS = 500


def producer() -> Producer:
    return Producer(FakeCluster(), ProducerSettings(batch_size_bytes=BATCH_BYTES), clock=ManualClock())


def send(count: int) -> Callable[[], None]:
    sender = producer()

    def work() -> None:
        for _ in range(count):
            sender.send('t', VALUE)
    return work


def send_batch(count: int) -> Callable[[], None]:
    sender, values = producer(), [VALUE] * count
    return lambda: sender.send_batch('t', values)


def consume(count: int) -> Callable[[], None]:
    row = SimpleNamespace(aborted_transactions=None, records=b''.join(
        bytes(encode_batch([(0, None, VALUE)] * ROWS_OF_A_BATCH, base_offset=offset))
        for offset in range(0, count, ROWS_OF_A_BATCH)))

    def work() -> None:
        found, rows = FetchedRecords(FetchedPartition('t', 0, 0, row), True, POLL_RECORDS), 0
        while not found.is_finished:
            batch = found.take()
            rows += 0 if batch is None else len(batch.values)
        assert rows == count, rows
    return work


def main() -> None:
    name, count = sys.argv[1:]
    work = {'send': send, 'send_batch': send_batch, 'consume': consume}[name](int(count))
    count_from_now_on()
    work()
    os._exit(0)     # the end of the interpreter is not counted


if __name__ == '__main__':
    main()
