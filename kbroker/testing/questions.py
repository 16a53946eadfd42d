"""Questions about the contents of a broker, asked with kbroker's client."""
from __future__ import annotations

from typing import Literal

from kbroker.base.lean_dataclasses import dataclass
from kbroker.client import Admin, Consumer

CLIENT_ID = 'kbroker-testing'
"""The client id of the kit's own requests. Rules of the control port pass over client ids that begin with it."""

IsolationLevel = Literal['read_committed', 'read_uncommitted']
POLL_MS = 1_000


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record of a topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Questions:
    """Questions to the broker at `bootstrap_servers`. Each blocks until it is answered."""

    def __init__(self, bootstrap_servers: str):
        self._servers = bootstrap_servers

    def admin(self) -> Admin:
        return Admin(self._servers, client_id=CLIENT_ID)

    def records(self, topic: str, isolation: IsolationLevel = 'read_committed') -> list[FoundRecord]:
        """Return the records of all partitions, in the order of partitions and offsets."""
        found: list[FoundRecord] = []
        with self.admin() as admin, Consumer(admin.cluster, isolation_level=isolation,
                                             auto_offset_reset='earliest') as consumer:
            partitions = [(topic, partition) for partition in admin.cluster.topics([topic])[topic].partitions]
            ends = consumer.end_offsets(partitions)
            consumer.assign(partitions)
            while any((consumer.position(*at) or 0) < end for at, end in ends.items()):
                for batch in consumer.poll(POLL_MS):
                    found += [FoundRecord(batch.topic, batch.partition, record.offset, record.timestamp_ms, record.key,
                                          record.value, tuple(record.headers)) for record in batch.records()]
        return sorted(found, key=lambda record: (record.partition, record.offset))
