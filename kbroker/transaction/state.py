"""The life of one transactional.id: its states, what may follow what, and what each step may change.

    state              id  stored  entered from
    Empty               0  yes     Empty, CompleteCommit, CompleteAbort
    Ongoing             1  yes     Ongoing, Empty, CompleteCommit, CompleteAbort
    PrepareCommit       2  yes     Ongoing
    PrepareAbort        3  yes     Ongoing, PrepareEpochFence, Empty, CompleteCommit, CompleteAbort
    CompleteCommit      4  yes     PrepareCommit
    CompleteAbort       5  yes     PrepareAbort
    Dead                6  no      Empty, CompleteCommit, CompleteAbort
    PrepareEpochFence   7  no      Ongoing

      InitProducerId          partition added           EndTxn, or a fence       every marker durable
           |                        |                        |                          |
           v                        v                        v                          v
         Empty ----------------> Ongoing ---------+--> PrepareCommit ---------> CompleteCommit ---+
           ^                        ^             |                                               |
           |                        |             +--> PrepareAbort ----------> CompleteAbort ----+
           |                        |                        ^                                    |
           +------------------------+------------------------+------------------------------------+
             InitProducerId           the next transaction     an abort with nothing to abort (TV2)

A durable Prepare row is the point of no return: from there a restart can only finish what the row says. PrepareAbort
from Empty or Complete* is the empty abort of TV2, which exists to bump the epoch (KIP-890). PrepareEpochFence is what
InitProducerId and the timeout put into `pending` before they abort in the producer's place.

A step is *prepared* (`pending` holds the next row), appended to the log, and *completed* (adopted) once the row is
durable, or *abandoned*; a Complete row, which only repeats what is durable, once it is appended. While a row is pending
nothing else may happen to the id. `complete` refuses what no sound step can produce: that is a fault of this program,
never of a client.
"""
from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple

from kbroker.errors import ErrorCode, KafkaError

TopicPartition = tuple[str, int]

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIMESTAMP = -1
MAX_PRODUCER_EPOCH = 32767
"""Only ever used by the coordinator: in a fence, or in the last markers of a producer id."""
EXHAUSTED_PRODUCER_EPOCH = MAX_PRODUCER_EPOCH - 1
"""From here on the next bump a client would see needs a new producer id."""
NEVER_TIMES_OUT_MS = 2147483647
"""The timeout stored for a producer in two-phase commit (KIP-939), which only its own decision ends."""
EPOCH_BUMPS_FROM = 2
"""The transaction version from which each ending bumps the epoch (KIP-890)."""


class IllegalTransition(Exception):
    """A broken invariant of the coordinator: the message holds both rows."""


class TransactionState(enum.IntEnum):
    """A state's id, as the rows of `__transaction_state` carry it."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """The name that Kafka's tools show: 'PrepareCommit'."""
        return self.name.title().replace('_', '')


_S = TransactionState

IDLE = frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})
"""No transaction is open: the id may begin one, be initialised, or expire."""
PREPARED = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})
"""Decided, and not yet finished."""
COMPLETED = frozenset({_S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})
"""Finished: every partition knows."""

ENTERED_FROM: dict[TransactionState, frozenset[TransactionState]] = {
    _S.EMPTY: IDLE,
    _S.ONGOING: IDLE | {_S.ONGOING},
    _S.PREPARE_COMMIT: frozenset({_S.ONGOING}),
    _S.PREPARE_ABORT: IDLE | {_S.ONGOING, _S.PREPARE_EPOCH_FENCE},
    _S.COMPLETE_COMMIT: frozenset({_S.PREPARE_COMMIT}),
    _S.COMPLETE_ABORT: frozenset({_S.PREPARE_ABORT}),
    _S.DEAD: IDLE,
    _S.PREPARE_EPOCH_FENCE: frozenset({_S.ONGOING}),
}

STORED = frozenset(_S) - {_S.DEAD, _S.PREPARE_EPOCH_FENCE}
"""The states that a row may carry."""


class TransactionRow(NamedTuple):
    """Everything that is known of a transactional.id at one moment. All but `last_producer_epoch` is stored."""

    state: TransactionState
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    last_update_timestamp_ms: int
    start_timestamp_ms: int = NO_TIMESTAMP
    partitions: frozenset[TopicPartition] = frozenset()
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id before the last step: it differs from `producer_id` only after a rotation."""
    next_producer_id: int = NO_PRODUCER_ID
    """In a Prepare row whose epoch was exhausted: the producer id that follows once the transaction is complete."""
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch that the producer held before the last bump it was told of; not known after a reload."""
    client_transaction_version: int = 0

    @property
    def is_producer_epoch_exhausted(self) -> bool:
        return self.producer_epoch >= EXHAUSTED_PRODUCER_EPOCH

    @property
    def bumps_epoch(self) -> bool:
        return self.client_transaction_version >= EPOCH_BUMPS_FROM


class TransactionMetadata:
    """One transactional.id: the row in force, and the one that is on its way to the log."""

    __slots__ = ('current', 'has_failed_epoch_fence', 'pending', 'transactional_id')

    def __init__(self, transactional_id: str, current: TransactionRow):
        self.transactional_id = transactional_id
        self.current = current
        self.pending: TransactionRow | None = None
        self.has_failed_epoch_fence = False
        """A fence bumped the epoch in memory but never reached the log: the next fence must not bump again."""

    @classmethod
    def unborn(cls, transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> TransactionMetadata:
        """An id that has no row yet: its first InitProducerId gives it epoch 0."""
        return cls(transactional_id, TransactionRow(_S.EMPTY, producer_id, NO_PRODUCER_EPOCH, timeout_ms, now_ms))

    @property
    def is_born(self) -> bool:
        """Whether a row of it was ever in force: until then no producer can know of it."""
        return self.current.producer_epoch != NO_PRODUCER_EPOCH

    @property
    def is_dying(self) -> bool:
        """Whether it is about to expire: to everybody but the coordinator it is gone."""
        return self.pending is not None and self.pending.state is _S.DEAD

    def __repr__(self) -> str:
        return f'TransactionMetadata({self.transactional_id!r}, current={self.current}, pending={self.pending})'

    # -- steps: each sets `pending` and returns it ---------------------------------------------------------------

    def prepare_epoch_increment(self, timeout_ms: int, expected_epoch: int | None, now_ms: int) -> TransactionRow:
        """The next epoch for InitProducerId; `expected_epoch` is what the client believes to hold (KIP-360).

        A client that lost the answer asks with the epoch before the last bump, and gets the same answer again.
        Raises PRODUCER_FENCED for any other epoch than these two.
        """
        current = self.current
        if current.is_producer_epoch_exhausted and expected_epoch in (None, current.producer_epoch):
            raise IllegalTransition(f'{self!r}: an exhausted epoch cannot be incremented')
        if expected_epoch is None:
            epoch, last_epoch = current.producer_epoch + 1, NO_PRODUCER_EPOCH
        elif current.producer_epoch == NO_PRODUCER_EPOCH or expected_epoch == current.producer_epoch:
            epoch, last_epoch = current.producer_epoch + 1, current.producer_epoch
        elif expected_epoch == current.last_producer_epoch:
            epoch, last_epoch = current.producer_epoch, current.last_producer_epoch
        else:
            raise KafkaError(ErrorCode.PRODUCER_FENCED, f'found producer epoch {expected_epoch} for '
                             f'{self.transactional_id!r}, expected {current.producer_epoch}')
        return self._prepare(_emptied(current, timeout_ms, now_ms)._replace(
            producer_epoch=epoch, last_producer_epoch=last_epoch))

    def prepare_producer_id_rotation(self, producer_id: int, timeout_ms: int, keep_last_epoch: bool,
                                     now_ms: int) -> TransactionRow:
        """A new producer id at epoch 0, for InitProducerId at an exhausted epoch."""
        last_epoch = self.current.producer_epoch if keep_last_epoch else NO_PRODUCER_EPOCH
        return self._prepare(_emptied(self.current, timeout_ms, now_ms)._replace(
            producer_id=producer_id, producer_epoch=0, last_producer_epoch=last_epoch))

    def prepare_partitions(self, partitions: Iterable[TopicPartition], client_transaction_version: int,
                           now_ms: int) -> TransactionRow:
        """`partitions` join the open transaction, or begin one."""
        current = self.current
        start_ms = now_ms if current.state in IDLE else current.start_timestamp_ms
        return self._prepare(current._replace(
            state=_S.ONGOING, partitions=current.partitions.union(partitions), start_timestamp_ms=start_ms,
            last_update_timestamp_ms=now_ms, client_transaction_version=client_transaction_version))

    def prepare_epoch_fence(self) -> TransactionRow:
        """The epoch at which the coordinator itself will abort. Never stored: `prepare_end` or `abandon` follows."""
        epoch = self.current.producer_epoch
        if not self.has_failed_epoch_fence and epoch != MAX_PRODUCER_EPOCH:
            epoch += 1
        return self._prepare(self.current._replace(state=_S.PREPARE_EPOCH_FENCE, producer_epoch=epoch))

    def prepare_end(self, state: TransactionState, transaction_version: int, next_producer_id: int,
                    now_ms: int) -> TransactionRow:
        """The decision. With TV2 it bumps the epoch, so that nothing late can join the next transaction.

        A pending fence turns into the abort it was made for. Under TV0 and TV1 it fences in memory at once, even if
        the append then fails: refusing the old producer early is safe, and letting it go on is not (KAFKA-9666).
        Under TV2 the bump of the Prepare row is the fence, and bumping before would bump twice (KAFKA-19367).
        """
        fence = self._take_fence()
        bumps_epoch = transaction_version >= EPOCH_BUMPS_FROM
        if fence is not None and not bumps_epoch:
            self.current = self.current._replace(producer_epoch=fence.producer_epoch,
                                                 last_producer_epoch=NO_PRODUCER_EPOCH)
        current = self.current
        epoch, last_epoch = current.producer_epoch, current.last_producer_epoch
        if bumps_epoch:
            epoch, last_epoch = min(epoch + 1, MAX_PRODUCER_EPOCH), epoch
        start_ms = now_ms if current.state in IDLE else current.start_timestamp_ms
        return self._prepare(current._replace(
            state=state, producer_epoch=epoch, last_producer_epoch=last_epoch, next_producer_id=next_producer_id,
            start_timestamp_ms=start_ms, last_update_timestamp_ms=now_ms,
            client_transaction_version=EPOCH_BUMPS_FROM if bumps_epoch else 0))

    def prepare_complete(self, now_ms: int) -> TransactionRow:
        """The end of a decided transaction; a producer id reserved by the Prepare row takes over at epoch 0."""
        prepared = self.current
        self.has_failed_epoch_fence = False
        row = prepared._replace(
            state=_S.COMPLETE_COMMIT if prepared.state is _S.PREPARE_COMMIT else _S.COMPLETE_ABORT,
            partitions=frozenset(), last_update_timestamp_ms=now_ms, next_producer_id=NO_PRODUCER_ID)
        if prepared.next_producer_id != NO_PRODUCER_ID:
            row = row._replace(producer_id=prepared.next_producer_id, producer_epoch=0)
        return self._prepare(row)

    def prepare_dead(self) -> TransactionRow:
        """The id is about to expire."""
        return self._prepare(self.current._replace(state=_S.DEAD))

    # -- what follows a step -------------------------------------------------------------------------------------

    def complete(self) -> TransactionRow:
        """Adopt the pending row, now that it is durable. Raises IllegalTransition where no sound step leads to it."""
        row = self.pending
        if row is None or row.state not in STORED:
            raise IllegalTransition(f'{self!r}: there is no row to adopt')
        if not _ADOPTABLE[row.state](self.current, row):
            raise IllegalTransition(f'{self!r}: the pending row does not follow from the current one')
        self.current, self.pending = row, None
        return row

    def abandon(self) -> None:
        """The pending row did not reach the log."""
        self.pending = None

    def _take_fence(self) -> TransactionRow | None:
        if self.pending is None or self.pending.state is not _S.PREPARE_EPOCH_FENCE:
            return None
        fence, self.pending = self.pending, None
        return fence

    def _prepare(self, row: TransactionRow) -> TransactionRow:
        if self.pending is not None:
            raise IllegalTransition(f'{self!r}: cannot prepare {row.state.title} while a row is pending')
        if self.current.state not in ENTERED_FROM[row.state]:
            raise IllegalTransition(f'{self!r}: {row.state.title} cannot follow {self.current.state.title}')
        if row.producer_id < 0 or (row.producer_epoch < 0 and row.state is not _S.DEAD):
            raise IllegalTransition(f'{self!r}: no producer id or epoch in {row}')
        self.pending = row._replace(previous_producer_id=self.current.producer_id)
        return self.pending


def _emptied(current: TransactionRow, timeout_ms: int, now_ms: int) -> TransactionRow:
    return current._replace(state=_S.EMPTY, partitions=frozenset(), start_timestamp_ms=NO_TIMESTAMP,
                            timeout_ms=timeout_ms, last_update_timestamp_ms=now_ms, next_producer_id=NO_PRODUCER_ID)


def _same_producer(current: TransactionRow, row: TransactionRow) -> bool:
    return row.producer_id == current.producer_id and row.producer_epoch == current.producer_epoch


def _empty_follows(current: TransactionRow, row: TransactionRow) -> bool:
    same_or_next = row.producer_epoch in (current.producer_epoch, current.producer_epoch + 1)
    rotated = row.producer_epoch == 0 and row.producer_id != current.producer_id
    return (same_or_next or rotated) and not row.partitions and row.start_timestamp_ms == NO_TIMESTAMP


def _ongoing_follows(current: TransactionRow, row: TransactionRow) -> bool:
    return (_same_producer(current, row) and row.partitions >= current.partitions
            and row.timeout_ms == current.timeout_ms)


def _prepared_follows(current: TransactionRow, row: TransactionRow) -> bool:
    if row.bumps_epoch:
        producer_follows = (row.producer_id == current.producer_id
                            and row.last_producer_epoch == current.producer_epoch)
    else:
        producer_follows = _same_producer(current, row)
    is_empty_abort = row.state is _S.PREPARE_ABORT and row.bumps_epoch and current.state in IDLE
    return (producer_follows and row.partitions == current.partitions and row.timeout_ms == current.timeout_ms
            and (is_empty_abort or row.start_timestamp_ms == current.start_timestamp_ms))


def _completed_follows(current: TransactionRow, row: TransactionRow) -> bool:
    if row.bumps_epoch and row.producer_epoch == 0:
        producer_follows = (row.last_producer_epoch == current.last_producer_epoch
                            and row.previous_producer_id == current.producer_id)
    else:
        producer_follows = _same_producer(current, row)
    return (producer_follows and row.timeout_ms == current.timeout_ms and not row.partitions
            and row.start_timestamp_ms != NO_TIMESTAMP)


_ADOPTABLE = {
    _S.EMPTY: _empty_follows,
    _S.ONGOING: _ongoing_follows,
    _S.PREPARE_COMMIT: _prepared_follows,
    _S.PREPARE_ABORT: _prepared_follows,
    _S.COMPLETE_COMMIT: _completed_follows,
    _S.COMPLETE_ABORT: _completed_follows,
}
