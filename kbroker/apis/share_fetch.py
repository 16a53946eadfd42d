"""ShareFetch (key 78), versions 1-2: acquire records of share partitions for a member of a share group (KIP-932).

A request may acknowledge records that previous requests acquired. It is answered when these acknowledgements are
durable. Version 2 adds an acquire mode that never exceeds MaxRecords (KIP-1206), and requests that only renew
acquisition locks (KIP-1222).

A fetch that finds less than MinBytes waits for at most MaxWaitMs. It looks again when a partition gets records, another
member releases records, or a lock expires. An acquisition writes no row. An answer omits partitions that have neither
records nor an error nor acknowledgements. The first answer of a session omits fewer: only partitions of which the group
has too many records in flight. A fetch with MaxBytes 0 is answered immediately, without records. With a negative
MaxBytes, each partition gets an error. Membership is not checked: any member id may fetch from a share partition whose
state was initialized. The partitions of an unknown topic id get an error. Apache Kafka refuses the whole request
instead.

A client above its quota of fetched bytes gets its records, and is throttled afterwards. Apache Kafka sends an empty
answer instead, and the acquired records stay locked until their locks expire.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kbroker.apis.serving.long_answers import Pace
from kbroker.apis.serving.request import Api, Request
from kbroker.apis.serving.share_requests import (
    VERSION_WITH_RENEWAL,
    Acknowledgements,
    PartitionError,
    Steps,
    check_count,
    end_session,
    lock_timeout_ms,
    partition_of,
    session_key,
    start,
)
from kbroker.apis.serving.waiting import Waiter
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work import Pause
from kbroker.group.share.limits import FetchLimits
from kbroker.group.share.partitions import Fetched, LivePartition
from kbroker.group.share.rows import ShareKey
from kbroker.group.share.sessions import FIRST_EPOCH, LAST_EPOCH, SessionKey, SessionPartition, ShareSession
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.topics.partition import FetchWaiter, Partition

BATCH_OPTIMIZED, RECORD_LIMIT = 0, 1
ANSWER_BYTES, PARTITION_BYTES = 30, 50
"""The approximate sizes in bytes of an answer without partitions, and of a partition without records. Quotas count
them."""


class Wake(FetchWaiter):
    """Wakes a fetch when a partition gets records, or when the state of its share partition changes."""

    def __init__(self, partition: Partition, fetch: ShareFetch, wanted: WantedPartition):
        super().__init__(partition)
        self.fetch = fetch
        self.wanted = wanted

    def wake(self) -> None:
        self.fetch.moved(self.wanted)


class WantedPartition:
    """One partition of a fetch, with the results of the fetch's last look at it.

    It refers to the fetch only while the fetch waits, to form no lasting reference cycle: the garbage collector does
    not run, as `garbage` describes.
    """

    __slots__ = ('awaits_disk', 'error', 'fetched', 'is_acquirable', 'is_loading', 'is_refused', 'live', 'place',
                 'size_bytes', 'waker')

    def __init__(self, place: SessionPartition):
        self.place = place
        self.live: LivePartition | None = None
        self.waker: Wake | None = None
        self.size_bytes = 0
        self.is_loading = self.is_refused = self.awaits_disk = False
        self.is_acquirable = False
        self.error: PartitionError | None = None
        self.fetched: Fetched | None = None

    def wait(self, fetch: ShareFetch, partition: Partition, live: LivePartition) -> None:
        """Let the next change of the partition or of the share partition wake the fetch."""
        if self.waker is None or self.waker.partition is not partition:
            self.stop_waiting()
            self.waker = Wake(partition, fetch, self)
        if self.live is not None and self.live is not live:
            self.live.waiting.discard(self.waker)
        self.live = live
        self.waker.wait()
        live.waiting.add(self.waker)

    def stop_waiting(self) -> None:
        if self.waker is not None:
            self.waker.stop_waiting()
            if self.live is not None:
                self.live.waiting.discard(self.waker)
        self.waker = self.live = None


class ShareFetch(Waiter):
    """A fetch in progress. It looks at its partitions until they have enough bytes, or its time is over."""

    def __init__(self, request: Request, key: SessionKey, body: Any):
        self.request = request
        self.key = key
        self.body = body
        self.max_bytes = max(0, min(body.max_bytes, request.node.config.fetch_max_bytes))
        if request.most_fetched_bytes is not None:
            self.max_bytes = min(self.max_bytes, request.most_fetched_bytes)
        self.min_bytes = min(max(1, body.min_bytes), max(1, self.max_bytes))
        self.is_exact = request.version >= VERSION_WITH_RENEWAL and body.share_acquire_mode == RECORD_LIMIT
        self.wanted: list[WantedPartition] = []
        self.time_is_over = body.max_wait_ms <= 0 or body.max_bytes == 0
        self.has_acquired = False
        self.has_ended = False
        self._moved: dict[WantedPartition, None] = {}
        self._size_bytes = 0
        self._refused = 0
        self._has_lost_one = False
        self._loading = 0
        self._awaited = 0
        self._pause: Pause | None = None

    # ---- the waiting room

    def moved(self, wanted: WantedPartition) -> None:
        self._moved[wanted] = None
        self.request.node.waiting_room.wake(self)

    def look_again(self) -> None:
        if self._pause is not None:
            self._pause.end()

    def answer_now(self) -> None:
        self.time_is_over = True
        self.look_again()

    def give_up(self) -> None:
        self.has_ended = True
        self.answer_now()

    # ---- the fetch

    def run(self, partitions: Sequence[SessionPartition], pace: Pace) -> Steps:
        """Acquire records, and wait for them if necessary. The fetch always waits until its share partitions are
        loaded, and until acknowledged records are on the disk.
        """
        self.wanted = [WantedPartition(place) for place in partitions]
        room, timers = self.request.node.waiting_room, self.request.node.timers
        room.enter(self.request.connection_id, self)
        timer = timers.after(self.body.max_wait_ms, self.answer_now) if not self.time_is_over else None
        try:
            yield from self._look(self.wanted, pace)
            while not self.has_ended:
                if not self._loading and (
                        self.time_is_over or self._must_answer() or self._size_bytes >= self.min_bytes):
                    yield from self._take(pace)
                    if self.has_acquired or self._must_answer() or (self.time_is_over and not self._awaited):
                        break
                while not self._moved and not self.has_ended and (
                        self._loading or self._awaited or not self.time_is_over):
                    self._pause = Pause()
                    yield from self._pause.wait()
                moved, self._moved = self._moved, {}
                yield from self._look(moved, pace)
        finally:
            self._pause = None
            room.leave(self.request.connection_id)
            if timer is not None:
                timer.cancel()
            for wanted in self.wanted:
                wanted.stop_waiting()

    def _must_answer(self) -> bool:
        """Return whether to stop waiting because all partitions are refused, or because a partition for which the fetch
        waited has failed. As in Kafka, other errors do not end the wait, for example a share state that cannot be read.
        """
        return self._has_lost_one or 0 < len(self.wanted) == self._refused

    def _look(self, partitions: Iterable[WantedPartition], pace: Pace) -> Steps:
        """Find out how many bytes can be acquired from each of the partitions. Let later changes of them wake the
        fetch."""
        for wanted in partitions:
            self._size_bytes -= wanted.size_bytes
            self._refused -= wanted.is_refused
            self._loading -= wanted.is_loading
            self._awaited -= wanted.awaits_disk
            wanted.awaits_disk = False
            was_sound = wanted.live is not None and not wanted.is_loading and wanted.error is None
            wanted.size_bytes, wanted.error = 0, None
            try:
                wanted.size_bytes = self._acquirable_bytes(wanted)
            except KafkaError as error:
                wanted.error = PartitionError(error.code, str(error))
                self._has_lost_one = self._has_lost_one or was_sound
            self._size_bytes += wanted.size_bytes
            self._refused += wanted.is_refused
            wanted.is_loading = wanted.error is None and wanted.live is not None and wanted.live.records is None
            self._loading += wanted.is_loading
            self._awaited += wanted.awaits_disk
            if pace.spend():
                yield

    def _acquirable_bytes(self, wanted: WantedPartition) -> int:
        node = self.request.node
        wanted.is_refused = True
        partition = partition_of(self.request, *wanted.place)
        if self.body.max_bytes < 0:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f'found MaxBytes {self.body.max_bytes}')
        wanted.is_refused = False
        if self.body.max_bytes == 0:
            return 0
        live = node.share_partitions.open(ShareKey(self.key.group_id, *wanted.place), partition)
        wanted.wait(self, partition, live)
        size_bytes: int = node.share_partitions.acquirable_bytes(live, self.max_bytes)
        wanted.is_acquirable = node.share_partitions.is_acquirable(live)
        wanted.awaits_disk = wanted.is_acquirable and node.share_partitions.awaits_disk(live)
        return size_bytes

    def _take(self, pace: Pace) -> Steps:
        """Acquire records from each partition that has acquirable ones: at most an equal part of MaxBytes from each
        partition, and at most MaxRecords records altogether."""
        shares = self.request.node.share_partitions
        ready = [wanted for wanted in self.wanted if wanted.size_bytes]
        left = self.body.max_records
        for wanted in ready:
            if left <= 0 or self.has_ended:
                break
            limits = FetchLimits(self.max_bytes // len(ready), left, max(1, self.body.batch_size), self.is_exact)
            try:
                if wanted.live is not None:
                    partition_of(self.request, *wanted.place)       # raises if the client lost the right
                    wanted.fetched = shares.fetch(wanted.live, self.key.member_id, limits)
            except KafkaError as error:
                wanted.error = PartitionError(error.code, str(error))
                self._has_lost_one = True
            if wanted.fetched is not None and wanted.live is not None:
                self.has_acquired = True
                count = sum(last - first + 1 for first, last, _ in wanted.fetched.acquired)
                wanted.live.partition.count_fetched(count, wanted.fetched.records.size_bytes)
                left -= count
            if pace.spend(8):
                yield


def handle(request: Request, body: Any) -> None:
    start(request, body, steps(request, body))


def steps(request: Request, body: Any) -> Steps:
    key = session_key(request, body)
    is_renewal = request.version >= VERSION_WITH_RENEWAL and body.is_renew_ack
    pace = Pace()
    yield from check(request, body, is_renewal, pace)
    session = yield from find_session(request, body, key, pace)
    acknowledgements = Acknowledgements(request, key, is_renewal)
    yield from acknowledgements.begin(body.topics, pace)
    fetch = ShareFetch(request, key, body)
    if not is_renewal and body.share_session_epoch != LAST_EPOCH:
        yield from fetch.run(session.rotated(), pace)
    yield from acknowledgements.wait()
    if body.share_session_epoch == LAST_EPOCH:
        yield from end_session(request, session)
    return (yield from answer(fetch, acknowledgements, pace))


def check(request: Request, body: Any, is_renewal: bool, pace: Pace) -> Steps:
    """Raise KafkaError if the request is too long or its fields contradict each other."""
    check_count(body.topics)
    check_count(body.forgotten_topics_data)
    if request.version >= VERSION_WITH_RENEWAL and body.share_acquire_mode not in (BATCH_OPTIMIZED, RECORD_LIMIT):
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f'found acquire mode {body.share_acquire_mode}')
    if is_renewal and (body.max_bytes or body.min_bytes or body.max_records or body.max_wait_ms):
        raise KafkaError(ErrorCode.INVALID_REQUEST, 'a request that renews locks fetches nothing: MaxBytes, MinBytes, '
                         'MaxRecords and MaxWaitMs have to be 0')
    if body.share_session_epoch == FIRST_EPOCH:
        for topic in body.topics:
            if any(partition.acknowledgement_batches for partition in topic.partitions):
                raise KafkaError(ErrorCode.INVALID_REQUEST,
                                 'the first request of a session has nothing to acknowledge')
            if pace.spend(1 + len(topic.partitions)):
                yield


def find_session(request: Request, body: Any, key: SessionKey, pace: Pace) -> Steps:
    """Return the session that the request begins or continues. Raise KafkaError if there is none. If there is no room
    for a new session, wait for MaxWaitMs before raising, because the client would repeat the request immediately.
    """
    sessions = request.node.share_sessions
    session: ShareSession
    if body.share_session_epoch != FIRST_EPOCH:
        session = sessions.find(key, body.share_session_epoch)
        if body.share_session_epoch != LAST_EPOCH:
            forgotten = ((topic.topic_id, topic.partitions) for topic in body.forgotten_topics_data)
            sessions.change(session, (yield from places(named(body), pace)), (yield from places(forgotten, pace)))
        return session
    added = yield from places(named(body), pace)
    try:
        session = sessions.begin(key, request.connection_id, added)
    except KafkaError as error:
        if error.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED:
            yield from pause_for(request, body.max_wait_ms)
        raise
    return session


def pause_for(request: Request, time_ms: int) -> Steps:
    """Wait in the waiting room until the time has passed or the connection closes."""
    fetch = ShareFetch(request, SessionKey('', ''), request.api.request_class(max_wait_ms=time_ms))
    yield from fetch.run((), Pace())


def named(body: Any) -> Iterator[tuple[bytes, Iterable[int]]]:
    """Yield (topic id, partition indexes) for each topic of a request."""
    for topic in body.topics:
        yield topic.topic_id, (partition.partition_index for partition in topic.partitions)


def places(topics: Iterable[tuple[bytes, Iterable[int]]], pace: Pace) -> Steps:
    """Return the partitions of all topics as one list of SessionPartition, which is (topic id, partition index)."""
    found = []
    for topic_id, indexes in topics:
        for index in indexes:
            found.append((topic_id, index))
            if pace.spend():
                yield
        if pace.spend():
            yield
    return found


def answer(fetch: ShareFetch, acknowledgements: Acknowledgements, pace: Pace) -> Steps:
    topics: dict[bytes, Any] = {}
    results = dict(acknowledgements.results)
    is_first = fetch.body.share_session_epoch == FIRST_EPOCH
    for wanted in fetch.wanted:
        acknowledged = results.pop(wanted.place, None)
        if (wanted.fetched is not None or wanted.error is not None or acknowledged is not None
                or (is_first and wanted.is_acquirable)):
            add(topics, wanted.place, acknowledged, wanted)
        if pace.spend():
            yield
    for place, acknowledged in results.items():
        add(topics, place, acknowledged, None)
        if pace.spend():
            yield
    fetch.request.charge_fetched(ANSWER_BYTES + PARTITION_BYTES * len(fetch.wanted) + sum(
        wanted.fetched.records.size_bytes for wanted in fetch.wanted if wanted.fetched is not None))
    return messages.ShareFetchResponse(responses=list(topics.values()), node_endpoints=[],
                                       acquisition_lock_timeout_ms=lock_timeout_ms(fetch.request, fetch.key))


def add(topics: dict[bytes, Any], place: SessionPartition, acknowledged: PartitionError | None,
        wanted: WantedPartition | None) -> None:
    """Add a partition to `topics`, which are the topics of the answer."""
    response = messages.ShareFetchResponse
    topic_id, index = place
    topic = topics.get(topic_id)
    if topic is None:
        topic = topics[topic_id] = response.ShareFetchableTopicResponse(topic_id=topic_id, partitions=[])
    error = (wanted.error if wanted is not None else None) or PartitionError()
    fetched = wanted.fetched if wanted is not None else None
    acknowledged = acknowledged or PartitionError()
    topic.partitions.append(response.PartitionData(
        partition_index=index, error_code=error.code, error_message=error.message,
        acknowledge_error_code=acknowledged.code, acknowledge_error_message=acknowledged.message,
        current_leader=response.LeaderIdAndEpoch(leader_id=0, leader_epoch=0),
        records=b'' if fetched is None else fetched.records,
        acquired_records=[] if fetched is None else [
            response.AcquiredRecords(first_offset=first, last_offset=last, delivery_count=count)
            for first, last, count in fetched.acquired]))


def error_response(body: Any, code: ErrorCode, message: str, version: int) -> Any:
    return messages.ShareFetchResponse(error_code=code, error_message=message, responses=[], node_endpoints=[])


API = Api(ApiKey.SHARE_FETCH, 1, 2, handle, error_response)
