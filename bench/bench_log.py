"""The log's append, read and index search, each compared with the slow code that it replaces.

Run: python -m pytest bench/bench_log.py --benchmark-only (--quick only shows that the benchmarks run).
"""
import bisect
import os

import pytest

from kbroker.base.clock import Clock
from kbroker.log.append import Origin
from kbroker.log.fs import FileSystem
from kbroker.log.index import OffsetIndex
from kbroker.log.log import Log
from kbroker.record.batch import encode_batch
from kbroker.settings.config import Config
from kbroker.settings.topic_config import LogConfig

T = 1_700_000_000_000
SEGMENT_BYTES = 1 << 30
APPENDS = 200


def batch_of(size_bytes: int, **producer: int) -> bytearray:
    """Return a batch with one record, of about `size_bytes`."""
    return encode_batch([(T, None, b'x' * (size_bytes - 75))], **producer)


@pytest.fixture
def log(tmp_path):
    log = Log(FileSystem(), str(tmp_path / 'bench-0'), 'bench', 0, LogConfig(Config({}), {}), Clock())
    log.append_batch(batch_of(300), Origin.CLIENT, 0)
    return log


@pytest.mark.parametrize('size_bytes', [300, 16_384])
@pytest.mark.benchmark(group='append')
def test_append(benchmark, log, size_bytes):
    batch = batch_of(size_bytes)

    def run():
        for _ in range(APPENDS):
            log.append_batch(batch, Origin.CLIENT, 0)

    benchmark.pedantic(run, rounds=20, warmup_rounds=2)


@pytest.mark.benchmark(group='append')
def test_append_idempotent(benchmark, log):
    sequence = 0

    def make():
        nonlocal sequence
        batches = [batch_of(300, producer_id=1, producer_epoch=0, base_sequence=sequence + number)
                   for number in range(APPENDS)]
        sequence += APPENDS
        return (batches,), {}

    def run(batches):
        for batch in batches:
            log.append_batch(batch, Origin.CLIENT, 0)

    benchmark.pedantic(run, setup=make, rounds=20)


@pytest.mark.parametrize('size_bytes', [300, 16_384])
@pytest.mark.benchmark(group='append')
def test_reference_pwrite(benchmark, tmp_path, size_bytes):
    """Measure only the system call `pwrite`, which is the lower bound of an append."""
    descriptor = os.open(tmp_path / 'plain', os.O_RDWR | os.O_CREAT)
    batch = batch_of(size_bytes)
    position = 0

    def run():
        nonlocal position
        for _ in range(APPENDS):
            os.pwrite(descriptor, batch, position)
            position += len(batch)

    benchmark.pedantic(run, rounds=20, warmup_rounds=2)
    os.close(descriptor)


@pytest.mark.parametrize('where', ['tail', 'middle'])
@pytest.mark.benchmark(group='read')
def test_read(benchmark, log, where):
    for _ in range(5000):
        log.append_batch(batch_of(300), Origin.CLIENT, 0)
    offset = log.log_end_offset - 1 if where == 'tail' else log.log_end_offset // 2
    benchmark(log.read, offset, 65_536, log.log_end_offset, True)


@pytest.fixture(scope='module')
def index(tmp_path_factory):
    index = OffsetIndex(FileSystem(), str(tmp_path_factory.mktemp('index') / 'x.index'), 0, 10_485_760)
    for number in range(1, 100_001):
        index.add(number * 7, number * 4096)
    return index


@pytest.mark.benchmark(group='index search')
def test_index_lookup(benchmark, index):
    benchmark(index.lookup, 350_003)


@pytest.mark.benchmark(group='index search')
def test_reference_bisect(benchmark, index):
    """Measure a search for the same index entries in a list, with `bisect` of the standard library."""
    entries = [key for key, _ in index]
    benchmark(bisect.bisect_right, entries, 350_003)
