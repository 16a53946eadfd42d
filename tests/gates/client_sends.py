"""Sends records to a partition without a broker, so that callgrind counts the work of the client alone.

Arguments: the number of records for `send`, and the number of rows for one `send_batch`.
"""
import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / 'tests')]

from callgrind import count_from_now_on  # noqa: E402
from support.fake_cluster import FakeCluster  # noqa: E402

from kbroker.client.producer import Producer  # noqa: E402
from kbroker.client.stream_settings import ProducerSettings  # noqa: E402
from kbroker.clock import ManualClock  # noqa: E402

VALUE = b'x' * 100
BATCH_BYTES = 16 << 20
"""No batch of the run is full, so that none is sent."""


def main() -> None:
    sends, rows = map(int, sys.argv[1:])
    producer = Producer(FakeCluster(), ProducerSettings(batch_size_bytes=BATCH_BYTES), clock=ManualClock())
    count_from_now_on()
    for _ in range(sends):
        producer.send('t', VALUE)
    producer.send_batch('t', [VALUE] * rows)
    print(producer.stats()['buffer_available_bytes'])


if __name__ == '__main__':
    main()
