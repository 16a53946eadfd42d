"""Turns of groups. In a turn, all operations that wait for one group run, and their rows are stored as one batch.

An operation is a function that takes the group, checks a request, and returns the rows that change the group. An
operation never changes the group itself: its rows are applied to a copy by `kinds`. An operation that raises KafkaError
therefore changes nothing. A long operation is a generator function that yields after each small part.

The operations of a turn run one after the other, on one copy of the group. Their rows are appended as one batch. When
the batch is durable, the copy replaces the group, and the operations are answered. Operations that arrive during a turn
may wait for the next turn.
"""
from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from kbroker.base.completion import Callback, Completion, complete
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work import LongWork, Pace, result_of
from kbroker.group.group import Group
from kbroker.group.kinds import Row, Steps
from kbroker.group.records import row_bytes
from kbroker.group.shard import Shard, coordinator_error
from kbroker.protocol.rows import encode_row_key, encode_row_value_in_slices
from kbroker.record.batch import HEADER_BYTES
from kbroker.security.escape import shown

log = logging.getLogger(__name__)

EncodedRow = tuple[bytes, bytes | None]

ROW_ELEMENTS = 4
"""The cost of encoding or applying a row, in elements of long work, without the cost of its length."""
BYTES_AN_ELEMENT = 256
"""The number of bytes of a row that cost one more element of long work."""
ANSWERS_A_PART = 16
LARGE_GROUP_BYTES = 1_000_000
"""If a group takes more bytes of memory than this, the work yields after the group was copied."""
ROW_VERSION = 0
"""The version in which the values of rows are encoded if operations return them as message objects. A classic group's
operation returns an encoded value instead."""


class Outcome(NamedTuple):
    """The result of an operation.

    * `rows`: the rows that change the group. The value of a row is bytes if the operation has already encoded it.
    * `after`: called when the rows are durable and applied, before the reply is sent. It arms timers, and must not
      raise.
    """

    rows: Sequence[Row] = ()
    reply: object = None
    after: Callable[[], None] | None = None
    group: Group | None = None
    """The group after the rows were applied, if the operation itself has applied them. Operations do so if a row takes
    long to apply."""


Operation = Callable[[Group | None], 'Steps[Outcome] | Outcome']


class _Ended(NamedTuple):
    """An operation that has run, with its outcome or its error, and its encoded rows."""

    done: Completion
    outcome: Outcome
    error: KafkaError | None = None
    encoded: Sequence[EncodedRow] = ()


def row_elements(row: EncodedRow) -> int:
    """Return the cost of encoding or applying a row, in elements of long work."""
    return ROW_ELEMENTS + row_bytes(row) // BYTES_AN_ELEMENT


class Turns:
    """The turns of all groups in a shard."""

    def __init__(self, shard: Shard, long_work: LongWork):
        self._shard = shard
        self._long_work = long_work
        self.lines: dict[str, deque[tuple[Operation, Completion]]] = {}
        """Maps a group id to the line of its waiting operations. A group has an entry from the arrival of an operation
        until all operations of the group are answered."""
        self._is_stopped = False

    def is_busy(self, group_id: str) -> bool:
        """Return whether an operation on the group is waiting, running or not answered yet."""
        return group_id in self.lines

    def submit(self, group_id: str, operation: Operation, done: Completion) -> None:
        """Run an operation in the group's next turn. `done` completes with the operation's reply when its rows are
        durable.

        If the operation or the append of its rows raises KafkaError, `done` completes with this error. If the operation
        raises any other error, the error is logged, and `done` completes with UNKNOWN_SERVER_ERROR. If the turn has no
        rows, `done` may complete before this method returns.
        """
        line = self.lines.get(group_id)
        if line is not None:
            line.append((operation, done))
            return
        line = self.lines[group_id] = deque([(operation, done)])
        self._long_work.start(self._work_off(group_id, line))

    def stop(self) -> None:
        """Refuse all waiting operations with NOT_COORDINATOR, because `__consumer_offsets` is closed or deleted."""
        self._is_stopped = True
        for line in list(self.lines.values()):
            while line:
                _, done = line.popleft()
                complete(done, KafkaError(ErrorCode.NOT_COORDINATOR, 'the coordinator has stopped'), None)

    def _work_off(self, group_id: str, line: deque[tuple[Operation, Completion]]) -> Steps[None]:
        """Run turns of the group until no operation waits for it."""
        left_over: _Ended | None = None
        while line or left_over is not None:
            turn = _Turn(self._shard, group_id)
            if left_over is not None:
                yield from turn.add(left_over)
            left_over = yield from self._run_operations(turn, line)
            error = (yield from self._append(turn)) if turn.rows else None
            if error is not None and left_over is not None:
                turn.ended.append(left_over)    # the left-over rows build on the copy, which is discarded
                left_over = None
            yield from self._answer(turn, error)
        del self.lines[group_id]

    def _run_operations(self, turn: _Turn, line: deque[tuple[Operation, Completion]]) -> Steps[_Ended | None]:
        """Run waiting operations until one has more rows than fit in the turn's batch. Return this operation. If the
        rows of all waiting operations fit, return None."""
        while line and not self._is_stopped:
            operation, done = line.popleft()
            ended = yield from turn.run(operation, done)
            if not turn.has_room_for(ended):
                return ended
            yield from turn.add(ended)
            if line:
                yield
        return None

    def _append(self, turn: _Turn) -> Steps[KafkaError | None]:
        """Append the rows of the turn, and wait until they are durable and the copy has replaced the group. Return
        None, or the error of the append."""
        error, _ = yield from result_of(
            lambda done: self._shard.append_rows(
                turn.rows, partial(self._shard.adopt_group, turn.group_id, turn.group), Callback(done)))
        return None if error is None else coordinator_error(error)

    def _answer(self, turn: _Turn, error: KafkaError | None) -> Steps[None]:
        for number, ended in enumerate(turn.ended):
            if number and number % ANSWERS_A_PART == 0:
                yield
            refused = error or ended.error
            if refused is None and ended.outcome.after is not None:
                ended.outcome.after()
            complete(ended.done, refused, None if refused is not None else ended.outcome.reply)


class _Turn:
    """One turn of a group: the copy of the group on which the turn's operations run, and their rows."""

    def __init__(self, shard: Shard, group_id: str):
        self.rows: list[EncodedRow] = []
        self.ended: list[_Ended] = []
        self._shard = shard
        self.group_id = group_id
        self.group: Group | None = shard.groups.get(group_id)
        self._left_bytes = shard.partition.max_message_bytes - HEADER_BYTES

    def run(self, operation: Operation, done: Completion) -> Steps[_Ended]:
        """Run an operation on the copy, and encode its rows. Return the operation with its outcome or its error."""
        try:
            outcome = operation(self.group)
            if not isinstance(outcome, Outcome):
                outcome = yield from outcome
            encoded = yield from self._encode(outcome.rows)
        except KafkaError as error:
            return _Ended(done, Outcome(), error.with_traceback(None))
        except Exception as error:
            # Any error except KafkaError is a fault in the operation's code. Operations and the encoding of rows change
            # no state, so the group is still valid, and the remaining operations of the turn run. `dispatch` treats
            # faults of handlers in the same way.
            log.exception('an operation on group %s failed', shown(self.group_id))
            return _Ended(done, Outcome(), KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)))
        return _Ended(done, outcome, None, encoded)

    def _encode(self, rows: Sequence[Row]) -> Steps[list[EncodedRow]]:
        encoded: list[EncodedRow] = []
        pace = Pace()
        left_bytes = self._shard.partition.max_message_bytes - HEADER_BYTES
        for key, value in rows:
            if value is not None and not isinstance(value, bytes):
                value = yield from encode_row_value_in_slices(value, ROW_VERSION)
            row = encode_row_key(key), value
            encoded.append(row)
            left_bytes -= row_bytes(row)
            if left_bytes < 0:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR,
                                 f'group {self.group_id}: {len(rows)} rows exceed max.message.bytes='
                                 f'{self._shard.partition.max_message_bytes}')
            if pace.spend(row_elements(row)):
                yield
        return encoded

    def has_room_for(self, ended: _Ended) -> bool:
        return sum(map(row_bytes, ended.encoded)) <= self._left_bytes

    def add(self, ended: _Ended) -> Steps[None]:
        """Apply the rows of an operation to the copy of the group. If they are the first rows of the turn, make the
        copy first."""
        self.ended.append(ended)
        made = ended.outcome.group
        if made is None and ended.encoded and not self.rows and self.group is not None:
            self.group = self.group.copy()
            if self.group.held_bytes > LARGE_GROUP_BYTES:
                yield
        self.rows += ended.encoded
        self._left_bytes -= sum(map(row_bytes, ended.encoded))
        if made is not None:
            self.group = made
            return
        pace = Pace()
        for (key, value), encoded in zip(ended.outcome.rows, ended.encoded, strict=True):
            self.group = self._shard.kinds.apply_row(self.group, key, value)
            if pace.spend(row_elements(encoded)):
                yield
