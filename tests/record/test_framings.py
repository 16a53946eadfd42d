"""The framings of compressed blocks that are accepted from a producer, and the framings that are read from a log.

The same framings are accepted and refused by Apache Kafka, except for those that tests/jvm/test_differential_batches.py
lists.
"""
import pytest
from support.messages.framings import CODECS, INDEPENDENT, framings, lz4_blocks, lz4_descriptor
from support.messages.odd_records import framed, record, varint

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.record.produced import prepare_produced
from kbroker.record.produced_records import ProduceRules
from kbroker.record.records import decode_records
from kbroker.settings.config import Config
from kbroker.settings.topic_config import LogConfig

T = 1_700_000_000_000
RULES = ProduceRules(LogConfig(Config({'log.dirs': 'x'}), {}))
RECORDS = [record(offset=number) for number in range(20)]
FRAMINGS = framings(b''.join(RECORDS))

NOT_JAVAS = {
    'lz4: linked blocks': 'of linked blocks',
    'lz4: linked short blocks': 'of linked blocks',
    'lz4: linked by its flag alone': 'of linked blocks',
    'lz4: dictionary': 'with a dictionary',
    'lz4: skippable frame in front': 'expected 0x184d2204: found 0x184d2a53',
    'lz4: legacy frame': 'expected 0x184d2204: found 0x184c2102',
    'snappy: two streams, the second of version 0': 'second snappy stream',
    'zstd: window of 2^27 and more': 'window of a zstd frame',
    'zstd: window of 2^28': 'window of a zstd frame',
    'zstd: window of 2^28 and a content size': 'window of a zstd frame, expected 0x88 at most: found 0x90',
    'zstd: window of 2^31 and a content size': 'window of a zstd frame',
    'zstd: a window of 2^28 in the second frame': 'window of a zstd frame',
    'zstd: a window of 2^28 behind a skippable frame': 'window of a zstd frame',
}
NOT_ONE_FRAME = {
    'lz4: two frames': 'bytes after the first frame',
    'lz4: an empty frame in front': 'bytes after the first frame',
    'lz4: the frame twice': 'bytes after the first frame',
    'lz4: an empty stored block in front': 'block without contents',
    'lz4: an empty stored block as end': 'block without contents',
    'lz4: an empty compressed block in front': 'block without contents',
}
STRICTER = NOT_JAVAS | NOT_ONE_FRAME


def batch(name):
    codec, block = FRAMINGS[name]
    return framed(codec, block, len(RECORDS), T)


@pytest.mark.parametrize('name', STRICTER)
def test_a_framing_that_java_consumers_cannot_read_is_refused_for_good(name):
    with pytest.raises(KafkaError, match=STRICTER[name]) as raised:
        prepare_produced(batch(name), RULES, T)
    assert raised.value.code is (ErrorCode.UNKNOWN_SERVER_ERROR if name in NOT_JAVAS else ErrorCode.INVALID_RECORD)


@pytest.mark.parametrize('name', [
    'lz4: linked blocks', 'lz4: linked short blocks', 'lz4: linked by its flag alone', 'lz4: dictionary',
    'lz4: skippable frame in front', 'lz4: two frames', 'lz4: an empty frame in front',
    'lz4: an empty stored block in front', 'lz4: an empty compressed block in front',
    'snappy: two streams, the second of version 0', 'zstd: window of 2^28 and a content size'])
def test_a_framing_that_is_refused_is_still_read_from_a_log(name):
    assert [found.value for found in decode_records(batch(name))] == [b'v'] * len(RECORDS)


@pytest.mark.parametrize('name', sorted(FRAMINGS.keys() - STRICTER.keys()))
def test_each_other_framing_is_taken_exactly_where_it_is_read(name):
    try:
        decode_records(batch(name))
    except KafkaError:
        with pytest.raises(KafkaError) as raised:
            prepare_produced(batch(name), RULES, T)
        assert raised.value.code in (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_RECORD)
    else:
        if not name.endswith('damaged'):
            prepare_produced(batch(name), RULES, T)


@pytest.mark.parametrize('codec', CODECS)
def test_a_block_that_ends_early_is_refused_wherever_it_ends(codec):
    name = f'{codec}: everything' if codec == 'lz4' else f'{codec}: as Java writes it'
    number, block = FRAMINGS[name]
    for size in range(len(block)):
        with pytest.raises(KafkaError):
            prepare_produced(framed(number, block[:size], len(RECORDS), T), RULES, T)


def test_a_block_of_many_short_blocks_is_walked_to_its_end():
    data = record(value=varint(10_001) + bytes(10_000))
    block = lz4_descriptor(INDEPENDENT) + lz4_blocks(data, step=2)
    assert len(block) > 8192
    assert prepare_produced(framed(CODECS['lz4'], block, 1, T), RULES, T)
    with pytest.raises(KafkaError, match='bytes after the first frame of an lz4 block'):
        prepare_produced(framed(CODECS['lz4'], block + block, 1, T), RULES, T)
