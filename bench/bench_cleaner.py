"""Compaction of a segment compared with the reference model, and the map of keys compared with a dict.

Run: python -m pytest bench/bench_cleaner.py --benchmark-only (--quick only shows that the benchmarks run).
"""

import os

import pytest
from reference.compaction import Rules, Stored, compact

from kbroker.base.clock import Clock
from kbroker.log.append import Origin
from kbroker.log.cleaned_transactions import CleanedTransactions
from kbroker.log.compaction import Retention, SegmentWriter, index_batches
from kbroker.log.fs import FileSystem
from kbroker.log.log import Log
from kbroker.log.offset_map import OffsetMap
from kbroker.log.segment import Segment
from kbroker.record.batch import encode_batch
from kbroker.settings.config import Config
from kbroker.settings.topic_config import LogConfig

T = 1_700_000_000_000
RECORDS = 20
BATCHES = 500
KEYS = [os.urandom(16) for _ in range(2000)]
WINDOW_BYTES = 1 << 18


@pytest.fixture(params=[0, 3], ids=['uncompressed', 'lz4'])
def log(request, tmp_path):
    """Return a log with five records of each key."""
    log = Log(
        FileSystem(),
        str(tmp_path / 'bench-0'),
        'bench',
        0,
        LogConfig(Config({}), {'cleanup.policy': 'compact'}),
        Clock(),
    )
    for number in range(BATCHES):
        rows = [(T, KEYS[(number * RECORDS + record) % len(KEYS)], b'v' * 100) for record in range(RECORDS)]
        log.append_batch(encode_batch(rows, compression=request.param), Origin.CLIENT, 0)
    log.roll()
    log.flush()
    return log


def index(log):
    segment = log.segments[0]
    keys = OffsetMap(1 << 27, 0.9, max_keys=segment.next_offset)
    index_batches(keys, CleanedTransactions([]), segment.open_file(), 0, segment.size_bytes, 0, 1 << 40, WINDOW_BYTES)
    return keys


@pytest.mark.benchmark(group='index a segment')
def test_index(benchmark, log):
    keys = benchmark(index, log)
    assert len(keys) == len(KEYS)
    benchmark.extra_info['bytes'] = log.segments[0].size_bytes


@pytest.mark.benchmark(group='compact a segment')
def test_compact(benchmark, log, tmp_path):
    retention = Retention(T, 0, log.log_end_offset, {})

    def run():
        target = Segment(log.fs, str(tmp_path), 0, log.config, T, suffix='.cleaned')
        writer = SegmentWriter(target, index(log), CleanedTransactions([]), retention, WINDOW_BYTES)
        writer.copy(log.segments[0].open_file(), 0, log.segments[0].size_bytes, 1 << 40)
        target.seal()
        return target

    assert benchmark(run).size_bytes < log.segments[0].size_bytes / 4
    benchmark.extra_info['bytes'] = log.segments[0].size_bytes


@pytest.mark.benchmark(group='compact a segment')
def test_compact_by_the_reference(benchmark, log):
    rules = Rules(0, log.log_end_offset, T, 0, log.log_end_offset, {})

    def run():
        return compact([Stored.read(bytes(batch)) for _, batch in log.batches()], rules)

    benchmark.pedantic(run, rounds=1)


@pytest.mark.benchmark(group='put a key')
def test_put(benchmark):
    offsets = OffsetMap(1 << 20, 0.9, max_keys=len(KEYS))
    benchmark(lambda: [offsets.put(key, 1) for key in KEYS])


@pytest.mark.benchmark(group='put a key')
def test_put_into_a_dict(benchmark):
    offsets = {}
    benchmark(lambda: [offsets.__setitem__(key, 1) for key in KEYS])
