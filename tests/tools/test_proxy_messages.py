"""Requests and responses of every API in every version pass the virtual brokers and can fail: the results can be read
again, and no message of a peer ends the proxy.
"""
import random

import pytest
from support.messages.filled_messages import filled

from kbroker.base.errors import ErrorCode, ProtocolError
from kbroker.protocol import messages as m
from kbroker.protocol.api_keys import ApiKey, request_header_version
from kbroker.protocol.codec import EncodeError, decode, encode
from kbroker_tools.proxy.addresses import SIZE_BYTES, framed, header_bytes_of, request_class, response_class
from kbroker_tools.proxy.exchanges import Exchange
from kbroker_tools.proxy.failures import can_fail, error_response
from kbroker_tools.proxy.nodes import TopicNames, VirtualBrokers
from kbroker_tools.proxy.traffic import api_name
from kbroker_tools.proxy.translation import NoAnswer, Translator

ROUNDS = 6
KEYS = [pytest.param(key, id=key.name) for key in ApiKey]


def versions(key):
    first, last = request_class(key).versions
    return range(first, last + 1)


def exchange_of(key, version, rng, node=None):
    header = encode(m.RequestHeader(request_api_key=key, request_api_version=version, correlation_id=7,
                                    client_id='client'), request_header_version(key, version))
    return Exchange(framed(filled(request_class(key), version, rng), version, header), node)


def read_answer(exchange):
    cls, start = response_class(exchange.key), SIZE_BYTES + header_bytes_of(exchange.key, exchange.version)
    assert exchange.answer[4:8] == (7).to_bytes(4)
    return decode(cls, exchange.answer, exchange.version, start)


@pytest.mark.parametrize('key', KEYS)
def test_virtual_brokers_translate_every_message(key):
    rng = random.Random(key)
    nodes = VirtualBrokers(3, 35, TopicNames())
    translator = Translator(nodes)
    for version in versions(key):
        for _ in range(ROUNDS):
            exchange = exchange_of(key, version, rng, rng.randint(1, 3))
            if key == ApiKey.DESCRIBE_CLUSTER:
                exchange.request.endpoint_type = 1      # brokers, not controllers
            try:
                translator.translate(exchange, lambda: [(1, 'localhost', 9001), (3, 'localhost', 9003)])
            except NoAnswer:
                continue
            if exchange.answer is None:
                assert Exchange(exchange.frame).request is not None
                header = (7).to_bytes(4) + bytes(header_bytes_of(key, version) - 4)
                exchange.take_answer(framed(filled(response_class(key), version, rng), version, header),
                                     lambda host, port: (host, port))
            answer = read_answer(exchange)
            for field in ('brokers', 'node_endpoints'):
                for row in getattr(answer, field, ()):
                    assert row.host == 'localhost'
        if nodes.running == {1, 2, 3}:
            nodes.stop(2)
        else:
            nodes.start(2)


@pytest.mark.parametrize('key', KEYS)
def test_every_request_can_be_answered_with_an_error(key):
    rng = random.Random(key)
    for version in versions(key):
        for _ in range(ROUNDS):
            exchange = exchange_of(key, version, rng)
            if can_fail(key, version):
                exchange.respond(error_response(exchange.request, key, version, ErrorCode.NOT_COORDINATOR, 'why'))
                read_answer(exchange)


@pytest.mark.parametrize('key', KEYS)
def test_frames_that_cannot_be_read_pass_or_end_their_connection(key):
    rng = random.Random(key)
    translator = Translator(VirtualBrokers(3, 35, TopicNames()))
    for version in versions(key):
        frame = bytearray(exchange_of(key, version, rng).frame)
        for _ in range(ROUNDS):
            damaged = bytearray(frame[:rng.randint(12, len(frame))])
            for _ in range(rng.randint(0, 3)):
                damaged[rng.randrange(8, len(damaged))] = rng.randrange(256)
            exchange = Exchange(bytes(damaged), 1)
            try:
                translator.translate(exchange, list)
                if exchange.answer is None:
                    exchange.take_answer(bytes(damaged), lambda host, port: (host, port))
            except (ProtocolError, NoAnswer, EncodeError):
                pass


def test_the_names_of_apis_are_kafkas():
    assert [api_name(key) for key in (0, 22, 68, 999)] == ['Produce', 'InitProducerId', 'ConsumerGroupHeartbeat',
                                                           'Api999']
