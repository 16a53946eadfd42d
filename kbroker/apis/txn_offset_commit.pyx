"""TxnOffsetCommit (key 28), versions 0-6.

Commits offsets that take effect when the producer's transaction commits. Version 2 adds leader epochs (KIP-320).
Version 3 adds the consumer's member id and generation, so that members of former generations are fenced (KIP-447). A
client that sends version 4 knows the error code TRANSACTION_ABORTABLE. In version 5, the request also adds the
partition of `__consumer_offsets` to the transaction (KIP-890); producers with lower versions first send
AddOffsetsToTxn. In version 6, requests give topics by id, and an unknown id gets UNKNOWN_TOPIC_ID (KIP-1319). The
errors of the group are then those of OffsetCommit; in lower versions, ILLEGAL_GENERATION replaces GROUP_ID_NOT_FOUND
and STALE_MEMBER_EPOCH. The answer is sent when the offsets are durable. In versions 0 and 1, whose clients do not know
COORDINATOR_LOAD_IN_PROGRESS, the code is COORDINATOR_NOT_AVAILABLE instead.
"""
from functools import partial

cimport cython

from kbroker.apis.serving.offset_commits cimport count_partitions, offsets_to_commit, topics_to_commit
from kbroker.apis.serving.request cimport Api, Request, RequestSteps
from kbroker.base.completion cimport Completion
from kbroker.group.commits cimport Commit
from kbroker.group.shard cimport TransactionalProducer
from kbroker.transaction.store cimport TransactionStore

from kbroker.apis.serving.authorization import refusal
from kbroker.apis.serving.long_answers import Pace, each_topic, in_parts
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.shard import coordinator_error
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import TxnOffsetCommitResponse
from kbroker.protocol.schema import first_version
from kbroker.security.acl_codes import Operation, ResourceType
from kbroker.transaction.verification import TXN_OFFSET_COMMIT_VERSION_THAT_ADDS

cdef enum:
    VERSION_WITH_LOAD_IN_PROGRESS = 2
    PARTITIONS_AT_ONCE = 1_000      # topics and partitions; more are committed in several turns
    VERIFICATION = -1               # the part of a TxnOffsetCommitInFlight that the transaction coordinator completes

cdef int VERSION_WITH_IDS = first_version('TxnOffsetCommitRequest', 'topics.topic_id')
cdef int READ = Operation.READ
cdef int WRITE = Operation.WRITE
cdef int GROUP = ResourceType.GROUP
cdef int TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
cdef object ERROR_CODE = ErrorCode
cdef object NONE = ErrorCode.NONE
cdef object UNKNOWN_TOPIC_OR_PARTITION = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
cdef object COORDINATOR_LOAD_IN_PROGRESS = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
cdef object COORDINATOR_NOT_AVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
cdef object TopicResponse = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
cdef object PartitionResponse = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition


@cython.final
cdef class TxnOffsetCommitInFlight(Completion):
    """A TxnOffsetCommit request. The transaction coordinator verifies it, then the group coordinator stores its
    offsets."""
    cdef Request request
    cdef object body
    cdef list hosted            # for each topic: the Topic found, or an ErrorCode
    cdef Commit commit
    cdef TransactionalProducer producer
    cdef bint is_long

    cdef int complete(self, object error, Py_ssize_t part, object result) except -1:
        if part != VERIFICATION:
            return self.stored(result)
        if error is not None:
            return self.refuse(coordinator_error(error))
        if self.is_long:
            self.request.start_work(append_in_own_turn(self))
            return 0
        return self.append()

    cdef int stored(self, dict results) except -1:
        """Answer the request, because its offsets are durable or were refused."""
        cdef RequestSteps steps = self.request.steps
        if steps is not None and NONE in results.values() and steps.reach(
                'offsets.committed', self.request, partial(reply_with, self, results)):
            return 0
        return self.reply(results)

    cdef int append(self) except -1:
        cdef RequestSteps steps = self.request.steps
        if steps is not None and steps.reach('offsets.committing', self.request, partial(append_held, self)):
            return 0
        return self.append_now()

    cdef int append_now(self) except -1:
        """Append the offsets. The caller has verified that the transaction is open, or the producer has a verification
        guard."""
        cdef TransactionStore store = self.request.node.transactions.store
        try:
            store.check_not_sealed(self.producer.producer_id, self.producer.producer_epoch)
            # A stale request could replace newer offsets. With KIP-890, the verification guard prevents this for the
            # first offsets of a transaction, so only other offsets are checked here.
            if self.request.version < TXN_OFFSET_COMMIT_VERSION_THAT_ADDS or self.producer.guard is None:
                store.stale_requests.check_offsets(
                    self.body.transactional_id, self.producer.producer_id, self.producer.producer_epoch,
                    self.body.group_id, self.request.connection)
            self.request.node.groups.commit_transactional(self.commit, self.request.version, self.producer, self)
        except KafkaError as error:
            return self.refuse(error)
        return 0

    cdef int refuse(self, object error) except -1:
        return self.reply(dict.fromkeys(self.commit.offsets, error.code))

    cdef int reply(self, dict results) except -1:
        if self.is_long:
            self.request.start_work(reply_in_turns(self, results))
            return 0
        self.request.reply(respond(self.body, self.hosted, results, self.request.version))
        return 0


def reply_with(TxnOffsetCommitInFlight in_flight not None, dict results not None):
    """Answer a request that was held when its offsets were durable."""
    in_flight.reply(results)


def append_held(TxnOffsetCommitInFlight in_flight not None):
    """Append the offsets of a request that was held before."""
    in_flight.append_now()


def append_in_own_turn(TxnOffsetCommitInFlight in_flight not None):
    """Append the offsets of many partitions in a later turn of the loop. A generator."""
    yield
    in_flight.append()


def reply_in_turns(TxnOffsetCommitInFlight in_flight not None, dict results not None):
    """Answer a commit of many partitions. A generator: it creates the answer in parts."""
    response = yield from respond_in_turns(in_flight.body, in_flight.hosted, results, in_flight.request.version)
    in_flight.request.reply(response)


def handle(Request request not None, body):
    if request.access is not None:
        if not request.may(WRITE, TRANSACTIONAL_ID, body.transactional_id):
            raise refusal(TRANSACTIONAL_ID)
        if not request.may(READ, GROUP, body.group_id):
            raise refusal(GROUP)
    if count_partitions(request.node.groups, body.group_id, body.topics) > PARTITIONS_AT_ONCE:
        request.start_work(commit_in_turns(request, body), partial(end_request, request, body))
        return None
    hosted = topics_to_commit(request, body.topics, request.version >= VERSION_WITH_IDS)
    offsets = offsets_to_commit(body.topics, hosted)
    if not offsets:
        return respond(body, hosted, offsets, request.version)
    commit(request, body, commit_of(body, offsets), hosted, False)
    return None


def commit_in_turns(Request request not None, body):
    """Commit the offsets of many partitions. A generator: it finds the partitions and encodes their rows in parts, then
    has all rows appended together.

    The rows are one batch, so either all offsets are committed or none is. The rows are encoded before the transaction
    is verified, because the transaction could end while they are being encoded.
    """
    hosted = []
    for topics in in_parts(body.topics):
        hosted += topics_to_commit(request, topics, request.version >= VERSION_WITH_IDS)
        yield
    offsets = offsets_to_commit(body.topics, hosted)
    yield
    if offsets:
        made = commit_of(body, offsets)
        yield from request.node.groups.prepare(made)
        commit(request, body, made, hosted, True)
    else:
        response = yield from respond_in_turns(body, hosted, offsets, request.version)
        request.reply(response)


def end_request(Request request not None, body, error, _result):
    """Answer a request with many partitions if its `commit_in_turns` failed."""
    if error is not None:
        request.fail(body, error)


cdef Commit commit_of(body, dict offsets):
    return Commit(body.group_id, offsets, body.generation_id_or_member_epoch, body.member_id, body.group_instance_id)


cdef int commit(Request request, body, Commit made, list hosted, bint is_long) except -1:
    """Have the transaction verified if necessary, then append the offsets. The answer is sent when they are durable."""
    cdef TxnOffsetCommitInFlight in_flight
    groups = request.node.groups
    if not body.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, 'the group id is empty')
    guard = groups.start_verification(
        body.group_id, body.producer_id, body.producer_epoch,
        supports_epoch_bump=request.version >= TXN_OFFSET_COMMIT_VERSION_THAT_ADDS
    )
    in_flight = TxnOffsetCommitInFlight.__new__(TxnOffsetCommitInFlight)
    in_flight.request = request
    in_flight.body = body
    in_flight.hosted = hosted
    in_flight.is_long = is_long
    in_flight.commit = made
    in_flight.producer = TransactionalProducer(body.producer_id, body.producer_epoch, guard)
    if guard is None:  # the transaction is open in this partition already
        in_flight.append()
    else:
        request.node.transactions.add_or_verify_offsets_partition(
            body.transactional_id,
            body.producer_id,
            body.producer_epoch,
            groups.partition_of(body.group_id),
            request.version,
            in_flight,
            VERIFICATION,
        )
    return 0


cdef object respond(body, list hosted, dict results, int version):
    topics = body.topics
    return TxnOffsetCommitResponse(topics=[
        answer_topic(topics[i], hosted[i], results, version) for i in range(len(hosted))])


def respond_in_turns(body, list hosted not None, dict results not None, int version):
    """Return the response to a request with many partitions. A generator: it creates the response in parts.

    `respond` serves short requests, for speed: a TxnOffsetCommit of one partition takes 79,000 instructions with
    `respond`, but 85,200 with this generator.
    """
    pace, answered = Pace(), []
    for i in range(len(hosted)):
        topic, known = body.topics[i], hosted[i]
        name, missing = name_of(topic, known), code_without_result(known)
        partitions = []
        for part in in_parts(topic.partitions):
            for partition in part:
                index = partition.partition_index
                partitions.append(answer_partition(index, results.get((name, index), missing), version))
            if pace.spend(len(part)):
                yield
        answered.append(TopicResponse(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
        if pace.spend():
            yield
    return TxnOffsetCommitResponse(topics=answered)


cdef object name_of(topic, known):
    """Return the name by which the results have a topic. `known` is the topic that was found before the commit, or the
    ErrorCode with which its offsets were refused."""
    return topic.name if type(known) is ERROR_CODE else known.name


cdef object code_without_result(known):
    """Return the error code of the partitions of a topic for which there is no result."""
    return known if type(known) is ERROR_CODE else UNKNOWN_TOPIC_OR_PARTITION


cdef object answer_topic(topic, known, dict results, int version):
    """Return the answer for one topic."""
    name, missing = name_of(topic, known), code_without_result(known)
    return TopicResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            answer_partition(partition.partition_index, results.get((name, partition.partition_index), missing),
                             version)
            for partition in topic.partitions
        ],
    )


cdef object answer_partition(index, code, int version):
    if version < VERSION_WITH_LOAD_IN_PROGRESS and code is COORDINATOR_LOAD_IN_PROGRESS:
        code = COORDINATOR_NOT_AVAILABLE
    return PartitionResponse(partition_index=index, error_code=code)


def error_response(body, code, message, int version):
    return TxnOffsetCommitResponse(topics=(yield from each_topic(
        body.topics, 'partitions', lambda partition: answer_partition(partition.partition_index, code, version),
        lambda topic, found: TopicResponse(name=topic.name, topic_id=topic.topic_id, partitions=found), Pace())))


API = Api(ApiKey.TXN_OFFSET_COMMIT, 0, 6, handle, error_response)
