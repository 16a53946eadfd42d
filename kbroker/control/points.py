"""The points at which a test can hold operations of the broker or make them fail.

The documentation shows this table.
"""
from __future__ import annotations

from typing import Any, NamedTuple

HOLD, DELAY, ERROR, DROP, KILL, PAUSE = 'hold', 'delay', 'error', 'drop', 'kill', 'pause'
FAIL, FULL = 'fail', 'full'
ACTIONS = {
    HOLD: 'the operation waits until the rule is released or removed',
    DELAY: 'the operation waits for `delay_ms`',
    ERROR: 'the request is answered with `error` and has no effect',
    DROP: 'the connection of the request is closed',
    KILL: 'the operation stops, and the process of the broker ends as with SIGKILL',
    PAUSE: 'the process of the broker stops as with SIGSTOP, until SIGCONT',
    FAIL: 'the operation of the disk fails with an input/output error',
    FULL: 'the operation of the disk fails because the disk is full',
}
"""Maps each action to what it does to an operation."""
ANY_POINT = (HOLD, DELAY, KILL, PAUSE)
REQUEST_FACTS = ('api', 'version', 'client_id', 'correlation_id', 'topic', 'partition', 'group', 'transactional_id',
                 'producer_id', 'producer_epoch', 'targets', 'groups', 'transactional_ids')
PARTITION_FACTS = ('topic', 'partition', 'offset')
TRANSACTION_FACTS = ('transactional_id', 'producer_id', 'producer_epoch')
COMMON_FACTS = ('point', 'number', 'occurrence', 'wall_ms')
"""The facts that each step has. `number` counts all steps. `occurrence` counts the steps with the same point, API,
client id, topic, partition, group and transactional id.
"""


class Point(NamedTuple):
    """A named place that operations pass.

    * `meaning`: the operation, and what has happened when it arrives.
    * `facts`: the facts that a step may have in addition to COMMON_FACTS.
    """

    name: str
    meaning: str
    facts: tuple[str, ...]
    actions: tuple[str, ...]

    def describe(self) -> dict[str, Any]:
        """Return the point as an object of JSON."""
        return {'name': self.name, 'meaning': self.meaning, 'facts': [*COMMON_FACTS, *self.facts],
                'actions': list(self.actions)}


POINTS = {point.name: point for point in (
    Point('request', 'a request was read and has had no effect', REQUEST_FACTS,
          (HOLD, DELAY, ERROR, DROP, KILL, PAUSE)),
    Point('reply', 'a request has had its effect, and its reply has not left', REQUEST_FACTS,
          (HOLD, DELAY, DROP, KILL, PAUSE)),
    Point('append.written', 'appends to a partition are written, and their sync has not begun', PARTITION_FACTS,
          ANY_POINT),
    Point('append.durable', 'appends to a partition are synced, and the high watermark has not moved', PARTITION_FACTS,
          ANY_POINT),
    Point('transaction.prepared', 'the decision to commit or abort is durable. It was not answered, and no marker is '
          'written', TRANSACTION_FACTS, ANY_POINT),
    Point('transaction.marker', 'the marker of one partition is about to be written',
          (*TRANSACTION_FACTS, 'topic', 'partition'), ANY_POINT),
    Point('transaction.marked', 'all markers of a transaction are durable, and it is not complete', TRANSACTION_FACTS,
          ANY_POINT),
    Point('offsets.committing', 'offsets are about to be written, by OffsetCommit or TxnOffsetCommit', REQUEST_FACTS,
          ANY_POINT),
    Point('offsets.committed', 'the offsets are durable, and the request is not answered', REQUEST_FACTS, ANY_POINT),
    Point('group.rebalance', 'a rebalance is about to begin a new generation or a new epoch of a group', ('group',),
          ANY_POINT),
    Point('sync', 'files of a partition are about to be synced', PARTITION_FACTS, (DELAY, FAIL)),
    Point('write', 'bytes are about to be written to a file of a partition', PARTITION_FACTS, (FULL,)),
)}
"""All points by name."""
