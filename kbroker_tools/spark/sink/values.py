"""The values of the sink's protocol, the names of its transactional ids, and the broker as the protocol sees it.

    <prefix>~d                                            the drivers: their pair is the right to decide
    <prefix>~t.<pid>.<epoch>.<partition>.<task attempt>   a task attempt of the plan that has the pair (pid, epoch)

A task attempt has an id of its own, which is never used again: an older attempt that wakes up cannot end a newer one's
transaction.
"""
from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.producer_id import ProducerIdAndEpoch

VERSION = 1
JOB = 'job.'
QUERY = 'query.'
HANDLE_LEVEL = 2
"""The first transaction.version in which any process can end a transaction by its pair (KIP-890)."""
NO_TIMEOUT_MS = 2**31 - 1
"""The timeout of a transaction in two-phase commit (KIP-939)."""


class SinkError(KafkaError):
    """The sink refuses a step. None of the unit's rows becomes visible, unless a subclass says otherwise."""

    def __init__(self, message: str):
        super().__init__(ErrorCode.INVALID_REQUEST, message)


class LateError(SinkError):
    """A task's plan can no longer decide. Repeating the task would raise the same error."""


class DecidedError(SinkError):
    """A unit is decided, but ending its transactions has failed. A repeated call can finish it."""


class LostRowsError(SinkError):
    """A unit is decided, but a transaction of its tasks was aborted, by its timeout or by an operator."""


class Commit(StrEnum):
    """The values of the option `commit`, which says which process writes the rows of a task."""

    DRIVER = 'driver'
    PREPARED = 'prepared'
    AUTO = 'auto'


TOO_LARGE = {
    Commit.DRIVER: 'raise it, use commit=auto, or write smaller batches',
    Commit.AUTO: 'use commit=prepared, fewer tasks, or smaller batches',
    Commit.PREPARED: 'write smaller batches',
}
"""The remedies for rows that the driver cannot hold, by the way in which the tasks write."""


class Unit(NamedTuple):
    """The smallest amount of rows that is written exactly once: a micro-batch of a query, or a job."""

    owner: str
    """`query.<id>` for a query, `job.<idempotencyKey>` for a job, or `job.` for a job without a key."""
    batch: int = 0

    @property
    def is_repeatable(self) -> bool:
        """Return whether another plan may receive the same unit."""
        return self.owner != JOB

    def __str__(self) -> str:
        if self.owner.startswith(QUERY):
            return f'micro-batch {self.batch} of query {self.owner.removeprefix(QUERY)}'
        return f'job {self.owner.removeprefix(JOB)!r}' if self.is_repeatable else 'the job'


class Handle(NamedTuple):
    """The transaction of one task attempt. With it, any process can end the transaction."""

    transactional_id: str
    pair: ProducerIdAndEpoch


class OpenTransaction(NamedTuple):
    handle: Handle
    timeout_ms: int


def driver_id(prefix: str) -> str:
    """Return the transactional.id of the drivers of a prefix."""
    return f'{prefix}~d'


def tasks_of(prefix: str, pair: ProducerIdAndEpoch | None = None) -> str:
    """Return the beginning of the transactional ids of tasks: of one plan, or of all plans of the prefix."""
    return f'{prefix}~t.' if pair is None else f'{prefix}~t.{pair.producer_id}.{pair.producer_epoch}.'


@dataclass(frozen=True)
class Decision:
    """A row of the ledger: the last decided unit of an owner."""

    prefix: str
    unit: Unit
    rows: int
    pair: ProducerIdAndEpoch
    handles: tuple[Handle, ...] = ()
    """The transactions of tasks that are committed with the unit."""

    def key(self) -> bytes:
        """Return the key of the row. A prefix has no `~`, so no two owners share a key."""
        return f'{self.prefix}~{self.unit.owner}'.encode()

    def value(self) -> bytes:
        """Return the value of the row. It leaves out the common beginning of transactional ids."""
        beginning = tasks_of(self.prefix)
        return json.dumps({'version': VERSION, 'owner': self.unit.owner, 'batch': self.unit.batch, 'rows': self.rows,
                           'producer_id': self.pair.producer_id, 'producer_epoch': self.pair.producer_epoch,
                           'tasks': [[handle.transactional_id.removeprefix(beginning), *handle.pair]
                                     for handle in self.handles]}).encode()

    @classmethod
    def read(cls, key: bytes, value: bytes) -> Decision:
        """Read a row of the ledger. Raise SinkError for other content."""
        try:
            prefix, _, owner = key.decode().partition('~')
            found = json.loads(value)
            if found['version'] != VERSION or found['owner'] != owner:
                raise ValueError(f'version {found["version"]} of {found["owner"]!r}')
            return cls(prefix, Unit(owner, int(found['batch'])), int(found['rows']),
                       ProducerIdAndEpoch(int(found['producer_id']), int(found['producer_epoch'])),
                       tuple(Handle(tasks_of(prefix) + name, ProducerIdAndEpoch(int(producer_id), int(epoch)))
                             for name, producer_id, epoch in found['tasks']))
        except (ValueError, KeyError, TypeError) as error:
            raise SinkError(f'the ledger has a row that the sink did not write, with key {key!r}: {error}') from None


class Visible(NamedTuple):
    """The decisions that can be read now."""

    decisions: list[Decision]
    hides_some: bool
    """True if an open transaction in the ledger may hide later decisions."""


def is_urgent(commit: Commit, is_two_phase: bool) -> bool:
    """Return whether a decision must be made within half of decisionMargin.

    That is so if transactions of tasks may time out. It is also so with commit=prepared: the driver's transaction has
    nothing but the row of the ledger, for which other prefixes wait.
    """
    return commit is Commit.PREPARED or (commit is Commit.AUTO and not is_two_phase)


@dataclass(frozen=True)
class Plan:
    """The right to decide, and the decisions so far. Spark sends it to the tasks."""

    prefix: str
    cluster_id: str | None
    pair: ProducerIdAndEpoch
    decided: Mapping[str, int]
    """The last decided batch by owner."""
    commit: Commit = Commit.DRIVER
    """The way in which the tasks may write. AUTO allows both other ways."""
    is_two_phase: bool = False
    """True if the transactions of tasks have no timeout (KIP-939)."""

    @property
    def is_urgent(self) -> bool:
        return is_urgent(self.commit, self.is_two_phase)

    def is_decided(self, unit: Unit) -> bool:
        return unit.is_repeatable and self.decided.get(unit.owner, -1) >= unit.batch


@dataclass(frozen=True)
class Staged:
    """The staged rows of one task attempt, or its open transaction. Spark passes it from the task to the commit."""

    plan: Plan
    unit: Unit
    rows: int = 0
    chunks: tuple[bytes, ...] = ()
    highest_partitions: tuple[tuple[str, int], ...] = ()
    """The topics of the staged rows, each with the highest partition that a row names, or -1."""
    handle: Handle | None = None
    late: str = ''
    """The reason why the plan can no longer decide, if the task was late. The task has then written nothing."""

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
    """True if the coordinator serves InitProducerId 6 (KIP-939)."""


class Store(Protocol):
    """The broker, as the protocol sees it. Each method raises KafkaError and ClientError."""

    def check_topic(self) -> None:
        """Raise SinkError if the topic of all rows does not exist. Do nothing if each row names its own topic."""

    def broker(self, prefix: str) -> BrokerFacts:
        """Return the properties of the cluster. This writes nothing."""

    def fence(self, prefix: str, is_urgent: bool = False) -> ProducerIdAndEpoch:
        """Raise the epoch of the prefix's drivers, and settle their open transaction. Return the new producer id and
        epoch.

        The broker refuses an urgent decision after half of decisionMargin.
        """

    def withdraw(self, prefix: str, pair: ProducerIdAndEpoch) -> None:
        """Abort the drivers' transaction of this pair, or prevent it from beginning. Other pairs are not affected."""

    def pair(self, prefix: str) -> ProducerIdAndEpoch:
        """Return the producer id and epoch (the pair) of the prefix's drivers."""

    def decisions(self, prefix: str) -> list[Decision]:
        """Return the committed rows of the prefix in their order, including all that were decided before the call."""

    def visible_decisions(self, prefix: str) -> Visible:
        """Return the rows that no open transaction hides. Wait only for transactions that are about to end."""

    def expiry_interval_ms(self, prefix: str) -> int | None:
        """Return the interval at which the coordinator of the drivers looks for expired transactions.

        None if the user may not describe the broker's configs.
        """

    def write(self, staged: Sequence[Staged], decision: Decision, check: Callable[[], None]) -> None:
        """Write staged rows and the decision in one transaction of the decision's pair. Raise SinkError if the pair is
        fenced.

        `check` is called between the rows and the decision. If it raises, nothing is decided.
        """

    def open_transactions(self, beginning: str, longer_than_ms: int = -1,
                          also: Collection[Handle] = ()) -> list[OpenTransaction]:
        """Return the open transactions whose ids have this beginning, or only those that are open for longer.

        A list can lack a transaction whose coordinator moves to another broker. The transactions of `also` are returned
        if they are open, whether the list has them or not.
        """

    def end(self, handles: Collection[Handle], commit: bool) -> list[Handle]:
        """Commit or abort transactions. Return those that the broker has ended the other way, or no longer knows."""

    def aborted(self, handles: Collection[Handle]) -> list[Handle]:
        """Return which of these ended transactions were aborted."""
