"""A consumer in a share group (KIP-932). It acquires records, returns them to the program, and acknowledges each
record. Calls block, and there are no threads: heartbeats, fetches and acknowledgements are all sent in `poll`, `commit`
and `close`. The broker locks acquired records for share.record.lock.duration.ms. Records that are not acknowledged in
that time go to a different member.
"""
from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Any

from kbroker.base.clock import Clock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.arguments import milliseconds_of
from kbroker.client.cluster import RETRIED, Cluster
from kbroker.client.connection import Connection
from kbroker.client.consumed import DeliveredRecords
from kbroker.client.errors import ClientError, PartitionOffline, error_of, known_code
from kbroker.client.membership import CLOSE_TIMEOUT_MS
from kbroker.client.reach import Reach
from kbroker.client.readiness import await_ready
from kbroker.client.share_member import SharedPartition, ShareMember
from kbroker.client.share_sessions import Acknowledgement, AcknowledgeType, Outcomes, ShareSession
from kbroker.client.stream_settings import ShareConsumerSettings
from kbroker.client.time_limit import OutOfTime
from kbroker.record.batch import check_crc, iter_batches
from kbroker.record.records import Record, decode_records

logger = logging.getLogger(__name__)

_E = ErrorCode
_NUMBERS = itertools.count(1)
LOST_SESSION = frozenset({_E.SHARE_SESSION_NOT_FOUND, _E.INVALID_SHARE_SESSION_EPOCH, _E.SHARE_SESSION_LIMIT_REACHED})
"""The errors after which the consumer begins a new share session."""
MOVED = RETRIED | {_E.UNKNOWN_TOPIC_OR_PARTITION, _E.UNKNOWN_TOPIC_ID}
"""The errors of a partition that disappear when the metadata is refreshed or the assignment changes."""

OnRefused = Callable[[SharedPartition, KafkaError], None]


def log_refused(at: SharedPartition, error: KafkaError) -> None:
    logger.warning('%s-%d: an acknowledgement was refused: %s', at.topic, at.partition, error)


class ShareConsumer:
    """A member of a share group. Call `subscribe`, then `poll`. The methods raise KafkaError and ClientError.

    `on_refused` is called for each partition whose leader has refused acknowledgements. The records of these
    acknowledgements are delivered again.
    """

    def __init__(self, cluster: Cluster, settings: ShareConsumerSettings | None = None, clock: Clock | None = None,
                 sleep: Callable[[float], None] = time.sleep, on_refused: OnRefused = log_refused):
        self.settings = settings or ShareConsumerSettings.from_properties(cluster.config.properties)
        self._cluster = cluster
        self._clock = clock or Clock()
        self._sleep = sleep
        self._on_refused = on_refused
        self._reach = Reach(cluster, self._clock)
        self._member = ShareMember(cluster, self.settings.group_id, self.settings.client_rack, self._clock)
        self._sessions: dict[Connection, ShareSession] = {}
        # A connection returns answers in the order of its requests, so each share consumer has separate connections.
        self._purpose = f'share {next(_NUMBERS)}'
        self._ready: list[DeliveredRecords] = []
        """The records that arrived while `commit` waited for answers."""
        self._delivered: dict[tuple[str, int], dict[int, tuple[ShareSession, SharedPartition]]] = {}
        """Maps each partition to the offsets of its delivered records that the program has not acknowledged."""

    @property
    def assignment(self) -> frozenset[tuple[str, int]]:
        return frozenset((at.topic, at.partition) for at in self._member.assignment)

    @property
    def offline(self) -> dict[tuple[str, int], KafkaError]:
        """The assigned partitions without a leader, each with its error. `poll` reads the remaining partitions."""
        return {at: error for at, error in self._reach.errors.items() if at in self.assignment}

    def subscribe(self, topics: Collection[str]) -> None:
        """Share these topics with the other members of the group."""
        self._member.subscribe(topics)

    def poll(self, timeout_ms: int) -> list[DeliveredRecords]:
        """Return records as soon as any have arrived, or [] after `timeout_ms`.

        Unless the settings require explicit acknowledgements, the call accepts the records that the previous call
        returned. If a request has no answer after `timeout_ms`, the next call waits for the answer.
        """
        self._accept_delivered()
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        with self._cluster.within(timeout_ms):
            while True:
                due_ms = min(deadline_ms, self._prepare_fetches())
                wait_ms = max(due_ms - self._clock.monotonic_ms(), 0)
                found, self._ready = self._ready, []
                for session in self._answered(0 if found else wait_ms):
                    found += self._receive(session)
                if found or self._clock.monotonic_ms() >= deadline_ms:
                    return found

    def _prepare_fetches(self) -> int:
        """Send heartbeats and fetches if due.

        Return the time of the next heartbeat or metadata refresh, in ms of the monotonic clock.
        """
        try:
            self._member.heartbeat_if_due()
            with suppress(PartitionOffline):    # the next fetch leaves a partition out that lost its leader
                self._cluster.retrying(self._send_fetches, 'ShareFetch')
        except OutOfTime:       # arrived answers must not wait
            return self._clock.monotonic_ms()
        return min(self._member.next_heartbeat_ms(), self._reach.due_ms)

    def acknowledge(self, topic: str, partition: int, offset: int, kind: AcknowledgeType) -> None:
        """Set the outcome of a delivered record. The next call of `poll`, `commit` or `close` sends the outcome.

        Raise KafkaError(INVALID_RECORD_STATE) for a record that was not delivered, or that already has an outcome.
        """
        found = self._delivered.get((topic, partition), {}).pop(offset, None)
        if found is None:
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE,
                             f'{topic}-{partition}, offset {offset}: found no delivered record without an outcome')
        session, at = found
        session.acknowledge(at, Acknowledgement(offset, offset, kind))

    def commit(self) -> None:
        """Send the outcomes of the acknowledged records. Wait at most default.api.timeout.ms for the leaders'
        answers.
        """
        self._accept_delivered()
        with self._cluster.limit.call(self._cluster.config.default_api_timeout_ms):
            for session in list(self._sessions.values()):
                if session.has_outcomes:
                    self._receive_all(session)
                    if session.send_acknowledgements():
                        self._receive_all(session)

    def _receive_all(self, session: ShareSession) -> None:
        while session.connection.in_flight:
            self._cluster.limit.check('the leaders have not answered all acknowledgements')
            self._ready += self._receive(session)

    def close(self, timeout_ms: int | None = None) -> None:
        """Send the outcomes of the acknowledged records, release all other acquired records, and leave the group.

        The call takes at most `timeout_ms` (default: 30 s), including the logins of new connections. A leader that
        does not answer releases its records when the connection or their lock ends. If the coordinator does not answer,
        the group removes the member when its session times out.
        """
        limit_ms = CLOSE_TIMEOUT_MS if timeout_ms is None else milliseconds_of(timeout_ms, 'timeout_ms')
        self._accept_delivered()
        self._delivered.clear()
        with self._cluster.limit.ending_within(limit_ms):
            self._end_sessions()
            try:
                self._member.leave()
            except ClientError:
                return      # the session of the group times out
            except KafkaError as error:
                if not error.code.retriable:        # retriable: for example a coordinator that still loads
                    raise

    def _end_sessions(self) -> None:
        """End all share sessions. A leader that does not answer does not keep the requests from the other leaders."""
        for session in list(self._sessions.values()):
            try:
                session.send_acknowledgements(is_last=True)
            except ClientError as error:
                self._drop(session, error)
        for session in list(self._sessions.values()):
            try:
                while session.connection.in_flight:
                    answer, sent = session.receive(self._limit_ms)
                    self._check_acknowledged(answer, sent)
            except ClientError as error:
                self._drop(session, error)      # an interrupt may have left half a frame behind
            session.connection.close()
        self._sessions.clear()

    # ---- requests

    @property
    def _limit_ms(self) -> int:
        return self.settings.fetch_max_wait_ms + self._cluster.config.request_timeout_ms

    def _accept_delivered(self) -> None:
        if self.settings.is_explicit:
            return
        for records in self._delivered.values():
            for offset, (session, at) in records.items():
                session.acknowledge(at, Acknowledgement(offset, offset, AcknowledgeType.ACCEPT))
        self._delivered.clear()

    def _send_fetches(self) -> None:
        """Send a ShareFetch to each leader that has no request of this consumer in flight."""
        wanted: dict[ShareSession, set[SharedPartition]] = {session: set() for session in self._sessions.values()}
        within = set(self._reach.within((at.topic, at.partition) for at in self._member.assignment))
        for at in self._member.assignment:
            if (at.topic, at.partition) in within:
                wanted.setdefault(self._session(at), set()).add(at)
        for session, partitions in wanted.items():
            if session.connection.in_flight:
                continue
            try:
                if partitions:
                    session.send_fetch(frozenset(partitions))
                else:
                    session.send_acknowledgements()
            except ClientError as error:
                self._lose(session, error)
                continue
            session.deadline_ms = self._clock.monotonic_ms() + self._limit_ms

    def _session(self, at: SharedPartition) -> ShareSession:
        connection = self._cluster.leader(at.topic, at.partition, self._purpose)
        if connection not in self._sessions:
            self._sessions[connection] = ShareSession(connection, self._member.group_id, self._member.member_id,
                                                      self.settings)
        return self._sessions[connection]

    # ---- answers

    def _answered(self, timeout_ms: int) -> list[ShareSession]:
        """Return the sessions whose answer has arrived. If no answer has arrived, wait for one, for at most
        `timeout_ms`.
        """
        waiting = [session for session in self._sessions.values() if session.connection.in_flight]
        if not waiting:
            self._sleep(min(timeout_ms, self._cluster.config.retry_backoff_ms) / 1000)
            return []
        if any(session.connection.has_buffered for session in waiting):
            timeout_ms = 0
        patience_ms = min(session.deadline_ms for session in waiting) - self._clock.monotonic_ms()
        ready = await_ready([session.connection for session in waiting],
                            max(min(timeout_ms, patience_ms), 0)).readable
        now_ms = self._clock.monotonic_ms()
        return [session for session in waiting if session.connection in ready or session.connection.has_buffered
                or session.deadline_ms <= now_ms]

    def _receive(self, session: ShareSession) -> list[DeliveredRecords]:
        """Return the records of the next answer of a session. If the connection is broken, drop the session."""
        try:
            answer, sent = session.receive(max(session.deadline_ms - self._clock.monotonic_ms(), 0))
        except OutOfTime:       # the rest of the answer follows
            return []
        except ClientError as error:
            self._lose(session, error)
            return []
        code = known_code(answer.error_code)
        if code in LOST_SESSION or code in MOVED:
            session.restart()
            self._cluster.forget()
        elif code:
            raise error_of(answer.error_code, f'share session with {session.connection.address}', answer.error_message)
        self._check_acknowledged(answer, sent)
        found: list[DeliveredRecords] = []
        names = {(at.topic_id, at.partition): at for at in session.partitions}
        for topic in answer.responses:
            for row in topic.partitions:
                at = names.get((topic.topic_id, row.partition_index))
                if at is not None and hasattr(row, 'acquired_records'):
                    found += self._take(session, at, row)
        return found

    def _take(self, session: ShareSession, at: SharedPartition, row: Any) -> list[DeliveredRecords]:
        code = known_code(row.error_code)
        if code in MOVED:
            self._cluster.forget()
        elif code:
            raise error_of(row.error_code, f'{at.topic}-{at.partition}', row.error_message)
        found = list(self._acquired(session, at, row))
        records = self._delivered.setdefault((at.topic, at.partition), {})
        records.update((record.offset, (session, at)) for batch in found for record in batch.records)
        return found

    def _acquired(self, session: ShareSession, at: SharedPartition, row: Any) -> Iterator[DeliveredRecords]:
        """Yield the acquired records, split at the bounds of batches. Acknowledge the acquired offsets without a
        record.
        """
        found = [[] if header.is_control else self._decode(at, header, batch)
                 for header, batch in iter_batches(row.records or b'')]
        for acquired in row.acquired_records:
            next_offset = acquired.first_offset
            for records in found:
                chosen = [record for record in records
                          if acquired.first_offset <= record.offset <= acquired.last_offset]
                for record in chosen:
                    _note_gap(session, at, next_offset, record.offset - 1)
                    next_offset = record.offset + 1
                if chosen:
                    yield DeliveredRecords(at.topic, at.partition, chosen, acquired.delivery_count)
            _note_gap(session, at, next_offset, acquired.last_offset)

    def _decode(self, at: SharedPartition, header: Any, batch: memoryview) -> list[Record]:
        try:
            if self.settings.check_crcs:
                check_crc(batch, header)
            return decode_records(batch)
        except KafkaError as error:
            raise KafkaError(error.code, f'{at.topic}-{at.partition}, offset {header.base_offset}: {error}') from None

    def _check_acknowledged(self, answer: Any, sent: Outcomes) -> None:
        """Report the partitions whose acknowledgements the leader has refused."""
        if answer.error_code:
            for at in sent:
                self._on_refused(at, error_of(answer.error_code, f'{at.topic}-{at.partition}', answer.error_message))
            return
        names = {(at.topic_id, at.partition): at for at in sent}
        for topic in answer.responses:
            for row in topic.partitions:
                place, (code, message) = names.get((topic.topic_id, row.partition_index)), _refusal(row)
                if place is not None and code:
                    self._on_refused(place, error_of(code, f'{place.topic}-{place.partition}', message))

    def _lose(self, session: ShareSession, error: ClientError) -> None:
        """Drop a session whose connection broke. Raise the error if it is lasting."""
        self._drop(session, error)
        if error.is_lasting:
            raise error
        self._cluster.forget()

    def _drop(self, session: ShareSession, error: ClientError) -> None:
        """Forget a session whose connection broke. The leader releases the records that the session has acquired."""
        session.connection.close()
        self._sessions.pop(session.connection, None)
        for partition in self._delivered:
            self._delivered[partition] = {offset: place for offset, place in self._delivered[partition].items()
                                          if place[0] is not session}
        for at in session.unanswered():
            self._on_refused(at, KafkaError(ErrorCode.NETWORK_EXCEPTION, str(error)))


def _note_gap(session: ShareSession, at: SharedPartition, first_offset: int, last_offset: int) -> None:
    if first_offset <= last_offset:
        session.acknowledge(at, Acknowledgement(first_offset, last_offset, AcknowledgeType.GAP))


def _refusal(row: Any) -> tuple[int, str | None]:
    """Return the error of the acknowledgements in an answer to ShareFetch or ShareAcknowledge."""
    if hasattr(row, 'acknowledge_error_code'):
        return row.acknowledge_error_code, row.acknowledge_error_message
    return row.error_code, row.error_message
