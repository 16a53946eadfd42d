"""Every implementation of CRC-32C that this processor supports agrees with the bitwise definition and with crcmod."""

import random

import crcmod.predefined
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.crc32c import crc32c as bitwise

from kbroker.wire.crc32c import crc32c, crc32c_by, implementations

crcmod_crc32c = crcmod.predefined.mkCrcFun('crc-32c')

# EDGES has lengths on both sides of every size at which an implementation changes its stride: 8 bytes, 64, 3 x 128,
# 512, 3 x 1024, 8 KiB.
STRIDES = (8, 64, 128, 256, 384, 512, 768, 1024, 3072, 3456, 6144, 8192, 65536)
EDGES = [0, *(stride + step for stride in STRIDES for step in (-1, 0, 1, 7))]


@pytest.fixture(params=implementations())
def implementation(request):
    return request.param


def test_the_check_value_of_rfc_3720(implementation):
    assert crc32c_by(implementation, b'123456789') == 0xE3069283
    assert crc32c_by(implementation, bytes(32)) == 0x8A9136AA
    assert crc32c_by(implementation, b'\xff' * 32) == 0x62A8AB43
    assert crc32c_by(implementation, bytes(range(32))) == 0x46DD794E


@pytest.mark.parametrize('size', EDGES)
def test_every_size_at_which_the_stride_changes(implementation, size):
    data = random.Random(size).randbytes(size + 3)
    for start in range(4):
        piece = memoryview(data)[start : start + size]
        assert crc32c_by(implementation, piece) == crcmod_crc32c(bytes(piece))


def test_every_size_and_alignment_of_a_small_batch(implementation):
    data = random.Random(7).randbytes(1200)
    for size in range(1100):
        start = size % 67
        assert crc32c_by(implementation, memoryview(data)[start : start + size]) == crcmod_crc32c(
            data[start : start + size]
        )


@given(data=st.binary(max_size=2000), crc=st.integers(0, 0xFFFFFFFF))
def test_all_agree_with_the_definition(data, crc):
    expected = bitwise(data, crc)
    assert {name: crc32c_by(name, data, crc) for name in implementations()} == dict.fromkeys(
        implementations(), expected
    )


@given(data=st.binary(max_size=5000), cut=st.integers(0, 5000))
def test_a_checksum_can_be_continued(data, cut):
    assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data)


def test_the_fastest_implementation_is_in_use():
    data = bytes(range(256)) * 64
    assert implementations()[0] == 'portable'
    assert crc32c(data) == crc32c_by(implementations()[-1], data)


def test_an_unknown_implementation_is_refused():
    with pytest.raises(ValueError, match='portable'):
        crc32c_by('abacus', b'')


def test_only_contiguous_bytes_are_taken():
    with pytest.raises(TypeError):
        crc32c('text')
    with pytest.raises(BufferError):
        crc32c(memoryview(b'abcdef')[::2])
