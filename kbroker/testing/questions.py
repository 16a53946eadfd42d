"""Questions about the contents of a broker, asked with kbroker's client."""
from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from kbroker.base.errors import KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker.client import Admin, Consumer, GroupInfo, StreamsGroupInfo, TransactionInfo
from kbroker.client.admin import EARLIEST, LATEST, IsolationLevel

CLIENT_ID = 'kbroker-testing'
"""The client id of the kit's own requests. Rules and the record of steps pass over client ids that begin with it."""

Isolation = Literal['read_committed', 'read_uncommitted']
Found = TypeVar('Found')
POLL_MS = 1_000
DECIDED_STATES = ('PrepareCommit', 'PrepareAbort')
OPEN_STATES = ('Ongoing', *DECIDED_STATES)
MARKERS_S, LOOK_S = 5, 0.005
"""The most seconds for which an answer waits for the markers of decided transactions, and those between two looks."""


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record of a topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    outcome: Literal['visible', 'aborted', 'undecided'] = 'visible'
    """`visible` to readers of committed records; `aborted`: never visible to them; `undecided`: an open transaction
    hides it. Without read_uncommitted, all records are visible.
    """


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """The offsets of a partition."""

    start: int
    end: int
    """The high watermark: the offset after the last record that readers of uncommitted records get."""
    last_stable: int
    """The offset up to which readers of committed records get records."""


class Questions:
    """Questions to the broker that the settings of a client name. Each blocks until it is answered.

    A commit is acknowledged when its decision is durable, and its markers follow. Answers about records and offsets
    wait for these markers, unless `is_holding()`: a test may hold the markers.
    """

    def __init__(self, settings: Mapping[str, object], is_holding: Callable[[], bool] = lambda: False):
        self._settings = {**settings, 'client.id': CLIENT_ID}
        self._is_holding = is_holding

    def admin(self) -> Admin:
        """Return a new Admin, which the caller closes."""
        return Admin(settings=self._settings)

    def _await_markers(self, admin: Admin) -> None:
        deadline = time.monotonic() + MARKERS_S
        while admin.list_transactions(DECIDED_STATES) and not self._is_holding() and time.monotonic() < deadline:
            time.sleep(LOOK_S)      # a broker without a control port tells no client that markers are written

    def records(self, topic: str, isolation: Isolation) -> list[FoundRecord]:
        """Return the records of all partitions, in the order of partitions and offsets."""
        with self.admin() as admin:
            self._await_markers(admin)
            partitions = _partitions(admin, topic)
            found = _read(admin, partitions, isolation)
            if isolation == 'read_committed':
                return found
            # The stable offsets are read first, so that a transaction that ends meanwhile is not taken as aborted.
            stable = admin.list_offsets(dict.fromkeys(partitions, LATEST), IsolationLevel.READ_COMMITTED)
            visible = {(record.partition, record.offset) for record in _read(admin, partitions, 'read_committed')}
        return [record if (record.partition, record.offset) in visible else _hidden(
            record, record.offset < stable[topic, record.partition].offset) for record in found]

    def offsets(self, topic: str) -> dict[int, PartitionOffsets]:
        with self.admin() as admin:
            self._await_markers(admin)
            partitions = _partitions(admin, topic)
            start = admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
            end = admin.list_offsets(dict.fromkeys(partitions, LATEST))
            stable = admin.list_offsets(dict.fromkeys(partitions, LATEST), IsolationLevel.READ_COMMITTED)
        return {at[1]: PartitionOffsets(start[at].offset, end[at].offset, stable[at].offset) for at in partitions}

    def last_stable_offset(self, topic: str, partition: int) -> int:
        with self.admin() as admin:
            self._await_markers(admin)
            return admin.list_offsets({(topic, partition): LATEST}, IsolationLevel.READ_COMMITTED)[
                topic, partition].offset

    def committed(self, group: str) -> dict[TopicPartition, int]:
        with self.admin() as admin:
            self._await_markers(admin)
            return {at: committed.offset for at, committed in sorted(admin.list_group_offsets(group).items())}

    def groups(self) -> list[GroupInfo | StreamsGroupInfo]:
        found: dict[str, GroupInfo | StreamsGroupInfo | KafkaError] = {}
        with self.admin() as admin:
            for listing in admin.list_groups():
                ids = [listing.group_id]
                if listing.group_type == 'streams':
                    found.update(admin.describe_streams_groups(ids))
                elif listing.group_type == 'share':
                    found.update(admin.describe_share_groups(ids))
                elif listing.group_type == 'consumer':
                    found.update(admin.describe_consumer_groups(ids))
                else:
                    found.update(admin.describe_classic_groups(ids))
        return _sorted_values(found)

    def transactions(self) -> list[TransactionInfo]:
        """Return the transactions that are open or being ended."""
        with self.admin() as admin:
            listed = [listing.transactional_id for listing in admin.list_transactions(OPEN_STATES)]
            found = _sorted_values(admin.describe_transactions(listed)) if listed else []
        return [transaction for transaction in found if transaction.state in OPEN_STATES]

    def topics(self) -> list[str]:
        """Return the names of all topics except the internal ones."""
        with self.admin() as admin:
            return [name for name, topic in admin.cluster.topics().items() if not topic.is_internal]


def _partitions(admin: Admin, topic: str) -> list[TopicPartition]:
    return [(topic, partition) for partition in sorted(admin.cluster.topics([topic])[topic].partitions)]


def _read(admin: Admin, partitions: list[TopicPartition], isolation: Isolation) -> list[FoundRecord]:
    """Return the records up to the present ends of the partitions."""
    found: list[FoundRecord] = []
    with Consumer(admin.cluster, isolation_level=isolation, auto_offset_reset='earliest') as consumer:
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        while any((consumer.position(*at) or 0) < end for at, end in ends.items()):
            for batch in consumer.poll(POLL_MS):
                found += [FoundRecord(batch.topic, batch.partition, record.offset, record.timestamp_ms, record.key,
                                      record.value, tuple(record.headers)) for record in batch.records()
                          if record.offset < ends[batch.topic, batch.partition]]
    return sorted(found, key=lambda record: (record.partition, record.offset))


def _hidden(record: FoundRecord, is_decided: bool) -> FoundRecord:
    return FoundRecord(record.topic, record.partition, record.offset, record.timestamp_ms, record.key, record.value,
                       record.headers, 'aborted' if is_decided else 'undecided')


def _sorted_values(found: Mapping[str, Found | KafkaError]) -> list[Found]:
    """Return the values in the order of their keys, without those that have disappeared meanwhile."""
    return [value for _, value in sorted(found.items(), key=lambda item: item[0])
            if not isinstance(value, KafkaError)]
