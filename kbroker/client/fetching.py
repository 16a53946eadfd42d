"""Reads the raw batches of one partition from its leader."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.admin import EARLIEST, LATEST, Admin, IsolationLevel
from kbroker.client.cluster import Cluster, OutOfDate
from kbroker.client.errors import ClientError, check, error_of
from kbroker.client.fetcher import LAST_FETCH_VERSION, fetch_request
from kbroker.record.abort_filter import AbortFilter
from kbroker.record.batch import BatchHeader, CorruptBatchError, check_crc, iter_batches

MAX_BYTES = 8 << 20
MAX_WAIT_MS = 500
IDLE_ROUNDS = 20
"""The number of consecutive answers without a batch, for an offset below the high watermark, after which reading
fails.
"""


def fetch_batches(cluster: Cluster, topic: str, partition: int, start_offset: int = 0, end_offset: int | None = None,
                  isolation_level: Literal['read_uncommitted', 'read_committed'] = 'read_uncommitted',
                  max_bytes: int = MAX_BYTES) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the batches that overlap [`start_offset`, `end_offset`), including markers. Check the CRC of each batch.

    A `start_offset` below the log start offset is raised to the log start offset. Reading ends at the high watermark,
    or with read_committed at the last stable offset, as of the first request. read_committed omits the batches of
    aborted transactions. A yielded view is valid until the next batch is requested. Raise KafkaError if the broker
    returns an error, and with CORRUPT_MESSAGE for a batch whose CRC is wrong. Raise ClientError for a network failure.
    """
    admin = Admin(cluster)
    level = IsolationLevel[isolation_level.upper()]
    at = (topic, partition)
    latest = admin.list_offsets({at: LATEST}, level)[at].offset
    end_offset = latest if end_offset is None else min(end_offset, latest)
    position, idle = start_offset, 0

    def ask() -> Any:
        return _fetch(cluster, topic, partition, position, level, max_bytes)

    while position < end_offset:
        try:
            answer = cluster.retrying(ask, f'fetching {topic}-{partition}')
        except KafkaError as error:
            if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            earliest = admin.list_offsets({at: EARLIEST})[at].offset
            if earliest <= position:
                raise
            position = earliest
            continue
        before = position
        aborts = AbortFilter([(row.producer_id, row.first_offset) for row in answer.aborted_transactions or ()])
        for header, batch in _checked(answer.records or b'', position, f'{topic}-{partition}'):
            if header.base_offset >= end_offset:
                return
            position = header.last_offset + 1
            if level == IsolationLevel.READ_UNCOMMITTED or aborts.admits(header, batch):
                yield header, batch
        idle = 0 if position > before else idle + 1
        if idle == IDLE_ROUNDS:
            raise ClientError(f'{topic}-{partition}: the broker sends no whole batch from offset {position} on, below '
                              f'the end at {end_offset}')


def _checked(records: memoryview | bytes, position: int, where: str) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the whole batches that contain `position` or a later offset.

    Raise KafkaError(CORRUPT_MESSAGE) for a damaged batch. The message contains the offset at which reading stopped.
    """
    try:
        for header, batch in iter_batches(records):
            if header.last_offset >= position:
                check_crc(batch, header)
                yield header, batch
                position = header.last_offset + 1
    except CorruptBatchError as error:
        raise KafkaError(error.code, f'{where}, from offset {position} on: {error}') from None


def _fetch(cluster: Cluster, topic: str, partition: int, offset: int, level: IsolationLevel, max_bytes: int) -> Any:
    """Send one Fetch, and return the row of the partition in its answer."""
    connection = cluster.leader(topic, partition)
    answer = connection.call(fetch_request({(topic, partition): offset}, level, max_bytes, max_bytes, MAX_WAIT_MS),
                             max_version=LAST_FETCH_VERSION)
    what = f'fetching {topic}-{partition} at offset {offset} from {connection.address}'
    check(answer.error_code, what)
    rows = [row for part in answer.responses for row in part.partitions if row.partition_index == partition]
    if len(rows) != 1:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f'{what}: found {len(rows)} answers, expected 1')
    if rows[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise OutOfDate(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(error_of(rows[0].error_code, what)))
    check(rows[0].error_code, what, api='Fetch')
    return rows[0]
