"""The protocol of the sink, without Spark and without a broker: plan, stage, commit.

    plan(store, ...)         the pair of the driver's transactional.id rises, which fences every older plan.
                             Then the decisions are read: all that the fenced plans have made are among them.
    stage(plan, unit, ...)   a unit that is decided is skipped. A unit is a micro-batch of a query, or a job.
    commit(store, staged)    rows and decision in one transaction, under the pair of the plan

Two plans never decide the same unit. The later one read the ledger after it had fenced the earlier one: either it found
the decision and skipped the unit, or the earlier plan can no longer make it.
"""
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kbroker.client.producer_id import ProducerIdAndEpoch
from kbroker.errors import ErrorCode, KafkaError

VERSION = 1
JOB = 'job.'
QUERY = 'query.'


class SinkError(KafkaError):
    """The sink refuses a step. Nothing of its unit becomes visible."""

    def __init__(self, message: str):
        super().__init__(ErrorCode.INVALID_REQUEST, message)


class Unit(NamedTuple):
    """The smallest thing that is written exactly once: a micro-batch of a query, or a job."""

    owner: str
    """`query.<id>`, or `job.<idempotencyKey>`, or `job.` for a job without a key."""
    batch: int = 0

    @property
    def is_repeatable(self) -> bool:
        """Return whether another plan may be asked for the same unit."""
        return self.owner != JOB


@dataclass(frozen=True)
class Decision:
    """A row of the ledger: the last decided unit of an owner."""

    prefix: str
    unit: Unit
    rows: int
    pair: ProducerIdAndEpoch

    def key(self) -> bytes:
        """Return the key of the row. A prefix has no `~`, so no two owners share a key."""
        return f'{self.prefix}~{self.unit.owner}'.encode()

    def value(self) -> bytes:
        return json.dumps({'version': VERSION, 'owner': self.unit.owner, 'batch': self.unit.batch, 'rows': self.rows,
                           'producer_id': self.pair.producer_id, 'producer_epoch': self.pair.producer_epoch}).encode()

    @classmethod
    def read(cls, key: bytes, value: bytes) -> Decision:
        """Read a row of the ledger. SinkError for other content."""
        try:
            prefix, _, owner = key.decode().partition('~')
            found = json.loads(value)
            if found['version'] != VERSION or found['owner'] != owner:
                raise ValueError(f'version {found["version"]} of {found["owner"]!r}')
            return cls(prefix, Unit(owner, int(found['batch'])), int(found['rows']),
                       ProducerIdAndEpoch(int(found['producer_id']), int(found['producer_epoch'])))
        except (ValueError, KeyError, TypeError) as error:
            raise SinkError(f'the ledger has a row that the sink did not write, with key {key!r}: {error}') from None


@dataclass(frozen=True)
class Plan:
    """The right to decide, and the decisions so far. Spark sends it to the tasks."""

    prefix: str
    cluster_id: str | None
    pair: ProducerIdAndEpoch
    decided: Mapping[str, int]
    """The last decided batch by owner."""

    def is_decided(self, unit: Unit) -> bool:
        return unit.is_repeatable and self.decided.get(unit.owner, -1) >= unit.batch


@dataclass(frozen=True)
class Staged:
    """The rows of one task attempt. Spark brings it from the task to the commit."""

    plan: Plan
    unit: Unit
    rows: int = 0
    chunks: tuple[bytes, ...] = ()
    highest_partitions: tuple[tuple[str, int], ...] = ()
    """The topics of the rows, each with the highest partition that a row names, or -1."""

    @property
    def is_skipped(self) -> bool:
        return self.plan.is_decided(self.unit)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.chunks))


class Store(Protocol):
    """The broker, as the protocol sees it."""

    def fence(self, prefix: str) -> tuple[str | None, ProducerIdAndEpoch]:
        """Raise the pair of the prefix, and settle its open transaction. Return the cluster's id and the new pair."""

    def decisions(self, prefix: str) -> list[Decision]:
        """Return the committed rows of the prefix, at least all that were decided before the call."""

    def write(self, staged: Sequence[Staged], decision: Decision) -> None:
        """Write rows and decision in one transaction of the decision's pair. SinkError if the pair is fenced."""


def plan(store: Store, prefix: str, owners: str) -> Plan:
    """Fence older plans of the prefix, then read the decisions of the owners whose names begin with `owners`."""
    cluster_id, pair = store.fence(prefix)
    decided = {decision.unit.owner: decision.unit.batch for decision in store.decisions(prefix)
               if decision.unit.owner.startswith(owners)}
    return Plan(prefix, cluster_id, pair, decided)


def commit(store: Store, messages: Sequence[Staged | None], max_bytes: int) -> Decision | None:
    """Decide the unit of these messages. Return None if it was decided before. SinkError, KafkaError, ClientError."""
    staged = [message for message in messages if message is not None]
    if len(staged) != len(messages) or not staged:
        raise SinkError(f'found {len(messages)} tasks with {len(staged)} results, expected one of each task')
    first = staged[0]
    for other in staged:
        if (other.plan.pair, other.unit) != (first.plan.pair, first.unit):
            raise SinkError(f'found results of {first.unit} and of {other.unit}, expected those of one plan')
    if first.is_skipped:
        return None
    size = sum(message.size_bytes for message in staged)
    if size > max_bytes:
        raise SinkError(f'the tasks have staged {size:,} bytes, maxDriverBytes is {max_bytes:,}: raise it, or write '
                        'smaller batches')
    decision = Decision(first.plan.prefix, first.unit, sum(message.rows for message in staged), first.plan.pair)
    store.write(staged, decision)
    return decision
