"""A proxy between the clients of a Spark query and a broker. It holds a request or an answer until the test releases
it.

With it, a test stops a query at a step of its protocol, kills or restarts a process, and then forwards or discards the
step.
"""
from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from support.clients.raw_client import read_exactly
from support.proxies.tcp_proxy import TcpProxy

from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey, request_header_version, response_header_version
from kbroker.protocol.codec import decode, decode_prefix

LIMIT_S = 400
JUDGE = 'judge'
"""The client.id of the test's own client, whose requests do not count as steps."""
STEPS = {ApiKey.PRODUCE: 'Produce', ApiKey.INIT_PRODUCER_ID: 'InitProducerId', ApiKey.END_TXN: 'EndTxn',
         ApiKey.LIST_TRANSACTIONS: 'ListTransactions', ApiKey.DESCRIBE_TRANSACTIONS: 'DescribeTransactions'}
REQUEST, ANSWER = 'request', 'answer'


class Step(NamedTuple):
    """A request of a query, or the answer to it: the API, the transactional id or topic, and `request` or `answer`."""

    api: str
    subject: str
    side: str

    def __str__(self) -> str:
        return ' '.join(filter(None, (self.api, self.subject, self.side)))


class Stop:
    """A step at which the proxy stops once. The request or answer of the step does not arrive before the release."""

    def __init__(self, pattern: str, after: str, skipped: int):
        self._after = after
        self._pattern = pattern
        self._left = skipped
        self._reached = threading.Event()
        self._released = threading.Event()
        self._is_lost = False
        self.port = 0
        """The port of the stopped client's socket."""

    def takes(self, step: Step) -> bool:
        """Return whether to stop at this step. The caller holds the proxy's lock."""
        if self._reached.is_set():
            return False
        if self._after:
            self._after = self._after if str(step) != self._after else ''
            return False
        if not re.fullmatch(self._pattern, str(step)):
            return False
        self._left -= 1
        return self._left < 0

    def hold(self, port: int) -> bool:
        """Wait until the test releases the step. Return whether to forward it."""
        self.port = port
        self._reached.set()
        self._released.wait()
        return not self._is_lost

    def wait(self) -> Stop:
        """Wait until the query has reached this step."""
        assert self._reached.wait(LIMIT_S), f'no step {self._pattern}'
        return self

    def release(self) -> None:
        """Forward the step."""
        self._released.set()

    def lose(self) -> None:
        """Discard the step and close the connection."""
        self._is_lost = True
        self._released.set()


class StoppingProxy(TcpProxy):
    """A proxy whose address the broker must advertise. `steps` has the steps that it has received. `watch` gives the
    transactional ids and topics their short names in steps.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._subjects: list[tuple[str, str]] = []
        self._stops: list[Stop] = []
        self._topics: dict[Any, str] = {}
        self._lock = threading.Lock()
        self._awaited: dict[tuple[int, int], tuple[Step, int, int]] = {}
        """Maps (connection, correlation id) to the step of the expected answer, with the API key and the version."""
        super().__init__()

    def watch(self, subjects: dict[str, str]) -> None:
        """Forget all steps and stops. `subjects` maps the beginning of a transactional id or topic to the name that
        later steps have for it.
        """
        for stop in self._stops:
            stop.lose()
        with self._lock:
            self.steps, self._stops, self._subjects = [], [], list(subjects.items())

    def stop_at(self, pattern: str, after: str = '', skipped: int = 0) -> Stop:
        """Stop once at a step whose text matches the pattern. Skip the steps up to the first one that matches `after`,
        and then `skipped` matching steps.
        """
        stop = Stop(pattern, after, skipped)
        with self._lock:
            self._stops.append(stop)
        return stop

    def close(self) -> None:
        self.watch({})
        super().close()

    def to_broker(self, link: Any) -> None:
        self._copy(link, link.client, link.broker, self._asked)

    def to_client(self, link: Any) -> None:
        self._copy(link, link.broker, link.client, self._answered)

    def _copy(self, link: Any, source: socket.socket, sink: socket.socket,
              read: Callable[[int, bytes], Step | None]) -> None:
        port = link.client.getpeername()[1]
        while True:
            head = read_exactly(source, 4)
            frame = read_exactly(source, int.from_bytes(head, 'big'))
            step = read(link.number, frame)
            if step is not None and not self._pass(step, port):
                return
            sink.sendall(head + frame)

    def _pass(self, step: Step, port: int) -> bool:
        """Note the step, and wait if the test stops there. Return whether to forward it."""
        with self._lock:
            self.steps.append(step)
            stop = next((stop for stop in self._stops if stop.takes(step)), None)
        return stop is None or stop.hold(port)

    # ---- frames

    def _asked(self, number: int, frame: bytes) -> Step | None:
        """Return the step of a request. Note to which step its answer belongs."""
        key, version = int.from_bytes(frame[:2], 'big'), int.from_bytes(frame[2:4], 'big')
        if key not in STEPS and key != ApiKey.METADATA:
            return None
        header, end = decode_prefix(messages.RequestHeader, frame, request_header_version(key, version))
        if header.client_id == JUDGE:
            return None
        if key == ApiKey.METADATA:
            self._awaited[number, header.correlation_id] = Step('', '', ANSWER), key, version
            return None
        api = STEPS[ApiKey(key)]
        request = decode(getattr(messages, f'{api}Request'), frame, version, end)
        subject = self._subject(api, request)
        self._awaited[number, header.correlation_id] = Step(api, subject, ANSWER), key, version
        return Step(api, subject, REQUEST)

    def _answered(self, number: int, frame: bytes) -> Step | None:
        step, key, version = self._awaited.pop((number, int.from_bytes(frame[:4], 'big')), (None, 0, 0))
        if key != ApiKey.METADATA:
            return step
        _, end = decode_prefix(messages.ResponseHeader, frame, response_header_version(ApiKey(key), version))
        for topic in decode(messages.MetadataResponse, frame, version, end).topics:
            self._topics[topic.topic_id] = topic.name
        return None

    def _subject(self, api: str, request: Any) -> str:
        names = list(getattr(request, 'transactional_ids', ()))
        if api == 'Produce':
            names = [topic.name or self._topics.get(topic.topic_id, '') for topic in request.topic_data]
        words = sorted({self._named(name) for name in names})
        if transactional_id := getattr(request, 'transactional_id', None):
            words.insert(0, self._named(transactional_id))
        if api == 'EndTxn':
            words.append('commit' if request.committed else 'abort')
        return ' '.join(words)

    def _named(self, name: str) -> str:
        return next((subject for beginning, subject in self._subjects if name.startswith(beginning)), name)
