"""The compression codecs: their framings, the input that they accept, and the input that they refuse.

Covers KIP-390.
"""

import gzip
import random
import struct
import subprocess
import sys
import tracemalloc

import cramjam
import lz4.frame
import pytest
import xxhash
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.record.compression import Compression, compress, decompress

CODECS = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
SAMPLES = {
    'nothing': b'',
    'a byte': b'a',
    'text': b'the quick brown fox ' * 200,
    'zeros': bytes(1_000_000),
    'noise': random.Random(1).randbytes(200_000),
}
ROOM = 10_000_000


def refusal(codec: int, data: bytes, max_bytes: int = ROOM) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        decompress(codec, data, max_bytes)
    return raised.value.code


@pytest.mark.parametrize('codec', Compression)
@pytest.mark.parametrize('sample', SAMPLES)
def test_what_was_compressed_comes_back(codec, sample):
    data = SAMPLES[sample]
    compressed = compress(codec, data)
    assert decompress(codec, compressed, len(data)) == data
    assert decompress(codec, memoryview(compressed), len(data)) == data


@given(codec=st.sampled_from(Compression), data=st.binary(max_size=3000))
def test_any_bytes_come_back(codec, data):
    assert decompress(codec, compress(codec, data), len(data)) == data


@pytest.mark.parametrize('codec', Compression)
@pytest.mark.parametrize('sample', ['a byte', 'text', 'zeros', 'noise'])
def test_one_byte_above_the_bound_is_refused(codec, sample):
    data = SAMPLES[sample]
    assert refusal(codec, compress(codec, data), len(data) - 1) is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize('codec', CODECS)
def test_blocks_may_follow_one_another(codec):
    data = SAMPLES['text']
    assert decompress(codec, compress(codec, data) + compress(codec, b'') + compress(codec, data), ROOM) == data + data


@pytest.mark.parametrize('codec', CODECS)
@pytest.mark.parametrize('sample', ['a byte', 'text', 'noise'])
def test_a_block_that_ends_early_is_refused(codec, sample):
    compressed = compress(codec, SAMPLES[sample])
    for cut in {1, 3, 9, 15, 18, len(compressed) // 2, len(compressed) - 1} & set(range(1, len(compressed))):
        if codec is Compression.SNAPPY and cut == 16:
            continue  # a header without a block, which means no data
        assert refusal(codec, compressed[:cut]) is ErrorCode.CORRUPT_MESSAGE


@given(codec=st.sampled_from(CODECS), data=st.binary(min_size=1, max_size=200))
def test_garbage_raises_kafka_errors_and_nothing_else(codec, data):
    try:
        decompress(codec, data, 1000)
    except KafkaError as error:
        assert error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)


@given(codec=st.sampled_from(CODECS), position=st.integers(0, 10_000), value=st.integers(0, 255))
def test_a_damaged_block_raises_kafka_errors_and_nothing_else(codec, position, value):
    compressed = bytearray(compress(codec, SAMPLES['text']))
    compressed[position % len(compressed)] = value
    try:
        decompress(codec, bytes(compressed), 5000)
    except KafkaError as error:
        assert error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)


@pytest.mark.parametrize('codec', [5, 6, 7])
def test_an_unknown_codec_is_refused(codec):
    assert refusal(codec, b'x') is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


# --- data of other writers ---


def test_streams_without_a_content_size_are_read():
    data = SAMPLES['text']
    assert decompress(Compression.ZSTD, zstandard.ZstdCompressor(write_content_size=False).compress(data), ROOM) == data
    assert decompress(Compression.LZ4, lz4.frame.compress(data, block_linked=True, content_checksum=True), ROOM) == data
    assert decompress(Compression.GZIP, gzip.compress(data), ROOM) == data


def test_raw_snappy_is_read():
    data = SAMPLES['text']
    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(data)), ROOM) == data


def test_snappy_is_written_in_pieces_of_32_kib_behind_one_header():
    framed = compress(Compression.SNAPPY, SAMPLES['noise'])
    assert struct.unpack_from('>8sii', framed) == (b'\x82SNAPPY\0', 1, 1)
    position, sizes = 16, []
    while position < len(framed):
        size = int.from_bytes(framed[position : position + 4], 'big')
        sizes.append(cramjam.snappy.decompress_raw_len(framed[position + 4 : position + 4 + size]))
        position += 4 + size
    assert sizes == [32768] * 6 + [200_000 - 6 * 32768]


def test_a_snappy_piece_that_claims_more_than_it_can_hold_is_not_believed():
    claim = b'\xff\xff\xff\x7f' + bytes(20)  # 256 MiB - 1 in 20 bytes
    framed = compress(Compression.SNAPPY, b'') + struct.pack('>i', len(claim)) + claim
    assert refusal(Compression.SNAPPY, framed, 2**31) is ErrorCode.CORRUPT_MESSAGE
    assert refusal(Compression.SNAPPY, claim, 2**31) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize('size', [b'\xff\xff\xff\xff', b'\x7f\xff\xff\xff'])
def test_a_snappy_piece_longer_than_the_data_is_refused(size):
    assert refusal(Compression.SNAPPY, compress(Compression.SNAPPY, b'') + size + b'x') is ErrorCode.CORRUPT_MESSAGE


def zstd_frames(data: bytes) -> list[bytes]:
    """Return two frames with the same data. The first states the size of its content, the second does not."""
    return [zstandard.ZstdCompressor(write_content_size=stated).compress(data) for stated in (True, False)]


def test_a_zstd_frame_is_not_given_the_room_that_it_claims():
    size = 64 * 1024 * 1024
    for frame in zstd_frames(bytes(size)):
        tracemalloc.start()
        assert refusal(Compression.ZSTD, frame, size - 1) is ErrorCode.MESSAGE_TOO_LARGE
        # A frame whose stated size is too large is refused before it is decompressed. Any other frame is decompressed
        # to at most one step beyond the limit.
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < size + 40 * 1024 * 1024
    stated = bytearray(zstd_frames(b'a' * 1000)[0])
    assert stated[4] & 0xC0 == 0x40  # two bytes of content size follow
    stated[4] |= 0xC0  # now eight bytes follow; the last six are former data
    tracemalloc.start()
    assert refusal(Compression.ZSTD, bytes(stated), 2**40) is ErrorCode.CORRUPT_MESSAGE
    assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    tracemalloc.stop()


@pytest.mark.parametrize('size', [0, 1, 1000, 63_000, 10_000_000])
def test_zstd_frames_come_back_whether_they_state_their_size_or_not(size):
    data = SAMPLES['noise'][:1000] + bytes(size)  # up to ten thousand times the compressed size
    for first in zstd_frames(data):
        for second in [b'', *zstd_frames(data[:500]), *zstd_frames(b'')]:
            expected = data + (zstandard.ZstdDecompressor().decompressobj().decompress(second) if second else b'')
            assert decompress(Compression.ZSTD, first + second, len(expected)) == expected
            assert refusal(Compression.ZSTD, first + second, len(expected) - 1) is ErrorCode.MESSAGE_TOO_LARGE
            assert refusal(Compression.ZSTD, first + second + b'x', ROOM + 2000) is ErrorCode.CORRUPT_MESSAGE


def test_a_broken_lz4_frame_leaves_nothing_behind_for_the_next_one():
    data = SAMPLES['noise'][:5000]
    frame = compress(Compression.LZ4, data)
    for broken in (frame[:-4], frame[:20], b'x' + frame):
        assert refusal(Compression.LZ4, broken, ROOM) is ErrorCode.CORRUPT_MESSAGE
        assert decompress(Compression.LZ4, frame, ROOM) == data
    assert refusal(Compression.LZ4, frame, 4999) is ErrorCode.MESSAGE_TOO_LARGE
    assert decompress(Compression.LZ4, frame + frame, ROOM) == data + data


@pytest.mark.parametrize('stated', [1, 2**40])
def test_an_lz4_frame_that_states_a_wrong_size_leaves_nothing_behind_for_the_next_one(stated):
    data = SAMPLES['noise'][:5000]
    claiming = bytearray(lz4.frame.compress(data, store_size=True))
    claiming[6:14] = stated.to_bytes(8, 'little')
    claiming[14] = xxhash.xxh32_intdigest(bytes(claiming[4:14])) >> 8 & 0xFF
    assert refusal(Compression.LZ4, bytes(claiming)) is ErrorCode.CORRUPT_MESSAGE
    assert decompress(Compression.LZ4, compress(Compression.LZ4, data), ROOM) == data


def test_an_lz4_frame_above_the_bound_leaves_nothing_behind_for_the_next_one():
    data = bytes(200_000)
    assert refusal(Compression.LZ4, lz4.frame.compress(data, store_size=True), 100_000) is ErrorCode.MESSAGE_TOO_LARGE
    assert decompress(Compression.LZ4, compress(Compression.LZ4, data), ROOM) == data


def test_lz4_is_written_as_the_java_client_does():
    info = lz4.frame.get_frame_info(compress(Compression.LZ4, SAMPLES['text']))
    assert (info['block_size'], info['block_linked'], info['content_checksum'], info['content_size']) == (
        64 * 1024,
        False,
        False,
        0,
    )


# --- levels ---


@pytest.mark.parametrize(
    ('codec', 'levels'),
    [
        (Compression.GZIP, (-1, 1, 9)),
        (Compression.LZ4, (1, 9, 17)),
        (Compression.ZSTD, (-131072, -5, 0, 3, 22)),
    ],
)
def test_every_level_of_kafka_is_taken(codec, levels):
    data = SAMPLES['text'] + SAMPLES['noise'][:1000]
    for level in levels:
        assert decompress(codec, compress(codec, data, level), ROOM) == data


def test_a_higher_level_compresses_more():
    data = bytes(random.Random(2).choices(b'abcdefgh', k=50_000))
    for codec, low, high in ((Compression.GZIP, 1, 9), (Compression.LZ4, 9, 12), (Compression.ZSTD, 1, 19)):
        assert len(compress(codec, data, high)) < len(compress(codec, data, low))


def test_the_libraries_are_not_loaded_before_they_are_needed():
    libraries = {'backports.zstd', 'compression.zstd', 'cramjam', 'lz4'}
    script = f'import sys, kbroker.record.records; print(sorted({libraries} & sys.modules.keys()))'
    assert subprocess.run([sys.executable, '-c', script], capture_output=True, text=True, check=True).stdout == '[]\n'
