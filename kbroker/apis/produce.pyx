"""Produce (key 0), versions 3-13, advertised from 0.

Per partition: validate the one batch (record/records), check the producer and append (log), then answer: acks=-1 when
the high watermark has passed the batch, acks=1 at once, acks=0 never (a fault closes the connection, which is all that
such a client can notice). Versions below 3 cannot carry batches of magic 2; they are advertised because old librdkafka
decides by the lowest version whether the broker is usable (KAFKA-18659).

Transactional batches go through the coordinator first (KIP-890): from version 12 on it adds the partition to the
transaction, below it verifies that the client has. The verification guard that the partition handed out before is
checked again under the append, so that a marker written in between is noticed.
"""
from kbroker.apis.context import NO_REPLY, Api
from kbroker.errors import ErrorCode, KafkaError
from kbroker.log.origin import Origin
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import ProduceResponse
from kbroker.record.batch import LOG_OVERHEAD_BYTES, CorruptBatchError, read_header
from kbroker.record.records import ProduceRules, prepare_produced

ACKS_ALL = -1
ADMIN_CLIENT_ID = '__admin_client'
IMPLICIT_ADD_VERSION = 12
ZSTD_VERSION = 7
MAGIC_AT = 16
CURRENT_MAGIC = 2
WITHOUT_LOG_START_OFFSET = frozenset({
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ErrorCode.KAFKA_STORAGE_ERROR})
"""What Kafka answers without the log start offset when an append is refused."""

TopicProduceResponse = ProduceResponse.TopicProduceResponse
PartitionProduceResponse = ProduceResponse.PartitionProduceResponse
BatchIndexAndErrorMessage = ProduceResponse.BatchIndexAndErrorMessage


cdef class Batch:
    """One partition's part of a request, on its way into the log."""
    cdef object topic
    cdef object partition
    cdef object records
    cdef object guard
    cdef object answer
    cdef bint needs_verification


cdef class ProduceUnderWay:
    """One request: its batches, what is still awaited, and the answer that grows."""
    cdef object context
    cdef object response
    cdef int acks
    cdef int unanswered
    cdef bint failed
    cdef bint parked
    cdef list batches

    def __init__(self, context, request):
        self.context = context
        self.acks = request.acks
        self.batches = []
        self.response = ProduceResponse(responses=[])

    cdef object start(self, request):
        """Resolve and inspect every batch; append at once unless the transaction coordinator must be asked."""
        cdef Batch batch
        cdef list to_verify = []
        for topic_data in request.topic_data:
            topic_answer = TopicProduceResponse(name=topic_data.name, topic_id=topic_data.topic_id, partition_responses=[])
            self.response.responses.append(topic_answer)
            for partition_data in topic_data.partition_data:
                answer = PartitionProduceResponse(index=partition_data.index, base_offset=-1)
                topic_answer.partition_responses.append(answer)
                batch = Batch.__new__(Batch)
                batch.answer = answer
                batch.records = partition_data.records
                try:
                    if self.inspect(batch, topic_data, request):
                        to_verify.append(batch)
                    self.batches.append(batch)
                except KafkaError as error:
                    self.refuse(answer, error)
        if to_verify:
            self.ask_coordinator(request, to_verify)
            return None
        return self.append_all()

    cdef bint inspect(self, Batch batch, topic_data, request) except -1:
        """Find the partition and whether the coordinator must be asked about this batch first."""
        topics = self.context.broker.topics
        if self.context.version >= 13:
            topic = topics.topic_by_id(topic_data.topic_id)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f'no topic has the id {topic_data.topic_id.hex()}')
        else:
            topic = topics.topic(topic_data.name)
        if topic is None or not 0 <= batch.answer.index < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                             f'{topic_data.name}-{batch.answer.index} does not exist')
        header = read_whole_batch(batch.records)
        if self.acks not in (-1, 0, 1):
            raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f'acks is {self.acks}, expected -1, 0 or 1')
        if topic.is_internal and self.context.client_id != ADMIN_CLIENT_ID:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f'clients may not write to the internal topic {topic.name}')
        batch.topic = topic
        batch.partition = topic.partitions[batch.answer.index]
        if not header.is_transactional:
            return False
        if request.transactional_id is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                             'a transactional batch in a request without a transactional id')
        supports_epoch_bump = self.context.version >= IMPLICIT_ADD_VERSION
        if not supports_epoch_bump and not self.context.broker.config.transaction_partition_verification_enable:
            return False
        batch.guard = batch.partition.log.producer_state.start_verification(
            header.producer_id, header.producer_epoch, header.base_sequence, supports_epoch_bump,
            self.context.broker.clock.wall_ms())
        batch.needs_verification = batch.guard is not None
        return batch.needs_verification

    cdef int ask_coordinator(self, request, list to_verify) except -1:
        """Have the partitions added to the transaction, or verified to be in it, then append."""
        cdef Batch batch
        producers = {(header.producer_id, header.producer_epoch)
                     for header in (read_header((<Batch>item).records) for item in self.batches) if header.is_transactional}
        if len(producers) > 1:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                             f'one producer expected in a transactional request, found {sorted(producers)}')
        (producer_id, producer_epoch), = producers
        for batch in self.batches:
            # The frame is the connection's: what waits for the coordinator must not.
            batch.records = memoryview(bytearray(batch.records))
        self.parked = True
        self.context.broker.transactions.add_or_verify_partitions(
            request.transactional_id, producer_id, producer_epoch,
            [((<Batch>item).topic.name, (<Batch>item).answer.index) for item in to_verify],
            self.context.version, self.verified)
        return 0

    def verified(self, errors):
        """The coordinator has answered: `errors` maps (topic, partition) to a KafkaError where it refused."""
        cdef Batch batch
        passed = []
        for batch in self.batches:
            error = errors.get((batch.topic.name, batch.answer.index)) if batch.needs_verification else None
            if error is None:
                passed.append(batch)
            else:
                self.refuse(batch.answer, error)
        self.batches = passed
        response = self.append_all()
        if response is not None:
            self.context.reply(response)

    cdef object append_all(self):
        """Append every batch. Returns the answer if it is complete, None if the disk is awaited."""
        cdef Batch batch
        self.unanswered = 1
        for batch in self.batches:
            self.append(batch)
        self.unanswered -= 1
        if self.acks == 0:
            if self.failed:
                self.context.close('a produce with acks=0 failed, and closing is the only way to say so')
            return NO_REPLY
        if self.unanswered == 0:
            return self.response
        # Everything this request does is done and in order; only the disk is awaited, so that the next may pass.
        self.parked = True
        self.context.let_next_pass()
        return None

    cdef int append(self, Batch batch) except -1:
        topic = batch.topic
        partition = batch.partition
        answer = batch.answer
        try:
            if topic.produce_rules is None:
                topic.produce_rules = ProduceRules(topic.config)
            records = prepare_produced(batch.records, topic.produce_rules, self.context.broker.clock.wall_ms(),
                                       allow_zstd=self.context.version >= ZSTD_VERSION)
            result = partition.append(records, Origin.CLIENT, guard=batch.guard,
                                      verification_required=batch.needs_verification)
        except KafkaError as error:
            self.refuse(answer, error)
            if error.code not in WITHOUT_LOG_START_OFFSET:
                answer.log_start_offset = partition.log_start_offset
            return 0
        answer.base_offset = result.base_offset
        answer.log_append_time_ms = result.append_time_ms
        answer.log_start_offset = result.log_start_offset
        if self.acks == ACKS_ALL:
            self.unanswered += 1
            partition.when_durable(result.last_offset + 1, DurableBatch(self, answer))
        return 0

    cdef int durable(self, answer, error) except -1:
        self.unanswered -= 1
        if error is not None:
            self.refuse(answer, error)
        if self.unanswered == 0 and self.parked:
            self.context.reply(self.response)
        return 0

    cdef int refuse(self, answer, error) except -1:
        self.failed = True
        answer.error_code = int(error.code)
        answer.error_message = str(error)
        answer.base_offset = -1
        for index, message in getattr(error, 'record_errors', ()):
            answer.record_errors.append(BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message))
        return 0


cdef object read_whole_batch(records):
    """The header of the one batch. KafkaError INVALID_RECORD if none is there whole or it is of an old format."""
    if records is None or len(records) == 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, 'one batch expected, found no bytes')
    try:
        header = read_header(records)
    except CorruptBatchError as error:
        is_cut = (len(records) <= MAGIC_AT
                  or int.from_bytes(records[8:LOG_OVERHEAD_BYTES], 'big', signed=True) > len(records) - LOG_OVERHEAD_BYTES)
        if is_cut or records[MAGIC_AT] < CURRENT_MAGIC:
            raise KafkaError(ErrorCode.INVALID_RECORD, str(error)) from None
        raise
    if header.size_bytes != len(records):
        raise KafkaError(ErrorCode.INVALID_RECORD,
                         f'exactly one batch expected, of {header.size_bytes} bytes, found {len(records)} bytes')
    return header


cdef class DurableBatch:
    """Called when one partition's bytes are on the disk, or never will be."""
    cdef ProduceUnderWay request
    cdef object answer

    def __init__(self, ProduceUnderWay request, answer):
        self.request = request
        self.answer = answer

    def __call__(self, error):
        self.request.durable(self.answer, error)


def handle(context, request):
    cdef ProduceUnderWay under_way = ProduceUnderWay(context, request)
    return under_way.start(request)


def error_response(request, code, message, version):
    return ProduceResponse(responses=[
        TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[
            PartitionProduceResponse(index=partition.index, error_code=int(code), base_offset=-1, error_message=message)
            for partition in topic.partition_data])
        for topic in request.topic_data])


API = Api(ApiKey.PRODUCE, 3, 13, handle, error_response, advertised_min_version=0)
