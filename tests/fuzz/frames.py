"""Random requests of every served API and version. A request is plausible, or a plausible request with changed bytes.
"""
from __future__ import annotations

import random
from typing import Any

from kbroker.apis.serving.request import Api
from kbroker.protocol import messages
from kbroker.protocol.api_keys import request_header_version
from kbroker.protocol.codec import encode
from kbroker.record.batch import encode_batch

TOPICS = ('orders', 'compacted', 'no-such-topic', '', '__consumer_offsets', '__transaction_state', 'bad name', 'é' * 40)
GROUPS = ('group', 'other', '')
TRANSACTIONAL_IDS = ('tx', 'tx-2', '')
STRINGS = ('', 'x', 'consumer', 'range', 'é', 'a' * 300, 'cleanup.policy', 'compact', 'retention.ms')
INTEGERS = (-1, 0, 1, 2, 5, 1000)
LENGTHS = (b'\xff' * 4, b'\x7f' + b'\xff' * 3, bytes(4), b'\x80' + bytes(3))
EDGES = {'int8': (-128, 127), 'int16': (-2**15, 2**15 - 1), 'uint16': (0, 2**16 - 1), 'int32': (-2**31, 2**31 - 1),
         'int64': (-2**63, 2**63 - 1)}
SMALL = {
    'max_wait_ms': (0, 1, 500), 'timeout_ms': (0, 1000), 'num_partitions': (-2, -1, 0, 1, 3), 'count': (-1, 0, 1, 4),
}
"""Fields in which large values are legal but only cost time. An example is the number of a topic's partitions."""


class Frames:
    """A random stream of frames without size prefixes. The seed determines the stream."""

    def __init__(self, apis: list[Api], seed: int, topic_ids: list[bytes]):
        self.random = random.Random(seed)
        self.apis = apis
        self.topic_ids = [*topic_ids, bytes(16), b'\xff' * 16]

    def plausible(self) -> tuple[Api, bytes]:
        """Return a request that a client could send, however unusual."""
        api = self.random.choice(self.apis)
        version = self.random.randint(api.min_version, api.max_version)
        request_class = getattr(messages, api.key.name.title().replace('_', '') + 'Request')
        request = self._struct(request_class, request_class.schema.struct, version)
        header = api.key.to_bytes(2, 'big') + version.to_bytes(2, 'big') + self.random.randbytes(4) + b'\0\4fuzz'
        if request_header_version(api.key, version) >= 2:
            header += b'\0'
        return api, header + encode(request, version)

    def mutated(self) -> tuple[Api, bytes]:
        """Return a plausible request with bytes changed, removed or inserted. The request keeps its API key, so that
        each API gets such requests.
        """
        api, frame = self.plausible()
        changed = bytearray(frame)
        for _ in range(self.random.randint(1, 4)):
            at = self.random.randrange(2, len(changed))
            change = self.random.randrange(5)
            if change == 0:
                changed[at] = self.random.randrange(256)
            elif change == 1:
                changed[at] ^= 1 << self.random.randrange(8)
            elif change == 2:
                del changed[at:at + self.random.randint(1, 8)]
            elif change == 3:
                changed[at:at] = self.random.randbytes(self.random.randint(1, 8))
            else:
                changed[at:at + 4] = self.random.choice(LENGTHS)
            if len(changed) < 4:
                break
        return api, bytes(changed)

    def _struct(self, holder: Any, struct: Any, version: int) -> Any:
        """Return an instance of the struct. `holder` is the message class, which has the nested classes."""
        made = (holder if struct.name == holder.__name__ else getattr(holder, struct.name))()
        for field in struct.fields:
            if version in field.versions:
                setattr(made, field.name, self._value(holder, field, version))
        return made

    def _value(self, holder: Any, field: Any, version: int) -> Any:
        if field.may_be_null(version) and self.random.random() < 0.2:
            return None
        if field.is_array:
            return [self._item(holder, field, version) for _ in range(self.random.choice((0, 1, 1, 2)))]
        return self._item(holder, field, version)

    def _item(self, holder: Any, field: Any, version: int) -> Any:
        if field.struct is not None:
            return self._struct(holder, field.struct, version)
        choose = self.random.choice
        match field.type:
            case 'string':
                return self._string(field.name)
            case 'bool':
                return choose((True, False))
            case 'uuid':
                return choose(self.topic_ids)
            case 'bytes':
                return choose((b'', b'\0\1\0\0\0\0', self.random.randbytes(20)))
            case 'records':
                return self._records()
            case 'float64':
                return choose((0.0, 1.5, -1.0))
        if field.name in SMALL:
            return choose(SMALL[field.name])
        low, high = EDGES[field.type]
        usual = [value for value in INTEGERS if low <= value <= high]
        return choose([*usual, low, high] if self.random.random() < 0.3 else usual)

    def _string(self, name: str) -> str:
        if 'transactional' in name:
            return self.random.choice(TRANSACTIONAL_IDS)
        if 'group' in name:
            return self.random.choice(GROUPS)
        if 'topic' in name or name == 'name':
            return self.random.choice(TOPICS)
        return self.random.choice(STRINGS)

    def _records(self) -> bytes:
        idempotent = self.random.random() < 0.5
        return bytes(encode_batch(
            [(1_700_000_000_000, self.random.choice((None, b'k')), b'value')] * self.random.randint(1, 3),
            compression=self.random.choice((0, 0, 0, 1, 2, 3, 4)),
            producer_id=self.random.choice(INTEGERS) if idempotent else -1,
            producer_epoch=self.random.choice((0, 1)) if idempotent else -1,
            base_sequence=self.random.choice((0, 0, 1, 3)) if idempotent else -1,
            transactional=idempotent and self.random.random() < 0.5))
