"""Facts about a partition and about the transaction that holds its last stable offset. `causes.judge` reads them."""
from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kbroker.base.topic_partition import TopicPartition
from kbroker.client.descriptions import GroupMemberInfo, ProducerInfo, TransactionInfo
from kbroker_tools.base.view import PartitionOffsets

EXPIRY_INTERVAL_MS = 10_000
"""The default of the setting transaction.abort.timed.out.transaction.cleanup.interval.ms."""
IDLE_STATES = frozenset({'Empty', 'CompleteCommit', 'CompleteAbort'})
DECIDED_STATES = frozenset({'PrepareCommit', 'PrepareAbort'})


@dataclass(frozen=True, slots=True)
class Marker:
    """A transaction marker in the partition."""

    offset: int
    producer_epoch: int
    is_commit: bool
    timestamp_ms: int

    @property
    def title(self) -> str:
        return f'{"COMMIT" if self.is_commit else "ABORT"} marker at offset {self.offset}'


@dataclass(frozen=True, slots=True)
class LogEvidence:
    """Evidence in the log of the partition about the transaction that holds its last stable offset."""

    producer_epoch: int
    """The producer epoch of the transaction's first batch."""
    base_sequence: int
    max_timestamp_ms: int
    records: int
    """The number of records that the producer has written, from the transaction's first offset to the high
    watermark."""
    is_counted: bool = True
    """False if `records` is too low because the count stopped at a limit."""
    last_marker: Marker | None = None
    """The last marker of the producer before the transaction's first offset."""
    has_earlier_data: bool = False
    """True if the producer wrote with the same epoch before the transaction's first offset."""
    is_whole: bool = True
    """True if the log was read from offset 0. Evidence that was not found then does not exist."""
    is_ended: bool = False
    """True if a marker of the producer was appended after the transaction's first offset, while the facts were
    gathered."""


@dataclass(frozen=True, slots=True)
class PastRow:
    """A row of `__transaction_state` that is evidence. It has the holder's producer id, or it follows a row with this
    producer id and has the same transactional.id."""

    transactional_id: str
    state: str | None
    """The state in the row. None for a tombstone, which deletes the transactional.id."""
    timestamp_ms: int
    producer_id: int = -1
    producer_epoch: int = -1
    partitions: frozenset[TopicPartition] = frozenset()
    bumps_epoch: bool = False
    """True if the transaction ends by the rules of transaction.version 2 (KIP-890)."""
    kept_by: tuple[int, int] | None = None
    """The producer id and epoch of the client that has prepared the transaction and may complete it (KIP-939)."""


@dataclass(frozen=True, slots=True)
class StateLog:
    """The part of `__transaction_state` that could be read."""

    is_readable: bool = True
    has_rows: bool = True
    leader_epoch: int = -1
    """The leader epoch of the last batch in the partition of the transactional.id. The epoch of the coordinator is not
    lower. -1 if unknown."""
    past: tuple[PastRow, ...] = ()
    """Oldest first."""


@dataclass(frozen=True, slots=True)
class HeldGroup:
    """A consumer group that has committed an offset in the partition."""

    group_id: str
    offset: int
    lag: int
    """The number of offsets from the committed offset to the high watermark."""
    members: tuple[GroupMemberInfo, ...] = ()
    """The members of the group to which the partition is assigned."""
    is_past_end: bool = False
    """True if the committed offset is above the end of the log. The log has then lost records, or the topic was created
    again."""


class Writer(NamedTuple):
    """A consumer group whose offsets the transaction commits. The members of the group are the clients that use the
    producer."""

    group_id: str
    members: tuple[GroupMemberInfo, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    topic: str
    partition: int
    now_ms: int
    offsets: PartitionOffsets
    is_live: bool = True
    holder: ProducerInfo | None = None
    """The producer of the first open transaction, which holds the last stable offset."""
    behind: tuple[ProducerInfo, ...] = ()
    """The producers of the other open transactions, sorted by the first offset of their transactions."""
    behind_ids: tuple[str | None, ...] = ()
    """The transactional.id of each producer in `behind`. None if the coordinator does not know the producer."""
    log: LogEvidence | None = None
    transaction: TransactionInfo | None = None
    """The coordinator's state of the transactional.id to which the holder's producer id belongs now."""
    state_log: StateLog = StateLog()
    marked_elsewhere: tuple[TopicPartition, ...] = ()
    """The other partitions of a decided transaction in which its marker has been written."""
    groups: tuple[HeldGroup, ...] = ()
    unread_groups: tuple[str, ...] = ()
    """The groups whose offsets could not be read."""
    writers: tuple[Writer, ...] = ()
    expiry_interval_ms: int = EXPIRY_INTERVAL_MS
    command: str = 'kbroker-transactions --bootstrap-server HOST:PORT'
    """The beginning of the command lines in the advice."""

    @property
    def name(self) -> str:
        return f'{self.topic}-{self.partition}'

    @property
    def held_offsets(self) -> int:
        return self.offsets.high_watermark - self.offsets.last_stable_offset

    @property
    def epoch(self) -> int:
        """Return the producer epoch with which the holder began the transaction."""
        assert self.holder is not None
        return self.log.producer_epoch if self.log else self.holder.producer_epoch

    @property
    def transactional_id(self) -> str | None:
        if self.transaction is not None:
            return self.transaction.transactional_id
        return self.state_log.past[-1].transactional_id if self.state_log.past else None

    @property
    def is_covered(self) -> bool:
        """Return True if the transaction of the coordinator includes this partition."""
        return self.transaction is not None and (self.topic, self.partition) in self.transaction.partitions

    @property
    def expires_at_ms(self) -> int:
        assert self.transaction is not None
        return (self.transaction.start_timestamp_ms or 0) + self.transaction.timeout_ms

    @property
    def decision(self) -> PastRow | None:
        """Return the Prepare row that ended the holder's transaction in this partition. Return None unless a Complete
        row follows it."""
        found = None
        for row, following in zip(self.state_log.past, self.state_log.past[1:], strict=False):
            if (row.state in DECIDED_STATES and following.state in IDLE_STATES
                    and (self.topic, self.partition) in row.partitions
                    and row.producer_epoch in (self.epoch, self.epoch + 1)):
                found = row
        return found

    @property
    def kept_by(self) -> tuple[int, int] | None:
        """Return the producer id and epoch of the client that has prepared the holder's transaction (KIP-939). Return
        None if no row can be read."""
        return self.state_log.past[-1].kept_by if self.state_log.past else None

    @property
    def decided_at_ms(self) -> int | None:
        """Return the time of the last Prepare row."""
        for row in reversed(self.state_log.past):
            if row.state in DECIDED_STATES:
                return row.timestamp_ms
        return None
