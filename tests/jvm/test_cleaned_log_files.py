"""Kafka's dump tool reads a compacted log and finds no error in it."""

import pathlib

import pytest
from decoded import sound_dump
from support.disk.directory_with_cleaner import DirectoryWithCleaner, end, write

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

DAY_MS = 86_400_000


@pytest.fixture
def directory(tmp_path):
    """A log that shows every effect of compaction: gaps, empty batches, delete horizons, recompressed batches."""
    cleaning = DirectoryWithCleaner(tmp_path / 'data')
    cleaning.cleaner.start()
    log = cleaning.open()
    for day in range(3):
        for number in range(20):
            write(
                log,
                (f'key {number}', f'value {day}'),
                (f'other {number}', None if day == 1 else 'value'),
                codec=number % 5,
            )
            write(log, (f'key {number % 7}', 'in a transaction'), producer=(1, day, number), transactional=True)
        end(log, 1, day, commit=day == 1)
        write(log, (f'day {day}', 'value'), ('all', 'value'), producer=(2 + day, 0, 0), codec=day)
        cleaning.clean(log)
        cleaning.clock.advance(DAY_MS)
    cleaning.manager.close()
    return pathlib.Path(log.directory)


def test_the_dump_tool_finds_nothing_wrong(directory):
    files = sorted(
        path
        for path in directory.iterdir()
        if path.suffix in {'.log', '.index', '.timeindex', '.txnindex', '.snapshot'}
    )
    text = sound_dump(files)
    assert 'count: 0' in text
    assert 'deleteHorizonMs: OptionalLong[' in text
    assert {f'compresscodec: {codec}' in text for codec in ('none', 'gzip', 'snappy', 'lz4', 'zstd')} == {True}
    assert 'payload: value 2' in text and 'payload: value 0' not in text
