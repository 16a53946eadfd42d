"""A coordinator replays the partitions of its internal topic before it serves requests."""
import re

import pytest

from kbroker.base.errors import CorruptLogError
from kbroker.log.append import Origin
from kbroker.record.batch import HEADER_BYTES, encode_batch
from kbroker.record.records import decode_records
from kbroker.wire.crc32c import crc32c


def read(header, batch):
    list(decode_records(batch))


def test_each_batch_is_replayed_in_order(open_partition):
    partition = open_partition()
    for value in (b'a', b'b'):
        partition.append_batch(encode_batch([(0, None, value)]))
    found = []
    partition.replay_all(lambda header, batch: found.append((header.base_offset, bytes(batch)[-2:-1])))
    assert found == [(0, b'a'), (1, b'b')]


def test_a_batch_that_cannot_be_read_is_reported_with_its_file_and_offset(open_partition):
    """The error message once had only the offset, which does not say in which of the many partitions of
    `__consumer_offsets` the batch is."""
    partition = open_partition()
    log = open_partition.log
    partition.append_batch(encode_batch([(0, None, b'sound')]))
    log.roll()
    damaged = encode_batch([(0, None, b'value')])
    damaged[HEADER_BYTES] = 100         # the length of the record: 50 bytes, as a varint
    damaged[17:21] = crc32c(damaged[21:]).to_bytes(4, 'big')
    log.append_batch(damaged, Origin.CLIENT, 0)
    path = re.escape(log.segments[1].path('.log'))
    with pytest.raises(CorruptLogError, match=f'^{path}: found a batch at offset 1 that cannot be read: record 0 of 1'):
        partition.replay_all(read)
