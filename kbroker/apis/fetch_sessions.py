"""Incremental fetch sessions (KIP-227): what a client has asked for and been told, so that both can be left out."""
from __future__ import annotations

import random
from typing import Any

from kbroker.clock import Clock
from kbroker.errors import ErrorCode, KafkaError

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
LAST_EPOCH = 2**31 - 1
EVICTABLE_AFTER_MS = 120_000
"""A session unused for this long may make room for a new one; Kafka's min.incremental.fetch.session.eviction.ms."""


class WantedPartition:
    """One partition of a fetch, and what the client was last told of it (-1: nothing yet)."""

    __slots__ = ('current_leader_epoch', 'fetch_offset', 'last_fetched_epoch', 'log_start_offset', 'max_bytes',
                 'partition', 'told_high_watermark', 'told_log_start_offset', 'topic', 'topic_id')

    def __init__(self, topic: str, topic_id: bytes, wanted: Any):
        self.topic = topic
        self.topic_id = topic_id
        self.partition = wanted.partition
        self.told_high_watermark = -1
        self.told_log_start_offset = -1
        self.update(wanted)

    def update(self, wanted: Any) -> None:
        self.fetch_offset = wanted.fetch_offset
        self.max_bytes = wanted.partition_max_bytes
        self.current_leader_epoch = wanted.current_leader_epoch
        self.last_fetched_epoch = wanted.last_fetched_epoch


Key = tuple[str, bytes, int]


class FetchSession:
    """The partitions of one client, in the order in which they are served next."""

    __slots__ = ('epoch', 'partitions', 'session_id', 'used_ms', 'uses_topic_ids')

    def __init__(self, session_id: int, uses_topic_ids: bool, partitions: dict[Key, WantedPartition], now_ms: int):
        self.session_id = session_id
        self.uses_topic_ids = uses_topic_ids
        self.partitions = partitions
        self.epoch = INITIAL_EPOCH + 1
        self.used_ms = now_ms

    def update(self, request: Any) -> None:
        """Take over what an incremental request adds, changes and forgets."""
        for key, wanted in wanted_partitions(request).items():
            known = self.partitions.get(key)
            if known is None:
                self.partitions[key] = wanted
            else:
                known.fetch_offset = wanted.fetch_offset
                known.max_bytes = wanted.max_bytes
                known.current_leader_epoch = wanted.current_leader_epoch
                known.last_fetched_epoch = wanted.last_fetched_epoch
        for topic in request.forgotten_topics_data:
            for partition in topic.partitions:
                self.partitions.pop((topic.topic, topic.topic_id, partition), None)

    def told(self, key: Key, answer: Any) -> bool:
        """Whether `answer` says anything new; then it is remembered, and the partition goes to the end of the line."""
        wanted = self.partitions[key]
        has_records = bool(answer.records) if isinstance(answer.records, bytes) else answer.records is not None
        changed = (has_records or answer.error_code != 0 or answer.diverging_epoch.epoch != -1
                   or answer.high_watermark != wanted.told_high_watermark
                   or answer.log_start_offset != wanted.told_log_start_offset)
        if answer.error_code == 0:
            wanted.told_high_watermark = answer.high_watermark
            wanted.told_log_start_offset = answer.log_start_offset
        else:
            wanted.told_high_watermark = -1
        if has_records:
            self.partitions[key] = self.partitions.pop(key)
        return changed


def wanted_partitions(request: Any) -> dict[Key, WantedPartition]:
    return {
        (topic.topic, topic.topic_id, wanted.partition): WantedPartition(topic.topic, topic.topic_id, wanted)
        for topic in request.topics for wanted in topic.partitions
    }


class FetchSessions:
    """At most `slots` sessions; a client that finds no room is served without one, which every client accepts."""

    def __init__(self, slots: int, clock: Clock):
        self._slots = slots
        self._clock = clock
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, request: Any, version: int) -> tuple[FetchSession | None, dict[Key, WantedPartition], bool]:
        """(session or None, partitions to serve, whether the answer is incremental).

        Raises KafkaError FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR.
        """
        if version < 7:
            return None, wanted_partitions(request), False
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(request.session_id, None)
            partitions = wanted_partitions(request)
            if request.session_epoch == FINAL_EPOCH:
                return None, partitions, False
            session = self._create(partitions, version >= 13)
            return session, partitions, False
        session = self._advance(request, version)
        return session, session.partitions, True

    def _advance(self, request: Any, version: int) -> FetchSession:
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f'fetch session {request.session_id} does not exist')
        if session.epoch != request.session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                             f'fetch session {session.session_id}: epoch {session.epoch} expected, '
                             f'found {request.session_epoch}')
        if session.uses_topic_ids != (version >= 13):
            began = 'with' if session.uses_topic_ids else 'without'
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
                             f'fetch session {session.session_id} began {began} topic ids')
        session.update(request)
        session.epoch = session.epoch + 1 if session.epoch < LAST_EPOCH else 1
        session.used_ms = self._clock.monotonic_ms()
        # The order of use is the order of the dict: the first is the one to evict.
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        if not session.partitions:
            del self._sessions[session.session_id]
        return session

    def _create(self, partitions: dict[Key, WantedPartition], uses_topic_ids: bool) -> FetchSession | None:
        now_ms = self._clock.monotonic_ms()
        if len(self._sessions) >= self._slots:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.used_ms < EVICTABLE_AFTER_MS:
                return None
            del self._sessions[oldest.session_id]
        session_id = random.randint(1, LAST_EPOCH)
        while session_id in self._sessions:
            session_id = random.randint(1, LAST_EPOCH)
        session = self._sessions[session_id] = FetchSession(session_id, uses_topic_ids, partitions, now_ms)
        return session
