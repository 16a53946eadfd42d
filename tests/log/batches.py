"""Functions that encode batches and producer snapshots for the tests of the log."""
import struct

from kbroker.record.batch import encode_batch
from kbroker.wire.crc32c import crc32c

T = 1_700_000_000_000
ENTRY = struct.Struct('>qhiqiqiq')


def data_batch(count: int = 1, *, timestamp_ms: int = T, value: bytes = b'value', producer_id: int = -1,
               epoch: int = -1, sequence: int = -1, transactional: bool = False) -> bytearray:
    """Return a batch of `count` records. The timestamps of adjacent records differ by 1 ms."""
    return encode_batch([(timestamp_ms + number, b'key', value) for number in range(count)], producer_id=producer_id,
                        producer_epoch=epoch, base_sequence=sequence, transactional=transactional)


def marker_batch(*, commit: bool, producer_id: int, epoch: int, coordinator_epoch: int = 0,
                 timestamp_ms: int = T) -> bytearray:
    """Return the control batch that ends a transaction."""
    key = b'\0\0\0' + bytes([commit])
    return encode_batch([(timestamp_ms, key, b'\0\0' + coordinator_epoch.to_bytes(4, 'big'))], producer_id=producer_id,
                        producer_epoch=epoch, transactional=True, control=True)


def snapshot_of(producers: int) -> bytes:
    """Return the content of a snapshot with `producers` producers, whose ids are 0, 1, 2, ..."""
    body = struct.pack('>i', producers) + b''.join(ENTRY.pack(producer_id, 0, 0, 0, 0, T, -1, -1)
                                                   for producer_id in range(producers))
    return struct.pack('>hI', 1, crc32c(body)) + body
