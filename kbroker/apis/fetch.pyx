"""Fetch (key 1), versions 4-18.

Whole batches as they lie in the segment files, from the one that holds the wanted offset: below the high watermark, or
below the last stable offset with isolation level read_committed, which also gets the aborted transactions of the range.
At least one batch is returned, however small the limits, from the first partition that has one (KIP-74). With less than
min_bytes the request waits for a partition to move, for at most max_wait_ms. Fetch sessions: KIP-227; topic
ids from version 13: KIP-516; diverging epochs from version 12: KIP-595.
"""
cimport cython
from libc.stdint cimport int32_t, int64_t

from kbroker.apis.fetch_request cimport FetchRequest, read_request
from kbroker.apis.fetch_response cimport write_response
from kbroker.apis.fetch_sessions cimport NO_SESSION, FetchSession, FetchSessions, WantedPartition
from kbroker.apis.request cimport Api, Handler, Request
from kbroker.apis.waiting cimport Waiter, WaitingRoom
from kbroker.wire.bytes cimport Cursor
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.schema import first_version
from kbroker.topics.partition cimport Partition
from kbroker.topics.topic cimport Topic

cdef enum:
    READ_COMMITTED = 1

cdef int SESSIONS = first_version('FetchRequest', 'session_id')
cdef int TOPIC_IDS = first_version('FetchRequest', 'topics.topic_id')


@cython.final
cdef class Fetch(Waiter):
    """One request, from its session on until it is answered; parked if it found less than min_bytes."""
    cdef Request request
    cdef object timer
    cdef FetchSession session
    cdef int32_t replica_id
    cdef int32_t min_bytes
    cdef int32_t max_bytes
    cdef int32_t max_wait_ms
    cdef bint read_committed
    cdef bint is_finished
    # The last look at the partitions.
    cdef int64_t size_bytes
    cdef bint must_answer       # an error or a diverging epoch: the client should not wait for these

    cdef int start(self) except -1:
        """Answer, or park."""
        cdef WaitingRoom room
        self.look()
        if self.has_enough() or self.max_wait_ms <= 0 or self.session.size == 0:
            return self.answer()
        room = self.request.node.waiting_room
        room.enter(self.request.connection.connection_id, self)
        self.timer = self.request.node.timers.after(self.max_wait_ms, self.answer_now)
        return self.session.park(self)

    cdef bint has_enough(self) noexcept:
        return self.must_answer or self.size_bytes >= self.min_bytes

    cpdef look_again(self):
        if self.is_finished:
            return
        self.look()
        if self.has_enough():
            self.answer()
        else:
            self.session.park(self)

    cpdef answer_now(self):
        if not self.is_finished:
            self.look()
            self.answer()

    cpdef give_up(self):
        self.finish()
        if self.session.parked is self:
            self.session.parked = None
        if self.session.session_id == NO_SESSION:
            self.session.end()

    cdef int finish(self) except -1:
        cdef WaitingRoom room
        self.is_finished = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
            room = self.request.node.waiting_room
            room.leave(self.request.connection.connection_id)
        return 0

    cdef int answer(self) except -1:
        self.finish()
        return self.request.send(write_response(self.request, 0, self.session.session_id, self.session.take_news()))

    # ---- what there is

    cdef int look(self) except -1:
        """Read every partition that is due, within the limits of the request and of fetch.max.bytes."""
        cdef WantedPartition wanted
        cdef int64_t size_bytes, left = min(self.max_bytes, <int64_t>self.request.node.config.fetch_max_bytes)
        registry = self.request.node.topics
        cdef dict topics = registry.by_id if self.request.version >= TOPIC_IDS else registry.by_encoded_name
        self.size_bytes = 0
        self.must_answer = False
        for wanted in self.session.due:
            if wanted.session is None:
                continue
            wanted.forget_look()
            try:
                size_bytes = self.read(wanted, topics, left)
            except KafkaError as error:
                wanted.records = None
                wanted.error_code = error.code
                self.must_answer = True
                continue
            self.size_bytes += size_bytes
            left = max(<int64_t>0, left - size_bytes)
        return 0

    cdef int64_t read(self, WantedPartition wanted, dict topics, int64_t left) except -1:
        cdef Partition partition = wanted.partition
        cdef int64_t last_stable_offset, upper_bound_offset
        if partition is None or partition.is_deleted:
            partition = find_partition(wanted, topics, self.request.version)
        if wanted.current_leader_epoch >= 0 and wanted.current_leader_epoch != partition.leader_epoch:
            check_leader_epoch(partition, wanted.current_leader_epoch)
        if self.replica_id >= 0:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f'consumers expected, found replica {self.replica_id}')
        last_stable_offset = partition.stable_offset()
        if wanted.last_fetched_epoch < 0 or not diverges(partition, wanted):
            upper_bound_offset = last_stable_offset if self.read_committed else partition.high_watermark
            wanted.records = partition.read(wanted.fetch_offset, min(left, <int64_t>wanted.max_bytes),
                                            upper_bound_offset, self.size_bytes == 0)
            wanted.has_more = wanted.fetch_offset < upper_bound_offset
            if self.read_committed:
                wanted.aborted_transactions = b'' if wanted.records is None else partition.aborted_rows(
                    wanted.fetch_offset, wanted.records.end_offset)
        else:
            self.must_answer = wanted.has_more = True
        wanted.high_watermark = partition.high_watermark
        wanted.last_stable_offset = last_stable_offset
        wanted.log_start_offset = partition.start_offset()
        return 0 if wanted.records is None else wanted.records.size_bytes


cdef Partition find_partition(WantedPartition wanted, dict topics, int version):
    """Raises KafkaError UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION."""
    cdef Topic topic = topics.get(wanted.topic.key)
    wanted.stop_waiting()
    wanted.partition = None
    if topic is None or not 0 <= wanted.index < len(topic.partitions):
        # For a partition that exists, read_uncommitted gets null; for one that does not, Kafka sends an empty array.
        wanted.aborted_transactions = b''
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID if topic is None and version >= TOPIC_IDS
                         else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    wanted.partition = topic.partitions[wanted.index]
    return wanted.partition


def check_leader_epoch(partition, current_leader_epoch):
    """Raises KafkaError FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH; -1 asks for no check (KIP-320)."""
    if current_leader_epoch in (-1, partition.leader_epoch):
        return
    code = (ErrorCode.FENCED_LEADER_EPOCH if current_leader_epoch < partition.leader_epoch
            else ErrorCode.UNKNOWN_LEADER_EPOCH)
    raise KafkaError(code, f'leader epoch {partition.leader_epoch} expected, found {current_leader_epoch}')


cdef bint diverges(Partition partition, WantedPartition wanted) except -1:
    """Return whether the log diverges from the one that the fetcher read, and set from where (KIP-595)."""
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
        cdef FetchRequest wanted
        cdef FetchSessions sessions = request.node.fetch_sessions
        cdef Fetch fetch = Fetch.__new__(Fetch)
        try:
            read_request(&wanted, body.at, body.end, request.version)
            fetch.session = sessions.begin(&wanted)
        except KafkaError as error:
            return request.send(write_response(request, error.code, NO_SESSION, []))
        fetch.request = request
        fetch.replica_id = wanted.replica_id
        fetch.min_bytes = wanted.min_bytes
        fetch.max_bytes = wanted.max_bytes
        fetch.max_wait_ms = wanted.max_wait_ms
        fetch.read_committed = wanted.isolation_level == READ_COMMITTED
        return fetch.start()


def error_response(body, code, message, version):
    """Return the answer to a request that failed as a whole, by an unexpected error."""
    response = messages.FetchResponse
    if version >= SESSIONS:
        return response(error_code=int(code))
    return response(responses=[
        response.FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=[
            response.PartitionData(partition_index=partition.partition, error_code=int(code), high_watermark=-1,
                                   records=b'')
            for partition in topic.partitions])
        for topic in body.topics])


API = Api(ApiKey.FETCH, 4, 18, FetchHandler(), error_response)
