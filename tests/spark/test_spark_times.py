"""Times are milliseconds in the log and microseconds in Spark. No conversion between them overflows and wraps
around."""
import pyarrow as pa
import pytest
from spark_rows import WHEN_MS, LogFiles, as_time, make_reader, rows

from kbroker_tools.spark.messages import TimestampError
from kbroker_tools.spark.options import OptionError, parse_options
from kbroker_tools.spark.sink.rows import RowChecks
from kbroker_tools.spark.sink.values import SinkError
from kbroker_tools.spark.times import EARLIEST_MS, LATEST_MS, spark_times

NANOSECONDS = WHEN_MS * 1_000_000
"""The present time in nanoseconds. A writer passed it as milliseconds."""
UTC_TIME = pa.timestamp('us', tz='UTC')


@pytest.fixture
def log(tmp_path):
    """Return a topic with three records. The second one has nanoseconds instead of milliseconds as its timestamp."""
    files = LogFiles(tmp_path)
    files.write('first')
    files.write('second', at_ms=NANOSECONDS - WHEN_MS)
    files.write('third')
    files.flush()
    return tmp_path


def test_a_time_that_spark_cannot_have_is_an_error_that_names_its_record(log):
    """The conversion to microseconds once overflowed and wrapped around, so that the record had a wrong date."""
    with pytest.raises(TimestampError, match=rf'^topic-0, offset 1: found the timestamp {NANOSECONDS} ms, expected'):
        rows(path=log)
    with pytest.raises(TimestampError, match=rf'^topic-0: found the timestamp {NANOSECONDS} ms'):
        rows(['timestamp'], path=log)
    assert [row['value'] for row in rows(['value'], path=log)] == [b'first', b'second', b'third']


def test_with_null_its_milliseconds_are_a_column_of_their_own(log):
    found = rows(path=log, timestampOverflow='null', includeTimestampMillis='true')
    assert [(row['timestamp'], row['timestampMillis']) for row in found] == [
        (as_time(0), WHEN_MS), (None, NANOSECONDS), (as_time(0), WHEN_MS)]
    assert [row['timestampMillis'] for row in rows(['timestampMillis'], path=log)] == [WHEN_MS, NANOSECONDS, WHEN_MS]


def test_a_table_of_the_log_has_the_same_choice(log):
    with pytest.raises(TimestampError, match=r'^table batches, column base_timestamp: found the timestamp 17\d+ ms'):
        rows(table='batches', path=log)
    found = rows(table='batches', path=log, timestampOverflow='null')
    assert [row['max_timestamp'] for row in found] == [as_time(0), None, as_time(0)]


@pytest.mark.parametrize('at_ms', [EARLIEST_MS, -1, 0, LATEST_MS])
def test_the_first_and_the_last_time_of_spark_are_kept(at_ms):
    found = spark_times(pa.array([at_ms], pa.int64()), 'error', 'topic-0')
    assert (found.type, found.cast(pa.int64()).to_pylist()) == (UTC_TIME, [1000 * at_ms])


@pytest.mark.parametrize('at_ms', [-2**63, EARLIEST_MS - 1, LATEST_MS + 1, 2**63 - 1])
def test_the_times_next_to_them_are_not(at_ms):
    times_ms = pa.array([None, 5, at_ms], pa.int64())
    with pytest.raises(TimestampError, match=f'found the timestamp {at_ms} ms'):
        spark_times(times_ms, 'error', 'topic-0')
    assert spark_times(times_ms, 'null', 'topic-0').cast(pa.int64()).to_pylist() == [None, 5000, None]


@pytest.mark.parametrize('name', ['startingTimestamp', 'endingTimestamp', 'startingOffsetsByTimestamp',
                                  'endingOffsetsByTimestamp', 'startingOffsets', 'endingOffsets'])
@pytest.mark.parametrize('number', [-3, 2**63])
def test_a_number_that_the_protocol_does_not_have_is_refused_as_an_option(name, number):
    """A negative timestamp once reached the broker, where negative timestamps have special meanings such as
    "latest"."""
    text = str(number) if name.endswith('Timestamp') and 'By' not in name else f'{{"topic":{{"0":{number}}}}}'
    with pytest.raises(OptionError, match=f'option {name}: found .*, expected'):
        parse_options({'path': '/data', name: text})
    largest = text.replace(str(number), str(2**63 - 1))
    assert parse_options({'path': '/data', name: largest}).is_given(name)


@pytest.mark.parametrize(('name', 'text'), [('maxOffsetsPerTrigger', str(2**63)), ('maxBytesPerTrigger', '9999999t')])
def test_a_number_that_spark_does_not_have_is_refused_as_an_option(name, text):
    with pytest.raises(OptionError, match=f'option {name}: found .*, expected .*{2**63 - 1}'):
        parse_options({'path': '/data', name: text})


def test_a_log_without_records_of_the_time_that_was_given_in_nanoseconds_says_so(tmp_path):
    LogFiles(tmp_path).write('only')
    with pytest.raises(OptionError, match=f'has no record at or after {NANOSECONDS}'):
        make_reader(path=tmp_path, startingTimestamp=NANOSECONDS).partitions()


def checked(*times_us):
    """Return the milliseconds that the sink writes for the timestamps `times_us` in microseconds."""
    columns = {'value': pa.array([b'v'] * len(times_us)), 'timestamp': pa.array(times_us, UTC_TIME)}
    return RowChecks('topic', 1000).checked(pa.RecordBatch.from_pydict(columns))['timestamp'].to_pylist()


def test_the_sink_writes_the_whole_range_of_spark_s_times_in_milliseconds():
    assert checked(0, 999, None, 2**63 - 1) == [0, 0, None, LATEST_MS]


@pytest.mark.parametrize('at_us', [-1, -1000, -2**63])
def test_the_sink_refuses_a_time_before_1970_by_any_microsecond(at_us):
    """The sink once wrote a time in the last millisecond before 1970 as the first millisecond of 1970."""
    with pytest.raises(SinkError, match=f'found a row with the timestamp {at_us // 1000} ms, expected none before'):
        checked(at_us)
