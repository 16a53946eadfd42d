"""Share sessions (KIP-932). A member has one session with each leader, which gets its fetches and acknowledgements in
order.

A session has an epoch that counts its requests. A request of epoch 0 begins a session and carries no acknowledgements.
A request of epoch -1 ends the session. A session also ends with its connection. Then the broker releases the records
that the member has acquired.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from typing import Any, NamedTuple

from kbroker.client.connection import Connection
from kbroker.client.share_member import SharedPartition
from kbroker.client.stream_settings import ACQUIRE_MODES, ShareConsumerSettings
from kbroker.protocol.messages import ShareAcknowledgeRequest, ShareFetchRequest
from kbroker.protocol.plan import Message

FIRST_EPOCH, LAST_EPOCH = 0, -1
MOST_EPOCH = 2**31 - 1
VERSION_WITH_MODES = 2


class AcknowledgeType(IntEnum):
    """Kafka's codes for the outcome of a record."""

    GAP = 0
    """The outcome for an offset that has no record."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3


class Acknowledgement(NamedTuple):
    """The outcome of the offsets from `first_offset` to `last_offset`, both included."""

    first_offset: int
    last_offset: int
    type: AcknowledgeType


Outcomes = dict[SharedPartition, list[Acknowledgement]]
"""Maps each partition to its acknowledgements, which are not sorted."""


def joined(acknowledgements: Iterable[Acknowledgement]) -> list[Acknowledgement]:
    """Return the acknowledgements sorted by offset. Merge adjacent acknowledgements that have the same outcome."""
    found: list[Acknowledgement] = []
    for row in sorted(acknowledgements):
        if found and found[-1].last_offset == row.first_offset - 1 and found[-1].type == row.type:
            found[-1] = found[-1]._replace(last_offset=row.last_offset)
        else:
            found.append(row)
    return found


class ShareSession:
    """A member's share session with the leader at the other end of a connection. Sending may raise ClientError."""

    def __init__(self, connection: Connection, group_id: str, member_id: str, settings: ShareConsumerSettings):
        self.connection = connection
        self.deadline_ms = 0
        """The time at which the request in flight times out, in ms of the monotonic clock."""
        self.partitions: frozenset[SharedPartition] = frozenset()
        """The partitions that the leader has in the session."""
        self._group_id = group_id
        self._member_id = member_id
        self._settings = settings
        self._epoch = FIRST_EPOCH
        self._outcomes: Outcomes = {}
        """The acknowledgements that the next request will carry."""
        self._sent: deque[Outcomes] = deque()
        """The acknowledgements of each request in flight."""

    @property
    def has_outcomes(self) -> bool:
        return bool(self._outcomes)

    def acknowledge(self, at: SharedPartition, acknowledgement: Acknowledgement) -> None:
        """Add an acknowledgement to the next request."""
        self._outcomes.setdefault(at, []).append(acknowledgement)

    def send_fetch(self, partitions: frozenset[SharedPartition]) -> None:
        """Send a ShareFetch for the partitions. The request also carries the acknowledgements, unless it begins the
        session.
        """
        epoch, outcomes = self._next({} if self._epoch == FIRST_EPOCH else self._take_outcomes())
        wanted = {at: outcomes.get(at, []) for at in {*partitions - self.partitions, *outcomes}}
        settings, request = self._settings, ShareFetchRequest
        acquire_mode = ACQUIRE_MODES.index(settings.acquire_mode)
        self.connection.send(request(
            group_id=self._group_id, member_id=self._member_id, share_session_epoch=epoch,
            max_wait_ms=settings.fetch_max_wait_ms, min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes, max_records=settings.max_poll_records,
            batch_size=settings.max_poll_records, share_acquire_mode=acquire_mode,
            topics=_topics(request.FetchTopic, request.FetchPartition, request.AcknowledgementBatch, wanted),
            forgotten_topics_data=[request.ForgottenTopic(topic_id=topic_id, partitions=[at.partition for at in rows])
                                   for topic_id, rows in _by_topic(self.partitions - partitions).items()]),
            min_version=VERSION_WITH_MODES if acquire_mode else 0)
        self.partitions = partitions

    def send_acknowledgements(self, is_last: bool = False) -> bool:
        """Send the acknowledgements without a fetch, if there are any, or if `is_last` ends the session.

        Return whether a request was sent.
        """
        if self._epoch == FIRST_EPOCH or not (self._outcomes or is_last):
            return False
        (epoch, outcomes), request = self._next(self._take_outcomes()), ShareAcknowledgeRequest
        self.connection.send(request(
            group_id=self._group_id, member_id=self._member_id,
            share_session_epoch=LAST_EPOCH if is_last else epoch,
            topics=_topics(request.AcknowledgeTopic, request.AcknowledgePartition, request.AcknowledgementBatch,
                           outcomes)))
        return True

    def receive(self, timeout_ms: int | None = None) -> tuple[Any, Outcomes]:
        """Return the answer to the oldest request in flight, and the acknowledgements that it carried."""
        answer = self.connection.receive(timeout_ms)
        return answer, self._sent.popleft()

    def restart(self) -> None:
        """Begin a new session with the next fetch."""
        self._epoch, self.partitions = FIRST_EPOCH, frozenset()

    def unanswered(self) -> Outcomes:
        """Return the acknowledgements of all requests in flight and of the next request."""
        found: Outcomes = {}
        for outcomes in [*self._sent, self._outcomes]:
            for at, rows in outcomes.items():
                found.setdefault(at, []).extend(rows)
        return found

    def _take_outcomes(self) -> Outcomes:
        outcomes, self._outcomes = self._outcomes, {}
        return outcomes

    def _next(self, outcomes: Outcomes) -> tuple[int, Outcomes]:
        """Count a request that is about to be sent, and store the acknowledgements that it carries.

        Return its epoch and the acknowledgements.
        """
        epoch = self._epoch
        self._epoch = 1 if epoch == MOST_EPOCH else epoch + 1
        self._sent.append(outcomes)
        return epoch, outcomes


def _by_topic(partitions: Iterable[SharedPartition]) -> dict[bytes, list[SharedPartition]]:
    found: dict[bytes, list[SharedPartition]] = {}
    for at in sorted(partitions):
        found.setdefault(at.topic_id, []).append(at)
    return found


def _topics(topic_class: Any, partition_class: Any, batch_class: Any, wanted: Outcomes) -> list[Message]:
    """Return the rows of a request for the given partitions: for each topic, its partitions with their
    acknowledgements.
    """
    return [topic_class(topic_id=topic_id, partitions=[
        partition_class(partition_index=at.partition, acknowledgement_batches=[
            batch_class(first_offset=row.first_offset, last_offset=row.last_offset, acknowledge_types=[row.type])
            for row in joined(wanted[at])])
        for at in rows]) for topic_id, rows in _by_topic(wanted).items()]
