"""The proxy disturbs connections: it delays, cuts and mutes them, and holds requests back."""
import random
import socket
import struct
import threading
from contextlib import closing, suppress

import pytest

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.codec import encode
from kbroker.protocol.messages import ProduceRequest
from kbroker_tools.proxy.links import MOST_QUEUED_REQUESTS
from kbroker_tools.proxy.relay import MUTE_ANSWERS, Proxy

LIMIT_S = 120


class EchoBroker:
    """A broker that answers each request with the bytes of the request, and keeps them."""

    def __init__(self):
        self.requests = []
        self.arrived = threading.Condition()
        self.listener = socket.create_server(('127.0.0.1', 0))
        self.port = self.listener.getsockname()[1]
        self.ends = []
        self.threads = [threading.Thread(target=self.accept, daemon=True)]
        self.threads[0].start()

    def accept(self):
        while True:
            try:
                end, _ = self.listener.accept()
            except OSError:
                return
            self.ends.append(end)
            thread = threading.Thread(target=self.serve, args=(end,), daemon=True)
            self.threads.append(thread)
            thread.start()

    def serve(self, end):
        with suppress(OSError), closing(end):
            while len(head := end.recv(4, socket.MSG_WAITALL)) == 4:
                body = end.recv(size := int.from_bytes(head), socket.MSG_WAITALL)
                if len(body) < size:
                    break
                with self.arrived:
                    self.requests.append(body)
                    self.arrived.notify_all()
                end.sendall(head + body[4:8] + body[:4] + body[8:])     # the correlation id comes first in an answer

    def await_requests(self, count):
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.requests) >= count, LIMIT_S)

    def close(self):
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for end in self.ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()


@pytest.fixture
def broker():
    with closing(EchoBroker()) as found:
        yield found


@pytest.fixture
def proxy(broker):
    with closing(Proxy([('127.0.0.1', broker.port)], random.Random(1))) as found:
        yield found


@pytest.fixture
def connect(proxy):
    ends = []

    def make():
        host, _, port = proxy.address.rpartition(':')
        ends.append(socket.create_connection((host, int(port)), timeout=LIMIT_S))
        return ends[-1]

    yield make
    for end in ends:
        end.close()


def request(number, key=ApiKey.HEARTBEAT):
    body = struct.pack('>hhi', key, 1, number) + b'payload'
    return struct.pack('>i', len(body)) + body


def correlation_of_answer(end):
    (size,) = struct.unpack('>i', end.recv(4, socket.MSG_WAITALL))
    return struct.unpack('>i', end.recv(size, socket.MSG_WAITALL)[:4])[0]


def test_requests_and_answers_pass_in_their_order(connect):
    end = connect()
    end.sendall(request(1) + request(2) + request(3)[:5])
    end.sendall(request(3)[5:])
    assert [correlation_of_answer(end) for _ in range(3)] == [1, 2, 3]


def test_delayed_frames_keep_their_order(connect, proxy):
    proxy.delay_s = 0.0, 0.01
    end = connect()
    end.sendall(b''.join(request(number) for number in range(20)))
    assert [correlation_of_answer(end) for _ in range(20)] == list(range(20))


def test_a_cut_closes_a_connection_within_its_next_frame(connect, proxy, broker):
    end = connect()
    end.sendall(request(1))
    assert correlation_of_answer(end) == 1
    proxy.cut(1.0)
    end.settimeout(LIMIT_S)
    received = b'.'
    with suppress(OSError):
        for number in range(2, 1000):
            end.sendall(request(number))
            received = end.recv(1000)
            if not received:
                break
    assert received == b'' or proxy.counts['cut'] == 1


def test_a_held_request_arrives_later_over_its_own_connection(connect, proxy, broker):
    first, second = connect(), connect()
    proxy.hold(ApiKey.END_TXN)
    first.sendall(request(1, ApiKey.END_TXN))
    assert first.recv(1) == b''             # its client sees a broken connection
    second.sendall(request(2, ApiKey.END_TXN))
    assert correlation_of_answer(second) == 2
    assert len(broker.requests) == 1
    proxy.release()
    broker.await_requests(2)
    assert broker.requests[1] == request(1, ApiKey.END_TXN)[4:]
    assert proxy.counts['released'] == 1


def test_a_half_open_connection_swallows_answers_until_a_cut(connect, proxy, broker):
    end = connect()
    end.sendall(request(1))
    assert correlation_of_answer(end) == 1
    proxy.mute(MUTE_ANSWERS, 1.0)
    other = connect()                       # the proxy serves it after the command
    other.sendall(request(2))
    assert correlation_of_answer(other) == 2
    end.sendall(request(3))
    broker.await_requests(3)
    proxy.cut(1.0)
    assert end.recv(1) == b''


def test_a_client_of_a_broker_that_is_down_is_disconnected(proxy, broker, connect):
    broker.close()
    assert connect().recv(1) == b''


def test_requests_without_an_answer_do_not_stop_a_connection(connect, broker):
    """A producer with acks=0 gets no answer to any of its requests."""
    body = encode(ProduceRequest(acks=0, timeout_ms=1, topic_data=[]), 8)
    end = connect()
    for number in range(MOST_QUEUED_REQUESTS + 10):
        head = struct.pack('>hhih', ApiKey.PRODUCE, 8, number, -1)
        end.sendall(struct.pack('>i', len(head) + len(body)) + head + body)
        end.recv(struct.unpack('>i', end.recv(4, socket.MSG_WAITALL))[0], socket.MSG_WAITALL)   # this broker answers
    broker.await_requests(MOST_QUEUED_REQUESTS + 10)
