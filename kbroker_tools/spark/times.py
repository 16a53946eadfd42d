"""The conversion of times. The log has milliseconds and Spark has microseconds, both as 64-bit integers."""
from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker_tools.spark.messages import TimestampError

if TYPE_CHECKING:
    import pyarrow as pa

LATEST_MS = (2**63 - 1) // 1000
EARLIEST_MS = -LATEST_MS
OVERFLOWS = ('error', 'null')
"""The values of the option `timestampOverflow`."""


def spark_times(times_ms: pa.Array, overflow: str, where: str, offsets: pa.Array | None = None) -> pa.Array:
    """Convert times of the log, an array of int64, to timestamps of Spark.

    If `overflow` is 'null', a time that does not fit Spark's type becomes null. Otherwise raise TimestampError, which
    names the time and, if `offsets` are given, the offset. Such times come from writers that use nanoseconds instead of
    milliseconds.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    spark = pa.timestamp('us', tz='UTC')
    limits = pc.min_max(times_ms).as_py()
    if limits['min'] is not None and (limits['min'] < EARLIEST_MS or limits['max'] > LATEST_MS):
        is_kept = pc.and_(pc.greater_equal(times_ms, EARLIEST_MS), pc.less_equal(times_ms, LATEST_MS))
        if overflow == 'error':
            raise TimestampError(_wrong(times_ms, is_kept.index(False).as_py(), where, offsets))
        times_ms = pc.if_else(is_kept, times_ms, pa.scalar(None, pa.int64()))
    return times_ms.cast(pa.timestamp('ms', tz='UTC')).cast(spark)


def _wrong(times_ms: pa.Array, row: int, where: str, offsets: pa.Array | None) -> str:
    record = where if offsets is None else f'{where}, offset {offsets[row]}'
    return (f'{record}: found the timestamp {times_ms[row]} ms, expected one from {EARLIEST_MS} to {LATEST_MS}, '
            'because Spark counts microseconds. Was it written in another unit? With timestampOverflow=null it is '
            'null, and the column timestampMillis has the number')
