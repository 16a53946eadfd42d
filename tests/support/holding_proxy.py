"""A proxy between clients and a broker that holds a request back, and shows its client a broken connection."""
import itertools
import queue
import socket
import struct
import threading
from contextlib import suppress

LIMIT_S = 120


class HoldingProxy:
    """A proxy on a port of 127.0.0.1. `hold` makes it keep the next request with an API key.

    `requests` has (number of the connection, API key, version) of each request that was forwarded.
    """

    def __init__(self):
        self.target = None
        self.requests = []
        self.held = threading.Event()
        self._wanted = None
        self._kept = None, b''
        self._answers = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._open = set()
        self._listener = socket.create_server(('127.0.0.1', 0))
        self.address = f'127.0.0.1:{self._listener.getsockname()[1]}'
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def hold(self, api_key):
        """Keep the next request with this key. Its client loses the connection; the broker does not."""
        self.held.clear()
        self._wanted = api_key

    def release(self):
        """Send the kept request to the broker, and return its version and the bytes of the answer."""
        assert self.held.wait(LIMIT_S)
        broker, frame = self._kept
        broker.sendall(frame)
        return struct.unpack('>h', frame[6:8])[0], self._answers.get(timeout=LIMIT_S)

    def close(self):
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in list(self._open):
            shut(end)
        self._thread.join()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            host, _, port = self.target.rpartition(':')
            broker = socket.create_connection((host, int(port)))
            self._open |= {client, broker}
            number = next(self._numbers)
            threading.Thread(target=self._forward_answers, args=(broker, client), daemon=True).start()
            threading.Thread(target=self._forward_requests, args=(number, client, broker), daemon=True).start()

    def _forward_requests(self, number, client, broker):
        with suppress(OSError, EOFError):
            while True:
                head = read_exactly(client, 4)
                frame = head + read_exactly(client, struct.unpack('>i', head)[0])
                key, version = struct.unpack('>hh', frame[4:8])
                if self._take(key):
                    self._kept = broker, frame
                    shut(client)
                    self.held.set()
                    return
                self.requests.append((number, key, version))
                broker.sendall(frame)
        shut(client)
        shut(broker)

    def _take(self, key):
        with self._lock:
            if key != self._wanted:
                return False
            self._wanted = None
            return True

    def _forward_answers(self, broker, client):
        """Forward answers. That to the kept request goes to the test, as the only one once its client is gone."""
        with suppress(OSError, EOFError):
            while True:
                head = read_exactly(broker, 4)
                answer = read_exactly(broker, struct.unpack('>i', head)[0])
                kept, frame = self._kept
                if kept is broker and answer[:4] == frame[8:12]:
                    self._answers.put(answer)
                else:
                    with suppress(OSError):
                        client.sendall(head + answer)
        shut(client)
        shut(broker)


def read_exactly(end, size):
    found = b''
    while len(found) < size:
        data = end.recv(size - len(found))
        if not data:
            raise EOFError
        found += data
    return found


def shut(end):
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
