"""A cluster of one scripted broker, for producers."""
import os
from collections import deque

from kbroker.base.clock import Clock
from kbroker.base.errors import ErrorCode
from kbroker.client.cluster import Node, PartitionMetadata, TopicMetadata
from kbroker.client.config import ClientConfig
from kbroker.client.connection import SentInPlace
from kbroker.client.errors import ClientError
from kbroker.client.time_limit import TimeLimit
from kbroker.protocol import messages
from kbroker.record.batch import read_header
from kbroker.record.records import decode_records

QUIET_PIPE = os.pipe()
"""The descriptors of a pipe that all fake connections share. No bytes ever arrive there, because the answers come from
lists.
"""
LOST = 'lost'
"""A value of `codes` instead of an error code: the broker serves the request, but the connection breaks before the
answer.
"""


class FakeConnection:
    """A connection that keeps the requests. It answers Produce with the cluster's next `codes` of the partition. When
    these are used up, it answers NONE.
    """

    def __init__(self, cluster):
        self.cluster = cluster
        self.address = 'localhost:9092'
        self.api_versions = {22: (0, 6)}
        self.finalized_features = {'transaction.version': 2}
        self.is_open = True
        self.has_unsent = False
        self.answers = deque()
        self.sent = []
        self.sent_bytes = []

    @property
    def has_buffered(self):
        return bool(self.answers) and self.cluster.answers_flow

    def fileno(self):
        return QUIET_PIPE[0]

    def close(self):
        self.is_open = False

    def call(self, request, timeout_ms=None, max_version=None, min_version=0):
        name = type(request).__name__.removesuffix('Request')
        self.cluster.calls.append((name, request))
        code = self.cluster.next_code(name)
        if isinstance(code, Exception):
            raise code
        if name == 'InitProducerId':
            ongoing = self.cluster.ongoing if request.keep_prepared_txn else (-1, -1)
            return messages.InitProducerIdResponse(
                error_code=code, producer_id=7, producer_epoch=request.producer_epoch + 1,
                ongoing_txn_producer_id=ongoing[0], ongoing_txn_producer_epoch=ongoing[1])
        if name == 'EndTxn':
            bumped = {'producer_id': 7, 'producer_epoch': request.producer_epoch + 1} if max_version == 5 else {}
            return messages.EndTxnResponse(error_code=code, **bumped)
        if name == 'AddPartitionsToTxn':
            response = messages.AddPartitionsToTxnResponse
            return response(results_by_topic_v3_and_below=[response.AddPartitionsToTxnTopicResult(
                name=topic.name, results_by_partition=[response.AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=code) for index in topic.partitions])
                for topic in request.v3_and_below_topics])
        if name == 'TxnOffsetCommit':
            return messages.TxnOffsetCommitResponse(topics=[])
        return messages.AddOffsetsToTxnResponse(error_code=code)

    def send(self, request, max_version=None, min_version=0, expect_response=True):
        if isinstance(request, messages.EndTxnRequest):
            self.answers.append(self.call(request, max_version=max_version, min_version=min_version))
            return
        if self.cluster.breaks:
            self.cluster.breaks -= 1
            raise ClientError('the connection broke')
        response = messages.ProduceResponse
        topics = []
        for topic in request.topic_data:
            rows = []
            for part in topic.partition_data:
                sent = bytes(part.records.data if isinstance(part.records, SentInPlace) else part.records)
                header = read_header(sent)
                values = [record.value for record in decode_records(sent)]
                self.sent_bytes.append(sent)
                self.sent.append((part.index, header.producer_epoch, header.base_sequence, values))
                code = self.cluster.next_code(part.index)
                if code is LOST:
                    self.answers.append(LOST)
                    return
                rows.append(response.PartitionProduceResponse(index=part.index, error_code=code, base_offset=0))
            topics.append(response.TopicProduceResponse(name=topic.name, partition_responses=rows))
        if expect_response:
            self.answers.append(response(responses=topics))

    def receive(self, timeout_ms=None):
        answer = self.answers.popleft()
        if answer is LOST:
            self.close()
            raise ClientError('the connection broke before the answer')
        return answer


class FakeCluster:
    """A cluster of one broker. `codes` maps each partition or API name to the error codes of the next answers. An
    exception instead of an error code is raised.
    """

    def __init__(self, partitions=1):
        self.config = ClientConfig((('localhost', 9092),), retry_backoff_ms=0)
        self.limit = TimeLimit(Clock())
        self.within = self.limit.within
        self.codes = {}
        self.breaks = 0
        self.answers_flow = True
        self.calls = []
        self.forgotten = 0
        self.forgotten_topics = set()
        self.deleted = set()
        self.ongoing = (-1, -1)
        """(producer id, epoch) of the transaction that InitProducerId keeps."""
        self.broker = FakeConnection(self)
        self.nodes = {1: Node(1, 'localhost', 9092)}
        self.rows = {index: PartitionMetadata(index, 1, 0, (1,), (1,), (), ErrorCode.NONE)
                     for index in range(partitions)}

    def next_code(self, what):
        queue = self.codes.get(what)
        return queue.pop(0) if queue else ErrorCode.NONE

    def forget(self):
        self.forgotten += 1

    def forget_topics(self, names):
        self.forgotten_topics |= set(names)

    def any(self):
        return self.broker

    def node(self, node_id, purpose=''):
        if not self.broker.is_open:
            self.broker.is_open = True
            self.broker.answers.clear()
        return self.broker

    def coordinator(self, key_type, key, purpose='coordinator'):
        return self.broker

    def coordinator_ids(self, key_type, keys):
        return {1: list(keys)}

    def partition(self, topic, partition):
        return self.rows[partition]

    def topics(self, names, allow_auto_topic_creation=False):
        return {name: TopicMetadata(name, bytes(16), False, self.rows) for name in names}

    def found_or_created(self, topic, limit_ms):
        return self.topics([topic])[topic]

    def find_topics(self, names):
        return {name: None if name in self.deleted else self.topics([name])[name] for name in names}

    def retrying(self, operation, what, also=(), timeout_ms=None, patience_ms=0):
        return operation()
