"""Incremental fetch sessions (KIP-227): a session stores the partitions that a client reads, so requests and answers
can omit partitions that have not changed.

A fetch looks only at the session's due partitions, which may have something to report. When all records of a partition
were sent, the partition is not due until its high watermark, last stable offset or log start offset changes. So a
thousand quiet partitions add nothing to the cost of a fetch. Due partitions are served round-robin: a partition whose
records were sent moves to the end.

All sessions and waiting fetches together hold at most MOST_HELD partitions, to bound the memory. If there is no room
for a new session, the answer has the session id 0, and the client continues with full requests. Clients know this from
Apache Kafka, whose cache can be full.

A session keeps partitions that do not exist, and reports them in each answer, as in Apache Kafka. But it keeps at most
MOST_UNKNOWN of them: if there are more, the session ends with the answer.
"""
import random
from bisect import bisect_left, insort
from collections import deque

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int32_t, int64_t

from kbroker.apis.fetch.request cimport (
    MOST_NAMED, NOT_BEGUN, AskedPartition, AskedTopic, FetchRequest, begin_forgotten_topics, begin_topics,
    end_forgotten_topic, end_topic, take_forgotten_partition, take_forgotten_topic, take_partition, take_topic,
)
from kbroker.apis.serving.waiting cimport Waiter, WaitingRoom
from kbroker.base.clock cimport Clock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work cimport ELEMENTS_OF_A_PART, LongWork
from kbroker.base.ledger import Line
from kbroker.protocol.schema import first_version
from kbroker.security.access cimport Access
from kbroker.topics.partition cimport FetchWaiter, Partition


cdef enum:
    FIRST_EPOCH = 0
    CLOSING_EPOCH = -1
    # A session that was unused for this time may be evicted to make room for a new session. It is the default of
    # Kafka's min.incremental.fetch.session.eviction.ms.
    EVICTABLE_MS = 120000
    MOST_HELD = 200_000         # partitions, of about 280 bytes each
    MOST_EVICTED = 16           # sessions that make room for one

MOST_HELD_PARTITIONS = MOST_HELD

cdef int SESSIONS = first_version('FetchRequest', 'session_id')
cdef int TOPIC_IDS = first_version('FetchRequest', 'topics.topic_id')


@cython.freelist(64)
cdef class WantedTopic:
    """A topic of a session, under the name or id that the request gives, with the partitions that the client reads."""


cdef class WantedPartition(FetchWaiter):
    """One partition of a session, with the offsets in the last answer to the client. Before the first answer, they are
    -1."""

    cpdef wake(self):
        if self.session is not None:
            self.session.moved(self)

    cdef int acknowledged(self) except -1:
        """Make the partition due for the session's next fetch, because records were acknowledged. If a fetch of the
        session waits now, do nothing: it is woken when the records are on the disk."""
        if self.session is not None and self.session.parked is None:
            self.unlink()
            self.session.moved(self)
        return 0

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

    cdef bint has_moved(self) except -1:
        """Return whether the partition's high watermark, last stable offset or log start offset has changed since the
        last look."""
        cdef Partition partition = self.partition
        if partition is None or self.error_code != 0:
            return False
        return (partition.is_deleted or partition.high_watermark != self.high_watermark
                or partition.stable_offset() != self.last_stable_offset
                or partition.start_offset() != self.log_start_offset)

    cdef bint has_news(self) noexcept:
        """Return whether the last look found anything that the client does not know yet."""
        return (self.records is not None or self.error_code != 0 or self.diverging_epoch != -1
                or self.high_watermark != self.sent_high_watermark
                or self.log_start_offset != self.sent_log_start_offset)

    cdef bint take_news(self) noexcept:
        """Return whether the last look found anything that the client does not know yet. Assume from now on that the
        client knows it."""
        cdef bint changed = self.has_news()
        if self.error_code == 0:
            self.sent_high_watermark = self.high_watermark
            self.sent_log_start_offset = self.log_start_offset
        else:
            self.sent_high_watermark = -1
        return changed


@cython.freelist(16)
cdef class FetchSession:
    """The partitions of a client's session. A fetch without a session has its own FetchSession, with the id 0."""

    def __len__(self):
        return self.size

    cdef bint take_over(self, FetchRequest *request, Py_ssize_t count) except -1:
        """Add, change or forget the partitions that the request names. Stop after `count` elements, and return whether
        the request has more."""
        if request.topics_left == NOT_BEGUN:
            request.topics_left = begin_topics(&request.topics)
        for count in range(count, 0, -1):
            if request.partitions_left:
                self.take_partition(request)
            elif request.topics_left:
                self.take_topic(request)
            elif not request.is_forgetting and self.is_incremental:
                request.is_forgetting = True
                request.topics_left = begin_forgotten_topics(&request.forgotten_topics)
            else:
                self.taken = None
                return False
        return True

    cdef int take_topic(self, FetchRequest *request) except -1:
        """Advance to the next topic of the request."""
        cdef AskedTopic asked
        cdef bytes key
        request.topics_left -= 1
        if request.is_forgetting:
            take_forgotten_topic(&request.forgotten_topics, &asked)
        else:
            take_topic(&request.topics, &asked)
        request.partitions_left = asked.partitions
        if not asked.partitions:
            return (end_forgotten_topic(&request.forgotten_topics) if request.is_forgetting
                    else end_topic(&request.topics))
        key = PyBytes_FromStringAndSize(<const char *>asked.key, asked.key_bytes)
        self.taken = self.topics.get(key)
        if self.taken is None and not request.is_forgetting:
            self.taken = WantedTopic.__new__(WantedTopic)
            self.taken.key = key
            self.taken.partitions = {}
            self.topics[key] = self.taken
        return 0

    cdef int take_partition(self, FetchRequest *request) except -1:
        """Read the next partition of the current topic from the request. Add, change or forget it in the session."""
        cdef AskedPartition asked
        request.partitions_left -= 1
        if not request.is_forgetting:
            take_partition(&request.topics, &asked)
            self.want(&asked)
            if not request.partitions_left:
                end_topic(&request.topics)
            return 0
        asked.index = take_forgotten_partition(&request.forgotten_topics)
        if self.taken is not None:
            self.forget(asked.index)
        if not request.partitions_left:
            if self.taken is not None and not self.taken.partitions:
                del self.topics[self.taken.key]
            end_forgotten_topic(&request.forgotten_topics)
        return 0

    cdef int want(self, const AskedPartition *asked) except -1:
        cdef WantedPartition wanted = self.taken.partitions.get(asked.index)
        if wanted is None:
            wanted = WantedPartition.__new__(WantedPartition)
            wanted.session = self
            wanted.topic = self.taken
            wanted.index = asked.index
            wanted.sent_high_watermark = -1
            wanted.sent_log_start_offset = -1
            self.taken.partitions[asked.index] = wanted
            self.size += 1
        wanted.fetch_offset = asked.fetch_offset
        wanted.max_bytes = asked.max_bytes
        wanted.current_leader_epoch = asked.current_leader_epoch
        wanted.last_fetched_epoch = asked.last_fetched_epoch
        if not wanted.is_due:
            wanted.is_due = True
            self.due.append(wanted)
        return 0

    cdef int forget(self, int32_t index) except -1:
        cdef WantedPartition wanted = self.taken.partitions.pop(index, None)
        if wanted is not None:
            wanted.session = None
            wanted.stop_waiting()
            self.size -= 1
        return 0

    cdef bint take_rights(self, Access access, int64_t generation) except -1:
        """Store the client's rights at this fetch. Return whether the session has partitions and the rights may have
        changed since its last fetch."""
        cdef bint are_other = self.size and (access is not self.access or generation != self.rights_generation)
        self.access = access
        self.rights_generation = generation
        return are_other

    def ask_again(self):
        """Make every partition of the session due. A generator: it yields after each part."""
        cdef WantedTopic topic
        cdef WantedPartition wanted
        cdef Py_ssize_t count = 0
        for topic in list(self.topics.values()):
            for wanted in list(topic.partitions.values()):
                if not wanted.is_due:
                    wanted.is_due = True
                    self.due.append(wanted)
                count += 1
                if count % ELEMENTS_OF_A_PART == 0:
                    yield

    cdef int moved(self, WantedPartition wanted) except -1:
        if self.is_ended:
            return 0
        if not wanted.is_due:
            wanted.is_due = True
            self.due.append(wanted)
        if self.parked is not None:
            if self.moved_since is None:
                self.moved_since = []
            self.moved_since.append(wanted)
            self.room.wake(self.parked)
        return 0

    cdef int end(self) except -1:
        """Release all partitions in one call."""
        cdef WantedTopic topic
        self.forget_all()
        for topic in self.topics.values():
            topic.partitions = None
        self.topics = {}
        return 0

    cdef int forget_all(self) except -1:
        """Detach all partitions from the session, except that `topics` still has them. The caller must break the
        reference cycles between topics and partitions, because the garbage collector does not run.
        """
        self.is_ended = True
        self.parked = None
        self.taken = None
        self.size = 0
        self.due = []
        self.moved_since = None
        return 0

    def end_in_parts(self):
        """Release the partitions of a session that has ended. A generator: it yields after each part."""
        cdef WantedTopic topic
        cdef dict partitions, topics = self.topics
        cdef Py_ssize_t left
        self.topics = {}
        while topics:
            _, topic = topics.popitem()
            partitions = topic.partitions
            topic.partitions = None
            topic = None
            while partitions:
                for left in range(min(4 * ELEMENTS_OF_A_PART, <Py_ssize_t>len(partitions)), 0, -1):
                    partitions.popitem()
                yield


    cdef list untaken_news(self):
        """Return the partitions that an answer would contain now."""
        cdef WantedPartition wanted
        return [wanted for wanted in self.due
                if wanted.session is not None and (wanted.has_news() or not self.is_incremental)]

    cdef int postpone_news(self) except -1:
        """Discard the results of this fetch's looks. The next fetch looks at the partitions again."""
        cdef WantedPartition wanted
        for wanted in self.due:
            wanted.forget_look()
        self.parked = None
        self.moved_since = None
        return 0


@cython.freelist(16)
cdef class News:
    """Collects the partitions of an answer, in order. A partition that has no further records is then no longer due."""

    def __cinit__(self, FetchSession session not None):
        self.session = session
        self.partitions = []
        if session.session_id != NO_SESSION:
            self.due = []
            self.served = []
        session.parked = None
        session.moved_since = None

    cdef bint take(self, Py_ssize_t count) except -1:
        """Look through up to `count` due partitions of the session. Return whether there are more of them."""
        cdef FetchSession session = self.session
        cdef WantedPartition wanted
        for count in range(count, 0, -1):
            if self.at >= len(session.due):
                break
            wanted = session.due[self.at]
            self.at += 1
            if wanted.session is None:
                continue
            if wanted.take_news() or not session.is_incremental:
                self.partitions.append(wanted)
            if session.session_id == NO_SESSION:
                continue
            if wanted.records is not None:
                self.served.append(wanted)
            elif wanted.has_more or wanted.error_code != 0:
                self.due.append(wanted)
            elif session.is_busy and wanted.has_moved():
                self.due.append(wanted)
            else:
                wanted.is_due = False
                wanted.wait()
        if self.at < len(session.due):
            return True
        if session.session_id != NO_SESSION:
            self.due += self.served
            session.due = self.due
        return False


cdef class FetchSessions:
    """All fetch sessions, at most `slots`. If there is no room for a client's session, the client is served without
    one, which every client supports."""

    def __init__(self, Py_ssize_t slots, Clock clock not None, WaitingRoom room not None, LongWork long_work not None):
        self.slots = slots
        self.clock = clock
        self.room = room
        self.long_work = long_work
        self.sessions = {}
        self.by_size = []
        self.queue = deque()

    def __len__(self):
        return len(self.sessions)

    def ledger(self):
        return [
            Line('fetch sessions', '', lambda: len(self.sessions), lambda: self.slots,
                 'max.incremental.fetch.session.cache.slots'),
            Line('partitions of fetch sessions and waiting fetches', '', lambda: self.held,
                 lambda: MOST_HELD_PARTITIONS, 'fixed')]

    cdef FetchSession begin(self, FetchRequest *request):
        """Return the session for a request. The caller lets it take over the partitions of the request. For a fetch
        without a session, return a new one with the id 0.

        Raise KafkaError FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or FETCH_SESSION_TOPIC_ID_ERROR.
        """
        cdef FetchSession session
        if request.version >= SESSIONS and request.session_epoch not in (FIRST_EPOCH, CLOSING_EPOCH):
            return self.advance(request)
        if request.version >= SESSIONS and request.session_id != NO_SESSION and request.session_id in self.sessions:
            self.drop(self.sessions[request.session_id])
        session = FetchSession.__new__(FetchSession)
        session.room = self.room
        session.topics = {}
        session.due = []
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
            # The client has continued the session over another connection. The parked request has the previous session
            # epoch.
            parked.answer_now()
        if session.is_busy:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                             f'fetch session {session.session_id}: its last fetch is not answered yet')
        session.is_incremental = True
        session.epoch = session.epoch + 1 if session.epoch < INT32_MAX else 1
        session.used_ms = self.clock.monotonic_ms()
        # The dict is ordered by last use: its first session is evicted first.
        self.sessions[session.session_id] = self.sessions.pop(session.session_id)
        return session

    cdef bint reserve(self, FetchSession session) except -1:
        """Count the session's partitions for MOST_HELD. Return False, and count nothing, if there is no room for
        them."""
        cdef Py_ssize_t growth = session.size - session.counted
        if growth > 0 and self.held + growth > MOST_HELD:
            return False
        self.held += growth
        session.counted = session.size
        return True

    cdef int settle(self, FetchSession session, FetchRequest *request, Py_ssize_t unknown) except -1:
        """Before the answer to `request` is written, give a new session an id, and keep or drop an existing session.
        `unknown` is the number of the session's partitions that do not exist.
        """
        cdef bint is_kept = unknown <= MOST_UNKNOWN and session.size <= MOST_NAMED
        if session.session_id == NO_SESSION:
            if request.version >= SESSIONS and request.session_epoch == FIRST_EPOCH and is_kept:
                self.give_id(session, request)
        elif session.size == 0 or not is_kept or not self.reserve(session):
            self.remove(session)        # the answer still needs its partitions
        else:
            self.list_by_size(session, session.used_ms)
        return 0

    cdef int give_id(self, FetchSession session, FetchRequest *request) except -1:
        """Register a new session, so that later requests can continue it. Do nothing if there is no room for it."""
        cdef int64_t now_ms = self.clock.monotonic_ms()
        cdef Py_ssize_t evicted = 0
        while len(self.sessions) >= self.slots or not self.reserve(session):
            if evicted == MOST_EVICTED or not self.evict_one(session.size, now_ms):
                return 0
            evicted += 1
        while session.session_id == NO_SESSION or session.session_id in self.sessions:
            session.session_id = random.randint(1, INT32_MAX)
        session.uses_topic_ids = request.version >= TOPIC_IDS
        session.epoch = FIRST_EPOCH + 1
        session.created_ms = session.used_ms = now_ms
        self.sessions[session.session_id] = session
        return 0

    cdef bint evict_one(self, Py_ssize_t size, int64_t now_ms) except -1:
        """Drop a session to make room for a new session of `size` partitions, as Kafka does. Return False if no session
        may be dropped.

        The least recently used session is dropped if it was not used for EVICTABLE_MS. Otherwise, the smallest session
        that was created at least EVICTABLE_MS ago is dropped, if it is smaller than the new one. Kafka's rule for
        followers does not apply here.
        """
        cdef FetchSession oldest = next(iter(self.sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.used_ms < EVICTABLE_MS:
            if not self.by_size or self.by_size[0][0] >= size:
                return False
            oldest = self.sessions[self.by_size[0][1]]
        self.drop(oldest)
        return True

    cdef int list_by_size(self, FetchSession session, int64_t now_ms) except -1:
        """Register the session in `by_size` if it is old enough for larger sessions to evict it."""
        if session.size_key is not None:
            if session.size_key[0] == session.size:
                return 0
            self.unlist(session)
        if now_ms - session.created_ms >= EVICTABLE_MS:
            session.size_key = session.size, session.session_id
            insort(self.by_size, session.size_key)
        return 0

    cdef int unlist(self, FetchSession session) except -1:
        if session.size_key is not None:
            del self.by_size[bisect_left(self.by_size, session.size_key)]
            session.size_key = None
        return 0

    cdef int drop(self, FetchSession session) except -1:
        """End a session. Its partitions are released now, or, if a fetch is working on it, by that fetch."""
        self.remove(session)
        if not session.is_busy:
            self.release(session)
        return 0

    cdef int remove(self, FetchSession session) except -1:
        self.unlist(session)
        del self.sessions[session.session_id]
        session.session_id = NO_SESSION
        return 0

    cdef int release(self, FetchSession session) except -1:
        """Release the partitions of a session, which may be that of a fetch without a session."""
        cdef Py_ssize_t size = session.size
        self.held -= session.counted
        session.counted = 0
        if size <= FEW:
            return session.end()
        session.forget_all()
        self.long_work.start(session.end_in_parts())
        return 0

    cdef int work_on(self, object steps) except -1:
        """Run the generator of a fetch of many partitions as long work. Only one of these generators runs at a time,
        because each takes memory."""
        self.queue.append(steps)
        if len(self.queue) == 1:
            self.long_work.start(self.work_on_queue())
        return 0

    def work_on_queue(self):
        while self.queue:
            yield from self.queue[0]
            self.queue.popleft()
