"""A consumer reads a partition whose leader changes, or from a broker that lags behind or sends invalid answers."""
import pytest
from support.brokers.scripted_broker import ScriptedBroker, running

from kbroker.base.clock import ManualClock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.client.connection import ClientError
from kbroker.client.fetching import fetch_batches
from kbroker.protocol import messages
from kbroker.record.batch import encode_batch

START_MS = 1_700_000_000_000


class StagedLog(ScriptedBroker):
    """A broker of one partition. Batches of two records begin at the even offsets from `start` to below `end`."""

    def __init__(self, end=6, start=0):
        super().__init__()
        self.start, self.end = start, end
        self.batches_an_answer = 2
        self.fetched = []
        self.codes = []
        self.answers |= {'ListOffsets': self.list_offsets, 'Fetch': self.fetch}

    def batch(self, offset):
        return encode_batch([(START_MS, None, b'x')] * 2, base_offset=offset)

    def list_offsets(self, request):
        wanted = request.topics[0].partitions[0].timestamp
        response = messages.ListOffsetsResponse
        row = response.ListOffsetsPartitionResponse(partition_index=0, offset=self.start if wanted == -2 else self.end)
        return response(topics=[response.ListOffsetsTopicResponse(name=request.topics[0].name, partitions=[row])])

    def fetch(self, request):
        offset = request.topics[0].partitions[0].fetch_offset
        self.fetched.append(offset)
        code = self.codes.pop(0) if self.codes else 0 if self.start <= offset <= self.end else 1
        bases = range(offset - offset % 2, self.end, 2)[:self.batches_an_answer]
        records = b'' if code else b''.join(map(self.batch, bases))
        response = messages.FetchResponse
        return response(responses=[response.FetchableTopicResponse(topic=request.topics[0].topic, partitions=[
            response.PartitionData(partition_index=0, error_code=code, high_watermark=self.end, records=records)])])


def fetched(log, *bounds):
    clock = ManualClock()
    with running(log) as broker:
        cluster = Cluster(ClientConfig.load(f'127.0.0.1:{broker.port}'), clock,
                          lambda seconds: clock.advance(int(seconds * 1000)))
        try:
            return [header.base_offset for header, _ in fetch_batches(cluster, 'orders', 0, *bounds)]
        finally:
            cluster.close()


def test_it_goes_on_where_the_last_whole_batch_ended():
    log = StagedLog(end=10)
    assert fetched(log) == [0, 2, 4, 6, 8]
    assert log.fetched == [0, 4, 8]


def test_it_begins_with_the_batch_that_holds_the_start_and_ends_with_the_one_that_begins_below_the_end():
    assert fetched(StagedLog(), 3, 5) == [2, 4]
    assert fetched(StagedLog(), 3, 4) == [2]


def test_a_start_below_the_start_of_the_log_begins_there():
    log = StagedLog(start=4, end=8)
    assert fetched(log, 1) == [4, 6]
    assert log.fetched == [1, 4]


def test_a_log_whose_start_moves_past_the_position_is_gone_on_with_from_there():
    log = StagedLog(end=10)
    log.codes = [0, 1]
    good = log.list_offsets

    def list_offsets(request):
        log.start = 6 if log.fetched else 0
        return good(request)

    log.answers['ListOffsets'] = list_offsets
    assert fetched(log) == [0, 2, 6, 8]


def test_an_offset_that_a_broker_refuses_though_its_log_holds_it_is_reported():
    log = StagedLog()
    log.codes = [1]
    with pytest.raises(KafkaError, match='fetching orders-0 at offset 2') as caught:
        fetched(log, 2)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize('code', [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                                  ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.OFFSET_NOT_AVAILABLE])
def test_a_leader_that_moves_or_lags_is_asked_again(code):
    log = StagedLog()
    log.codes = [0, code, code]
    assert fetched(log) == [0, 2, 4]
    assert log.asked.count('Metadata') >= 3


def test_a_connection_that_breaks_between_two_answers_is_opened_again():
    log = StagedLog()
    good = log.fetch

    def fetch(request):
        answer = good(request)
        return None if len(log.fetched) == 2 else answer

    log.answers['Fetch'] = fetch
    assert fetched(log) == [0, 2, 4]
    assert log.fetched == [0, 4, 4]


def test_a_batch_that_fails_its_check_is_refused_with_its_place():
    log = StagedLog()
    good = log.batch
    log.batch = lambda offset: good(offset)[:-1] + b'!' if offset == 2 else good(offset)
    with pytest.raises(KafkaError, match='orders-0, from offset 2 on: found CRC') as caught:
        fetched(log)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


def test_a_broker_that_sends_no_whole_batch_is_not_asked_for_ever():
    log = StagedLog()
    good = log.batch
    log.batch, log.batches_an_answer = lambda offset: good(offset)[:40], 1
    with pytest.raises(ClientError, match='orders-0: the broker sends no whole batch from offset 0 on'):
        fetched(log)
    assert len(log.fetched) == 20


def test_nothing_below_the_end_is_nothing_to_ask_for():
    log = StagedLog(end=0)
    assert fetched(log) == fetched(log, 7) == [] and log.fetched == []
