"""OffsetCommit (key 8), versions 2-10.

The answer is sent when the offsets are durable. In versions 2-4, a request may set the retention time of its offsets.
Version 6 adds leader epochs (KIP-320), and version 7 static membership (KIP-345). From version 9 on, a commit with a
generation gets GROUP_ID_NOT_FOUND if the group is unknown (KIP-848). In version 10, requests give topics by id
(KIP-848), and an unknown id gets UNKNOWN_TOPIC_ID. If some partitions do not exist, only these are refused: the offsets
of all other partitions are committed.
"""
from functools import partial

cimport cython

from kbroker.apis.serving.offset_commits cimport count_partitions, offsets_to_commit, topics_to_commit
from kbroker.apis.serving.request cimport Api, Request, RequestSteps
from kbroker.base.completion cimport Completion
from kbroker.group.commits cimport Commit

from kbroker.apis.serving.authorization import refusal
from kbroker.apis.serving.long_answers import Pace, each_topic, in_parts
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import OffsetCommitResponse
from kbroker.protocol.schema import first_version
from kbroker.security.acl_codes import Operation, ResourceType

cdef enum:
    PARTITIONS_AT_ONCE = 1_000          # more are committed in several turns

cdef int READ = Operation.READ
cdef int GROUP = ResourceType.GROUP
cdef int VERSION_WITH_IDS = first_version('OffsetCommitRequest', 'topics.topic_id')
cdef object UNKNOWN_TOPIC_OR_PARTITION = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
cdef object ERROR_CODE = ErrorCode
cdef object NONE = ErrorCode.NONE
cdef object TopicResponse = OffsetCommitResponse.OffsetCommitResponseTopic
cdef object PartitionResponse = OffsetCommitResponse.OffsetCommitResponsePartition


@cython.final
cdef class OffsetCommitInFlight(Completion):
    """An OffsetCommit request that is answered when its offsets are durable."""
    cdef Request request
    cdef list topics
    cdef list hosted            # for each topic: the Topic found, or an ErrorCode

    cdef int complete(self, object error, Py_ssize_t part, object result) except -1:
        cdef RequestSteps steps = self.request.steps
        if steps is not None and NONE in (<dict>result).values() and steps.reach(
                'offsets.committed', self.request, partial(answer_with, self, result)):
            return 0
        return self.answer(result)

    cdef int answer(self, dict result) except -1:
        if len(result) > PARTITIONS_AT_ONCE:
            self.request.start_work(answer_later(self, result))
            return 0
        self.request.reply(answer(self.topics, self.hosted, result))
        return 0


def answer_with(OffsetCommitInFlight in_flight not None, dict result not None):
    """Answer a commit that was held when its offsets were durable."""
    in_flight.answer(result)


def answer_later(OffsetCommitInFlight in_flight not None, dict results not None):
    """Answer a commit of many partitions in a later turn of the loop. A generator."""
    yield
    in_flight.request.reply(answer(in_flight.topics, in_flight.hosted, results))


def handle(Request request not None, body):
    """Commit the offsets: in parts if there are more than PARTITIONS_AT_ONCE partitions, otherwise in one call.

    The call without a generator exists for speed: a commit of one partition takes 47,700 instructions, but 63,400 with
    `commit_in_turns`.
    """
    if request.access is not None and not request.may(READ, GROUP, body.group_id):
        raise refusal(GROUP)
    if count_partitions(request.node.groups, body.group_id, body.topics) > PARTITIONS_AT_ONCE:
        request.start_work(commit_in_turns(request, body), partial(end_request, request, body))
        return None
    hosted = topics_to_commit(request, body.topics, request.version >= VERSION_WITH_IDS)
    offsets = offsets_to_commit(body.topics, hosted)
    return commit(request, body, commit_of(body, offsets), hosted) if offsets else answer(body.topics, hosted, {})


def commit_in_turns(Request request not None, body):
    """Commit the offsets of many partitions. A generator: it finds the partitions and encodes their rows in parts, then
    appends all rows together.

    The rows are one batch, so either all offsets are committed or none is.
    """
    hosted = []
    for topics in in_parts(body.topics):
        hosted += topics_to_commit(request, topics, request.version >= VERSION_WITH_IDS)
        if request.access is not None:
            yield
    offsets = offsets_to_commit(body.topics, hosted)
    yield
    if not offsets:
        return answer(body.topics, hosted, {})
    made = commit_of(body, offsets)
    yield from request.node.groups.prepare(made)
    return commit(request, body, made, hosted)


def end_request(Request request not None, body, error, response):
    if error is not None:
        request.fail(body, error)
    elif response is not None:
        request.reply(response)


cdef Commit commit_of(body, dict offsets):
    return Commit(body.group_id, offsets, body.generation_id_or_member_epoch, body.member_id, body.group_instance_id,
                  body.retention_time_ms)


cdef object commit(Request request, body, Commit made, list hosted):
    """Commit the offsets. `OffsetCommitInFlight.complete` sends the response when they are durable."""
    cdef OffsetCommitInFlight in_flight
    in_flight = OffsetCommitInFlight.__new__(OffsetCommitInFlight)
    in_flight.request = request
    in_flight.topics = body.topics
    in_flight.hosted = hosted
    if request.steps is not None and request.steps.reach(
            'offsets.committing', request, partial(commit_held, in_flight, body, made)):
        return
    request.node.groups.commit(made, request.version, in_flight)


def commit_held(OffsetCommitInFlight in_flight not None, body, Commit made not None):
    """Commit the offsets of a request that was held before."""
    try:
        in_flight.request.node.groups.commit(made, in_flight.request.version, in_flight)
    except KafkaError as error:
        in_flight.request.fail(body, error)


cdef object answer(list topics, list hosted, dict results):
    return OffsetCommitResponse(
        topics=[answer_topic(topics[i], hosted[i], results) for i in range(len(topics))])


cdef object answer_topic(topic, known, dict results):
    """Return the answer for one topic. `known` is the topic that was found before the commit, or the ErrorCode with
    which its offsets were refused."""
    if type(known) is ERROR_CODE:
        return refuse_topic(topic, known)
    name = known.name
    return TopicResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            PartitionResponse(partition_index=partition.partition_index,
                              error_code=results.get((name, partition.partition_index), UNKNOWN_TOPIC_OR_PARTITION))
            for partition in topic.partitions
        ],
    )


cdef object refuse_topic(topic, code):
    return TopicResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            PartitionResponse(partition_index=partition.partition_index, error_code=code)
            for partition in topic.partitions
        ],
    )


def error_response(body, code, message, version):
    return OffsetCommitResponse(topics=(yield from each_topic(
        body.topics, 'partitions',
        lambda partition: PartitionResponse(partition_index=partition.partition_index, error_code=code),
        lambda topic, found: TopicResponse(name=topic.name, topic_id=topic.topic_id, partitions=found), Pace())))


API = Api(ApiKey.OFFSET_COMMIT, 2, 10, handle, error_response)
