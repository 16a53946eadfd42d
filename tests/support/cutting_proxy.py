"""A proxy that cuts the connections between clients and a broker, each after a number of bytes."""
import random
import socket
import threading
from contextlib import suppress

FEWEST_BYTES, MOST_BYTES = 2000, 12_000
PART_BYTES = 512


class CuttingProxy:
    """A proxy on a port of 127.0.0.1. While `cuts` is true, no connection outlives its share of bytes.

    The seed fixes the shares, in the order of the connections. A cut may fall anywhere in a request or an answer.
    """

    def __init__(self, seed):
        self.cuts = False
        self.count = 0
        """The connections that were cut."""
        self.target = None
        self._shares = random.Random(seed)
        self._listener = socket.create_server(('127.0.0.1', 0))
        self.address = f'127.0.0.1:{self._listener.getsockname()[1]}'
        self._open = set()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self):
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in list(self._open):
            _shut(end)
        self._thread.join()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            share = [self._shares.randint(FEWEST_BYTES, MOST_BYTES)]
            host, _, port = self.target.rpartition(':')
            try:
                broker = socket.create_connection((host, int(port)))
            except OSError:     # the broker is being started
                client.close()
                continue
            self._open |= {client, broker}
            for source, sink in ((client, broker), (broker, client)):
                threading.Thread(target=self._forward, args=(source, sink, share), daemon=True).start()

    def _forward(self, source, sink, share):
        with suppress(OSError):
            while data := source.recv(PART_BYTES):
                if self.cuts:
                    share[0] -= len(data)
                    if share[0] < 0:
                        self.count += 1
                        sink.sendall(data[:len(data) // 2])
                        break
                sink.sendall(data)
        for end in (source, sink):
            self._open.discard(end)
            _shut(end)


def _shut(end):
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
