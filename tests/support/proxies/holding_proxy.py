"""A proxy between clients and a broker that delays one request or loses one answer, and breaks the connection."""
import queue
import struct
import threading

from support.clients.raw_client import read_exactly
from support.proxies.tcp_proxy import TcpProxy

LIMIT_S = 120


class HoldingProxy(TcpProxy):
    """A proxy that reads requests, and intercepts one when the test asks for it. `hold` makes it keep the next request
    with an API key until `release`. `lose_answer` makes it forward the next request with an API key and withhold the
    answer. In both cases it closes the connection to the client, but not the connection to the broker. `requests` has
    (number of the connection, API key, version) for each forwarded request.
    """

    def __init__(self):
        self.requests = []
        self._lock = threading.Lock()
        self._forget_wish(None)
        super().__init__()

    def _forget_wish(self, wanted, loses_answer=False):
        with self._lock:
            self._wanted, self._loses_answer = wanted, loses_answer
            self._taken = threading.Event()
            self._answers = queue.SimpleQueue()
            self._kept = None, b''

    def hold(self, api_key):
        self._forget_wish(api_key)

    def lose_answer(self, api_key):
        self._forget_wish(api_key, loses_answer=True)

    def release(self):
        """Send the kept request to the broker, and return its version and the bytes of the answer."""
        assert self._taken.wait(LIMIT_S)
        link, frame = self._kept
        link.broker.sendall(frame)
        return self.answer()

    def answer(self):
        """Return the version of the intercepted request and the bytes of its answer."""
        assert self._taken.wait(LIMIT_S)
        return struct.unpack('>h', self._kept[1][6:8])[0], self._answers.get(timeout=LIMIT_S)

    def to_broker(self, link):
        while True:
            head = read_exactly(link.client, 4)
            frame = head + read_exactly(link.client, struct.unpack('>i', head)[0])
            key, version = struct.unpack('>hh', frame[4:8])
            if self._take(key, link, frame):
                if not self._loses_answer:
                    return
            else:
                self.requests.append((link.number, key, version))
            link.broker.sendall(frame)

    def _take(self, key, link, frame):
        with self._lock:
            if key != self._wanted:
                return False
            self._wanted = None
            self._kept = link, frame
            link.keeps_broker = True
            self._taken.set()
            return True

    def to_client(self, link):
        """Forward answers to the client. Keep the answer to the intercepted request for the test."""
        while True:
            head = read_exactly(link.broker, 4)
            answer = read_exactly(link.broker, struct.unpack('>i', head)[0])
            kept, frame = self._kept
            if kept is link and answer[:4] == frame[8:12]:
                self._answers.put(answer)
                return
            if not link.keeps_broker:
                link.client.sendall(head + answer)
