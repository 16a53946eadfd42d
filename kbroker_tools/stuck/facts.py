"""Facts about a partition and the transaction that holds its last stable offset: the input of `causes.judge`."""
from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kbroker.base.topic_partition import TopicPartition
from kbroker.client.descriptions import GroupMemberInfo, ProducerInfo, TransactionInfo
from kbroker_tools.base.view import PartitionOffsets

EXPIRY_INTERVAL_MS = 10_000
"""The default of transaction.abort.timed.out.transaction.cleanup.interval.ms."""
IDLE_STATES = frozenset({'Empty', 'CompleteCommit', 'CompleteAbort'})
DECIDED_STATES = frozenset({'PrepareCommit', 'PrepareAbort'})


@dataclass(frozen=True, slots=True)
class Marker:
    """A marker in the partition, which ends a transaction."""

    offset: int
    producer_epoch: int
    is_commit: bool
    timestamp_ms: int

    @property
    def title(self) -> str:
        return f'{"COMMIT" if self.is_commit else "ABORT"} marker at offset {self.offset}'


@dataclass(frozen=True, slots=True)
class LogEvidence:
    """Evidence in the partition's batches about the transaction that holds the partition."""

    producer_epoch: int
    """The epoch of the transaction's first batch."""
    base_sequence: int
    max_timestamp_ms: int
    records: int
    """The number of the producer's records from its first offset up to the high watermark."""
    is_counted: bool = True
    """False if `records` is too low, because counting stopped at a limit."""
    last_marker: Marker | None = None
    """The producer's last marker before the first offset."""
    has_earlier_data: bool = False
    """True if the producer wrote in the same epoch before the first offset."""
    is_whole: bool = True
    """True if the log was read from offset 0, so that anything not found does not exist."""
    is_ended: bool = False
    """True if a marker of the producer was appended after the first offset while the facts were gathered."""


@dataclass(frozen=True, slots=True)
class PastRow:
    """A row of `__transaction_state`. It names the producer id, or follows such a row of the same transactional.id."""

    transactional_id: str
    state: str | None
    """None for a tombstone, which deletes the id."""
    timestamp_ms: int
    producer_id: int = -1
    producer_epoch: int = -1
    partitions: frozenset[TopicPartition] = frozenset()
    bumps_epoch: bool = False
    """True if the transaction ends by the rules of TV2 (KIP-890)."""
    kept_by: tuple[int, int] | None = None
    """The producer id and epoch of the client that keeps a prepared transaction (KIP-939)."""


@dataclass(frozen=True, slots=True)
class StateLog:
    """The readable part of `__transaction_state`."""

    is_readable: bool = True
    has_rows: bool = True
    leader_epoch: int = -1
    """The epoch of the last batch in the id's partition, or -1 if unknown. The coordinator's epoch is this or
    higher."""
    past: tuple[PastRow, ...] = ()
    """Oldest first."""


@dataclass(frozen=True, slots=True)
class HeldGroup:
    """A consumer group with an offset in the partition."""

    group_id: str
    offset: int
    lag: int
    """The lag up to the high watermark."""
    members: tuple[GroupMemberInfo, ...] = ()
    """The members to which the partition is assigned."""
    is_past_end: bool = False
    """True if the log ends below the offset: it lost records, or the topic was created again."""


class Writer(NamedTuple):
    """A group whose offsets the transaction commits. Its members are the clients that produce."""

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
    """The producer whose open transaction begins first."""
    behind: tuple[ProducerInfo, ...] = ()
    """Other producers with an open transaction, sorted by its first offset."""
    behind_ids: tuple[str | None, ...] = ()
    """The transactional.ids of `behind`, each None if the coordinator does not have it."""
    log: LogEvidence | None = None
    transaction: TransactionInfo | None = None
    """The coordinator's state of the transactional.id that has the holder's producer id now."""
    state_log: StateLog = StateLog()
    marked_elsewhere: tuple[TopicPartition, ...] = ()
    """Other partitions of a decided transaction that have its marker."""
    groups: tuple[HeldGroup, ...] = ()
    unread_groups: tuple[str, ...] = ()
    """Groups whose offsets could not be read."""
    writers: tuple[Writer, ...] = ()
    expiry_interval_ms: int = EXPIRY_INTERVAL_MS
    command: str = 'kbroker-transactions --bootstrap-server HOST:PORT'
    """The beginning of every suggested command."""

    @property
    def name(self) -> str:
        return f'{self.topic}-{self.partition}'

    @property
    def held_offsets(self) -> int:
        return self.offsets.high_watermark - self.offsets.last_stable_offset

    @property
    def epoch(self) -> int:
        """Return the epoch in which the holder began the transaction."""
        assert self.holder is not None
        return self.log.producer_epoch if self.log else self.holder.producer_epoch

    @property
    def transactional_id(self) -> str | None:
        if self.transaction is not None:
            return self.transaction.transactional_id
        return self.state_log.past[-1].transactional_id if self.state_log.past else None

    @property
    def is_covered(self) -> bool:
        """Return True if the coordinator's transaction includes this partition."""
        return self.transaction is not None and (self.topic, self.partition) in self.transaction.partitions

    @property
    def expires_at_ms(self) -> int:
        assert self.transaction is not None
        return (self.transaction.start_timestamp_ms or 0) + self.transaction.timeout_ms

    @property
    def decision(self) -> PastRow | None:
        """Return the Prepare row of the holder's transaction that names this partition, if a Complete row followed
        it."""
        found = None
        for row, following in zip(self.state_log.past, self.state_log.past[1:], strict=False):
            if (row.state in DECIDED_STATES and following.state in IDLE_STATES
                    and (self.topic, self.partition) in row.partitions
                    and row.producer_epoch in (self.epoch, self.epoch + 1)):
                found = row
        return found

    @property
    def kept_by(self) -> tuple[int, int] | None:
        """Return the client that keeps the holder's transaction, if the last row of its id can be read."""
        return self.state_log.past[-1].kept_by if self.state_log.past else None

    @property
    def decided_at_ms(self) -> int | None:
        """Return the time of the last Prepare row."""
        for row in reversed(self.state_log.past):
            if row.state in DECIDED_STATES:
                return row.timestamp_ms
        return None
