"""The interface between the workloads and a client. There is an adapter with these methods for each client library."""
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
"""The assignor of classic groups. All clients support it, so members of different clients can be in the same group."""
Reads = list[tuple[int, list[int], list[int]]]
"""The result of a poll. It is a list of (partition, offsets of the records, numbers of the records), in the order in
which the client returned them."""


class Place(NamedTuple):
    """A partition, as a topic and a number. A history refers to it by its index in the list of the run's partitions."""

    topic: str
    partition: int


class ClientFailure(Exception):
    """A call of a client has failed. The operation may have been performed or not. If a transaction is open, the caller
    must abort it."""


class InstanceFailure(ClientFailure):
    """A producer cannot be used any more, not even to abort its transaction. It was fenced, or it has failed
    permanently."""


class Writer(Protocol):
    """The interface of a producer. Its methods raise ClientFailure."""

    acknowledged: dict[int, int]
    """Maps the number of each acknowledged record to its offset, or to ACKNOWLEDGED_WITHOUT_OFFSET. The caller empties
    the dictionary."""

    def claim(self) -> None:
        """Claim the transactional id of this producer."""

    def begin(self) -> None: ...

    def send(self, partition: int, number: int) -> None:
        """Queue a record whose value is `number`."""

    def flush(self) -> None:
        """Wait until all queued records are acknowledged."""

    def send_offsets(self, group: Any, offsets: Mapping[int, int]) -> None:
        """Add the offsets of a group to the transaction. `group` is the name of the group, or the result of
        `Member.metadata`."""

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None:
        """Close the producer immediately. An open transaction stays open. This method does not raise ClientFailure."""


class Getter(Protocol):
    """The interface of a consumer whose positions are set by the caller. Its methods raise ClientFailure."""

    def seek(self, positions: Mapping[int, int]) -> None:
        """Read from these partitions only, and begin at these offsets."""

    def poll(self, timeout_s: float) -> Sequence[tuple[int, list[int], list[int]]]:
        """Return a list of (partition, offsets of the records, numbers of the records), in the order in which the
        client returned them."""

    def close(self) -> None: ...


class Membership(NamedTuple):
    """The group that a member joins. It has the name of the group, the protocol (`classic` or `consumer`), and the
    topic that the group reads."""

    group: str
    protocol: str
    topic: str


class Member(Protocol):
    """The interface of a consumer to which a group assigns partitions. It reads with read_committed. Its methods raise
    ClientFailure."""

    changes: int
    """The number of times that the assignment of the member has changed. It changes only during `poll`."""

    def poll(self, timeout_s: float) -> Sequence[tuple[int, list[int], list[int]]]:
        """Return a list of (partition, offsets of the records, numbers of the records), in the order in which the
        client returned them."""

    def metadata(self) -> Any:
        """Return an object with the member id and the generation. A writer of the same client needs it to commit
        offsets."""

    def rewind(self, positions: Mapping[int, int]) -> None:
        """Read the assigned partitions again, beginning at these offsets."""

    def close(self) -> None:
        """Leave the group."""


@dataclass(frozen=True)
class Maker:
    """A factory for producers and consumers of one client library. `places` has the partitions of the run. Its methods
    raise ClientFailure."""

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
    """Return the settings of a producer with a transactional id. They are the same for all client libraries."""
    if transactional_id is None:
        return {}
    return {'transactional.id': transactional_id, 'transaction.timeout.ms': TRANSACTION_TIMEOUT_MS}


def member_settings(membership: Membership, assignor: str = ASSIGNOR) -> dict[str, object]:
    """Return the settings of a group member. They are the same for all client libraries, except for the name of the
    assignor."""
    settings: dict[str, object] = {
        'group.id': membership.group, 'group.protocol': membership.protocol, 'isolation.level': READ_COMMITTED,
        'auto.offset.reset': 'earliest', 'enable.auto.commit': 'false'}
    if membership.protocol == 'classic':
        settings |= {'partition.assignment.strategy': assignor, 'session.timeout.ms': SESSION_TIMEOUT_MS,
                     'heartbeat.interval.ms': HEARTBEAT_INTERVAL_MS}
    return settings


def number_in(value: bytes | None) -> int:
    """Return the number in the value of a record. Return FOREIGN if the value is not a number."""
    return int(value) if value is not None and value.isdigit() and len(value) < 19 else -1
