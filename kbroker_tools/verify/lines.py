"""The format of a history. Each line is a JSON object, which is written when the operation that it describes has ended.

    type         fields
    start        format, partitions (names, by index), run (servers, seed, workloads, ...)
    producer     producer, transactional_id or null, client, begin, end: when the transactional id was claimed
    transaction  transaction, producer, begin, commit or null, end, outcome, writes, and of a transform: group,
                 consumed [partition, from, to, ...], sources [number, partition, offset, ...]
    sends        producer, writes: records outside transactions
    reader       reader, isolation, client, is_final
    poll         reader, transaction or null, begin, end, seek [partition, offset, ...], reads
    end          reader, ends [partition, reached offset, expected offset, ...]: how far a final reader got
    stable       partition, stable, high: last stable offset and high watermark, when every transaction has ended
    committed    group, offsets [partition, offset, ...]: at the end of the run
    unstable     group: a transaction holds its offsets, after every transaction has ended or timed out
    sharer       sharer, group, client: a member of a share group
    deliveries   sharer, since, end, reads: the result of a poll, which was requested after the time `since`
    outcomes     sharer, begin, end, is_confirmed, settled [partition, offset, ...]: records accepted or rejected
    shared       group, limit, starts [partition, start offset, ...]: at the end of the run
    fault        fault, begin, end, detail
    finish       nothing: the run was not interrupted

Times are microseconds since the start of the run, from a clock that does not jump. `commit` is the time at which the
commit was requested.

`writes` is a flat list with the four values `number, partition, offset, sent` for each record. `reads` has a list
`partition, [offsets], [numbers]` for each partition. In `deliveries`, the delivery count follows the numbers.

Records, transactions, producers and readers are numbered from 0, without gaps. A producer numbers its records in the
order in which it sends them. A record that no producer of the run has sent has the number -1.
"""
from __future__ import annotations

import enum

FORMAT = 1

NOT_ACKNOWLEDGED = -1
ACKNOWLEDGED_WITHOUT_OFFSET = -2
FOREIGN = -1
"""The number of a record that no producer of the run has sent."""

READ_COMMITTED = 'read_committed'
READ_UNCOMMITTED = 'read_uncommitted'


class Outcome(enum.IntEnum):
    """The end of a transaction, as its client knows it."""

    UNKNOWN = 0
    COMMITTED = 1
    ABORTED = 2


OUTCOMES = {outcome.name.lower(): outcome for outcome in Outcome}
