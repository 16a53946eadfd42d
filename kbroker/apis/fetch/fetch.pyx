"""Fetch (key 1), versions 4-18.

Returns whole batches from the segment files, beginning with the batch that contains the requested offset. Only batches
below the high watermark are returned. With isolation level read_committed, only batches below the last stable offset
are returned, and the answer lists the aborted transactions in the range of these batches. If any partition has a batch,
at least one batch is returned, however small the limits of the request are (KIP-74).

A request that finds less than min_bytes waits until its partitions have enough, but for at most max_wait_ms. A request
that finds no records also waits until records that were acknowledged with acks=1 are on the disk. As in Kafka,
partitions that do not exist, or that the client may not read, do not end the wait. Any other error does. KIP-227
describes fetch sessions, KIP-516 topic ids (from version 13 on), and KIP-595 diverging epochs (from version 12 on).

The right to read a topic is checked each time its records are read, so a waiting fetch notices that a right was
removed. After a change of the ACLs, the next fetch of a session also looks at the session's quiet partitions.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker.apis.fetch.request cimport MOST_NAMED, FetchRequest, read_request
from kbroker.apis.fetch.response cimport ResponseWriter, long_response, response_bytes, write_response
from kbroker.apis.fetch.sessions cimport (
    ALL, FEW, MOST_UNKNOWN, NO_SESSION, FetchSession, FetchSessions, News, WantedPartition)
from kbroker.apis.serving.request cimport Api, Handler, Request
from kbroker.apis.serving.request import timed
from kbroker.apis.serving.request_fields import BoundError
from kbroker.apis.serving.waiting cimport Waiter, WaitingRoom
from kbroker.base.long_work cimport ELEMENTS_OF_A_PART
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work import run_to_end
from kbroker.metadata.topic_names import MAX_NAME_LENGTH as MAX_NAME
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.schema import first_version
from kbroker.security.acl_codes import CLUSTER_NAME, Operation, ResourceType
from kbroker.topics.partition cimport Partition
from kbroker.topics.topic cimport Topic
from kbroker.wire.bytes cimport Cursor

cdef Py_ssize_t MAX_NAME_LENGTH = MAX_NAME

cdef enum:
    READ_COMMITTED = 1

cdef int SESSIONS = first_version('FetchRequest', 'session_id')
cdef int TOPIC_IDS = first_version('FetchRequest', 'topics.topic_id')
cdef int READ = Operation.READ
cdef int CLUSTER_ACTION = Operation.CLUSTER_ACTION
cdef int TOPIC = ResourceType.TOPIC
cdef int CLUSTER = ResourceType.CLUSTER


cdef enum Stage:
    BEGUN       # served at once, or waiting for its turn in parts
    PARKED
    FINISHED


@cython.final
cdef class Fetch(Waiter):
    """A Fetch request, after its session was found and until it is answered. It is parked if it finds less than
    min_bytes.

    A fetch of more than FEW partitions is done in parts, by `work`: it takes over the partitions of the request into
    the session, looks at the partitions, and parks or answers. Partitions may change between two parts.
    `WantedPartition.has_moved` finds these changes.
    """
    cdef Request request
    cdef FetchSessions sessions
    cdef FetchSession session
    cdef FetchRequest wanted
    cdef bytes body             # of a request that is taken over in parts: `wanted` points into it
    cdef object timer
    cdef Stage stage
    cdef bint time_is_over
    cdef bint is_in_room        # of those that wait: it is answered or dropped with its connection
    cdef bint asks_again        # quiet partitions of the session, too: rights may have changed
    cdef bint is_settled        # the session knows what this fetch has taken over
    # The results of the last look at the partitions.
    cdef Py_ssize_t at          # the next partition to look at, or to wait for
    cdef int64_t size_bytes
    cdef Py_ssize_t unknown     # partitions that do not exist, or that the client may not read
    cdef bint has_long_name     # one of them has a name that no topic can have
    cdef set awaited            # partitions whose acknowledged records the disk lacks; None: there were none
    cdef bint must_answer       # another error or a diverging epoch: the client should not wait for these

    cdef int start(self, Cursor *body) except -1:
        """Answer the request or park it: in this call if it has at most FEW partitions, otherwise in parts.

        The call without a generator exists for speed: a Fetch of 64 KiB takes 18,500 instructions, but 23,600 as the
        first part of `work`.
        """
        cdef Py_ssize_t count = self.wanted.named + len(self.session.due)
        if self.request.meter is not None:
            self.cut()
        if self.request.access is not None and self.session.take_rights(
                self.request.access, self.request.access.caches.generation):
            self.asks_again = True
            count += self.session.size
        if count > FEW:
            self.keep_body(body)
            return self.work_on(self.session.due, False)
        if self.asks_again:
            run_to_end(self.session.ask_again())
        self.session.take_over(&self.wanted, ALL)
        self.look(self.session.due, False, ALL)
        if not self.may_park():
            return self.answer()
        self.park()
        return self.wait(self.session.due, ALL)

    cdef int cut(self) except -1:
        """Reduce the requested bytes to the number that the quota allows in all its windows together. An answer with
        more bytes would always be throttled."""
        most_bytes = self.request.meter.most_fetched_bytes
        if most_bytes is not None:
            self.wanted.max_bytes = min(self.wanted.max_bytes, <int32_t>most_bytes)
            self.wanted.min_bytes = min(self.wanted.min_bytes, self.wanted.max_bytes)
        return 0

    cdef int keep_body(self, Cursor *body) except -1:
        """Copy the bytes to which `wanted` points, because the frame is released before they are read."""
        cdef const uint8_t *start = body.at
        cdef const uint8_t *copy
        self.body = PyBytes_FromStringAndSize(<const char *>start, body.end - start)
        copy = <const uint8_t *>PyBytes_AS_STRING(self.body)
        move_cursor(&self.wanted.topics.cursor, copy - start)
        return move_cursor(&self.wanted.forgotten_topics.cursor, copy - start)

    cdef bint may_park(self) except -1:
        """Return whether to wait for more bytes.

        Do not wait if the bound of memory leaves no room for this fetch. A fetch that has found no records waits for
        acknowledged records even after its max_wait_ms, because the next sync soon ends this wait.
        """
        if self.must_answer or self.session.size <= self.unknown:
            return False
        if not (self.awaited and self.size_bytes == 0) and (
                self.size_bytes >= self.wanted.min_bytes or self.wanted.max_wait_ms <= 0 or self.time_is_over):
            return False
        return self.sessions.reserve(self.session)

    cdef int park(self) except -1:
        self.enter_room()
        if self.timer is None:
            self.timer = self.request.node.timers.after(max(0, self.wanted.max_wait_ms), self.answer_now)
        self.stage = PARKED
        self.session.parked = self
        self.at = 0
        return 0

    cdef int enter_room(self) except -1:
        cdef WaitingRoom room
        if not self.is_in_room:
            self.is_in_room = True
            room = self.request.node.waiting_room
            room.enter(self.request.connection.connection_id, self)
        return 0

    cdef bint wait(self, list partitions, Py_ssize_t count) except -1:
        """Register this fetch with up to `count` of the partitions, so that their next change wakes it. Return whether
        there are more partitions to register with."""
        cdef WantedPartition wanted
        for count in range(count, 0, -1):
            if self.at >= len(partitions):
                break
            wanted = partitions[self.at]
            self.at += 1
            if wanted.partition is not None and wanted.session is not None:
                wanted.wait()
                if self.session.is_busy and wanted.has_moved():
                    self.session.moved(wanted)
        return self.at < len(partitions)

    cpdef look_again(self):
        """Look at the partitions that have changed since the last look, and answer if there are enough bytes."""
        cdef list moved
        if self.stage != PARKED or self.session.is_busy:
            return
        self.request.begin_part()
        moved = self.session.moved_since or []
        self.session.moved_since = None
        if len(moved) > FEW:
            self.work_on(moved, True)
            return
        self.at = 0
        self.look(moved, True, ALL)
        if self.may_park():
            self.at = 0
            self.wait(moved, ALL)
            self.request.end_part()
        elif len(self.session.due) > FEW:
            self.must_answer = True
            self.work_on([], True)
        else:
            self.answer()

    cpdef answer_now(self):
        self.time_is_over = True
        self.look_again()

    cpdef give_up(self):
        if self.stage == FINISHED:
            return
        self.finish()
        if self.session.parked is self:
            self.session.parked = None
            self.session.moved_since = None
        if not self.session.is_busy:
            self.leave_session()

    cdef int finish(self) except -1:
        cdef WaitingRoom room
        self.stage = FINISHED
        self.awaited = None     # its partitions refer to the session, which refers to this fetch
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.is_in_room:
            self.is_in_room = False
            room = self.request.node.waiting_room
            room.leave(self.request.connection.connection_id)
        return 0

    cdef int leave_session(self) except -1:
        """Release the partitions if the fetch has no session that keeps them."""
        if self.session.session_id == NO_SESSION:
            self.sessions.release(self.session)
        return 0

    cdef int answer(self) except -1:
        cdef News news
        self.finish()
        if self.request.meter is not None and self.is_throttled():
            self.answer_nothing()
            return self.leave_session()
        self.settle_session()
        news = News(self.session)
        news.take(ALL)
        self.leave_session()
        return self.request.send(write_response(self.request, 0, self.session.session_id, news.partitions))

    cdef bint is_throttled(self) except -1:
        """Record the size of the answer for the client's quotas. If the size or the time of the request exceeds a
        quota, remove the size from the record again and return True."""
        cdef int64_t size_bytes = response_bytes(self.session.untaken_news(), self.request.version)
        meter = self.request.meter
        self.request.settle()
        self.request.throttle(meter.record_fetched(size_bytes))
        if not self.request.throttle_ms:
            return False
        meter.undo_fetched(size_bytes)
        return True

    cdef int answer_nothing(self) except -1:
        """Answer without partitions. An existing session is kept, but no new session begins."""
        self.is_settled = True
        self.session.postpone_news()
        if self.session.session_id != NO_SESSION:
            self.settle_session()
        return self.request.send(write_response(self.request, 0, self.session.session_id, []))

    # ---- in parts

    cdef int work_on(self, list partitions, bint again) except -1:
        """Look at the partitions in parts, then park or answer. `again` is True if this fetch has looked at them
        before."""
        self.enter_room()
        self.session.is_busy = True
        steps = self.work(partitions, again)
        return self.sessions.work_on(timed(self.request, steps) if self.request.is_timed else steps)

    def work(self, list partitions, bint again):
        """Do the fetch in parts: take over the partitions of the request, look at the partitions, and park or answer. A
        generator."""
        try:
            yield from self.work_unless_closed(partitions, again)
        except Exception as error:
            self.fail(error)
        finally:
            self.session.is_busy = False
        if self.stage == FINISHED:
            if self.session.is_incremental and self.session.session_id != NO_SESSION and not self.is_settled:
                # The connection closed while the session took over partitions, so the client cannot know which ones the
                # session has.
                self.sessions.remove(self.session)
            self.leave_session()
        elif self.session.moved_since or self.time_is_over:
            self.look_again()

    def work_unless_closed(self, list partitions, bint again):
        cdef News news
        cdef ResponseWriter writer
        if self.asks_again:
            yield from self.session.ask_again()
        while self.stage != FINISHED and self.session.take_over(&self.wanted, ELEMENTS_OF_A_PART):
            yield
        self.body = None
        self.at = 0
        while self.stage != FINISHED and self.look(partitions, again, ELEMENTS_OF_A_PART):
            yield
        if self.stage == FINISHED:
            return
        if self.may_park():
            self.park()
            while self.stage != FINISHED and self.wait(partitions, ELEMENTS_OF_A_PART):
                yield
            return
        self.finish()
        if self.request.meter is not None and self.is_throttled():
            self.answer_nothing()
            return
        self.is_settled = True
        self.settle_session()
        news = News(self.session)
        while news.take(ELEMENTS_OF_A_PART):
            yield
        writer = long_response(news.partitions, self.request.version)
        writer.begin(self.request, 0, self.session.session_id)
        while writer.write(self.request, ELEMENTS_OF_A_PART):
            yield
        self.request.send(writer.segments)

    cdef int fail(self, object error) except -1:
        """Answer that the whole request has failed."""
        self.finish()
        if self.request.version < SESSIONS:
            self.request.connection.close(f'a Fetch failed, and closing is the only way to say so: {error}')
            return 0
        return self.request.fail(None, error)

    cdef int settle_session(self) except -1:
        """Keep or drop the session. A session that has a name longer than any topic's is dropped, to save memory."""
        cdef Py_ssize_t unknown = MOST_UNKNOWN + 1 if self.has_long_name else self.unknown
        return self.sessions.settle(self.session, &self.wanted, unknown)

    # ---- what there is

    cdef bint look(self, list partitions, bint again, Py_ssize_t count) except -1:
        """Read from up to `count` of the partitions, within the limits of the request and of fetch.max.bytes.

        Return whether there are more partitions to read from. `again` is True if this fetch has looked at the
        partitions before, so that their bytes are counted already.
        """
        cdef WantedPartition wanted
        cdef int64_t most_bytes = min(self.wanted.max_bytes, <int64_t>self.request.node.config.fetch_max_bytes)
        registry = self.request.node.topics
        cdef dict topics = registry.by_id if self.request.version >= TOPIC_IDS else registry.by_encoded_name
        for count in range(count, 0, -1):
            if self.at >= len(partitions):
                break
            wanted = partitions[self.at]
            self.at += 1
            if wanted.session is None:
                continue
            if again:
                self.size_bytes -= 0 if wanted.records is None else wanted.records.size_bytes
                if self.awaited is not None:
                    self.awaited.discard(wanted)
            wanted.forget_look()
            try:
                self.size_bytes += self.read(wanted, topics, max(<int64_t>0, most_bytes - self.size_bytes))
            except KafkaError as error:
                wanted.records = None
                wanted.error_code = error.code
                if wanted.partition is None:
                    self.unknown += 1
                    self.has_long_name = self.has_long_name or len(wanted.topic.key) > MAX_NAME_LENGTH
                    self.must_answer = self.must_answer or again
                else:
                    self.must_answer = True
        return self.at < len(partitions)

    cdef int64_t read(self, WantedPartition wanted, dict topics, int64_t left) except -1:
        cdef Partition partition = wanted.partition
        cdef int64_t last_stable_offset, upper_bound_offset
        cdef bint read_committed
        if self.request.access is not None:
            self.check_right(wanted, topics)
        if partition is None or partition.is_deleted:
            partition = find_partition(wanted, topics, self.request.version)
        if wanted.current_leader_epoch >= 0 and wanted.current_leader_epoch != partition.leader_epoch:
            check_leader_epoch(partition, wanted.current_leader_epoch)
        if self.wanted.replica_id >= 0:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER,
                             f'consumers expected, found replica {self.wanted.replica_id}')
        last_stable_offset = partition.stable_offset()
        if wanted.last_fetched_epoch < 0 or not diverges(partition, wanted):
            read_committed = self.wanted.isolation_level == READ_COMMITTED
            upper_bound_offset = last_stable_offset if read_committed else partition.high_watermark
            wanted.records = partition.read(wanted.fetch_offset, min(left, <int64_t>wanted.max_bytes),
                                            upper_bound_offset, self.size_bytes == 0)
            wanted.has_more = wanted.fetch_offset < upper_bound_offset
            if partition.hides_acknowledged(wanted.fetch_offset):
                wanted.has_more = True
                if self.awaited is None:
                    self.awaited = set()
                self.awaited.add(wanted)
            if read_committed:
                wanted.aborted_transactions = b'' if wanted.records is None else partition.aborted_rows(
                    wanted.fetch_offset, wanted.records.end_offset)
        else:
            self.must_answer = wanted.has_more = True
        wanted.high_watermark = partition.high_watermark
        wanted.last_stable_offset = last_stable_offset
        wanted.log_start_offset = partition.start_offset()
        return 0 if wanted.records is None else wanted.records.size_bytes


    cdef int check_right(self, WantedPartition wanted, dict topics) except -1:
        """Raise KafkaError TOPIC_AUTHORIZATION_FAILED unless the client may read the topic.

        An unknown topic id raises no error here: the caller refuses it.
        """
        cdef Topic topic
        cdef bint is_allowed
        if self.wanted.replica_id >= 0:
            is_allowed = self.request.may(CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)
        elif wanted.partition is not None:
            is_allowed = self.request.may(READ, TOPIC, (<Partition>wanted.partition).topic)
        else:
            topic = topics.get(wanted.topic.key)
            is_allowed = (topic is None and self.request.version >= TOPIC_IDS) or self.request.may(
                READ, TOPIC, wanted.topic.key.decode() if topic is None else topic.name)
        if not is_allowed:
            wanted.stop_waiting()
            wanted.partition = None
            wanted.aborted_transactions = b''       # never null, as from Kafka
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return 0


cdef int move_cursor(Cursor *cursor, Py_ssize_t distance) noexcept:
    cursor.at += distance
    cursor.end += distance
    return 0


cdef Partition find_partition(WantedPartition wanted, dict topics, int version):
    """Find the partition, store it in `wanted` and return it. Raise KafkaError UNKNOWN_TOPIC_ID or
    UNKNOWN_TOPIC_OR_PARTITION if it does not exist."""
    cdef Topic topic = topics.get(wanted.topic.key)
    wanted.stop_waiting()
    wanted.partition = None
    if topic is None or not 0 <= wanted.index < len(topic.partitions):
        # For a partition that does not exist, Kafka sends an empty array, even with read_uncommitted. Existing
        # partitions have null with read_uncommitted.
        wanted.aborted_transactions = b''
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID if topic is None and version >= TOPIC_IDS
                         else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    wanted.partition = topic.partitions[wanted.index]
    return wanted.partition


def check_leader_epoch(partition, current_leader_epoch):
    """Raise KafkaError FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH unless the epoch is the current one or -1
    (KIP-320)."""
    if current_leader_epoch in (-1, partition.leader_epoch):
        return
    code = (ErrorCode.FENCED_LEADER_EPOCH if current_leader_epoch < partition.leader_epoch
            else ErrorCode.UNKNOWN_LEADER_EPOCH)
    raise KafkaError(code, f'leader epoch {partition.leader_epoch} expected, found {current_leader_epoch}')


cdef bint diverges(Partition partition, WantedPartition wanted) except -1:
    """Return whether the partition's log diverges from the log that the client has read. If it does, set the epoch and
    the end offset up to which they agree (KIP-595)."""
    if wanted.last_fetched_epoch == partition.leader_epoch and partition.end_offset() >= wanted.fetch_offset:
        return False
    epoch, end_offset = partition.end_of_epoch(wanted.last_fetched_epoch)
    if epoch == -1:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f'leader epoch {wanted.last_fetched_epoch} is not known here, '
                         f'the current one is {partition.leader_epoch}')
    if epoch == wanted.last_fetched_epoch and end_offset >= wanted.fetch_offset:
        return False
    wanted.diverging_epoch = epoch
    wanted.diverging_end_offset = end_offset
    return True


cdef class FetchHandler(Handler):

    cdef int serve(self, Request request, Cursor *body) except -1:
        cdef FetchSessions sessions = request.node.fetch_sessions
        cdef Fetch fetch = Fetch.__new__(Fetch)
        try:
            read_request(&fetch.wanted, body, request.version)
            fetch.session = sessions.begin(&fetch.wanted)
        except KafkaError as error:
            return request.send(write_response(request, error.code, NO_SESSION, []))
        except BoundError:
            if request.version < SESSIONS:
                raise
            return request.send(write_response(request, ErrorCode.INVALID_REQUEST, NO_SESSION, []))
        fetch.request = request
        fetch.sessions = sessions
        return fetch.start(body)


def error_response(body, code, message, version):
    """Return the answer to a request whose handler raised this error."""
    response = messages.FetchResponse
    if version >= SESSIONS:
        return response(error_code=int(code))
    return response(responses=[
        response.FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=[
            response.PartitionData(partition_index=partition.partition, error_code=int(code), high_watermark=-1,
                                   records=b'')
            for partition in topic.partitions])
        for topic in body.topics])


API = Api(ApiKey.FETCH, 4, 18, FetchHandler(), error_response, bounds={'topics and partitions': (
    MOST_NAMED, 'topics', 'topics.partitions', 'forgotten_topics_data', 'forgotten_topics_data.partitions')})
