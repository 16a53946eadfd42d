"""TxnOffsetCommit (key 28), versions 0-5.

Offsets that count when the producer's transaction commits. Version 2 brings leader epochs (KIP-320); 3 the consumer's
generation, which fences its successors' predecessors (KIP-447); 4 knows TRANSACTION_ABORTABLE, and 5 adds the partition
of `__consumer_offsets` to the transaction by itself (KIP-890); up to 4 AddOffsetsToTxn must have done so. Answered when
the offsets are durable. Versions 0-1 get COORDINATOR_NOT_AVAILABLE for COORDINATOR_LOAD_IN_PROGRESS, which their
clients do not know.
"""
cimport cython

from kbroker.apis.request cimport Api, Request
from kbroker.apis.offset_commits cimport count_partitions, offsets_to_commit
from kbroker.completion cimport Completion
from kbroker.group.offsets cimport Commit
from kbroker.group.shard cimport TransactionalProducer

from kbroker.errors import ErrorCode, KafkaError
from kbroker.group.shard import coordinator_error
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import TxnOffsetCommitResponse
from kbroker.transaction.verification import TXN_OFFSET_COMMIT_VERSION_THAT_ADDS

cdef enum:
    VERSION_WITH_LOAD_IN_PROGRESS = 2
    VERIFICATION = -1               # the part of a TxnOffsetCommitUnderWay that the transaction coordinator completes

cdef object UNKNOWN_TOPIC_OR_PARTITION = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
cdef object COORDINATOR_LOAD_IN_PROGRESS = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
cdef object COORDINATOR_NOT_AVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
cdef object TopicResponse = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
cdef object PartitionResponse = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition


@cython.final
cdef class TxnOffsetCommitUnderWay(Completion):
    """A TxnOffsetCommit. The transaction coordinator verifies it, then the group coordinator stores its offsets."""
    cdef Request request
    cdef object body
    cdef Commit commit
    cdef TransactionalProducer producer

    cdef int complete(self, object error, Py_ssize_t part, object result) except -1:
        if part != VERIFICATION:
            return self.reply(result)
        try:
            if error is not None:
                raise coordinator_error(error)
            self.request.node.groups.commit_transactional(self.commit, self.producer, self)
        except KafkaError as refused:
            return self.reply(dict.fromkeys(self.commit.offsets, refused.code))
        return 0

    cdef int reply(self, dict results) except -1:
        self.request.reply(respond(self.body, results, self.request.version))
        return 0


def handle(Request request not None, body):
    cdef TxnOffsetCommitUnderWay under_way
    groups, topics = request.node.groups, request.node.topics
    count_partitions(groups, body.group_id, body.topics)
    cdef dict offsets = offsets_to_commit(body.topics, [topics.topic(topic.name) for topic in body.topics])
    if not offsets:
        return respond(body, offsets, request.version)
    if not body.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, 'the group id is empty')
    guard = groups.start_verification(
        body.group_id, body.producer_id, body.producer_epoch,
        supports_epoch_bump=request.version >= TXN_OFFSET_COMMIT_VERSION_THAT_ADDS
    )
    under_way = TxnOffsetCommitUnderWay.__new__(TxnOffsetCommitUnderWay)
    under_way.request = request
    under_way.body = body
    under_way.commit = Commit(body.group_id, offsets, body.generation_id, body.member_id, body.group_instance_id)
    under_way.producer = TransactionalProducer(body.producer_id, body.producer_epoch, guard)
    if guard is None:  # the transaction is open in this partition already
        under_way.complete(None, VERIFICATION, None)
    else:
        request.node.transactions.add_or_verify_offsets_partition(
            body.transactional_id,
            body.producer_id,
            body.producer_epoch,
            groups.partition_of(body.group_id),
            request.version,
            under_way,
            VERIFICATION,
        )
    return None


cdef object respond(body, dict results, int version):
    return TxnOffsetCommitResponse(topics=[
        TopicResponse(
            name=topic.name,
            partitions=[
                answer_partition(partition.partition_index, results.get(
                    (topic.name, partition.partition_index), UNKNOWN_TOPIC_OR_PARTITION), version)
                for partition in topic.partitions
            ],
        )
        for topic in body.topics
    ])


cdef object answer_partition(index, code, int version):
    if version < VERSION_WITH_LOAD_IN_PROGRESS and code is COORDINATOR_LOAD_IN_PROGRESS:
        code = COORDINATOR_NOT_AVAILABLE
    return PartitionResponse(partition_index=index, error_code=code)


def error_response(body, code, message, int version):
    return TxnOffsetCommitResponse(topics=[
        TopicResponse(name=topic.name, partitions=[
            answer_partition(partition.partition_index, code, version) for partition in topic.partitions])
        for topic in body.topics
    ])


API = Api(ApiKey.TXN_OFFSET_COMMIT, 0, 5, handle, error_response)
