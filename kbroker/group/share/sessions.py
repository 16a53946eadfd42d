"""Share sessions. A session stores the partitions that one member of a share group fetches. With a session, a member
need not list all partitions in every request; a request only lists changes. A session belongs to one (group id, member
id), and to the connection on which it was opened. The session's epoch counts the member's requests.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.ledger import Line
from kbroker.base.object_memory import memory_of

FIRST_EPOCH = 0
LAST_EPOCH = -1
LARGEST_EPOCH = 2**31 - 1
MOST_HELD = 200_000
"""The largest number of partitions in all sessions together. Each partition takes about 100 bytes of memory."""
MOST_NAME_BYTES = 16 * 1024 * 1024
"""The largest memory of the group ids and member ids in all sessions together. It is about 8 KB for each of the
sessions that the default of group.share.max.share.sessions allows."""
MOST_OF_A_SESSION = 20_000
"""The largest number of partitions of one session. Some steps handle all partitions of a session without a yield, and
block the event loop during this time."""

SessionPartition = tuple[bytes, int]
"""(topic id, partition index)."""


class SessionKey(NamedTuple):
    group_id: str
    member_id: str


class ShareSession:
    """The session of one member. The partitions are in the order in which the member's requests have added them.
    `epoch` is the epoch that the member's next request must have."""

    def __init__(self, key: SessionKey, connection_id: object):
        self.key = key
        self.connection_id = connection_id
        self.epoch = FIRST_EPOCH + 1
        self.partitions: dict[SessionPartition, None] = {}

    def rotated(self) -> list[SessionPartition]:
        """Return the partitions, rotated by the epoch. Each request therefore begins with a different partition than
        the request before it."""
        partitions = list(self.partitions)
        if partitions:
            at = self.epoch % len(partitions)
            partitions = partitions[at:] + partitions[:at]
        return partitions

    def advance(self) -> None:
        self.epoch = 1 if self.epoch == LARGEST_EPOCH else self.epoch + 1


class ShareSessions:
    """All share sessions. `most` returns the setting group.share.max.share.sessions.

    When a connection is closed, each function in `on_end` is called with each session of the connection. If a request
    on this connection has ended a session, each function in `on_leave` is then called with the group id of the session
    that was ended last.
    """

    def __init__(self, most: Callable[[], int]):
        self.on_end: list[Callable[[ShareSession], object]] = []
        self.on_leave: list[Callable[[str], object]] = []
        self._most = most
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._by_connection: dict[object, set[SessionKey]] = {}
        self._by_group: dict[str, int] = {}
        self._left_groups: dict[object, str] = {}
        """Maps an open connection to the group id of the session that a request on this connection has ended last."""
        self.held = 0
        self.name_bytes = 0
        """The memory of the group ids and member ids in the tables of this object, in bytes."""

    def __len__(self) -> int:
        return len(self._sessions)

    def ledger(self) -> list[Line]:
        return [
            Line('share sessions', '', lambda: len(self), lambda: self.most, 'group.share.max.share.sessions'),
            Line('group and member ids of share sessions', 'bytes', lambda: self.name_bytes, lambda: MOST_NAME_BYTES,
                 'fixed'),
            Line('partitions of share sessions', '', lambda: self.held, lambda: MOST_HELD, 'fixed')]

    def __contains__(self, key: SessionKey) -> bool:
        return key in self._sessions

    @property
    def most(self) -> int:
        return self._most()

    def begin(self, key: SessionKey, connection_id: object, partitions: Iterable[SessionPartition]) -> ShareSession:
        """Open a session. If the member has a session, end it first.

        Raise SHARE_SESSION_LIMIT_REACHED if a limit is exceeded. The member's previous session is ended even then.
        """
        old = self._sessions.get(key)
        if old is not None:
            self.end(old)
        added = dict.fromkeys(partitions)
        if len(self._sessions) >= self._most():
            raise self._limit_reached()
        self._check_room(len(added), 0)
        name_bytes = memory_of(key)
        if self.name_bytes + name_bytes > MOST_NAME_BYTES:
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED,
                             f'found share sessions with group and member ids of {self.name_bytes} bytes of memory, '
                             f'expected {MOST_NAME_BYTES} at most')
        self.name_bytes += name_bytes
        session = ShareSession(key, connection_id)
        session.partitions = added
        self.held += len(added)
        self._sessions[key] = session
        self._by_connection.setdefault(connection_id, set()).add(key)
        self._by_group[key.group_id] = self._by_group.get(key.group_id, 0) + 1
        return session

    def find(self, key: SessionKey, epoch: int) -> ShareSession:
        """Return the member's session for a request with this epoch. The epoch must be the session's epoch or -1, which
        ends the session.

        Raise SHARE_SESSION_NOT_FOUND if the member has no session, INVALID_SHARE_SESSION_EPOCH if the epoch is wrong.
        """
        session = self._sessions.get(key)
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.SHARE_SESSION_NOT_FOUND.message)
        if epoch not in (LAST_EPOCH, session.epoch):
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH,
                             f'share session epoch {session.epoch} expected, found {epoch}')
        return session

    def change(self, session: ShareSession, added: Iterable[SessionPartition],
               forgotten: Iterable[SessionPartition]) -> None:
        """Add and remove the partitions that a request lists, and advance the epoch.

        Raise SHARE_SESSION_LIMIT_REACHED if a limit is exceeded; the session is then unchanged.
        """
        new = [partition for partition in dict.fromkeys(added) if partition not in session.partitions]
        before = len(session.partitions)
        self._check_room(len(new), before)
        session.partitions.update(dict.fromkeys(new))
        for partition in forgotten:
            session.partitions.pop(partition, None)
        self.held += len(session.partitions) - before
        session.advance()

    def has_group(self, group_id: str) -> bool:
        """Return whether a member of the group has a session."""
        return group_id in self._by_group

    def connection_closed(self, connection_id: object) -> None:
        """End the sessions that were opened on a connection, because it was closed."""
        left_group = self._forget_left_group(connection_id)
        for key in self._by_connection.pop(connection_id, ()):
            session = self._sessions[key]
            self._remove(session)
            for listener in self.on_end:
                listener(session)
        if left_group is not None:
            for on_leave in self.on_leave:
                on_leave(left_group)

    def end(self, session: ShareSession) -> None:
        """End a session, because its member requests this or opens a new session. Do nothing if a new session has
        already replaced it."""
        if self._sessions.get(session.key) is session:
            self._forget_left_group(session.connection_id)
            self._left_groups[session.connection_id] = session.key.group_id
            self.name_bytes += memory_of(session.key.group_id)
            self._remove(session)

    def _forget_left_group(self, connection_id: object) -> str | None:
        group_id = self._left_groups.pop(connection_id, None)
        self.name_bytes -= memory_of(group_id)
        return group_id

    def _remove(self, session: ShareSession) -> None:
        del self._sessions[session.key]
        self.held -= len(session.partitions)
        self.name_bytes -= memory_of(session.key)
        keys = self._by_connection.get(session.connection_id)
        if keys is not None:
            keys.discard(session.key)
            if not keys:
                del self._by_connection[session.connection_id]
        left = self._by_group[session.key.group_id] - 1
        if left:
            self._by_group[session.key.group_id] = left
        else:
            del self._by_group[session.key.group_id]

    def _check_room(self, added: int, held: int) -> None:
        """Raise SHARE_SESSION_LIMIT_REACHED unless `added` more partitions may be added to a session that has `held`
        partitions."""
        if added + held > MOST_OF_A_SESSION:
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED,
                             f'found {added + held} partitions of a session, expected {MOST_OF_A_SESSION} at most')
        if self.held + added > MOST_HELD:
            raise self._limit_reached()

    def _limit_reached(self) -> KafkaError:
        return KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED,
                          f'found {len(self._sessions)} share sessions of {self.held} partitions, expected '
                          f'{self._most()} of {MOST_HELD} at most')
