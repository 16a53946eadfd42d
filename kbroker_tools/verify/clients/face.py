"""The interface between the workloads and a client. Each stock client has an adapter with these methods."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from kbroker_tools.verify.lines import READ_COMMITTED

TRANSACTION_TIMEOUT_MS = 10_000
REQUEST_TIMEOUT_MS = 5_000
DELIVERY_TIMEOUT_MS = 9_000
CALL_TIMEOUT_S = 15
SESSION_TIMEOUT_MS = 6_000
HEARTBEAT_INTERVAL_MS = 1_000
ASSIGNOR = 'range'
"""The assignor of classic groups. All clients have it, so that they can be in one group."""
Reads = list[tuple[int, list[int], list[int]]]
"""The result of a poll: partition, offsets and numbers of records, in the order in which the client returned them."""


class Place(NamedTuple):
    """A partition as topic and number. A history names it by its index in the list of the run's places."""

    topic: str
    partition: int


class ClientFailure(Exception):
    """A failed call. Its operation may have happened or not. If there is a transaction, the caller must abort it."""


class InstanceFailure(ClientFailure):
    """A producer that can do nothing more, not even abort: it was fenced, or has failed permanently."""


class Writer(Protocol):
    """A producer. Its calls raise ClientFailure."""

    acknowledged: dict[int, int]
    """The offset of each record by its number, or ACKNOWLEDGED_WITHOUT_OFFSET. The caller empties the dictionary."""

    def claim(self) -> None:
        """Claim the transactional id."""

    def begin(self) -> None: ...

    def send(self, partition: int, number: int) -> None:
        """Queue a record with this number as its value."""

    def flush(self) -> None:
        """Wait until each record is acknowledged."""

    def send_offsets(self, group: Any, offsets: Mapping[int, int]) -> None:
        """Add offsets of a group to the transaction. `group` is its name, or the result of `Member.metadata`."""

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None:
        """Close without waiting, and without ending the transaction. This never raises ClientFailure."""


class Getter(Protocol):
    """A consumer with positions that the caller sets. Its calls raise ClientFailure."""

    def seek(self, positions: Mapping[int, int]) -> None:
        """Read these partitions, and no others, from these offsets on."""

    def poll(self, timeout_s: float) -> Sequence[tuple[int, list[int], list[int]]]:
        """Return partition, offsets and numbers of records, in the order in which the client returned them."""

    def close(self) -> None: ...


class Membership(NamedTuple):
    """The group that a member joins: its name, its protocol (`classic` or `consumer`), and the topic that it reads."""

    group: str
    protocol: str
    topic: str


class Member(Protocol):
    """A consumer whose partitions its group assigns. It reads in read_committed. Its calls raise ClientFailure."""

    changes: int
    """The number of changes of its assignment, which changes within `poll` only."""

    def poll(self, timeout_s: float) -> Sequence[tuple[int, list[int], list[int]]]:
        """Return partition, offsets and numbers of records, in the order in which the client returned them."""

    def metadata(self) -> Any:
        """Return the member and its generation. A writer of the same client needs them to commit offsets."""

    def rewind(self, positions: Mapping[int, int]) -> None:
        """Read partitions of the assignment again, from these offsets on."""

    def close(self) -> None:
        """Leave the group."""


@dataclass(frozen=True)
class Maker:
    """A factory of clients of one kind, which use the places of a run. Its methods raise ClientFailure."""

    name: str
    writer_type: Callable[[str, Sequence[Place], str | None], Writer]
    getter_type: Callable[[str, Sequence[Place], str], Getter]
    member_type: Callable[[str, Sequence[Place], Membership], Member]
    servers: str
    places: Sequence[Place]

    def writer(self, transactional_id: str | None) -> Writer:
        return self.writer_type(self.servers, self.places, transactional_id)

    def getter(self, isolation: str) -> Getter:
        return self.getter_type(self.servers, self.places, isolation)

    def member(self, membership: Membership) -> Member:
        return self.member_type(self.servers, self.places, membership)


def transaction_settings(transactional_id: str | None) -> dict[str, object]:
    """Return the settings of a producer with a transactional id. They are the same for all clients."""
    if transactional_id is None:
        return {}
    return {'transactional.id': transactional_id, 'transaction.timeout.ms': TRANSACTION_TIMEOUT_MS}


def member_settings(membership: Membership, assignor: str = ASSIGNOR) -> dict[str, object]:
    """Return the settings of a member. They are the same for all clients, except the name of the assignor."""
    settings: dict[str, object] = {
        'group.id': membership.group, 'group.protocol': membership.protocol, 'isolation.level': READ_COMMITTED,
        'auto.offset.reset': 'earliest', 'enable.auto.commit': 'false'}
    if membership.protocol == 'classic':
        settings |= {'partition.assignment.strategy': assignor, 'session.timeout.ms': SESSION_TIMEOUT_MS,
                     'heartbeat.interval.ms': HEARTBEAT_INTERVAL_MS}
    return settings


def number_in(value: bytes | None) -> int:
    """Return the number of a record, or FOREIGN."""
    return int(value) if value is not None and value.isdigit() and len(value) < 19 else -1
