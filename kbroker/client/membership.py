"""The part of a group member that is the same for all types of groups."""
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
"""The member epochs with a special meaning in heartbeats."""
FENCED = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})
CLOSE_TIMEOUT_MS = 30_000
"""The time for which a closing client waits for its coordinator, as in Kafka's clients."""
RETRY_MS = 1000
"""The time from a failed heartbeat to the next heartbeat. Only a broker's answer contains the regular interval."""


def new_member_id() -> str:
    """Return a random member id of 22 characters, as Kafka's clients generate them."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip('=')


class Membership(abc.ABC):
    """The membership of a client in a group of any type.

    Heartbeats are sent only in calls of `heartbeat_if_due`. While the program of a consumer is busy, the thread of
    `client/background_heartbeats` makes these calls. A share consumer has no such thread.
    """

    group_words: ClassVar[str] = 'group'
    """The words for a group of this type in error messages."""

    def __init__(self, cluster: Cluster, group_id: str, clock: Clock | None = None):
        self.group_id = group_id
        self.member_id = ''
        self.generation_id = -1
        """The generation or the member epoch; negative if the client is not a member."""
        self._cluster = cluster
        self._clock = clock or Clock()
        self._next_heartbeat_ms = 0

    def next_heartbeat_ms(self) -> int:
        """Return the time of the next heartbeat, in ms of the monotonic clock."""
        return self._next_heartbeat_ms

    def within(self, limit_ms: float) -> AbstractContextManager[None]:
        """Limit the requests in a block. After `limit_ms` they raise OutOfTime."""
        return self._cluster.within(limit_ms)

    @abc.abstractmethod
    def heartbeat_if_due(self) -> None:
        """Send a heartbeat if it is due."""

    @abc.abstractmethod
    def leave(self) -> None:
        """Leave the group. A static member remains a member until its session ends."""

    @abc.abstractmethod
    def _note_lost_place(self, code: ErrorCode) -> bool:
        """Return whether this error means that the client is no longer a member. Then also prepare the client to
        rejoin.
        """

    def _coordinator(self) -> Connection:
        return self._cluster.coordinator(KeyType.GROUP, self.group_id)

    def _retrying(self, operation: Callable[[], T], name: str, patience_ms: int = 0) -> T:
        return self._cluster.retrying(operation, self._words(name), (), None, patience_ms)

    def _words(self, name: str) -> str:
        return f'{name} of {self.group_words} {self.group_id!r}'


class EpochMember(Membership):
    """A member of a group with member epochs: a consumer group (KIP-848) or a share group (KIP-932).

    The broker assigns the partitions, and all data is in heartbeats. A heartbeat contains the changes since the
    previous heartbeat.
    """

    heartbeat_name: ClassVar[str]
    """The name of the heartbeat request in error messages."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.member_id = new_member_id()
        self._assigned: dict[bytes, list[int]] = {}
        """The last assignment: maps each topic id to its partitions."""
        self._must_report = False
        """True if this member has changed since its last heartbeat, so that the next heartbeat must report the
        change.
        """
        self._is_in_doubt = False
        """True while the last heartbeat has no answer.

        A lost answer may have contained an assignment. The broker repeats it only in the answer to a full heartbeat.
        """

    @abc.abstractmethod
    def _heartbeat(self) -> Any:
        """Send the heartbeat of a member, and return its answer.

        Raise ClientError for a network failure, KafkaError if the answer has an error.
        """

    def _ask(self, request: Message) -> Any:
        """Send a heartbeat to the coordinator, and return its answer. Raise the same errors as `_heartbeat`."""
        self._is_in_doubt = True
        answer = self._coordinator().call(request)
        check(answer.error_code, self._words(self.heartbeat_name), answer.error_message)
        return answer

    def _adopt(self, answer: Any) -> None:
        """Adopt the member epoch, the heartbeat interval and the assignment in the answer to a heartbeat."""
        self.generation_id = answer.member_epoch
        self._next_heartbeat_ms = self._clock.monotonic_ms() + answer.heartbeat_interval_ms
        self._must_report = self._is_in_doubt = False
        if answer.assignment is not None:
            self._assigned = {row.topic_id: sorted(row.partitions) for row in answer.assignment.topic_partitions}

    def _keep_place(self) -> None:
        """Send a heartbeat, and adopt its answer. Raise only lasting errors."""
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
        """Send the heartbeat with which a member leaves. Ignore the error of a member that the group has already
        removed.
        """
        try:
            self._ask(request)
        except KafkaError as error:
            if not self._note_lost_place(error.code):
                raise

    def _names_of(self, topic_ids: Collection[bytes]) -> dict[bytes, str]:
        """Return {topic id: name} for the topics in the metadata. A topic that is missing may appear later."""
        if not topic_ids:
            return {}
        return self._retrying(lambda: self._cluster.names_of(topic_ids), 'Metadata')
