"""CRC-32C by size: every implementation for this processor against crcmod and the bitwise reference."""
import crcmod.predefined
import pytest
from reference.crc32c import crc32c as bitwise

from kbroker.wire.crc32c import crc32c, crc32c_by, implementations

SIZES = [100, 1_000, 16_000, 1_000_000]
BITWISE_AT_MOST = 16_000

FUNCTIONS = {
    'kbroker': crc32c,
    **{name: lambda data, name=name: crc32c_by(name, data) for name in implementations()},
    'crcmod': crcmod.predefined.mkCrcFun('crc-32c'),
    'reference': bitwise,
}
CASES = [(name, size) for size in SIZES for name in FUNCTIONS if name != 'reference' or size <= BITWISE_AT_MOST]


@pytest.mark.parametrize(('name', 'size'), CASES)
def test_crc32c(benchmark, name, size):
    benchmark.group = f'crc32c of {size} bytes'
    data = bytes(i & 255 for i in range(size))
    assert benchmark(FUNCTIONS[name], data) == crc32c(data)
