"""Incremental fetch sessions (KIP-227): what a client has asked for and been told, so that both can be left out.

A session looks only at the partitions that are due: those with something to report. A partition without more is waited
for, and becomes due again when one of its bounds moves. So a thousand quiet partitions cost a fetch nothing. The due
ones are served round-robin: a partition that gave records goes to the end.
"""
import random

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int32_t, int64_t

from kbroker.apis.fetch_request cimport (
    AskedPartition, AskedTopic, FetchRequest, end_struct, take_count, take_forgotten_topic, take_partition, take_topic)
from kbroker.apis.waiting cimport Waiter, WaitingRoom
from kbroker.clock cimport Clock
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.schema import first_version
from kbroker.topics.partition cimport FetchWaiter
from kbroker.wire.bytes cimport Cursor, read_int32, take


cdef enum:
    FIRST_EPOCH = 0
    CLOSING_EPOCH = -1
    # A session unused for this long may make room for a new one; Kafka's min.incremental.fetch.session.eviction.ms.
    EVICTABLE_MS = 120000

cdef int SESSIONS = first_version('FetchRequest', 'session_id')
cdef int TOPIC_IDS = first_version('FetchRequest', 'topics.topic_id')


@cython.freelist(64)
cdef class WantedTopic:
    """A topic as the request names it, and its wanted partitions."""


cdef class WantedPartition(FetchWaiter):
    """One partition of a fetch, and what the client was last told of it (-1: nothing yet)."""

    cpdef wake(self):
        if self.session is not None:
            self.session.moved(self)

    cdef int forget_look(self) noexcept:
        self.error_code = 0
        self.has_more = False
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.diverging_epoch = -1
        self.diverging_end_offset = -1
        self.records = None
        self.aborted_transactions = None
        return 0

    cdef bint take_news(self) noexcept:
        """Return whether the last look found anything new, and remember it as reported."""
        cdef bint changed = (self.records is not None or self.error_code != 0 or self.diverging_epoch != -1
                             or self.high_watermark != self.told_high_watermark
                             or self.log_start_offset != self.told_log_start_offset)
        if self.error_code == 0:
            self.told_high_watermark = self.high_watermark
            self.told_log_start_offset = self.log_start_offset
        else:
            self.told_high_watermark = -1
        return changed


@cython.freelist(16)
cdef class FetchSession:
    """The partitions of one client, or of one fetch that has no session: then the id is 0."""

    def __len__(self):
        return self.size

    cdef int take_over(self, FetchRequest *request) except -1:
        """Take over what the request adds, changes and forgets."""
        cdef Cursor cursor = request.topics
        cdef AskedTopic asked_topic
        cdef AskedPartition asked
        cdef WantedTopic topic
        cdef WantedPartition wanted
        cdef Py_ssize_t left, topics
        for topics in range(take_count(&cursor, request.version, 3), 0, -1):
            take_topic(&cursor, request.version, &asked_topic)
            topic = self.find_topic(&asked_topic, True)
            for left in range(asked_topic.partitions, 0, -1):
                take_partition(&cursor, request.version, &asked)
                wanted = topic.partitions.get(asked.index)
                if wanted is None:
                    wanted = WantedPartition.__new__(WantedPartition)
                    wanted.session = self
                    wanted.topic = topic
                    wanted.index = asked.index
                    wanted.told_high_watermark = -1
                    wanted.told_log_start_offset = -1
                    topic.partitions[asked.index] = wanted
                    self.size += 1
                wanted.fetch_offset = asked.fetch_offset
                wanted.max_bytes = asked.max_bytes
                wanted.current_leader_epoch = asked.current_leader_epoch
                wanted.last_fetched_epoch = asked.last_fetched_epoch
                if not wanted.is_due:
                    wanted.is_due = True
                    self.due.append(wanted)
            end_struct(&cursor, request.version)
        if request.version >= SESSIONS and self.is_incremental:
            self.forget_partitions(request)
        return 0

    cdef int forget_partitions(self, FetchRequest *request) except -1:
        cdef Cursor cursor = request.forgotten_topics
        cdef AskedTopic asked_topic
        cdef WantedTopic topic
        cdef WantedPartition wanted
        cdef Py_ssize_t left, topics
        for topics in range(take_count(&cursor, request.version, 3), 0, -1):
            take_forgotten_topic(&cursor, request.version, &asked_topic)
            topic = self.find_topic(&asked_topic, False)
            for left in range(asked_topic.partitions, 0, -1):
                index = read_int32(take(&cursor, 4))
                wanted = None if topic is None else topic.partitions.pop(index, None)
                if wanted is not None:
                    wanted.session = None
                    wanted.stop_waiting()
                    self.size -= 1
            if topic is not None and not topic.partitions:
                del self.topics[topic.key]
            end_struct(&cursor, request.version)
        return 0

    cdef WantedTopic find_topic(self, const AskedTopic *asked, bint adds):
        """None if nothing is wanted of it; with `adds` something will be."""
        cdef bytes key = PyBytes_FromStringAndSize(<const char *>asked.key, asked.key_bytes)
        cdef WantedTopic topic = self.topics.get(key)
        if topic is None and adds:
            topic = WantedTopic.__new__(WantedTopic)
            topic.key = key
            topic.partitions = {}
            self.topics[key] = topic
        return topic

    cdef int moved(self, WantedPartition wanted) except -1:
        if not wanted.is_due:
            wanted.is_due = True
            self.due.append(wanted)
        if self.parked is not None:
            self.room.wake(self.parked)
        return 0

    cdef int park(self, Waiter waiter) except -1:
        """Wake `waiter` when any partition moves. The quiet ones wait for that already."""
        cdef WantedPartition wanted
        self.parked = waiter
        for wanted in self.due:
            if wanted.partition is not None and wanted.session is not None:
                wanted.wait()
        return 0

    cdef list take_news(self):
        """Return the partitions to answer with, in order. Those without more are quiet from now on."""
        cdef list news = [], due = [], served = []
        cdef WantedPartition wanted
        self.parked = None
        for wanted in self.due:
            if wanted.session is None:
                continue
            if wanted.take_news() or not self.is_incremental:
                news.append(wanted)
            if self.session_id == NO_SESSION:
                continue
            if wanted.records is not None:
                served.append(wanted)
            elif wanted.has_more or wanted.error_code != 0:
                due.append(wanted)
            else:
                wanted.is_due = False
                wanted.wait()
        due += served
        self.due = due
        if self.session_id == NO_SESSION:
            self.end()
        return news

    cdef int end(self) except -1:
        """Break the reference cycle of the session, its topics and its partitions."""
        cdef WantedTopic topic
        for topic in self.topics.values():
            topic.partitions = None
        self.parked = None
        self.size = 0
        self.topics = {}
        self.due = []
        return 0


cdef class FetchSessions:
    """At most `slots` sessions; a client that finds no room is served without one, which every client accepts."""

    def __init__(self, Py_ssize_t slots, Clock clock not None, WaitingRoom room not None):
        self.slots = slots
        self.clock = clock
        self.room = room
        self.sessions = {}

    def __len__(self):
        return len(self.sessions)

    cdef FetchSession begin(self, FetchRequest *request):
        """Return the session of a request, updated by it. A fetch without a session gets one of its own.

        Raises KafkaError FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR.
        """
        cdef FetchSession session
        if request.version >= SESSIONS and request.session_epoch not in (FIRST_EPOCH, CLOSING_EPOCH):
            return self.advance(request)
        session = FetchSession.__new__(FetchSession)
        session.room = self.room
        session.topics = {}
        session.due = []
        session.take_over(request)
        if request.version >= SESSIONS:
            if request.session_id != NO_SESSION and request.session_id in self.sessions:
                (<FetchSession>self.sessions.pop(request.session_id)).end()
            if request.session_epoch == FIRST_EPOCH:
                self.give_id(session, request)
        return session

    cdef FetchSession advance(self, FetchRequest *request):
        cdef Waiter parked
        cdef FetchSession session = self.sessions.get(request.session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f'fetch session {request.session_id} does not exist')
        if session.epoch != request.session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                             f'fetch session {session.session_id}: epoch {session.epoch} expected, '
                             f'found {request.session_epoch}')
        if session.uses_topic_ids != (request.version >= TOPIC_IDS):
            began = 'with' if session.uses_topic_ids else 'without'
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
                             f'fetch session {session.session_id} began {began} topic ids')
        parked = session.parked
        if parked is not None:
            # Another connection went on with the session: what waits for it now belongs to an earlier epoch.
            parked.answer_now()
        session.is_incremental = True
        session.take_over(request)
        session.epoch = session.epoch + 1 if session.epoch < INT32_MAX else 1
        session.used_ms = self.clock.monotonic_ms()
        # The order of use is the order of the dict: the first is the one to evict.
        self.sessions[session.session_id] = self.sessions.pop(session.session_id)
        if session.size == 0:
            del self.sessions[session.session_id]
        return session

    cdef int give_id(self, FetchSession session, FetchRequest *request) except -1:
        """Make it a session that can be gone on with, if there is room."""
        cdef FetchSession oldest
        cdef int64_t now_ms = self.clock.monotonic_ms()
        if len(self.sessions) >= self.slots:
            oldest = next(iter(self.sessions.values()), None)
            if oldest is None or now_ms - oldest.used_ms < EVICTABLE_MS:
                return 0
            del self.sessions[oldest.session_id]
            oldest.end()
        while session.session_id == NO_SESSION or session.session_id in self.sessions:
            session.session_id = random.randint(1, INT32_MAX)
        session.uses_topic_ids = request.version >= TOPIC_IDS
        session.epoch = FIRST_EPOCH + 1
        session.used_ms = now_ms
        self.sessions[session.session_id] = session
        return 0
