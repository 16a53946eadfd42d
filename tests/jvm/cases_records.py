"""Cases for Produce, Fetch, ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raw_peer import NOW_MS, RawPeer, batch

HOUR_MS = 3_600_000


def case(script: Callable[[RawPeer], None]) -> Callable[[RawPeer], None]:
    """Mark a script as a case of the differential test. Its name is also the name of its topic."""
    script.is_case = True  # type: ignore[attr-defined]
    return script


def produce(peer: RawPeer, records: Any, version: int = 12, *, partition: int = 0, acks: int = -1,
            topic: str | None = None, transactional_id: str | None = None, **options: Any) -> Any:
    return peer.ask(
        'Produce', version, transactional_id=transactional_id, acks=acks, timeout_ms=30000,
        topic_data=[dict(name=topic or peer.topic, partition_data=[dict(index=partition, records=records)])], **options)


def fetch(peer: RawPeer, version: int = 12, *, offset: int = 0, partition: int = 0, isolation_level: int = 0,
          max_bytes: int = 1 << 20, partition_max_bytes: int = 1 << 20, topic: str | None = None,
          current_leader_epoch: int = -1, last_fetched_epoch: int = -1, **options: Any) -> Any:
    return peer.ask(
        'Fetch', version, max_wait_ms=0, min_bytes=0, max_bytes=max_bytes, isolation_level=isolation_level,
        topics=[dict(
            topic=peer.topic if topic is None else topic, partitions=[dict(
                partition=partition, fetch_offset=offset, partition_max_bytes=partition_max_bytes,
                current_leader_epoch=current_leader_epoch, last_fetched_epoch=last_fetched_epoch)])], **options)


def list_offsets(peer: RawPeer, timestamp: int, version: int = 11, *, partition: int = 0, isolation_level: int = 0,
                 topic: str | None = None, current_leader_epoch: int = -1) -> Any:
    return peer.ask(
        'ListOffsets', version, replica_id=-1, isolation_level=isolation_level, timeout_ms=1000, topics=[dict(
            name=peer.topic if topic is None else topic, partitions=[
                dict(partition_index=partition, timestamp=timestamp, current_leader_epoch=current_leader_epoch)])])


def patched(data: bytes, position: int, replacement: bytes, *, fix_crc: bool = True) -> bytes:
    """Return a batch with bytes replaced at a position. With `fix_crc`, correct the CRC."""
    from kbroker.wire.crc32c import crc32c

    changed = bytearray(data)
    changed[position : position + len(replacement)] = replacement
    if fix_crc:
        changed[17:21] = crc32c(bytes(changed[21:])).to_bytes(4, 'big')
    return bytes(changed)


@case
def produce_in_each_version(peer: RawPeer) -> None:
    topic_id = peer.create_topic()
    for version in range(3, 13):
        produce(peer, batch(b'one', b'two'), version)
        produce(peer, batch(b'three'), version, acks=1)
    produce(peer, batch(b'x'), 12, topic='no_such_topic')
    produce(peer, batch(b'x'), 12, partition=7)
    for wanted in (topic_id, b'\7' * 16, bytes(16)):
        peer.ask(
            'Produce', 13, acks=-1, timeout_ms=1000, topic_data=[dict(
                topic_id=wanted,
                partition_data=[dict(index=0, records=batch(b'x')), dict(index=5, records=batch(b'x'))])])


@case
def produce_of_versions_that_are_advertised_only(peer: RawPeer) -> None:
    for version in (0, 1, 2, 14):
        peer.send_bytes(b'\0\0' + version.to_bytes(2, 'big') + b'\0\0\0\1\0\1x' + b'\0\1' + b'\0' * 8)


@case
def produce_of_bad_acks(peer: RawPeer) -> None:
    peer.create_topic()
    for acks in (2, -2, 32767):
        produce(peer, batch(b'x'), acks=acks)
        produce(peer, batch(b'x'), acks=acks, topic='no_such_topic')
        produce(peer, b'', acks=acks)
    produce(peer, batch(b'x'), 3, acks=5)


@case
def produce_of_bad_batches(peer: RawPeer) -> None:
    peer.create_topic(partitions=3)
    peer.create_topic(peer.topic + '_alone', partitions=64)
    good = batch(b'one', b'two')
    bad = {
        'crc': patched(good, 17, b'\1\2\3\4', fix_crc=False),
        'no bytes': b'',
        'short': good[:40],
        'cut': good[:-3],
        'two batches': good + good,
        'more behind': good + b'\0\0\0',
        'magic 1': patched(good, 16, b'\1'),
        'magic 3': patched(good, 16, b'\3'),
        'length too small': patched(good, 8, (10).to_bytes(4, 'big')),
        'length too large': patched(good, 8, (4000).to_bytes(4, 'big')),
        'negative length': patched(good, 8, b'\xff\xff\xff\xff'),
        'control': batch(b'one', control=True),
        'base offset': patched(good, 0, (5).to_bytes(8, 'big')),
        'log append time': patched(good, 22, b'\x08'),
        'delete horizon': patched(good, 22, b'\x40'),
        'unused attribute': patched(good, 21, b'\x80'),
        'codec 7': patched(good, 22, b'\7'),
        'codec 5': patched(good, 22, b'\5'),
        'delta too large': patched(good, 23, (5).to_bytes(4, 'big')),
        'delta too small': patched(good, 23, bytes(4)),
        'count too large': patched(good, 57, (3).to_bytes(4, 'big')),
        'count too small': patched(good, 57, (1).to_bytes(4, 'big')),
        'negative count': patched(good, 57, b'\xff' * 4),
        'no records': patched(good[:61], 8, (49).to_bytes(4, 'big')),
        'no sequence': batch(b'x', producer_id=7, producer_epoch=0),
        'transactional without producer': batch(b'x', transactional=True),
        'epoch without producer': batch(b'x', producer_epoch=3, base_sequence=0),
        'garbage compressed': patched(good, 22, b'\1'),
        'record length': patched(good, 61, b'\x7e'),
    }
    for index, (peer.note, records) in enumerate(bad.items()):
        produce(peer, records, topic=peer.topic + '_alone', partition=2 * index)
        produce(peer, records, 7, topic=peer.topic + '_alone', partition=2 * index + 1)
        fetch(peer, topic=peer.topic + '_alone', partition=2 * index)
    peer.ask(
        'Produce', 12, acks=-1, timeout_ms=1000, topic_data=[dict(
            name=peer.topic, partition_data=[
                dict(index=0, records=good), dict(index=1, records=bad['crc']), dict(index=2, records=good)])])
    list_offsets(peer, -1)


@case
def lengths_below_zero(peer: RawPeer) -> None:
    """A negative length means null if the field is nullable. A compact length is its 32-bit varint minus 1."""
    peer.create_topic()
    name = peer.topic.encode()
    records = batch(b'x')
    for length in (-1, -2, -32768):
        peer.note = f'a transactional id of {length} bytes'
        peer.send_bytes(
            b'\0\0\0\7\0\0\0\1\0\1x' + length.to_bytes(2, 'big', signed=True)
            + b'\xff\xff\0\0\x75\x30\0\0\0\1' + len(name).to_bytes(2, 'big') + name
            + b'\0\0\0\1\0\0\0\0' + len(records).to_bytes(4, 'big') + records
        )
    null = b'\0'
    for varint in (
        null,
        b'\xff\xff\xff\xff\x0f',
        b'\x81\x80\x80\x80\x08',
        b'\x80\x80\x80\x80\x10',
        b'\x81\x80\x80\x80\x10',
        b'\x80\x80\x80\x80\x08',
    ):
        for transactional_id, topics in ((varint, b'\2'), (null, varint)):
            peer.note = f'transactional id {transactional_id.hex()}, topics {topics.hex()}'
            peer.send_bytes(
                b'\0\0\0\x09\0\0\0\1\0\1x\0' + transactional_id + b'\xff\xff\0\0\x75\x30' + topics
                + bytes((len(name) + 1,)) + name + b'\2\0\0\0\0' + bytes((len(records) + 1,)) + records + b'\0\0\0'
            )
    for key, version, body in (
        (11, 5, b'\0\1g\0\0\x27\x10\0\0\x27\x10\0\0\xff\xfe\0\1c\0\0\0\0'),
        (11, 4, b'\0\1g\0\0\x27\x10\0\0\x27\x10\xff\xfe\0\1c\0\0\0\0'),
        (26, 1, b'\xff\xfe' + bytes(11)),
        (0, 7, b'\xff\xff\xff\xff\0\0\x75\x30\xff\xff\xff\xfe'),
        (1, 4, b'\xff\xff\xff\xff\0\0\0\1\0\0\0\0\0\0\0\0\0\xff\xff\xff\xfe'),
    ):
        peer.note = 'where null is allowed, and where not'
        peer.send_bytes(key.to_bytes(2, 'big') + version.to_bytes(2, 'big') + b'\0\0\0\1\0\1x' + body)


@case
def produce_compressed(peer: RawPeer) -> None:
    peer.create_topic()
    for codec in range(5):
        for version in (6, 7, 12):
            produce(peer, batch(b'one' * 100, b'two' * 100, compression=codec), version)
    fetch(peer)
    fetch(peer, 10)
    fetch(peer, 9)


@case
def produce_with_timestamps(peer: RawPeer) -> None:
    peer.create_topic(message_timestamp_before_max_ms='1000000', message_timestamp_after_max_ms='1000000')
    for timestamps in (
        (NOW_MS - 2 * HOUR_MS, NOW_MS),
        (NOW_MS, NOW_MS + 2 * HOUR_MS),
        (-1, NOW_MS),
        (0, 0),
        (-5, NOW_MS),
        (NOW_MS, NOW_MS),
    ):
        records = batch(*((timestamp, b'k', b'v') for timestamp in timestamps))
        for version in (12, 7):
            produce(peer, records, version)
    produce(peer, patched(batch(b'v'), 35, (NOW_MS + 10**9).to_bytes(8, 'big')))
    produce(peer, patched(batch(b'v', b'v'), 35, (-1).to_bytes(8, 'big', signed=True)))
    fetch(peer)
    stamped = peer.topic + '_stamped'
    peer.create_topic(stamped, message_timestamp_type='LogAppendTime')
    for codec in (0, 2, 4):
        produce(peer, batch((1000, b'k', b'v'), (NOW_MS + 10**12, None, None), compression=codec), topic=stamped)
    produce(peer, batch((1000, b'k', b'v')), 3, topic=stamped)
    list_offsets(peer, NOW_MS - HOUR_MS, topic=stamped)
    fetch(peer, topic=stamped)


@case
def produce_to_a_compacted_topic(peer: RawPeer) -> None:
    peer.create_topic(cleanup_policy='compact')
    for records in (
        batch((None, b'v')),
        batch((b'k', b'v'), (None, b'w'), (None, b'x')),
        batch((b'', b'v')),
        batch((b'k', None)),
        batch((None, b'v'), compression=2),
    ):
        produce(peer, records)
        produce(peer, records, 7)
    peer.ask(
        'DeleteRecords', topics=[dict(name=peer.topic, partitions=[dict(partition_index=0, offset=1)])], timeout_ms=1000
    )


@case
def produce_of_sizes(peer: RawPeer) -> None:
    peer.create_topic(max_message_bytes='200')
    produce(peer, batch(b'x' * 300))
    produce(peer, batch(b'x' * 300), 7)
    produce(peer, batch(b'x' * 3000, compression=1))
    fitting = 200 - len(batch(b''))
    for size in range(fitting - 3, fitting + 3):
        produce(peer, batch(b'x' * size))
    small = peer.topic + '_segments'
    peer.create_topic(small, segment_bytes=str(1 << 20), max_message_bytes=str(4 << 20))
    produce(peer, batch(b'x' * (2 << 20)), topic=small)
    recompressed = peer.topic + '_recompressed'
    peer.create_topic(recompressed, compression_type='gzip', max_message_bytes='500')
    produce(peer, batch(b'x' * 3000), topic=recompressed)
    produce(peer, batch(b'x' * 300, compression=2), topic=recompressed)
    produce(peer, batch(bytes(range(256)) * 4, compression=0), topic=recompressed)
    fetch(peer, topic=recompressed)


@case
def produce_recompressed(peer: RawPeer) -> None:
    for codec in ('uncompressed', 'gzip', 'snappy', 'lz4', 'zstd'):
        topic = f'{peer.topic}_{codec}'
        peer.create_topic(topic, compression_type=codec)
        for given in range(5):
            produce(peer, batch(b'one' * 10, b'two' * 10, compression=given), topic=topic)
        produce(peer, batch(b'x', producer_id=3 << 40, producer_epoch=0, base_sequence=0), topic=topic)
        fetch(peer, topic=topic)


@case
def produce_to_internal_topics(peer: RawPeer) -> None:
    peer.prepare('FindCoordinator', key_type=0, coordinator_keys=['g'])
    peer.prepare('FindCoordinator', key_type=1, coordinator_keys=['t'])
    for topic in ('__consumer_offsets', '__transaction_state', '__cluster_metadata'):
        produce(peer, batch(b'x'), topic=topic)
        produce(peer, batch((None, b'x')), topic=topic, acks=1)
        fetch(peer, topic=topic, partition=99)
    peer.ask(
        'DeleteRecords', topics=[dict(name='__consumer_offsets', partitions=[dict(partition_index=0, offset=0)])],
        timeout_ms=1000)


@case
def produce_idempotent(peer: RawPeer) -> None:
    peer.create_topic()
    producer = dict(producer_id=1 << 40, producer_epoch=1)
    for sequence in (0, 2, 4, 6, 8, 10):
        produce(peer, batch(b'a', b'b', base_sequence=sequence, **producer))
    for sequence in (10, 8, 2, 0, 14, 1, 11):
        produce(peer, batch(b'a', b'b', base_sequence=sequence, **producer))
    produce(peer, batch(b'a', base_sequence=10, **producer))
    produce(peer, batch(b'a', base_sequence=12, **producer), acks=1)
    produce(peer, batch(b'a', base_sequence=0, producer_id=1 << 40, producer_epoch=0))
    produce(peer, batch(b'a', base_sequence=5, producer_id=1 << 40, producer_epoch=2))
    produce(peer, batch(b'a', base_sequence=0, producer_id=1 << 40, producer_epoch=2))
    produce(peer, batch(b'a', base_sequence=7, producer_id=1 << 41, producer_epoch=0))
    produce(peer, batch(b'a', b'b', base_sequence=2**31 - 1, producer_id=1 << 42, producer_epoch=0))
    produce(peer, batch(b'a', base_sequence=1, producer_id=1 << 42, producer_epoch=0))
    produce(peer, batch(b'a', base_sequence=0, producer_id=5 << 40, producer_epoch=-1))
    produce(peer, batch(b'a', base_sequence=0, producer_id=-2, producer_epoch=0))
    produce(peer, batch(b'a', base_sequence=-2, producer_id=1 << 43, producer_epoch=0))
    fetch(peer, offset=10)


@case
def produce_transactional_without_its_coordinator(peer: RawPeer) -> None:
    peer.create_topic()
    peer.prepare('FindCoordinator', key_type=1, coordinator_keys=[peer.topic])
    records = batch(b'a', base_sequence=0, producer_id=1 << 44, producer_epoch=0, transactional=True)
    for version in (12, 11, 10, 7):
        produce(peer, records, version, transactional_id=peer.topic)
        produce(peer, records, version, transactional_id='')
    produce(peer, batch(b'a'), transactional_id=peer.topic)


@case
def produce_without_an_answer(peer: RawPeer) -> None:
    peer.create_topic()
    peer.send_only(
        'Produce', 9, acks=0, timeout_ms=0,
        topic_data=[dict(name=peer.topic, partition_data=[dict(index=0, records=batch(b'x'))])])
    list_offsets(peer, -1)
    peer.send_only(
        'Produce', 9, acks=0, timeout_ms=0,
        topic_data=[dict(name=peer.topic, partition_data=[dict(index=0, records=b'xx')])])
    list_offsets(peer, -1)
    list_offsets(peer, -1)


@case
def fetch_in_each_version(peer: RawPeer) -> None:
    topic_id = peer.create_topic()
    for value in (b'a', b'b', b'c'):
        peer.prepare(
            'Produce', 9, acks=-1, timeout_ms=1000,
            topic_data=[dict(name=peer.topic, partition_data=[dict(index=0, records=batch(value, value))])])
    for version in range(4, 13):
        for isolation_level in (0, 1):
            fetch(peer, version, offset=3, isolation_level=isolation_level)
            fetch(peer, version, offset=6, isolation_level=isolation_level)
        fetch(peer, version, offset=7)
        fetch(peer, version, offset=-1)
        fetch(peer, version, partition=1)
        fetch(peer, version, topic='no_such_topic')
        fetch(peer, version, topic='bad name')
        fetch(peer, version, topic='')
    for version in range(13, 19):
        for wanted in (topic_id, b'\7' * 16, bytes(16)):
            peer.ask(
                'Fetch', version, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[dict(
                    topic_id=wanted, partitions=[
                        dict(partition=partition, fetch_offset=1, partition_max_bytes=1000) for partition in (0, 1)])])


@case
def fetch_with_limits(peer: RawPeer) -> None:
    peer.create_topic(partitions=3)
    for partition in (0, 1):
        for _ in range(3):
            produce(peer, batch(b'x' * 100), partition=partition)
    size = len(batch(b'x' * 100))

    def both(max_bytes: int, partition_max_bytes: int) -> None:
        peer.ask(
            'Fetch', 12, max_wait_ms=0, min_bytes=0, max_bytes=max_bytes, topics=[dict(
                topic=peer.topic, partitions=[
                    dict(partition=partition, fetch_offset=0, partition_max_bytes=partition_max_bytes)
                    for partition in (2, 0, 1)])])

    for max_bytes, partition_max_bytes in (
        (1, 1000),
        (1000, 1),
        (size, 1000),
        (size * 4, 1000),
        (size * 2, size * 2),
        (0, 0),
        (1000, size + 1),
        (-1, 1000),
        (1000, -1),
        (size * 3 + 10, size * 3),
    ):
        both(max_bytes, partition_max_bytes)


@case
def fetch_with_leader_epochs(peer: RawPeer) -> None:
    topic_id = peer.create_topic()
    produce(peer, batch(b'a'))
    for epoch in (-2, -1, 0, 1, 5):
        fetch(peer, current_leader_epoch=epoch)
        fetch(peer, last_fetched_epoch=epoch)
        fetch(peer, offset=1, last_fetched_epoch=epoch)
        list_offsets(peer, -1, current_leader_epoch=epoch)
        for asked in (-1, 0, 3):
            for version in (2, 3, 4):
                peer.ask(
                    'OffsetForLeaderEpoch', version, replica_id=-1, topics=[dict(
                        topic=peer.topic, partitions=[
                            dict(partition=0, current_leader_epoch=epoch, leader_epoch=asked),
                            dict(partition=4, current_leader_epoch=epoch, leader_epoch=asked)])])
    peer.ask(
        'OffsetForLeaderEpoch', replica_id=-2,
        topics=[dict(topic='no_such_topic', partitions=[dict(partition=0, leader_epoch=0)])])
    peer.ask(
        'Fetch', 16, max_wait_ms=0, min_bytes=0, max_bytes=1000, topics=[dict(
            topic_id=topic_id,
            partitions=[dict(partition=0, fetch_offset=0, current_leader_epoch=4, partition_max_bytes=1000)])])


@case
def fetch_sessions(peer: RawPeer) -> None:
    topic_id = peer.create_topic(partitions=2)
    produce(peer, batch(b'a'))

    def session(session_id: int, epoch: int, partitions: list[Any] | None = None, forget: list[int] | None = None,
                version: int = 15, wanted_id: bytes = topic_id) -> Any:
        topics = ([] if partitions is None else [dict(
            topic=peer.topic, topic_id=wanted_id, partitions=[
                dict(partition=index, fetch_offset=offset, partition_max_bytes=1000) for index, offset in partitions])])
        forgotten = [] if forget is None else [dict(topic=peer.topic, topic_id=wanted_id, partitions=forget)]
        return peer.ask(
            'Fetch', version, max_wait_ms=0, min_bytes=0, max_bytes=10000, session_id=session_id, session_epoch=epoch,
            topics=topics, forgotten_topics_data=forgotten)

    for version in (15, 12, 7):
        first = session(0, 0, [(0, 0), (1, 0)], version=version)
        number = first.session_id
        session(number, 1, version=version)
        session(number, 2, [(0, 1)], version=version)
        session(number, 3, version=version)
        produce(peer, batch(b'b'), partition=1)
        session(number, 4, version=version)
        session(number, 5, [(1, 99)], version=version)
        session(number, 6, version=version)
        session(number, 7, [(1, 0)], version=version)
        session(number, 8, [(1, 0)], version=version)
        session(number, 8, version=version)
        session(number, 10, version=version)
        session(number, 9, forget=[1], version=version)
        session(number, 10, [(9, 0)], version=version)
        session(number, 11, version=version)
        session(number, 12, version=7 if version == 15 else 15)
        session(number, 12, version=version)
        session(number, -1, [(0, 0)], version=version)
        session(number, 13, version=version)
    session(12345, 1)
    session(12345, 0, [(0, 0)])
    session(0, 5, [(0, 0)])
    session(0, 0)
    session(0, -1)
    session(-5, -1, [(0, 0)])
    unknown = session(0, 0, [(0, 0)], wanted_id=b'\7' * 16)
    session(unknown.session_id, 1)


@case
def fetch_of_followers(peer: RawPeer) -> None:
    peer.create_topic()
    produce(peer, batch(b'a'))
    for replica_id in (1, 5, -2):
        fetch(peer, 11, replica_id=replica_id)


@case
def list_offsets_in_each_version(peer: RawPeer) -> None:
    peer.create_topic()
    for version in range(1, 12):
        for timestamp in (-1, -2, NOW_MS):
            list_offsets(peer, timestamp, version)
    for timestamp in (NOW_MS - 3000, NOW_MS - 1000, NOW_MS - 2000, NOW_MS - 1000):
        produce(peer, batch((timestamp, b'k', b'v'), (timestamp, b'k', b'v')))
    for version in range(1, 12):
        for timestamp in (
            *range(-8, 1),
            NOW_MS - 4000,
            NOW_MS - 2500,
            NOW_MS - 1500,
            NOW_MS - 1000,
            NOW_MS,
            2**63 - 1,
            -(2**63),
        ):
            for isolation_level in (0, 1):
                list_offsets(peer, timestamp, version, isolation_level=isolation_level)
        for timestamp in (*range(-8, 1), NOW_MS, -(2**63)):
            list_offsets(peer, timestamp, version, topic='no_such_topic')
            list_offsets(peer, timestamp, version, partition=3)
            list_offsets(peer, timestamp, version, topic='')
            list_offsets(peer, timestamp, version, topic='bad name')
            list_offsets(peer, timestamp, version, current_leader_epoch=9)
    peer.ask(
        'ListOffsets', 9, replica_id=-1, isolation_level=7,
        topics=[dict(name=peer.topic, partitions=[dict(partition_index=0, timestamp=-1)])])
    peer.ask(
        'ListOffsets', 9, replica_id=-1, topics=[dict(
            name=peer.topic,
            partitions=[dict(partition_index=0, timestamp=-1), dict(partition_index=0, timestamp=-2)])])
    peer.ask(
        'ListOffsets', 9, replica_id=-1, topics=[
            dict(name=peer.topic, partitions=[dict(partition_index=0, timestamp=-1)]),
            dict(name=peer.topic, partitions=[dict(partition_index=0, timestamp=-2)])])
    peer.ask('ListOffsets', 9, replica_id=-1, topics=[dict(name=peer.topic, partitions=[])])
    for replica_id in (5, -2, 1):
        peer.ask(
            'ListOffsets', 9, replica_id=replica_id,
            topics=[dict(name=peer.topic, partitions=[dict(partition_index=0, timestamp=-1)])])


@case
def delete_records(peer: RawPeer) -> None:
    peer.create_topic(partitions=2)
    for _ in range(3):
        produce(peer, batch(b'a', b'b'))

    def delete(offset: int, partition: int = 0, version: int = 2, topic: str | None = None) -> None:
        peer.ask(
            'DeleteRecords', version, timeout_ms=1000,
            topics=[dict(name=topic or peer.topic, partitions=[dict(partition_index=partition, offset=offset)])])

    for version in (0, 1, 2):
        for offset in (0, 1, 7, -2, 2**62):
            delete(offset, version=version)
    delete(3)
    delete(1)
    fetch(peer, offset=0)
    fetch(peer, offset=3)
    list_offsets(peer, -2)
    list_offsets(peer, NOW_MS)
    delete(-1)
    delete(-1, 1)
    list_offsets(peer, -2)
    list_offsets(peer, -1)
    list_offsets(peer, -3)
    produce(peer, batch(b'c'))
    fetch(peer, offset=6)
    delete(0, 9)
    delete(0, topic='no_such_topic')
    delete(0, topic='bad name')
    peer.ask('DeleteRecords', topics=[], timeout_ms=1000)
    peer.ask('DeleteRecords', topics=[dict(name=peer.topic, partitions=[])], timeout_ms=1000)
    both = peer.topic + '_both'
    peer.create_topic(both, cleanup_policy='compact,delete')
    delete(0, topic=both)
    none = peer.topic + '_none'
    peer.create_topic(none, cleanup_policy='')
    delete(0, topic=none)
