"""Sound and damaged segment files that together have everything a log can contain."""
import pathlib
import random
import struct
import zlib

from kbroker.record.batch import HEADER_BYTES, encode_batch
from kbroker.record.compression import compress
from kbroker.record.control import encode_end_txn_marker
from kbroker.wire.crc32c import crc32c

T = 1_700_000_000_000
CODECS = range(5)
RECORDS = [(T, b'key', b'value'), (T + 5, None, None), (T + 3, b'', b'', [('h1', b'x'), ('', None), ('h\u00e4', b'')]),
           (T + 9, b'k', None), (T + 1, None, 'gr\u00fc\u00df \U0001f600\n'.encode()),
           (T, b'\xff\xed\xa0\x80', b'\x00\x80' * 9)]


def corpus(root: pathlib.Path) -> list[pathlib.Path]:
    """Write files that kafka-dump-log can read to their ends. Return their paths."""
    segments = {
        'empty': (0, []),
        'compressed': (0, [encode_batch(RECORDS, base_offset=6 * codec, compression=codec) for codec in CODECS]),
        'append-time': (0, [encode_batch(RECORDS, log_append_time_ms=T + 77, compression=codec, base_offset=6 * codec)
                            for codec in CODECS]),
        'transactions': (0, transactions()),
        'compacted': (100, compacted()),
        'torn-header': (0, [encode_batch(RECORDS), encode_batch(RECORDS, base_offset=6)[:40]]),
        'torn-early': (0, [encode_batch(RECORDS), b'\x00' * 17]),
        'torn-records': (0, [encode_batch(RECORDS), encode_batch(RECORDS, base_offset=6)[:-1]]),
        'wrong-crc': (0, [patched(encode_batch(RECORDS), 35, b'\x01'), encode_batch(RECORDS, base_offset=6)]),
        'not-at-zero': (41, [encode_batch(RECORDS, base_offset=41)]),
        'gaps': (0, [encode_batch(RECORDS, base_offset=offset) for offset in (0, 6, 20, 14, 20)]),
        'every-utf-8': (0, [every_utf8()]),
        'control': (0, control_batches()),
        'old': (0, old_messages()),
        'large': (0, [encode_batch([(T, b'k', b'large ' * 400_000)] * 2)]),
    }
    files = []
    for name, (base_offset, batches) in segments.items():
        path = root / f'{name}-0' / f'{base_offset:020d}.log'
        path.parent.mkdir()
        path.write_bytes(b''.join(batches))
        files.append(path)
    return files


def damaged(root: pathlib.Path) -> list[pathlib.Path]:
    """Write files at which kafka-dump-log stops with an error. Return their paths."""
    segments = {
        'zeros': [encode_batch(RECORDS), b'\x00' * 100],
        'negative-length': [encode_batch(RECORDS), struct.pack('>qi', 6, -5) + b'\x02' * 80],
        'record-cut': [with_crc(patched(encode_batch(RECORDS), 57, b'\x00\x00\x00\x09'))],
        'count-negative': [with_crc(patched(encode_batch(RECORDS), 57, b'\xff\xff\xff\xff'))],
        'bytes-left': [with_crc(patched(encode_batch(RECORDS), 57, b'\x00\x00\x00\x02'))],
        'record-length': [with_crc(patched(encode_batch(RECORDS[:1]), HEADER_BYTES, b'\x7e'))],
    }
    files = []
    for name, batches in segments.items():
        path = root / f'{name}-0' / f'{0:020d}.log'
        path.parent.mkdir()
        path.write_bytes(b''.join(batches))
        files.append(path)
    return files


def transactions() -> list[bytes]:
    owned = {'producer_id': 1000, 'producer_epoch': 3, 'transactional': True}
    marker = {'producer_id': 1000, 'coordinator_epoch': 7, 'timestamp_ms': T + 50}
    return [
        encode_batch(RECORDS, base_sequence=0, partition_leader_epoch=4, **owned),
        placed(encode_end_txn_marker(commit=True, producer_epoch=3, **marker), 6),
        encode_batch(RECORDS, base_offset=7, base_sequence=6, compression=4, **owned),
        placed(encode_end_txn_marker(commit=False, producer_epoch=4, **marker), 13),
        encode_batch(RECORDS, base_offset=14, base_sequence=(1 << 31) - 3, producer_id=7, producer_epoch=32767),
        encode_batch(RECORDS, base_offset=20, base_sequence=-1, **owned),
        encode_batch(RECORDS, base_offset=(1 << 62), base_timestamp_ms=-1),
    ]


def compacted() -> list[bytes]:
    records = [(T + offset, b'k', b'v') for offset in (0, 3)]
    return [
        encode_batch(records, base_offset=100, last_offset_delta=9),
        encode_batch([], base_offset=110, last_offset_delta=4, base_timestamp_ms=-1, max_timestamp_ms=T,
                     producer_id=5, producer_epoch=1, base_sequence=3),
        encode_batch(records, base_offset=120, delete_horizon_ms=T + 86_400_000, compression=2),
        encode_batch(records, base_offset=130, delete_horizon_ms=T - 9),
    ]


def control_batches() -> list[bytes]:
    """Return batches with a control record: of an unknown type, and with a key of a newer version."""
    return [encode_batch([(T, struct.pack('>hh', version, number), struct.pack('>hi', 0, 9))], base_offset=offset,
                         control=True)
            for offset, (version, number) in enumerate([(0, 99), (1, 1), (0, -1), (3, 0)])]


def every_utf8() -> bytes:
    """Return byte sequences of length 1 to 4 around every boundary of UTF-8, valid and invalid."""
    first = bytes.fromhex('41 80 c0 c1 c2 df e0 e1 ed ef f0 f1 f4 f5 ff')
    second = bytes.fromhex('41 80 8f 90 9f a0 bf c2 e1 f1')
    third, fourth = bytes.fromhex('41 80 bf c2 e1'), bytes.fromhex('42 80 c3')
    values = [bytes((a, b, c, d)) for a in first for b in second for c in third for d in fourth]
    values += [value[:size] for value in values[::3] for size in (1, 2, 3)]
    generator = random.Random(1)
    values += [generator.randbytes(40) for _ in range(300)]
    return encode_batch([(T, value, b'123456 ' + value) for value in values])


# ---- magic 0 and 1

def old_messages() -> list[bytes]:
    inner = [(0, b'k', b'v'), (1, None, b'w'), (2, b'', None)]
    sets = []
    for magic in (0, 1):
        start = 100 * magic
        sets += [message(magic, start + number, key, value) for number, key, value in inner]
        for codec, offset in ((1, 10), (2, 20), *([(3, 30)] if magic else [])):
            base = 0 if magic else start + offset - 2
            block = b''.join(message(magic, base + number, key, value) for number, key, value in inner)
            sets.append(message(magic, start + offset, None, compress(codec, block), codec))
    appended = b''.join(message(1, number, key, value, 8) for number, key, value in inner)
    sets.append(message(1, 190, None, compress(1, appended), 1 | 8))
    sets.append(patched(message(1, 191, b'k', b'v'), 12, b'\x00\x00'))
    return sets


def message(magic: int, offset: int, key: bytes | None, value: bytes | None, attributes: int = 0) -> bytes:
    body = bytes([magic, attributes]) + (struct.pack('>q', T + offset) if magic else b'')
    for part in (key, value):
        body += struct.pack('>i', -1) if part is None else struct.pack('>i', len(part)) + part
    return struct.pack('>qiI', offset, len(body) + 4, zlib.crc32(body)) + body


# ---- by hand

def placed(batch: bytes, offset: int) -> bytes:
    return struct.pack('>q', offset) + bytes(batch[8:])


def patched(batch: bytes, position: int, data: bytes) -> bytes:
    return bytes(batch[:position]) + data + bytes(batch[position + len(data):])


def with_crc(batch: bytes) -> bytes:
    return patched(batch, 17, struct.pack('>I', crc32c(batch[21:])))
