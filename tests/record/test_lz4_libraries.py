"""The packages cramjam and lz4 read and write the same LZ4 frames, with the same errors and bounds."""

import random
import subprocess
import sys
import tracemalloc

import lz4.frame
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.record import compression
from kbroker.record.compression import DEFAULT_LZ4_LEVEL, ExpansionError

LIBRARIES = {'lz4': compression._Lz4OfLz4(), 'cramjam': compression._Lz4OfCramjam()}
ROOM = 10_000_000
NOISE = random.Random(1).randbytes(300_000)
TEXT = bytes(random.Random(2).choices(b'abcdefgh', k=300_000))
SIZES = ('DEFAULT', 'MAX64KB', 'MAX256KB', 'MAX1MB', 'MAX4MB')

contents = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda data, size: data[:size], st.sampled_from([TEXT, NOISE, bytes(300_000)]), st.integers(0, 300_000)),
    st.lists(st.sampled_from([TEXT[:5000], NOISE[:5000], TEXT[:70_000], bytes(90_000)]), max_size=5).map(b''.join),
)
skippable = st.builds(
    lambda number, data: (0x184D2A50 + number).to_bytes(4, 'little') + len(data).to_bytes(4, 'little') + data,
    st.integers(0, 15),
    st.binary(max_size=20),
)


@st.composite
def frames(draw):
    return lz4.frame.compress(
        draw(contents),
        compression_level=draw(st.sampled_from([0, 3, 9])),
        block_size=getattr(lz4.frame, f'BLOCKSIZE_{draw(st.sampled_from(SIZES))}'),
        block_linked=draw(st.booleans()),
        block_checksum=draw(st.booleans()),
        content_checksum=draw(st.booleans()),
        store_size=draw(st.booleans()),
    )


def outcome(library, data, max_bytes=ROOM):
    """Return the content of `data`, or the code of the error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, '_lz4', lambda: LIBRARIES[library])
        try:
            return compression.decompress(3, data, max_bytes)
        except KafkaError as error:
            assert error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)
            return error.code


def outcome_of_both(data, max_bytes=ROOM):
    found = outcome('cramjam', data, max_bytes)
    assert found == outcome('lz4', data, max_bytes)
    return found


@settings(max_examples=800, deadline=None)
@given(st.lists(st.one_of(frames(), frames(), skippable), max_size=4), st.integers(0, 500_000))
def test_both_read_the_same_frames_up_to_the_same_bound(parts, max_bytes):
    data = b''.join(parts)
    whole = outcome_of_both(data)
    assert isinstance(whole, bytes)
    for bound in {0, max_bytes, max(len(whole) - 1, 0), len(whole), len(whole) + 1}:
        assert outcome_of_both(data, bound) == (whole if bound >= len(whole) else ErrorCode.MESSAGE_TOO_LARGE)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.one_of(frames(), frames(), skippable), min_size=1, max_size=3).map(b''.join),
    st.lists(st.tuples(st.sampled_from(['set', 'cut', 'add']), st.integers(0, 10**6), st.integers(0, 255)), min_size=1,
             max_size=2),
    st.sampled_from([0, 1000, 100_000]),
)
def test_both_refuse_the_same_damage(data, damages, max_bytes):
    """Either may find the damage or the size first, if the data is damaged and too large."""
    damaged = bytearray(data)
    for kind, position, value in damages:
        position %= len(damaged) + 1
        if kind == 'set' and position < len(damaged):
            damaged[position] = value
        elif kind == 'cut':
            del damaged[position:]
        else:
            damaged.insert(position, value)
    if outcome_of_both(bytes(damaged)) is ErrorCode.CORRUPT_MESSAGE:
        refusals = {outcome(library, bytes(damaged), max_bytes) for library in LIBRARIES}
        assert refusals <= {ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE}
    else:
        outcome_of_both(bytes(damaged), max_bytes)


@pytest.mark.parametrize('flags', range(256))
def test_both_accept_the_same_flags(flags):
    """The checksum of the header is right, so only the flags decide."""
    body = NOISE[:12] + (5).to_bytes(4, 'little') + b'\x40abcd' + bytes(8)
    for sizes in (0x00, 0x30, 0x40, 0x41, 0x70, 0xC0):
        for size in (2, 6, 10, 14):
            descriptor = bytes((flags, sizes)) + bytes(size - 2)
            checksum = xxhash.xxh32_intdigest(descriptor) >> 8 & 0xFF
            outcome_of_both(b'\x04\x22\x4d\x18' + descriptor + bytes((checksum,)) + body[12:])


@pytest.mark.parametrize('is_linked', [False, True])
@pytest.mark.parametrize('stated', [0, 1, 299_999, 300_001, 2**40, 2**64 - 1])
def test_both_judge_the_stated_size_of_the_content_alike(is_linked, stated):
    claiming = bytearray(lz4.frame.compress(TEXT, store_size=True, block_linked=is_linked))
    claiming[6:14] = stated.to_bytes(8, 'little')
    claiming[14] = xxhash.xxh32_intdigest(bytes(claiming[4:14])) >> 8 & 0xFF
    assert outcome_of_both(bytes(claiming)) == (ErrorCode.CORRUPT_MESSAGE if stated else TEXT)


@settings(max_examples=800, deadline=None)
@given(contents, st.integers(1, 17))
def test_both_write_frames_as_java_does_that_each_other_reads(data, level):
    for library in LIBRARIES.values():
        frame = library.compress(data, level)
        assert frame.startswith(b'\x04\x22\x4d\x18\x60\x40\x82')  # independent blocks of 64 KiB, no checksums, no size
        assert library.compress(memoryview(data), level) == frame
        assert outcome_of_both(frame) == data


def test_both_compress_more_at_a_higher_level():
    for library in LIBRARIES.values():
        sizes = [len(library.compress(TEXT, level)) for level in (DEFAULT_LZ4_LEVEL, 4, 12)]
        assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 3


def tiny_blocks(flags, number):
    """Return a frame of `number` blocks of one byte, each of which may have 4 MiB by the header."""
    descriptor = bytes((flags, 0x70))
    head = b'\x04\x22\x4d\x18' + descriptor + bytes((xxhash.xxh32_intdigest(descriptor) >> 8 & 0xFF,))
    return head + (b'\x02\0\0\0' + b'\x10a') * number + bytes(4)


@pytest.mark.parametrize('flags', [0x40, 0x60], ids=['linked', 'independent'])
def test_small_blocks_share_a_call_of_the_library(flags, monkeypatch):
    """A call for each block would cost a peer's byte a microsecond of the broker."""
    codec = compression._Lz4OfCramjam()
    calls = []

    class Counted:
        def decompress_into(self, data, room):
            calls.append(len(data))
            return codec_library.decompress_into(data, room)

    codec_library, codec.library = codec.library, Counted()
    output = compression._Pieces(ROOM)
    codec.decompress_to(memoryview(tiny_blocks(flags, 20_000)), output)
    assert output.take() == b'a' * 20_000 and len(calls) < 100


@pytest.mark.parametrize('is_linked', [False, True])
@pytest.mark.parametrize('size', ['MAX64KB', 'MAX4MB'])
def test_a_frame_beyond_the_bound_takes_memory_for_little_more_than_the_bound(is_linked, size):
    codec = LIBRARIES['cramjam']
    bomb = lz4.frame.compress(bytes(200_000_000), block_size=getattr(lz4.frame, f'BLOCKSIZE_{size}'),
                              block_linked=is_linked)
    received = 0

    class Counting:
        def expect(self, size_bytes):
            raise AssertionError

        def add(self, piece):
            nonlocal received
            if received + len(piece) > ROOM:
                raise ExpansionError(ROOM)
            received += len(piece)

    tracemalloc.start()
    with pytest.raises(ExpansionError):
        codec.decompress_to(memoryview(bomb), Counting())
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert received <= ROOM and most < 5_000_000


def test_cramjam_is_used_without_the_package_lz4():
    script = (
        'import sys\n'
        'sys.modules["lz4"] = None\n'
        'from kbroker.record.compression import compress, decompress\n'
        'assert decompress(3, compress(3, b"a" * 1000), 1000) == b"a" * 1000\n'
        'print(sorted({"cramjam", "lz4.frame"} & sys.modules.keys()))\n'
    )
    done = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True, check=True)
    assert done.stdout == "['cramjam']\n"
