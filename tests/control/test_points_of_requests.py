"""Faults of requests: errors without an effect, connections that close before or after the effect, signals. And the
order of the requests of a connection.
"""
import random
import signal

import pytest
from controlled_broker import ControlledBroker
from support.brokers.in_process_broker import frame_of, read_answer
from support.clients.socket_peers import Peer, frame
from support.messages.filled_messages import filled
from support.messages.message_builder import build, error_codes

from kbroker.apis.serving.dispatch import Dispatcher
from kbroker.apis.serving.served import served_apis
from kbroker.base.errors import ErrorCode
from kbroker.network.connection import Commons
from kbroker.network.limits import Limits
from kbroker.network.reactor import Reactor
from kbroker.protocol.targets import named_in

VERSIONS = [(api, version) for api in served_apis() for version in (api.min_version, api.max_version)]


def fail(broker, error, **select):
    return broker.rules.add({'point': 'request', 'action': 'error', 'error': error, 'select': select})


def test_a_request_that_fails_has_no_effect(broker):
    rule = fail(broker, 'NOT_LEADER_OR_FOLLOWER', api='Produce', times=1)
    assert broker.client.produce(broker.client.batch()).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert broker.end_offset('orders') == 0
    assert broker.client.produce(broker.client.batch()).error_code == ErrorCode.NONE
    assert rule.matched == 1


def test_the_nth_request_fails(broker):
    fail(broker, 'NOT_ENOUGH_REPLICAS', api='Produce', topic='orders', occurrence=2)
    codes = [broker.client.produce(broker.client.batch()).error_code for _ in range(3)]
    assert codes == [0, ErrorCode.NOT_ENOUGH_REPLICAS, 0]


@pytest.mark.parametrize(('api', 'version'), VERSIONS, ids=lambda value: getattr(value, 'key', value))
def test_an_api_answers_with_the_error_of_a_rule_or_closes_the_connection(shared_broker, api, version):
    broker = shared_broker
    broker.rules.clear()
    rule = fail(broker, 'COORDINATOR_NOT_AVAILABLE')
    request = filled(api.request_class, version, random.Random(version))
    connection = broker.begin(request, version)
    broker.client.settle()
    assert rule.matched == 1
    if connection.closed is None:
        # The answer of an old version to a request for no partitions has no place for an error.
        codes = error_codes(read_answer(request, version, connection.replies[-1]))
        assert codes <= {ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE}


@pytest.fixture(scope='module')
def shared_broker(tmp_path_factory):
    with ControlledBroker(tmp_path_factory.mktemp('shared')) as broker:
        broker.client.create_topic('orders', 3)
        yield broker


@pytest.mark.parametrize(('api', 'version'), VERSIONS, ids=lambda value: getattr(value, 'key', value))
def test_whatever_a_request_names_is_found(api, version):
    request = filled(api.request_class, version, random.Random(version))
    facts = named_in(request, lambda topic_id: 'by-id')
    assert all(type(target['topic']) is str and type(target.get('partition', 0)) is int
               for target in facts.get('targets', ()))
    assert type(facts.get('group', '')) is type(facts.get('transactional_id', '')) is str


def test_a_connection_that_is_dropped_before_the_effect(broker):
    rule = broker.rules.add({'point': 'request', 'action': 'drop', 'select': {'api': 'Produce'}})
    produced = broker.client.begin_produce(broker.client.batch())
    assert 'drop at request' in produced.connection.closed
    assert (broker.end_offset('orders'), produced.is_answered, rule.matched) == (0, False, 1)


def test_a_connection_that_is_dropped_after_the_effect(broker):
    broker.rules.add({'point': 'reply', 'action': 'drop', 'select': {'api': 'Produce', 'occurrence': 1}})
    produced = broker.client.begin_produce(broker.client.batch())
    assert 'drop at reply' in produced.connection.closed
    assert (broker.high_watermark('orders'), produced.is_answered) == (1, False)
    assert broker.client.produce(broker.client.batch()).base_offset == 1


@pytest.mark.parametrize('acks', [1, -1])
def test_a_kill_comes_after_the_bytes_of_all_earlier_steps_are_written(broker, tmp_path, acks):
    broker.rules.add({'point': 'reply', 'action': 'kill', 'select': {'api': 'Produce'}})
    connection = broker.connect()
    request = build('ProduceRequest', acks=acks, timeout_ms=1000, topic_data=[
        {'name': 'orders', 'partition_data': [{'index': 0, 'records': broker.client.batch(b'kept')}]}])
    broker.serve(connection, frame_of(request, 12))
    assert broker.signals == []
    broker.end_tick()
    assert b'kept' in (tmp_path / 'orders-0/00000000000000000000.log').read_bytes()
    broker.turn()
    assert broker.signals == [signal.SIGKILL]
    assert connection.replies == []


def test_a_kill_between_two_markers_comes_after_the_first_is_written(broker):
    producer = broker.open_transaction(partitions=2)
    broker.rules.add({'point': 'transaction.marker', 'action': 'kill', 'select': {'occurrence': 2}})
    broker.begin_commit(producer)
    broker.turn()
    assert broker.signals == [signal.SIGKILL]
    assert [broker.stable_offset('orders', partition) for partition in range(2)] == [2, 0]


def test_a_pause_stops_the_process_and_the_operation_goes_on_after_it(broker):
    broker.rules.add({'point': 'request', 'action': 'pause', 'select': {'api': 'Produce', 'times': 1}})
    assert broker.client.produce(broker.client.batch()).error_code == ErrorCode.NONE
    assert broker.signals == [signal.SIGSTOP]


def test_the_rules_of_a_step_act_in_the_order_in_which_they_were_added(broker):
    held = broker.hold('request', api='Produce')
    failing = fail(broker, 'NOT_LEADER_OR_FOLLOWER', api='Produce')
    produced = broker.client.begin_produce(broker.client.batch())
    assert (produced.is_answered, failing.matched) == (False, 1)
    broker.release(held)
    assert produced.answer.responses[0].partition_responses[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


class Wire:
    """A peer that sends requests to the broker over one socket."""

    def __init__(self, broker):
        self.reactor = Reactor(broker.clock, broker.timers)
        self.reactor.at_tick_end.append(broker.end_tick)
        dispatcher = Dispatcher(broker, served_apis(), broker.tick, steps=broker.steps)
        commons = Commons(self.reactor, dispatcher, Limits(max_request_bytes=1 << 20),
                          lambda connection: broker.connection_closed(connection.connection_id))
        self.peer = Peer(self.reactor, None, 1 << 20, commons)

    def send(self, *requests):
        """Send all requests at once. Return the correlation ids of the replies that come."""
        self.peer.send(b''.join(frame(frame_of(request, 12, correlation_id=number)) for number, request in requests))
        return self.receive()

    def receive(self):
        received, found = bytearray(self.peer.receive()), []
        while received:
            size = int.from_bytes(received[:4], 'big')
            found.append(int.from_bytes(received[4:8], 'big'))
            del received[:4 + size]
        return found

    def close(self):
        self.peer.connection.close('the test ends')
        self.peer.socket.close()
        self.reactor.close()


@pytest.fixture
def wire(broker):
    wire = Wire(broker)
    yield wire
    wire.close()


def produce_request(broker, value):
    return build('ProduceRequest', acks=-1, timeout_ms=1000, topic_data=[
        {'name': 'orders', 'partition_data': [{'index': 0, 'records': broker.client.batch(value)}]}])


def metadata_request(_broker, _value):
    return build('MetadataRequest', topics=[])


@pytest.mark.parametrize('make', [produce_request, metadata_request])
@pytest.mark.parametrize('point', ['request', 'reply'])
def test_the_replies_of_a_connection_keep_their_order_while_one_is_held(broker, wire, point, make):
    held = broker.hold(point, api=type(make(broker, b'')).__name__.removesuffix('Request'), occurrence=2)
    requests = [(number, make(broker, b'%d' % number)) for number in range(1, 5)]
    assert wire.send(*requests) == [1]
    broker.rules.release(held.id)
    assert wire.receive() == [2, 3, 4]


def test_a_request_that_is_held_holds_the_later_ones_of_its_connection(broker, wire):
    held = broker.hold('request', api='Produce', occurrence=1)
    assert wire.send((1, produce_request(broker, b'a')), (2, produce_request(broker, b'b'))) == []
    assert broker.end_offset('orders') == 0
    assert broker.client.produce(broker.client.batch(b'of another connection')).base_offset == 0
    broker.rules.release(held.id)
    assert wire.receive() == [1, 2]
    assert broker.end_offset('orders') == 3


@pytest.mark.parametrize('point', ['request', 'reply', 'append.written'])
def test_a_client_that_closes_its_connection_while_it_is_held_leaves_nothing(broker, wire, point):
    held = broker.hold(point, occurrence=1, **({} if point == 'append.written' else {'api': 'Produce'}))
    assert wire.send((1, produce_request(broker, b'a')), (2, produce_request(broker, b'b'))) == []
    wire.peer.socket.close()
    wire.reactor.run_once()
    wire.peer.connection.close('the peer has gone')
    assert len(held.held) == (point == 'append.written')
    broker.rules.release(held.id)
    wire.reactor.run_once()
    assert not broker.rules.waiting
    assert broker.client.produce(broker.client.batch(b'c')).error_code == ErrorCode.NONE


def test_a_large_request_that_was_held_is_served_from_its_own_bytes(broker, wire):
    held = broker.hold('request', api='Produce', occurrence=1)
    values = [bytes([65 + number]) * 100_000 for number in range(3)]
    assert wire.send((1, produce_request(broker, values[0]))) == []
    broker.rules.release(held.id)
    assert wire.receive() == [1]
    assert wire.send((2, produce_request(broker, values[1])), (3, produce_request(broker, values[2]))) == [2, 3]
    records = broker.client.fetch(topic='orders').records
    assert all(value in bytes(records) for value in values)
