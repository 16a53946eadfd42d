"""The values of the sink's protocol, the names of its transactional ids, and the interface to the broker.

A pair is a producer id and its epoch. The transactional ids are:

    <prefix>~d                                            the drivers: the plan that has their pair may decide
    <prefix>~t.<pid>.<epoch>.<partition>.<task attempt>   a task attempt of the plan that has the pair (pid, epoch)

The id of a task attempt is never used again. An older attempt that resumes can therefore not end the transaction of a
newer attempt.
"""
from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.producer_id import ProducerIdAndEpoch

VERSION = 1
JOB = 'job.'
QUERY = 'query.'
HANDLE_LEVEL = 2
"""The first transaction.version in which any process can end a transaction, if it knows the producer id and epoch
(KIP-890)."""
NO_TIMEOUT_MS = 2**31 - 1
"""The timeout in milliseconds that stands for a transaction in two-phase commit, which never times out (KIP-939)."""


class SinkError(KafkaError):
    """The sink refuses a step. No row of the unit becomes visible, unless a subclass says otherwise."""

    def __init__(self, message: str):
        super().__init__(ErrorCode.INVALID_REQUEST, message)


class LateError(SinkError):
    """The plan of a task can no longer decide. If the task were repeated, it would raise the same error."""


class DecidedError(SinkError):
    """A unit is decided, but ending the transactions of its tasks has failed. A repeated call can complete this."""


class LostRowsError(SinkError):
    """A unit is decided, but the transaction of one of its tasks was aborted, by its timeout or by an operator."""


class Commit(StrEnum):
    """The values of the option `commit`. It determines which process writes the rows of a task."""

    DRIVER = 'driver'
    PREPARED = 'prepared'
    AUTO = 'auto'


TOO_LARGE = {
    Commit.DRIVER: 'raise it, use commit=auto, or write smaller batches',
    Commit.AUTO: 'use commit=prepared, fewer tasks, or smaller batches',
    Commit.PREPARED: 'write smaller batches',
}
"""Maps the value of `commit` to the advice for rows that are too large for the driver."""


class Unit(NamedTuple):
    """The rows that are written exactly once as a whole: a micro-batch of a query, or a job."""

    owner: str
    """`query.<id>` for a query, `job.<idempotencyKey>` for a job, or `job.` for a job without this key."""
    batch: int = 0

    @property
    def is_repeatable(self) -> bool:
        """Return whether another plan may be made for the same unit."""
        return self.owner != JOB

    def __str__(self) -> str:
        if self.owner.startswith(QUERY):
            return f'micro-batch {self.batch} of query {self.owner.removeprefix(QUERY)}'
        return f'job {self.owner.removeprefix(JOB)!r}' if self.is_repeatable else 'the job'


class Handle(NamedTuple):
    """A reference to the transaction of one task attempt. Any process that has it can end the transaction."""

    transactional_id: str
    pair: ProducerIdAndEpoch


class OpenTransaction(NamedTuple):
    handle: Handle
    timeout_ms: int


def driver_id(prefix: str) -> str:
    """Return the transactional.id of the drivers of a prefix."""
    return f'{prefix}~d'


def tasks_of(prefix: str, pair: ProducerIdAndEpoch | None = None) -> str:
    """Return the text with which the transactional ids of tasks begin. If `pair` is given, it is for the tasks of the
    plan with this pair, otherwise for all tasks of the prefix."""
    return f'{prefix}~t.' if pair is None else f'{prefix}~t.{pair.producer_id}.{pair.producer_epoch}.'


@dataclass(frozen=True)
class Decision:
    """A row of the ledger. It has the last decided unit of an owner, which is a query or a job."""

    prefix: str
    unit: Unit
    rows: int
    pair: ProducerIdAndEpoch
    handles: tuple[Handle, ...] = ()
    """The transactions of tasks that are committed together with the unit."""
    time_ms: int | None = field(default=None, compare=False)
    """The time at which the row was written to the ledger. None before that."""

    def key(self) -> bytes:
        """Return the key of the row. No two owners have the same key, because a prefix has no `~`."""
        return f'{self.prefix}~{self.unit.owner}'.encode()

    def value(self) -> bytes:
        """Return the value of the row. The common beginning of the transactional ids is omitted."""
        beginning = tasks_of(self.prefix)
        return json.dumps({'version': VERSION, 'owner': self.unit.owner, 'batch': self.unit.batch, 'rows': self.rows,
                           'producer_id': self.pair.producer_id, 'producer_epoch': self.pair.producer_epoch,
                           'tasks': [[handle.transactional_id.removeprefix(beginning), *handle.pair]
                                     for handle in self.handles]}).encode()

    @classmethod
    def read(cls, key: bytes, value: bytes, time_ms: int | None = None) -> Decision:
        """Return the decision in a row of the ledger. Raise SinkError if the row has other content."""
        try:
            prefix, _, owner = key.decode().partition('~')
            found = json.loads(value)
            if found['version'] != VERSION or found['owner'] != owner:
                raise ValueError(f'version {found["version"]} of {found["owner"]!r}')
            return cls(prefix, Unit(owner, int(found['batch'])), int(found['rows']),
                       ProducerIdAndEpoch(int(found['producer_id']), int(found['producer_epoch'])),
                       tuple(Handle(tasks_of(prefix) + name, ProducerIdAndEpoch(int(producer_id), int(epoch)))
                             for name, producer_id, epoch in found['tasks']), time_ms)
        except (ValueError, KeyError, TypeError) as error:
            raise SinkError(f'the ledger has a row that the sink did not write, with key {key!r}: {error}') from None


class Visible(NamedTuple):
    """The decisions that are visible to a read_committed consumer now."""

    decisions: list[Decision]
    hides_some: bool
    """True if an open transaction in the ledger may hide decisions that are later than the transaction."""


def is_urgent(commit: Commit, is_two_phase: bool) -> bool:
    """Return whether a decision must be made within half of decisionMargin.

    This is necessary if transactions of tasks may time out. With commit=prepared it is always so, because other
    prefixes wait for the driver's transaction, which has only the row of the ledger.
    """
    return commit is Commit.PREPARED or (commit is Commit.AUTO and not is_two_phase)


@dataclass(frozen=True)
class Plan:
    """The right to decide a unit, and the decisions until now. Spark sends the plan to the tasks."""

    prefix: str
    cluster_id: str | None
    pair: ProducerIdAndEpoch
    decided: Mapping[str, int]
    """Maps an owner to its last decided batch number."""
    commit: Commit = Commit.DRIVER
    """The way in which tasks may write. With AUTO, each task chooses to stage or to write."""
    is_two_phase: bool = False
    """True if the transactions of tasks never time out (KIP-939)."""

    @property
    def is_urgent(self) -> bool:
        return is_urgent(self.commit, self.is_two_phase)

    def is_decided(self, unit: Unit) -> bool:
        return unit.is_repeatable and self.decided.get(unit.owner, -1) >= unit.batch


@dataclass(frozen=True)
class Staged:
    """The result of one task attempt: its staged rows, or its open transaction. Spark passes it from the task to the
    commit."""

    plan: Plan
    unit: Unit
    rows: int = 0
    chunks: tuple[bytes, ...] = ()
    highest_partitions: tuple[tuple[str, int], ...] = ()
    """(topic, highest partition number that a row names) for each topic of the staged rows. The number is -1 if no row
    names a partition."""
    handle: Handle | None = None
    late: str = ''
    """If the task was late, the reason why its plan can no longer decide. A late task has written nothing. Otherwise
    ''."""

    @property
    def is_skipped(self) -> bool:
        return self.plan.is_decided(self.unit)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.chunks))


class BrokerFacts(NamedTuple):
    """The properties of a cluster that determine how tasks can write."""

    cluster_id: str | None
    transaction_version: int
    has_two_phase: bool
    """True if the coordinator supports version 6 of InitProducerId (KIP-939)."""


class Store(Protocol):
    """The interface of the protocol to a broker. Each method raises KafkaError and ClientError."""

    def check_topic(self) -> None:
        """Raise SinkError if the topic of all rows does not exist. Do nothing if each row names its topic."""

    def broker(self, prefix: str) -> BrokerFacts:
        """Return the properties of the cluster. This call writes nothing to the cluster."""

    def fence(self, prefix: str, is_urgent: bool = False) -> ProducerIdAndEpoch:
        """Raise the epoch of the prefix's drivers, and end their open transaction. Return the new producer id and
        epoch.

        If `is_urgent`, the broker refuses the decision after half of decisionMargin.
        """

    def withdraw(self, prefix: str, pair: ProducerIdAndEpoch) -> None:
        """Abort the drivers' transaction of this pair, or prevent it from beginning. A transaction of another pair is
        not affected."""

    def pair(self, prefix: str) -> ProducerIdAndEpoch:
        """Return the pair (producer id and epoch) of the prefix's drivers."""

    def decisions(self, prefix: str) -> list[Decision]:
        """Return the committed rows of the prefix in the order of their decisions. All decisions that were made before
        the call are included."""

    def visible_decisions(self, prefix: str) -> Visible:
        """Return the rows that no open transaction hides. Wait only briefly for a transaction that is about to end."""

    def expiry_interval_ms(self, prefix: str) -> int | None:
        """Return the interval in milliseconds at which the coordinator of the drivers looks for expired transactions.
        Return None if the user may not describe the configs of the broker."""

    def write(self, staged: Sequence[Staged], decision: Decision, check: Callable[[], None]) -> None:
        """Write staged rows and the decision in one transaction, with the pair of the decision. Raise SinkError if the
        pair is fenced.

        `check` is called during the transaction, before its commit. If `check` raises an exception, nothing is decided.
        """

    def open_transactions(self, beginning: str, longer_than_ms: int = -1,
                          also: Collection[Handle] = ()) -> list[OpenTransaction]:
        """Return the open transactions whose ids begin with `beginning`. With `longer_than_ms`, return only
        transactions that have been open for longer than this time.

        The list of a broker can lack a transaction whose coordinator is moving to another broker. A transaction in
        `also` is therefore returned if it is open, even if the list lacks it.
        """

    def end(self, handles: Collection[Handle], commit: bool) -> list[Handle]:
        """Commit or abort transactions. Return the transactions that the broker has already ended the other way, or no
        longer knows."""

    def aborted(self, handles: Collection[Handle]) -> list[Handle]:
        """Return the transactions in `handles` that were aborted. All of them must have ended."""
