"""Fetch (key 1), versions 4-18.

Whole batches as they lie in the segment files, from the one that holds the wanted offset: below the high watermark, or
below the last stable offset with isolation level read_committed, which also gets the aborted transactions of the range.
At least one batch is returned, however small the limits, from the first partition that has one (KIP-74). With less than
min_bytes at hand the request waits for a partition to move, max_wait_ms at the longest. Fetch sessions: KIP-227; topic
ids from version 13: KIP-516; diverging epochs from version 12: KIP-595.
"""
from libc.stdint cimport int64_t

from kbroker.apis.context import Api
from kbroker.apis.fetch_sessions import NO_SESSION
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import FetchResponse

FetchableTopicResponse = FetchResponse.FetchableTopicResponse
PartitionData = FetchResponse.PartitionData
AbortedTransaction = FetchResponse.AbortedTransaction
EpochEndOffset = FetchResponse.EpochEndOffset


cdef class Gathered:
    """The answers of one look at the partitions."""
    cdef list answers                # (key, PartitionData)
    cdef int64_t size_bytes
    cdef bint must_answer            # an error or a diverging epoch: the client should not wait for these


cdef class DelayedFetch:
    """A fetch that found less than min_bytes, until a partition moves, the time is over, or the client leaves."""
    cdef object context
    cdef object request
    cdef object session
    cdef dict wanted
    cdef bint incremental
    cdef list partitions
    cdef object timer
    cdef bint finished

    def __init__(self, context, request, session, dict wanted, bint incremental):
        self.context = context
        self.request = request
        self.session = session
        self.wanted = wanted
        self.incremental = incremental
        self.partitions = []

    cdef int park(self) except -1:
        broker = self.context.broker
        for item in self.wanted.values():
            partition = find_partition(broker.topics, item, self.context.version)
            if partition is not None:
                partition.add_fetch_waiter(self)
                self.partitions.append(partition)
        broker.waiting_room.enter(self.context.connection_id, self)
        self.timer = broker.timers.after(self.request.max_wait_ms, self.answer_now)
        return 0

    def wake(self):
        self.context.broker.waiting_room.wake(self)

    def look_again(self):
        cdef Gathered gathered
        if self.finished:
            return
        gathered = gather(self.context, self.request, self.wanted)
        if gathered.must_answer or gathered.size_bytes >= self.request.min_bytes:
            self.answer(gathered)

    def answer_now(self):
        if not self.finished:
            self.answer(gather(self.context, self.request, self.wanted))

    def give_up(self):
        self.finish()

    cdef int answer(self, Gathered gathered) except -1:
        self.finish()
        self.context.reply(build_response(gathered, self.session, self.incremental))
        return 0

    cdef int finish(self) except -1:
        self.finished = True
        self.timer.cancel()
        for partition in self.partitions:
            partition.remove_fetch_waiter(self)
        self.partitions = []
        self.context.broker.waiting_room.leave(self.context.connection_id)
        return 0


def handle(context, request):
    cdef Gathered gathered
    cdef DelayedFetch delayed
    session, wanted, incremental = context.broker.fetch_sessions.find(request, context.version)
    gathered = gather(context, request, wanted)
    if (gathered.must_answer or gathered.size_bytes >= request.min_bytes or request.max_wait_ms <= 0 or not wanted):
        return build_response(gathered, session, incremental)
    delayed = DelayedFetch(context, request, session, wanted, incremental)
    delayed.park()
    return None


cdef Gathered gather(context, request, dict wanted):
    """Read every wanted partition within the limits of the request and of fetch.max.bytes."""
    cdef Gathered gathered = Gathered.__new__(Gathered)
    cdef int64_t left = min(request.max_bytes, context.broker.config.fetch_max_bytes)
    cdef int64_t size_bytes
    gathered.answers = []
    for key, item in wanted.items():
        answer = failed(item.partition, ErrorCode.NONE)
        gathered.answers.append((key, answer))
        try:
            size_bytes = read_partition(context, request, item, answer, left, gathered.size_bytes == 0)
        except KafkaError as error:
            answer.error_code = int(error.code)
            gathered.must_answer = True
            continue
        if answer.diverging_epoch.epoch != -1:
            gathered.must_answer = True
        gathered.size_bytes += size_bytes
        left = max(0, left - size_bytes)
    return gathered


cdef int64_t read_partition(context, request, item, answer, int64_t left, bint min_one_batch) except -1:
    partition = find_partition(context.broker.topics, item, context.version)
    if partition is None:
        if context.version >= 13:
            if context.broker.topics.topic_by_id(item.topic_id) is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    answer.aborted_transactions = None
    if item.current_leader_epoch >= 0:
        check_leader_epoch(partition, item.current_leader_epoch)
    replica_id = request.replica_id if context.version < 15 else request.replica_state.replica_id
    if replica_id >= 0:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f'consumers expected, found replica {replica_id}')
    if item.last_fetched_epoch >= 0 and diverges(partition, item, answer):
        return 0
    found = partition.read(item.fetch_offset, min(left, item.max_bytes), request.isolation_level, min_one_batch)
    answer.high_watermark = found.high_watermark
    answer.last_stable_offset = found.last_stable_offset
    answer.log_start_offset = found.log_start_offset
    if found.aborted_transactions is not None:
        answer.aborted_transactions = [AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
                                       for producer_id, first_offset in found.aborted_transactions]
    if found.records is None:
        return 0
    answer.records = found.records
    return found.records.size_bytes


cdef object find_partition(topics, item, int version):
    if version < 13:
        return topics.find(item.topic, item.partition)
    topic = topics.topic_by_id(item.topic_id)
    if topic is None or not 0 <= item.partition < len(topic.partitions):
        return None
    return topic.partitions[item.partition]


def check_leader_epoch(partition, current_leader_epoch):
    """Raises KafkaError FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH; -1 asks for no check (KIP-320)."""
    if current_leader_epoch in (-1, partition.leader_epoch):
        return
    code = (ErrorCode.FENCED_LEADER_EPOCH if current_leader_epoch < partition.leader_epoch
            else ErrorCode.UNKNOWN_LEADER_EPOCH)
    raise KafkaError(code, f'leader epoch {partition.leader_epoch} expected, found {current_leader_epoch}')


def end_of_leader_epoch(partition, leader_epoch):
    """(epoch, offset) where the largest epoch in use at or below `leader_epoch` ends; (-1, -1) if nothing is known."""
    if leader_epoch == partition.leader_epoch:
        # The epoch in force has no line in the checkpoint before its first append.
        return leader_epoch, partition.log_end_offset
    return partition.log.leader_epochs.end_offset_for(leader_epoch, partition.log_end_offset)


cdef bint diverges(partition, item, answer) except -1:
    """Whether the log left the one that the fetcher has read, and then from where (KIP-595)."""
    epoch, end_offset = end_of_leader_epoch(partition, item.last_fetched_epoch)
    if epoch == -1:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f'leader epoch {item.last_fetched_epoch} is not known here, '
                         f'the current one is {partition.leader_epoch}')
    if epoch == item.last_fetched_epoch and end_offset >= item.fetch_offset:
        return False
    answer.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
    answer.high_watermark = partition.high_watermark
    answer.last_stable_offset = partition.last_stable_offset
    answer.log_start_offset = partition.log_start_offset
    return True


cdef object build_response(Gathered gathered, session, bint incremental):
    """Group the answers by topic; an incremental one leaves out what the client knows."""
    response = FetchResponse(session_id=NO_SESSION if session is None else session.session_id, responses=[])
    topics = {}
    for key, answer in gathered.answers:
        if session is not None and not session.told(key, answer) and incremental:
            continue
        topic_key = key[:2]
        topic = topics.get(topic_key)
        if topic is None:
            topic = topics[topic_key] = FetchableTopicResponse(topic=key[0], topic_id=key[1], partitions=[])
            response.responses.append(topic)
        topic.partitions.append(answer)
    return response


def error_response(request, code, message, version):
    if version >= 7:
        return FetchResponse(error_code=int(code))
    return FetchResponse(responses=[
        FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=[
            failed(partition.partition, code) for partition in topic.partitions])
        for topic in request.topics])


def failed(partition_index, code):
    return PartitionData(partition_index=partition_index, error_code=int(code), high_watermark=-1,
                         records=b'')


API = Api(ApiKey.FETCH, 4, 18, handle, error_response)
