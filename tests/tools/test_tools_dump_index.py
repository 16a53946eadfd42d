"""Indexes and snapshots in kafka-dump-log's format. tests/jvm/test_dump_index.py compares them with Kafka's tool."""
import io
import os
import random
import struct

import pytest
from support.disk.segment_files import SECOND, T, damaged_snapshots, entries_of, two_segments, write_entries

from kbroker.base.errors import CorruptLogError, KafkaError
from kbroker_tools.dump.error_report import ErrorReport
from kbroker_tools.dump.index import (
    IndexOptions,
    dump_index,
    dump_snapshot,
    dump_time_index,
    dump_transaction_index,
)

DUMPS = {'.index': dump_index, '.timeindex': dump_time_index, '.txnindex': dump_transaction_index,
         '.snapshot': dump_snapshot}


@pytest.fixture
def directory(tmp_path):
    return two_segments(tmp_path)


def dumped(path, **options):
    """Dump a file. Return the printed lines and the lines of the error report."""
    out, report = io.StringIO(), ErrorReport()
    DUMPS[path.suffix](str(path), IndexOptions(**options), out, report)
    return out.getvalue().splitlines(), list(report.lines())


def test_entries_are_shown_with_their_absolute_offsets(directory):
    assert dumped(directory / f'{SECOND}.index')[0][:2] == ['offset: 47 position: 485', 'offset: 51 position: 1053']
    assert dumped(directory / f'{SECOND}.timeindex')[0][0] == f'timestamp: {T + 100} offset: 45'
    assert dumped(directory / f'{SECOND}.txnindex')[0] == [
        'version: 0 producerId: 2 firstOffset: 50 lastOffset: 85 lastStableOffset: 42']


def test_a_sound_directory_has_nothing_to_report(directory):
    for path in directory.iterdir():
        if path.suffix in DUMPS:
            assert dumped(path, verify_index_only=True)[1] == [], path


def test_verifying_prints_no_entry_but_reports_the_same(directory):
    path = directory / f'{SECOND}.index'
    write_entries(path, [(offset + 1, position) for offset, position in entries_of(path)])
    lines, report = dumped(path)
    assert len(lines) == 10
    assert dumped(path, verify_index_only=True) == ([], report)
    assert report[:3] == [f'Mismatches in :{path}', '  Index offset: 84, log offset: 83',
                          '  Index offset: 80, log offset: 79']


def test_the_zeros_behind_the_entries_of_an_open_segment_end_the_list(directory):
    for suffix, count in (('.index', 10), ('.timeindex', 10)):
        path = directory / (SECOND + suffix)
        write_entries(path, [*entries_of(path), *[(0, 0)] * 100])
        lines, report = dumped(path)
        assert (len(lines), report) == (count, [])


def test_a_time_index_is_held_against_the_records(directory):
    path = directory / f'{SECOND}.timeindex'
    write_entries(path, [(T + 101, 1), (T + 101, 5), (T + 152, 8), (T + 103, 13), (T + 999, 5000)])
    assert dumped(path)[1] == [
        f'Found timestamp mismatch in :{path}',
        f'  Index timestamp: {T + 101}, log timestamp: {T + 100}',
        f'Found out of order timestamp in :{path}',
        f'  Index timestamp: {T + 101}, Previously indexed timestamp: {T + 101}',
        f'  Index timestamp: {T + 103}, Previously indexed timestamp: {T + 152}',
        f'The following indexed offsets are not found in :{path}',
        'Indexed offset: 52, found log offset: 53',
        'Indexed offset: 5044, found log offset: -1',
    ]


def test_an_index_without_entries_says_so_even_when_its_sanity_is_asked_for(directory):
    path = directory / f'{SECOND}.index'
    path.write_bytes(b'')
    assert dumped(path)[0] == dumped(path, index_sanity_check=True)[0] == [f'{path} is empty.']


def test_the_sanity_check_passes_what_the_broker_would_use(directory):
    for suffix in ('.index', '.timeindex'):
        path = directory / (SECOND + suffix)
        assert dumped(path, index_sanity_check=True)[0] == [f'{path} passed sanity check.']


@pytest.mark.parametrize(('suffix', 'change', 'expected'), [
    ('.index', lambda entries: [*entries, (-3, 0)], 'the last offset is 41 which is less than the base offset 44'),
    ('.timeindex', lambda entries: [*entries, (T + 500, -3)],
     'the last offset is 41 which is less than the first offset 44'),
    ('.timeindex', lambda entries: [*entries, (5, 30)],
     f'the last timestamp is 5 which is less than the first timestamp {T + 100}')])
def test_the_sanity_check_refuses_a_last_entry_below_the_first(directory, suffix, change, expected):
    path = directory / (SECOND + suffix)
    write_entries(path, change(entries_of(path)))
    with pytest.raises(CorruptLogError, match=expected):
        dumped(path, index_sanity_check=True)


@pytest.mark.parametrize(('suffix', 'size'), [('.index', 83), ('.timeindex', 123)])
def test_half_an_entry_fails_the_sanity_check_and_the_file_stays_as_it_is(directory, suffix, size):
    path = directory / (SECOND + suffix)
    path.write_bytes(path.read_bytes() + b'xyz')
    assert len(dumped(path)[0]) == 10
    with pytest.raises(CorruptLogError, match=f'is corrupt, found {size} bytes which is neither positive nor a mult'):
        dumped(path, index_sanity_check=True)
    assert path.stat().st_size == size


@pytest.mark.parametrize(('position', 'limit'), [(100_000, 5 << 20), (5919, 5 << 20), (-5, 5 << 20), (485, 13)])
def test_an_entry_that_points_to_where_no_batch_can_be_is_an_error(directory, position, limit):
    path = directory / f'{SECOND}.index'
    write_entries(path, [(1, 0), (3, position)])
    with pytest.raises(CorruptLogError, match=f'found position {position if position != 485 else 0} for offset'):
        dumped(path, max_message_bytes=limit)


def test_entries_before_the_error_are_printed(directory):
    path = directory / f'{SECOND}.index'
    write_entries(path, [(1, 0), (3, 100_000)])
    out = io.StringIO()
    with pytest.raises(CorruptLogError):
        dump_index(str(path), IndexOptions(), out, ErrorReport())
    assert out.getvalue() == 'offset: 45 position: 0\n'


def test_the_other_files_of_the_segment_must_be_there(directory):
    (directory / f'{SECOND}.index').unlink()
    with pytest.raises(FileNotFoundError):
        dumped(directory / f'{SECOND}.timeindex')
    (directory / f'{SECOND}.log').unlink()
    with pytest.raises(FileNotFoundError):
        dumped(directory / f'{SECOND}.timeindex')


def test_a_transaction_index_of_another_version_is_refused(directory):
    path = directory / f'{SECOND}.txnindex'
    path.write_bytes(path.read_bytes() + b'\0\1' + path.read_bytes()[2:])
    with pytest.raises(CorruptLogError, match='found version 1 in entry 1, expected 0'):
        dumped(path)


def test_a_file_whose_name_is_no_offset_is_refused(tmp_path):
    path = tmp_path / 'abc.txnindex'
    path.write_bytes(b'')
    with pytest.raises(CorruptLogError, match="found 'abc' before the suffix"):
        dumped(path)


def snapshot(*entries):
    from kbroker.wire.crc32c import crc32c
    body = struct.pack('>i', len(entries)) + b''.join(struct.pack('>qhiqiqiq', *entry) for entry in entries)
    return struct.pack('>hI', 1, crc32c(body)) + body


def test_a_snapshot_shows_each_producer_and_its_last_batch(tmp_path):
    path = tmp_path / f'{9:020d}.snapshot'
    path.write_bytes(snapshot((1, 2, 9, 35, 1, T, 0, -1), (7, 0, 1, 43, 5, T, -1, 42), (8, 1, -1, -1, 0, T, 3, -1)))
    assert dumped(path)[0] == [
        f'producerId: 1 producerEpoch: 2 coordinatorEpoch: 0 currentTxnFirstOffset: OptionalLong.empty lastTimestamp: '
        f'{T} firstSequence: 8 lastSequence: 9 lastOffset: 35 offsetDelta: 1 timestamp: {T}',
        f'producerId: 7 producerEpoch: 0 coordinatorEpoch: -1 currentTxnFirstOffset: OptionalLong[42] lastTimestamp: '
        f'{T} firstSequence: 2147483644 lastSequence: 1 lastOffset: 43 offsetDelta: 5 timestamp: {T}',
        f'producerId: 8 producerEpoch: 1 coordinatorEpoch: 3 currentTxnFirstOffset: OptionalLong.empty lastTimestamp: '
        f'{T}',
    ]
    assert dumped(path, compat='4.2')[0][2].endswith(f'lastTimestamp: {T} ')


def test_damaged_snapshots_are_reported_in_kafkas_words(directory):
    texts = []
    for path in damaged_snapshots(directory):
        with pytest.raises(CorruptLogError) as error:
            dumped(path)
        texts.append(str(error.value))
    assert texts[0].startswith('Snapshot is corrupt (CRC is no longer valid). Stored crc: 2054847098. Computed crc: ')
    assert texts[1] == 'Snapshot failed schema validation: Snapshot contained an unknown file version 2'
    assert texts[2].startswith('Snapshot is corrupt (CRC is no longer valid).')
    assert texts[3].endswith('non-nullable field producerEntries was serialized as null')


@pytest.mark.parametrize('size', [0, 1, 3, 9, 55])
def test_a_short_snapshot_is_reported_with_its_size(tmp_path, size):
    path = tmp_path / f'{9:020d}.snapshot'
    path.write_bytes(snapshot((1, 2, 9, 35, 1, T, 0, -1))[:size])
    with pytest.raises(CorruptLogError, match=f'failed schema validation: found {size} bytes, expected'):
        dumped(path)


def test_the_report_tells_of_all_files_with_absolute_paths(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    report = ErrorReport()
    assert not report
    report.gaps('b.log').add(9, 12)
    report.gaps('b.log').add(3, 5)
    report.mismatch('a.index', 1, 2)
    report.mismatch('a.index', 1, 3)
    out = io.StringIO()
    report.print(out)
    assert report
    here = os.getcwd()
    assert out.getvalue() == (f'Mismatches in :{here}/a.index\n  Index offset: 1, log offset: 3\n'
                              f'Non-consecutive offsets in {here}/b.log\n  3 is followed by 5\n'
                              f'  9 is followed by 12\n')


def test_the_report_of_4_2_has_the_last_finding_first_and_no_path_of_an_offset_that_is_not_found():
    report = ErrorReport('4.2')
    for index, log in ((5, 6), (9, 10), (5, 7)):
        report.mismatch('/a.index', index, log)
    report.gaps('/b.log').add(9, 12)
    report.gaps('/b.log').add(3, 5)
    report.not_found('/a.timeindex', 4, -1)
    assert list(report.lines()) == [
        'Mismatches in :/a.index', '  Index offset: 5, log offset: 7', '  Index offset: 9, log offset: 10',
        '  Index offset: 5, log offset: 6',
        'The following indexed offsets are not found in the log.', 'Indexed offset: 4, found log offset: -1',
        'Non-consecutive offsets in /b.log', '  3 is followed by 5', '  9 is followed by 12']


@pytest.mark.parametrize('suffix', ['.index', '.timeindex', '.txnindex', '.snapshot', '.log'])
def test_whatever_the_bytes_are_they_are_shown_or_said_to_be_corrupt(directory, suffix):
    """The random bytes are in the dumped file itself, or in the log to which the dumped index refers."""
    rng = random.Random(suffix)
    path = directory / (SECOND + suffix)
    good = path.read_bytes()
    for _ in range(300):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.choice((0, 0xff, 0x80, rng.randrange(256)))
        path.write_bytes(data[:rng.choice((len(data), rng.randrange(len(data))))])
        for shown in (path,) if suffix != '.log' else (path.with_suffix('.index'), path.with_suffix('.timeindex')):
            for options in ({}, {'index_sanity_check': True}):
                try:
                    dumped(shown, **options)
                except (CorruptLogError, KafkaError) as error:
                    assert str(error)
