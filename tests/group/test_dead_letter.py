"""The records of dead-letter queues, and the search for them in a log.

Covers KIP-1191.
"""
from __future__ import annotations

import os

import pytest

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.share.dead_letter import (
    EXCEEDED,
    MOST_BATCH_BYTES,
    MOST_BATCH_RECORDS,
    REJECTED,
    DeadLetter,
    Source,
    build_batch,
    count_fitting,
    encode_dead_letters,
    find_dead_letters,
    letters_with_originals,
    letters_without_originals,
    place_of,
)
from kbroker.record.batch import encode_batch, read_header, set_base_offset, set_partition_leader_epoch
from kbroker.record.produced_records import ProduceRules
from kbroker.record.records import decode_records
from kbroker.settings.config import Config
from kbroker.settings.topic_config import LogConfig

T = 1_700_000_000_000
SOURCE = Source('src', 2, 'gd1')


def rules(**configs: str) -> ProduceRules:
    return ProduceRules(LogConfig(Config({'log.dirs': 'unused'}),
                                  {name.replace('_', '.'): value for name, value in configs.items()}))


def stored(batch: bytearray, base_offset: int) -> str:
    set_base_offset(batch, base_offset)
    set_partition_leader_epoch(batch, 0)
    return batch.hex()


def test_dead_letters_have_kafkas_bytes():
    assert stored(encode_dead_letters(SOURCE, [DeadLetter(0, 1, REJECTED)], 0x01A21CBD61C1), 0) == (
        '0000000000000000000000e40000000002c72bda7c000000000000000001a21cbd61c1000001a21cbd61c1ffffffffff'
        'ffffffffffffffffff00000001e20200000001010c245f5f646c712e6572726f72732e746f706963067372632c5f5f64'
        '6c712e6572726f72732e706172746974696f6e0232265f5f646c712e6572726f72732e6f66667365740230245f5f646c'
        '712e6572726f72732e67726f757006676431365f5f646c712e6572726f72732e64656c69766572792e636f756e740231'
        '285f5f646c712e6572726f72732e6d657373616765344f66667365742072656a656374656420627920636c69656e742e')
    assert stored(encode_dead_letters(SOURCE, [DeadLetter(6, 1, REJECTED, b'K', b'V')], 0x01A21CBD778D), 4) == (
        '0000000000000004000000e60000000002f86fdaee000000000000000001a21cbd778d000001a21cbd778dffffffffff'
        'ffffffffffffffffff00000001e602000000024b02560c245f5f646c712e6572726f72732e746f706963067372632c5f'
        '5f646c712e6572726f72732e706172746974696f6e0232265f5f646c712e6572726f72732e6f66667365740236245f5f'
        '646c712e6572726f72732e67726f757006676431365f5f646c712e6572726f72732e64656c69766572792e636f756e74'
        '0231285f5f646c712e6572726f72732e6d657373616765344f66667365742072656a656374656420627920636c69656e'
        '742e')


def test_a_range_is_one_batch():
    built = build_batch(SOURCE, letters_without_originals(3, 9, 2, EXCEEDED), T, rules())
    assert built.last_offset == 9
    records = decode_records(built.batch)
    assert [place_of(record.headers) for record in records] == [(SOURCE, offset) for offset in range(3, 10)]
    assert {record.timestamp_ms for record in records} == {T}
    assert {dict(record.headers)['__dlq.errors.message'] for record in records} == {EXCEEDED.encode()}


@pytest.mark.parametrize('max_bytes', [300, 500, 2_000, 200_000])
def test_a_range_is_split_at_the_largest_batch_of_the_topic(max_bytes):
    first, sizes = 0, []
    while first < 400:
        letters = [DeadLetter(offset, 1, REJECTED, b'k', b'v' * (offset % 50)) for offset in range(first, 400)]
        built = build_batch(SOURCE, letters, T, rules(max_message_bytes=str(max_bytes)))
        sizes.append(len(built.batch))
        records = decode_records(built.batch)
        assert [place_of(record.headers)[1] for record in records] == list(range(first, built.last_offset + 1))
        assert [record.value for record in records] == [letter.value for letter in letters[:len(records)]]
        first = built.last_offset + 1
    assert max(sizes) <= max_bytes
    assert (len(sizes) == 1) == (max_bytes == 200_000)


def test_a_batch_has_a_bounded_number_of_records():
    letters = letters_without_originals(0, 10**9, 1, REJECTED)
    assert len(letters) == MOST_BATCH_RECORDS
    assert count_fitting(SOURCE, [*letters, *letters], MOST_BATCH_BYTES * 9) == MOST_BATCH_RECORDS


def test_a_dead_letter_that_is_too_large_loses_its_key_and_value():
    large = DeadLetter(0, 1, REJECTED, b'k', bytes(1_000))
    built = build_batch(SOURCE, [large, DeadLetter(1, 1, REJECTED)], T, rules(max_message_bytes='800'))
    record, = decode_records(built.batch)
    assert (built.last_offset, record.key, record.value) == (0, None, None)


def test_a_dead_letter_that_is_too_large_without_key_and_value_is_not_written():
    assert build_batch(SOURCE, [DeadLetter(0, 1, REJECTED, b'k', b'v')], T, rules(max_message_bytes='100')) == (None, 0)


def test_records_that_do_not_shrink_under_compression_are_split_further():
    letters = [DeadLetter(offset, 1, REJECTED, None, os.urandom(300)) for offset in range(2)]
    size_bytes = len(encode_dead_letters(SOURCE, letters, T))
    built = build_batch(SOURCE, letters, T, rules(max_message_bytes=str(size_bytes), compression_type='gzip'))
    assert read_header(built.batch).compression == 1
    assert len(built.batch) <= size_bytes


def test_the_rules_of_the_topic_hold():
    batch = build_batch(SOURCE, [DeadLetter(0, 1, REJECTED)], T, rules(message_timestamp_type='LogAppendTime')).batch
    assert read_header(batch).is_log_append_time and decode_records(batch)[0].timestamp_ms == T
    with pytest.raises(KafkaError) as raised:
        build_batch(SOURCE, [DeadLetter(0, 1, REJECTED)], T, rules(cleanup_policy='compact'))
    assert raised.value.code is ErrorCode.INVALID_RECORD


# ---- the original records

def original(offset: int, *values: bytes, compression: int = 0) -> bytes:
    return bytes(encode_batch([(T, b'k%d' % (offset + number), value, [('h', b'x')])
                               for number, value in enumerate(values)], base_offset=offset, compression=compression))


@pytest.mark.parametrize('compression', [0, 1])
def test_keys_and_values_are_those_of_the_original_records(compression):
    data = original(10, b'a', b'b', b'c', compression=compression) + original(20, b'd', compression=compression)
    assert letters_with_originals(data, 21, 11, 25, 3, REJECTED) == [
        DeadLetter(11, 3, REJECTED, b'k11', b'b'), DeadLetter(12, 3, REJECTED, b'k12', b'c'),
        *(DeadLetter(offset, 3, REJECTED) for offset in range(13, 20)), DeadLetter(20, 3, REJECTED, b'k20', b'd')]


def test_records_that_the_log_no_longer_has_get_a_dead_letter_without_key_and_value():
    assert letters_with_originals(original(20, b'd'), 21, 10, 11, 1, REJECTED) == [
        DeadLetter(10, 1, REJECTED), DeadLetter(11, 1, REJECTED)]
    assert letters_with_originals(b'', 0, 10, 11, 1, REJECTED) == [DeadLetter(10, 1, REJECTED)]


def test_the_memory_of_originals_is_bounded():
    large = bytes(MOST_BATCH_BYTES // 2)
    data = original(0, large, large, large)
    assert [letter.offset for letter in letters_with_originals(data, 3, 0, 2, 1, REJECTED)] == [0]
    assert [letter.offset for letter in letters_with_originals(original(0, large * 3), 1, 0, 0, 1, REJECTED)] == [0]


# ---- the search

def test_the_search_finds_the_wanted_dead_letters_and_no_others():
    other = Source('src', 1, 'gd1')
    data = b''.join((
        stored_bytes(encode_dead_letters(SOURCE, letters_without_originals(0, 9, 1, REJECTED), T), 0),
        stored_bytes(encode_dead_letters(other, letters_without_originals(0, 9, 1, REJECTED), T + 5), 10),
        original(20, b'no dead letter'),
        stored_bytes(encode_dead_letters(SOURCE, letters_without_originals(3, 12, 1, REJECTED), T + 5), 21)))
    assert find_dead_letters(data, {SOURCE: (T, [(2, 3), (12, 20)])}) == {
        (SOURCE, 2): T, (SOURCE, 3): T + 5, (SOURCE, 12): T + 5}
    assert find_dead_letters(data, {SOURCE: (T + 1, [(2, 3)])}) == {(SOURCE, 3): T + 5}, 'dead letters of before'
    assert find_dead_letters(data, {other: (T + 5, [(7, 7)]), SOURCE: (T + 6, [(0, 99)])}) == {(other, 7): T + 5}
    assert find_dead_letters(data, {Source('src', 2, 'gd2'): (T, [(0, 99)])}) == {}
    assert find_dead_letters(data, {}) == {}


@pytest.mark.parametrize('configs', [{'compression_type': 'gzip'}, {'message_timestamp_type': 'LogAppendTime'}])
def test_the_search_finds_dead_letters_that_the_topic_has_changed(configs):
    batch = build_batch(SOURCE, letters_without_originals(0, 2, 1, REJECTED), T, rules(**configs)).batch
    assert find_dead_letters(bytes(batch), {SOURCE: (T, [(1, 1)])}) == {(SOURCE, 1): T}


@pytest.mark.parametrize('headers', [
    [], [('a', b'')] * 6,
    [(name, b'\xff') for name, _ in [('__dlq.errors.' + end, 0) for end in (
        'topic', 'partition', 'offset', 'group', 'delivery.count', 'message')]],
    [('__dlq.errors.' + end, None) for end in ('topic', 'partition', 'offset', 'group', 'delivery.count', 'message')],
])
def test_records_of_other_producers_are_no_dead_letters(headers):
    assert place_of(headers) is None


def stored_bytes(batch: bytearray, base_offset: int) -> bytes:
    set_base_offset(batch, base_offset)
    return bytes(batch)
