"""The place of a client in a group: the parts that do not depend on what the members of the group share."""
from __future__ import annotations

import abc
import base64
import uuid
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any, ClassVar, TypeVar

from kbroker.base.clock import Clock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.cluster import Cluster, KeyType
from kbroker.client.connection import Connection
from kbroker.client.errors import ClientError, check
from kbroker.protocol.plan import Message

T = TypeVar('T')

JOINING, LEAVING, AWAY = 0, -1, -2
"""Member epochs of heartbeats with a special meaning."""
FENCED = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})
CLOSE_TIMEOUT_MS = 30_000
"""How long a client that closes waits for its coordinator, as Kafka's clients do."""
RETRY_MS = 1000
"""The time until the next heartbeat after one that failed: the interval is the broker's, and not known then."""


def new_member_id() -> str:
    """Return a random id as Kafka's clients make it: 22 characters."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip('=')


class Membership(abc.ABC):
    """The place of a client in a group of any type.

    Heartbeats are sent only in calls of `heartbeat_if_due`. For a consumer that is busy, the thread of
    `client/background_heartbeats` makes these calls; a share consumer has no such thread.
    """

    group_words: ClassVar[str] = 'group'
    """The group in messages."""

    def __init__(self, cluster: Cluster, group_id: str, clock: Clock | None = None):
        self.group_id = group_id
        self.member_id = ''
        self.generation_id = -1
        """The generation or the member epoch; negative for a client that is no member."""
        self._cluster = cluster
        self._clock = clock or Clock()
        self._next_heartbeat_ms = 0

    def next_heartbeat_ms(self) -> int:
        """Return the time of the next heartbeat on the monotonic clock."""
        return self._next_heartbeat_ms

    def within(self, limit_ms: float) -> AbstractContextManager[None]:
        """Bound the requests of a block: they raise OutOfTime then."""
        return self._cluster.within(limit_ms)

    @abc.abstractmethod
    def heartbeat_if_due(self) -> None:
        """Send a heartbeat if due."""

    @abc.abstractmethod
    def leave(self) -> None:
        """Leave the group, or, as a static member, keep the place in it for a while."""

    @abc.abstractmethod
    def _note_lost_place(self, code: ErrorCode) -> bool:
        """Return whether the member has to catch up with its group after this error, and prepare for that."""

    def _coordinator(self) -> Connection:
        return self._cluster.coordinator(KeyType.GROUP, self.group_id)

    def _retrying(self, operation: Callable[[], T], name: str, patience_ms: int = 0) -> T:
        return self._cluster.retrying(operation, self._words(name), (), None, patience_ms)

    def _words(self, name: str) -> str:
        return f'{name} of {self.group_words} {self.group_id!r}'


class EpochMember(Membership):
    """A member with a member epoch, in a consumer group (KIP-848) or a share group (KIP-932).

    The broker assigns, and heartbeats carry everything. A heartbeat names what has changed since the last one.
    """

    heartbeat_name: ClassVar[str]
    """The request, in messages."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.member_id = new_member_id()
        self._assigned: dict[bytes, list[int]] = {}
        """The last assignment, by topic id."""
        self._must_report = False
        """The next heartbeat says what has changed here."""
        self._is_in_doubt = False
        """A heartbeat has had no answer, which may have brought an assignment. Only a full one brings it again."""

    @abc.abstractmethod
    def _heartbeat(self) -> Any:
        """Send the heartbeat of a member, and return its answer. Raises ClientError, KafkaError."""

    def _ask(self, request: Message) -> Any:
        """Send a heartbeat to the coordinator, and return its answer. Raises ClientError, KafkaError."""
        self._is_in_doubt = True
        answer = self._coordinator().call(request)
        check(answer.error_code, self._words(self.heartbeat_name), answer.error_message)
        return answer

    def _adopt(self, answer: Any) -> None:
        """Take over the epoch, the interval and the assignment of an answer."""
        self.generation_id = answer.member_epoch
        self._next_heartbeat_ms = self._clock.monotonic_ms() + answer.heartbeat_interval_ms
        self._must_report = self._is_in_doubt = False
        if answer.assignment is not None:
            self._assigned = {row.topic_id: sorted(row.partitions) for row in answer.assignment.topic_partitions}

    def _keep_place(self) -> None:
        """Send a heartbeat, and take its answer over. Raises only errors that last."""
        try:
            self._adopt(self._heartbeat())
        except ClientError as error:
            if error.is_lasting:
                raise
            self._retry_later()
        except KafkaError as error:
            if error.code.retriable:
                self._retry_later()
            elif not self._note_lost_place(error.code):
                raise

    def _retry_later(self) -> None:
        self._cluster.forget()
        self._next_heartbeat_ms = self._clock.monotonic_ms() + RETRY_MS

    def _send_farewell(self, request: Message) -> None:
        """Send the heartbeat of a member that leaves. The group may have removed it already."""
        try:
            self._ask(request)
        except KafkaError as error:
            if not self._note_lost_place(error.code):
                raise

    def _names_of(self, topic_ids: Collection[bytes]) -> dict[bytes, str]:
        """Return the names of the topics that the metadata names; others may follow."""
        if not topic_ids:
            return {}
        return self._retrying(lambda: self._cluster.names_of(topic_ids), 'Metadata')
