"""The common part of the proxies between clients and a broker: connections, their threads and their end."""
import itertools
import socket
import threading
from abc import ABC, abstractmethod
from contextlib import suppress

AFTER_FAILURE_S = 0.05


class Link:
    """A connection of a client and the matching connection to the broker. `number` counts the links of the proxy."""

    def __init__(self, number, client, broker):
        self.number, self.client, self.broker = number, client, broker
        self.notes = {}
        """Data about the link that a subclass of TcpProxy keeps."""
        self.keeps_broker = False
        """True if the connection to the broker stays open when the client's connection ends."""

    def close(self):
        shut(self.client)
        if not self.keeps_broker:
            shut(self.broker)


class TcpProxy(ABC):
    """A proxy on a port of 127.0.0.1 for the broker at `target`, an address that may change.

    A subclass forwards the bytes. Its methods `to_broker` and `to_client` run in separate threads, until a connection
    ends or one of them returns. While the broker is down, the proxy closes each connection that it accepts.
    """

    def __init__(self):
        self.target = None
        self._numbers = itertools.count(1)
        self._links = set()
        self._is_closed = threading.Event()
        self._listener = socket.create_server(('127.0.0.1', 0))
        self.address = f'127.0.0.1:{self._listener.getsockname()[1]}'
        self._thread = threading.Thread(target=self._accept_all, daemon=True)
        self._thread.start()

    @abstractmethod
    def to_broker(self, link):
        """Forward the client's bytes to the broker."""

    @abstractmethod
    def to_client(self, link):
        """Forward the broker's bytes to the client."""

    def close(self):
        self._is_closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for link in list(self._links):
            link.keeps_broker = False
            link.close()

    def _accept_all(self):
        while not self._is_closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:     # the client may have gone away: the proxy continues
                self._is_closed.wait(AFTER_FAILURE_S)
                continue
            broker = self._connect()
            if broker is None:
                client.close()
                continue
            link = Link(next(self._numbers), client, broker)
            self._links.add(link)
            for forward in (self.to_broker, self.to_client):
                threading.Thread(target=self._forward, args=(forward, link), daemon=True).start()

    def _connect(self):
        try:
            host, _, port = self.target.rpartition(':')
            return socket.create_connection((host, int(port)))
        except OSError:         # the broker is being started
            return None

    def _forward(self, forward, link):
        with suppress(OSError):
            forward(link)
        link.close()
        if not link.keeps_broker:
            self._links.discard(link)


def shut(end):
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
