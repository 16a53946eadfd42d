"""A proxy that cuts connections at random, and delivers some requests after the cut."""
import random
import struct
import threading
import time
from collections import Counter

from support.clients.late_requests import LATE, error_of
from support.clients.raw_client import read_exactly
from support.proxies.tcp_proxy import TcpProxy, shut

from kbroker.protocol.api_keys import ApiKey

MOST_DELAY_S = 0.3
OVERDUE_S = 30
"""The time within which a broker must answer a request. These clients send no request that waits longer."""
LAST_VERSIONS = {ApiKey.ADD_PARTITIONS_TO_TXN: 3, ApiKey.ADD_OFFSETS_TO_TXN: 3, ApiKey.END_TXN: 4,
                 ApiKey.TXN_OFFSET_COMMIT: 4, ApiKey.PRODUCE: 11}
"""The request versions that clients from before KIP-890 send."""


class RandomCutProxy(TcpProxy):
    """A proxy that cuts connections while `cuts` is true, on average at one of `frames` frames. It cuts before, in or
    after the frame. Or it cuts only the client's connection and delivers the frame to the broker later, as a late
    request. `counts` has the number of each kind of cut. `refused_live` has (API key, connection) for each refusal that
    a client received. Each is a fault of the broker, because a client that receives an answer has not given up its
    connection. `overdue` has the requests that the broker has not answered.
    """

    KINDS = ('before', 'within', 'after', 'late')

    def __init__(self, seed, frames=40):
        self.cuts = False
        self.counts = Counter()
        self.refused_live = []
        self._overdue = []
        self._frames = frames
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        super().__init__()

    def _next_cut(self, kinds):
        with self._lock:
            if not self.cuts or self._random.randrange(self._frames):
                return None, 0
            kind, delay_s = self._random.choice(kinds), self._random.uniform(0, MOST_DELAY_S)
            self.counts[kind] += 1
            return kind, delay_s

    def overdue(self):
        """Return (API key, connection) of each request whose client got no answer in time, or still waits for it."""
        with self._lock:
            waiting = [found for link in list(self._links) for found in self._overdue_of(link)]
            return sorted({*self._overdue, *waiting})

    @staticmethod
    def _overdue_of(link):
        now = time.monotonic()
        return [(ApiKey(note[0]).name, link.number) for note in list(link.notes.values())
                if isinstance(note, tuple) and now - note[2] > OVERDUE_S]

    def to_broker(self, link):
        try:
            self._forward_requests(link)
        finally:
            with self._lock:
                self._overdue += self._overdue_of(link)

    def _forward_requests(self, link):
        while True:
            head = read_exactly(link.client, 4)
            frame = head + read_exactly(link.client, struct.unpack('>i', head)[0])
            key, version = struct.unpack('>hh', frame[4:8])
            link.notes[frame[8:12]] = key, version, time.monotonic()
            kind, delay_s = self._next_cut(self.KINDS)
            if kind == 'before':
                return
            if kind == 'late':
                link.notes['late'] = frame[8:12]
                link.keeps_broker = True
                shut(link.client)
                self._is_closed.wait(delay_s)
            link.broker.sendall(frame[:len(frame) // 2] if kind == 'within' else frame)
            if kind is not None:
                return

    def to_client(self, link):
        try:
            while True:
                head = read_exactly(link.broker, 4)
                answer = read_exactly(link.broker, struct.unpack('>i', head)[0])
                asked = link.notes.pop(answer[:4], None)
                if link.keeps_broker:       # its client is gone
                    if answer[:4] == link.notes['late']:
                        return
                    continue
                kind, _ = self._next_cut(self.KINDS[:3])
                if kind == 'before':
                    return
                frame = head + answer
                link.client.sendall(frame[:len(frame) // 2] if kind == 'within' else frame)
                if kind is not None:
                    return
                self._note_refusal(link, asked, answer)
        finally:
            link.keeps_broker = False

    def _note_refusal(self, link, asked, answer):
        key, version, _ = asked or (None, 0, 0)
        if key in LAST_VERSIONS and version <= LAST_VERSIONS[key]:
            key = ApiKey(key)
            if error_of(key, version, answer) == LATE[key]:
                self.refused_live.append((key.name, link.number))
