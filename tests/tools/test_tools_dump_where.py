"""--where: the meaning of its terms. A dump begins to read a file at the first position at which, by the indexes, a
batch can match."""
import itertools

import pytest
from support.disk.segment_corpus import T, transactions
from test_tools_dump_log import dumped, offsets, segment

from kbroker.base.clock import ManualClock
from kbroker.log.append import Origin
from kbroker.log.fs import FileSystem
from kbroker.log.log import Log
from kbroker.record.batch import encode_batch
from kbroker.settings.config import Config
from kbroker.settings.topic_config import LogConfig
from kbroker_tools.dump.where import WhereError, parse_where

FIELDS = ('first_offset', 'last_offset', 'first_timestamp_ms', 'last_timestamp_ms', 'producer_id', 'transactional',
          'control')
LEAST, MOST = -(1 << 63), (1 << 63) - 1


def meaning(text):
    selection = parse_where(text)
    every = parse_where('offset>=' + str(LEAST))
    return {name: getattr(selection, name) for name in FIELDS if getattr(selection, name) != getattr(every, name)}


@pytest.mark.parametrize(('text', 'expected'), [
    ('offset>=100', {'first_offset': 100}),
    ('offset > 100 and offset < 200', {'first_offset': 101, 'last_offset': 199}),
    ('offset<=7,offset>=3', {'first_offset': 3, 'last_offset': 7}),
    ('offset=5', {'first_offset': 5, 'last_offset': 5}),
    ('OFFSET=5..9', {'first_offset': 5, 'last_offset': 9}),
    ('offset=..9', {'last_offset': 9}),
    ('offset=5..', {'first_offset': 5}),
    ('producer-id=1000 and transactional', {'producer_id': 1000, 'transactional': True}),
    ('producer_id==7 AND control', {'producer_id': 7, 'control': True}),
    ('time>=1700000000000', {'first_timestamp_ms': T}),
    ('time>=2023-11-14T22:13:20', {'first_timestamp_ms': T}),
    ('time=2023-11-14T22:13:20Z..2023-11-14T23:13:20.5+01:00', {'first_timestamp_ms': T, 'last_timestamp_ms': T + 500}),
    ('timestamp<2023-11-15', {'last_timestamp_ms': 1_700_006_400_000 - 1}),
    (f'offset<{LEAST} and offset>{MOST}', {'first_offset': MOST, 'last_offset': LEAST}),
])
def test_terms_mean_what_they_say(text, expected):
    assert meaning(text) == expected


@pytest.mark.parametrize(('text', 'quoted'), [
    ('ofset>=3', "'ofset'"), ('offset', "'offset' alone"), ('offset>=x', "'x'"),
    ('offset>3..4', "the range '3..4' after '>'"),
    ('producer-id>3', "'producer-id>'"), ('control=1', "'=' after 'control'"),
    ('offset>=1 offset<2', "'offset<2' at column 11"),
    ('', "'' at column 1"), ('offset>=1 and', "'' at column 14"),
    ('offset>=1,,control', "',control' at column 11"),
    ('>=3', "'>=3' at column 1"), ('time>=noon', "'noon'"), ('offset>=1' + '0' * 30, '10000'),
    ('offset>=', "'offset' alone")])
def test_a_term_that_cannot_be_read_is_quoted(text, quoted):
    with pytest.raises(WhereError) as error:
        parse_where(text)
    assert f'found {quoted}' in str(error.value)
    assert 'expected' in str(error.value)


@pytest.mark.parametrize(('where', 'expected'), [
    ('offset=4..8', [4, 5, 6, 7, 8]), ('control', [6, 13]), ('transactional and offset<20', [*range(14)]),
    ('producer-id=7', [*range(14, 20)]), ('producer-id=7,offset>17', [18, 19]),
    (f'time={T + 5} and offset<1000', [1, 8, 15, 21]),
    (f'time>{T + 9} and offset<1000', [6, 13]), ('offset<0', [])])
def test_records_are_chosen(where, expected, tmp_path):
    path = segment(tmp_path / 't-0', *transactions())
    code, text = dumped(tmp_path, path, where=where, deep_iteration=True)
    assert (code, offsets(text)) == (0, expected)
    assert dumped(tmp_path, path, where=where, json=True)[1].count('\n') == len(expected)


def test_a_choice_reports_no_gaps(tmp_path, capfd):
    path = segment(tmp_path / 't-0', *transactions())
    dumped(tmp_path, path, where='control', deep_iteration=True)
    assert capfd.readouterr().err == ''


def test_segments_outside_of_the_offsets_are_skipped(tmp_path):
    for base_offset in (0, 10, 20, 30):
        batch = encode_batch([(T, b'k', b'v')] * 10, base_offset=base_offset)
        segment(tmp_path / 't-0', batch, base_offset=base_offset)
    _, text = dumped(tmp_path, tmp_path / 't-0', where='offset=12..25', deep_iteration=True)
    assert text.count('Dumping') == 2
    assert offsets(text) == list(range(12, 26))


# ---- indexes

SEGMENT_BYTES = 24 * 1024 * 1024
RECORD_BYTES = 16_000


@pytest.fixture(scope='module')
def indexed(tmp_path_factory):
    """Return a segment of 24 MiB with its indexes. It has batches of one record, with timestamps a millisecond
    apart."""
    config = LogConfig(Config({}), {})
    log = Log(FileSystem(), str(tmp_path_factory.mktemp('logs') / 't-0'), 't', 0, config, ManualClock(T))
    for number in range(SEGMENT_BYTES // RECORD_BYTES):
        log.append_batch(encode_batch([(T + number, None, bytes(RECORD_BYTES))]), Origin.CLIENT, 0)
    log.close()
    return log.directory


def bytes_read():
    """Return the number of bytes that this process has read."""
    with open('/proc/self/io') as file:
        return next(int(line.split()[1]) for line in file if line.startswith('rchar'))


@pytest.mark.parametrize(('where', 'expected'), [
    ('offset>=1400', [*range(1400, SEGMENT_BYTES // RECORD_BYTES)]), ('offset=700..702', [700, 701, 702]),
    (f'time={T + 700}..{T + 702}', [700, 701, 702]),
    (f'time>{T + 1500}', [*range(1501, SEGMENT_BYTES // RECORD_BYTES)]),
    (f'time>={T + 700} and offset<702', [700, 701]), ('offset=0..1', [0, 1])])
def test_what_comes_before_is_not_read(where, expected, indexed, tmp_path):
    before = bytes_read()
    _, text = dumped(tmp_path, indexed, where=where, deep_iteration=True)
    read = bytes_read() - before
    assert offsets(text) == expected
    if 'time=' not in where:    # later batches may hold earlier times
        assert read < 4 * 1024 * 1024, read


@pytest.mark.parametrize(('index', 'time_index'), [*itertools.product(
    [b'', bytes(800), b'\x7f' * 800, b'\xff' * 11, None], [b'', bytes(1200), b'\xff' * 1200, None])])
def test_an_index_that_is_wrong_or_gone_changes_nothing(index, time_index, tmp_path):
    path = segment(tmp_path / 't-0', *[encode_batch([(T + offset, b'k', b'v')], base_offset=offset)
                                       for offset in range(50)])
    for suffix, content in (('.index', index), ('.timeindex', time_index)):
        if content is not None:
            path.with_suffix(suffix).write_bytes(content)
    for where in ('offset>=40', f'time>={T + 40}'):
        assert offsets(dumped(tmp_path, path, where=where, deep_iteration=True)[1]) == [*range(40, 50)]
