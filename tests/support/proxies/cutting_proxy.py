"""A proxy that cuts the connections between clients and a broker, each after a number of bytes."""
import random

from support.proxies.tcp_proxy import TcpProxy

FEWEST_BYTES, MOST_BYTES = 2000, 12_000
PART_BYTES = 512


class CuttingProxy(TcpProxy):
    """A proxy that cuts each connection after a number of bytes while `cuts` is true.

    The seed and the number of the connection fix the number of bytes. A cut may happen anywhere in a request or an
    answer.
    """

    def __init__(self, seed, most_bytes=MOST_BYTES):
        self.cuts = False
        self.count = 0
        """The number of connections that were cut."""
        self._seed, self._most_bytes = seed, most_bytes
        self._shares = {}
        super().__init__()

    def to_broker(self, link):
        self._forward_part(link, link.client, link.broker)

    def to_client(self, link):
        self._forward_part(link, link.broker, link.client)

    def _forward_part(self, link, source, sink):
        while data := source.recv(PART_BYTES):
            if self.cuts and self._is_spent(link.number, len(data)):
                self.count += 1
                sink.sendall(data[:len(data) // 2])
                return
            sink.sendall(data)

    def _is_spent(self, number, size):
        if number not in self._shares:
            self._shares[number] = random.Random(f'{self._seed} {number}').randint(FEWEST_BYTES, self._most_bytes)
        self._shares[number] -= size
        return self._shares[number] < 0
