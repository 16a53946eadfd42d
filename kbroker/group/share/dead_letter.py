"""The records of a dead-letter queue (KIP-1191), as pure functions.

If a share group has a dead-letter queue, each record that a member rejects, or that has reached the limit of
deliveries, gets a dead letter. A dead letter has six headers, which name the original record and the cause. Its key and
value are null, or those of the original record if the group's config says so. It never has the headers of the original
record.
"""
from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.record.batch import NO_PRODUCER_ID, encode_batch, iter_batches
from kbroker.record.produced import prepare_produced
from kbroker.record.produced_records import ProduceRules
from kbroker.record.records import iter_records

TOPIC = '__dlq.errors.topic'
PARTITION = '__dlq.errors.partition'
OFFSET = '__dlq.errors.offset'
GROUP = '__dlq.errors.group'
DELIVERY_COUNT = '__dlq.errors.delivery.count'
MESSAGE = '__dlq.errors.message'

REJECTED = 'Offset rejected by client.'
EXCEEDED = 'Offset delivery count exceeded the threshold.'

MOST_BATCH_BYTES = 1 << 20
"""The largest batch of dead letters in bytes. A single record may be larger."""
MOST_BATCH_RECORDS = 1_000
"""The largest number of dead letters in a batch."""
RECORD_BYTES = 120
"""An upper bound for the bytes of a dead letter without its keys, values and the values of its headers."""

TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
OFFSET_BYTES = OFFSET.encode()


class Source(NamedTuple):
    """A partition of a topic, as one share group reads it. The names are those of the headers."""

    topic: str
    partition: int
    group_id: str


class DeadLetter(NamedTuple):
    """One dead letter: the offset of the original record, its delivery count and the cause."""

    offset: int
    delivery_count: int
    message: str
    key: bytes | None = None
    value: bytes | None = None


class Built(NamedTuple):
    """A batch of dead letters, and the offset of its last original record.

    `batch` is None if a single dead letter is too large for the topic even without the original key and value.
    """

    batch: bytes | bytearray | memoryview | None
    last_offset: int


def encode_dead_letters(source: Source, letters: Iterable[DeadLetter], timestamp_ms: int) -> bytearray:
    """Return one uncompressed batch with the dead letters."""
    return encode_batch([(timestamp_ms, letter.key, letter.value, headers_of(source, letter)) for letter in letters])


def headers_of(source: Source, letter: DeadLetter) -> list[tuple[str, bytes]]:
    return [(TOPIC, source.topic.encode()), (PARTITION, b'%d' % source.partition), (OFFSET, b'%d' % letter.offset),
            (GROUP, source.group_id.encode()), (DELIVERY_COUNT, b'%d' % letter.delivery_count),
            (MESSAGE, letter.message.encode())]


def build_batch(source: Source, letters: Sequence[DeadLetter], timestamp_ms: int, rules: ProduceRules) -> Built:
    """Return a batch with the first of the dead letters, as many as the topic's rules and MOST_BATCH_BYTES allow.

    The first dead letter is always in the batch. If it is too large for the topic, it loses its key and value, as in
    Kafka. Raise KafkaError if the topic refuses the batch for another reason, for example because it is compacted and a
    dead letter has no key.
    """
    letters = letters[:count_fitting(source, letters, min(MOST_BATCH_BYTES, rules.max_message_bytes))]
    while True:
        try:
            batch = prepare_produced(encode_dead_letters(source, letters, timestamp_ms), rules, timestamp_ms)
        except KafkaError as error:
            if error.code not in TOO_LARGE:
                raise
        else:
            return Built(batch, letters[-1].offset)
        first = letters[0]
        if len(letters) > 1:
            letters = letters[:len(letters) // 2]
        elif first.key is None and first.value is None:
            return Built(None, first.offset)
        else:
            letters = [first._replace(key=None, value=None)]


def count_fitting(source: Source, letters: Sequence[DeadLetter], most_bytes: int) -> int:
    """Return the number of dead letters, at least 1, that fit in a batch of `most_bytes` by an upper bound of their
    sizes."""
    names_bytes = RECORD_BYTES + sum(len(name) for name in (TOPIC, PARTITION, OFFSET, GROUP, DELIVERY_COUNT, MESSAGE))
    names_bytes += len(source.topic.encode()) + len(source.group_id.encode())
    left_bytes = most_bytes
    for number, letter in enumerate(letters):
        left_bytes -= names_bytes + len(letter.message) + len(letter.key or b'') + len(letter.value or b'')
        if left_bytes < 0 or number == MOST_BATCH_RECORDS:
            return max(1, number)
    return len(letters)


def letters_without_originals(first: int, last: int, delivery_count: int, message: str) -> list[DeadLetter]:
    """Return the dead letters of the first records of a range, at most MOST_BATCH_RECORDS."""
    last = min(last, first + MOST_BATCH_RECORDS - 1)
    return [DeadLetter(offset, delivery_count, message) for offset in range(first, last + 1)]


def letters_with_originals(data: bytes, end_offset: int, first: int, last: int, delivery_count: int,
                           message: str) -> list[DeadLetter]:
    """Return the dead letters of the first records of a range, with the keys and values that `data` has.

    `data` has the batches of the log from `first` up to, but not including, `end_offset`. Records that are not in these
    batches get no key and no value: compaction has removed them. The result has at least one dead letter. It ends when
    its keys and values have MOST_BATCH_BYTES together, or when it has MOST_BATCH_RECORDS.
    """
    originals: dict[int, tuple[bytes | None, bytes | None]] = {}
    last = min(last, first + MOST_BATCH_RECORDS - 1, max(first, end_offset - 1))
    left_bytes = MOST_BATCH_BYTES
    for header, batch in iter_batches(data):
        if header.last_offset < first or header.is_control:
            continue
        if header.base_offset > last:
            break
        for record in iter_records(batch):
            if record.offset < first:
                continue
            if record.offset > last:
                break
            left_bytes -= len(record.key or b'') + len(record.value or b'')
            if left_bytes < 0 and originals:
                last = record.offset - 1
                break
            originals[record.offset] = record.key, record.value
    return [DeadLetter(offset, delivery_count, message, *originals.get(offset, (None, None)))
            for offset in range(first, last + 1)]


Wanted = Mapping[Source, tuple[int, Sequence[tuple[int, int]]]]
"""The dead letters to find. Maps each source to the earliest time of a dead letter, in ms, and to the ranges of
offsets (first, last), which are sorted and disjoint."""


def find_dead_letters(data: bytes, wanted: Wanted) -> dict[tuple[Source, int], int]:
    """Return the wanted dead letters in the batches of a dead-letter queue. The result maps (source, offset of the
    original record) to the time of the dead letter in ms.

    Batches of idempotent producers are skipped, because the broker writes dead letters without a producer id.
    """
    found: dict[tuple[Source, int], int] = {}
    earliest_ms = min((since_ms for since_ms, _ in wanted.values()), default=0)
    for header, batch in iter_batches(data):
        if header.is_control or header.producer_id != NO_PRODUCER_ID or header.max_timestamp_ms < earliest_ms:
            continue
        if header.compression == 0 and OFFSET_BYTES not in bytes(batch):
            continue
        for record in iter_records(batch):
            place = place_of(record.headers)
            if place is None:
                continue
            source, offset = place
            since_ms, ranges = wanted.get(source, (0, ()))
            number = bisect_right(ranges, offset, key=itemgetter(0)) - 1
            if record.timestamp_ms >= since_ms and number >= 0 and offset <= ranges[number][1]:
                found[place] = record.timestamp_ms
    return found


def place_of(headers: Sequence[tuple[str, bytes | None]]) -> tuple[Source, int] | None:
    """Return the source and the offset of the original record that the headers of a dead letter name.

    Return None if the headers are not those of a dead letter.
    """
    if len(headers) != 6 or [name for name, _ in headers] != [TOPIC, PARTITION, OFFSET, GROUP, DELIVERY_COUNT, MESSAGE]:
        return None
    try:
        topic, partition, offset, group_id, _, _ = ((value or b'').decode() for _, value in headers)
        return Source(topic, int(partition), group_id), int(offset)
    except ValueError:      # includes UnicodeDecodeError
        return None
