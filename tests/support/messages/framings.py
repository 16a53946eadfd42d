"""Compressed blocks in every valid framing that a writer may choose, and in some invalid ones."""
from __future__ import annotations

import gzip
import random
import struct
import zlib

import zstandard
from cramjam import snappy
from lz4 import block as lz4_block
from xxhash import xxh32_intdigest, xxh64_intdigest

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
CODECS = {'gzip': GZIP, 'snappy': SNAPPY, 'lz4': LZ4, 'zstd': ZSTD}
XERIAL = b'\x82SNAPPY\0'
MASK = 0xFFFFFFFF


# --- lz4


def lz4_descriptor(flags: int, size: int = 4, extra: bytes = b'', checksum: int | None = None) -> bytes:
    """Return the head of an LZ4 frame. `flags` is the FLG byte. `size` is the code for the largest block size."""
    descriptor = bytes((flags, size << 4)) + extra
    found = xxh32_intdigest(descriptor) >> 8 & 0xFF if checksum is None else checksum
    return b'\x04\x22\x4d\x18' + descriptor + bytes((found,))


def lz4_blocks(data: bytes, *, step: int = 65536, linked: bool = False, stored: bool = False,
               checksums: int | None = None) -> bytes:
    """Return the blocks of an LZ4 frame with its end mark. Add `checksums` to the correct checksum of each block."""
    blocks = b''
    for start in range(0, len(data), step):
        piece = data[start : start + step]
        dictionary = data[max(0, start - 65536) : start] if linked else b''
        body = piece if stored else lz4_block.compress(piece, store_size=False, dict=dictionary)
        blocks += struct.pack('<I', len(body) | (1 << 31 if stored else 0)) + body
        if checksums is not None:
            blocks += struct.pack('<I', xxh32_intdigest(body) + checksums & MASK)
    return blocks + bytes(4)


LINKED, INDEPENDENT = 0x40, 0x60
BLOCK_CHECKSUM, CONTENT_SIZE, CONTENT_CHECKSUM, DICTIONARY = 0x10, 0x08, 0x04, 0x01


def lz4_framings(data: bytes) -> dict[str, bytes]:
    head, blocks = lz4_descriptor(INDEPENDENT), lz4_blocks(data)
    plain = head + blocks
    half = len(data) // 2
    skippable = struct.pack('<II', 0x184D2A53, 5) + b'hello'
    size = struct.pack('<Q', len(data))
    content = struct.pack('<I', xxh32_intdigest(data))
    legacy = lz4_block.compress(data, store_size=False)
    return {
        'as Java writes it': plain,
        **{f'block size code {code}': lz4_descriptor(INDEPENDENT, code) + blocks for code in range(8)},
        'blocks of 256 KiB': lz4_descriptor(INDEPENDENT, 5) + lz4_blocks(data, step=1 << 18),
        'blocks of 4 MiB': lz4_descriptor(INDEPENDENT, 7) + lz4_blocks(data, step=1 << 22),
        'short blocks': head + lz4_blocks(data, step=1000),
        'a block above its size': head + lz4_blocks(data, step=1 << 22),
        'a stored block above its size': head + lz4_blocks(data, step=1 << 22, stored=True),
        'stored blocks': head + lz4_blocks(data, stored=True),
        'an empty stored block in front': head + struct.pack('<I', 1 << 31) + blocks,
        'an empty stored block as end': head + blocks[:-4] + struct.pack('<I', 1 << 31),
        'an empty compressed block in front': head + struct.pack('<I', 1) + b'\0' + blocks,
        'linked blocks': lz4_descriptor(LINKED) + lz4_blocks(data, linked=True),
        'linked short blocks': lz4_descriptor(LINKED) + lz4_blocks(data, step=1000, linked=True),
        'linked by its flag alone': lz4_descriptor(LINKED) + blocks,
        'independent by its flag alone': head + lz4_blocks(data, step=1000, linked=True),
        'block checksums': lz4_descriptor(INDEPENDENT | BLOCK_CHECKSUM) + lz4_blocks(data, checksums=0),
        'wrong block checksums': lz4_descriptor(INDEPENDENT | BLOCK_CHECKSUM) + lz4_blocks(data, checksums=1),
        'content size': lz4_descriptor(INDEPENDENT | CONTENT_SIZE, extra=size) + blocks,
        'wrong content size': lz4_descriptor(INDEPENDENT | CONTENT_SIZE, extra=bytes(8)) + blocks,
        'too small a content size': lz4_descriptor(INDEPENDENT | CONTENT_SIZE, extra=b'\1' + bytes(7)) + blocks,
        'too large a content size': lz4_descriptor(INDEPENDENT | CONTENT_SIZE, extra=b'\xff' * 8) + blocks,
        'content checksum': lz4_descriptor(INDEPENDENT | CONTENT_CHECKSUM) + blocks + content,
        'wrong content checksum': lz4_descriptor(INDEPENDENT | CONTENT_CHECKSUM) + blocks + bytes(4),
        'no content checksum': lz4_descriptor(INDEPENDENT | CONTENT_CHECKSUM) + blocks,
        'content checksum of short blocks': lz4_descriptor(INDEPENDENT | CONTENT_CHECKSUM)
        + lz4_blocks(data, step=1000) + content,
        'everything': lz4_descriptor(INDEPENDENT | CONTENT_CHECKSUM | BLOCK_CHECKSUM | CONTENT_SIZE, extra=size)
        + lz4_blocks(data, checksums=0) + content,
        'dictionary': lz4_descriptor(INDEPENDENT | DICTIONARY, extra=b'\1\0\0\0') + blocks,
        'reserved flag': lz4_descriptor(INDEPENDENT | 2) + blocks,
        'version 0': lz4_descriptor(0x20) + blocks,
        'version 2': lz4_descriptor(0xA0) + blocks,
        'reserved block bit 7': lz4_descriptor(INDEPENDENT, 12) + blocks,
        'reserved block bits': b'\x04\x22\x4d\x18\x60\x41'
        + bytes((xxh32_intdigest(b'\x60\x41') >> 8 & 0xFF,)) + blocks,
        'wrong header checksum': lz4_descriptor(INDEPENDENT, checksum=1) + blocks,
        'header checksum of old clients': lz4_descriptor(
            INDEPENDENT, checksum=xxh32_intdigest(b'\x04\x22\x4d\x18\x60\x40') >> 8 & 0xFF) + blocks,
        'legacy frame': b'\x02\x21\x4c\x18' + struct.pack('<I', len(legacy)) + legacy,
        'two frames': head + lz4_blocks(data[:half]) + head + lz4_blocks(data[half:]),
        'an empty frame in front': head + bytes(4) + plain,
        'an empty frame behind': plain + head + bytes(4),
        'the frame twice': plain + plain,
        'skippable frame in front': skippable + plain,
        'skippable frame behind': plain + skippable,
        'zeros behind': plain + bytes(4),
        'a byte behind': plain + b'x',
        'no end mark': plain[:-4],
        'half an end mark': plain[:-2],
        'cut': plain[: len(plain) // 2],
        'head alone': head,
        'cut in its head': head[:5],
        'empty frame': head + bytes(4),
        'damaged': damaged(plain, 15),
        'no bytes': b'',
    }


def damaged(block: bytes, position: int) -> bytes:
    position = min(position, len(block) - 1)
    return block[:position] + bytes((block[position] ^ 0xFF,)) + block[position + 1 :]


# --- gzip


def gzip_member(data: bytes, flags: int = 0, extra: bytes = b'', *, method: int = 8, crc: int = 0,
                size: int = 0) -> bytes:
    """Return a gzip member. Add `crc` and `size` to the correct values in its trailer."""
    deflated = zlib.compressobj(wbits=-15)
    body = deflated.compress(data) + deflated.flush()
    head = b'\x1f\x8b' + bytes((method, flags)) + bytes(4) + b'\0\xff' + extra
    return head + body + struct.pack('<II', zlib.crc32(data) + crc & MASK, len(data) + size & MASK)


def gzip_head_crc(flags: int, extra: bytes = b'') -> bytes:
    head = b'\x1f\x8b\x08' + bytes((flags,)) + bytes(4) + b'\0\xff' + extra
    return struct.pack('<H', zlib.crc32(head) & 0xFFFF)


def gzip_framings(data: bytes) -> dict[str, bytes]:
    plain = gzip_member(data)
    half = len(data) // 2
    empty = gzip_member(b'')
    small_window = zlib.compressobj(wbits=16 + 9)
    return {
        'as Java writes it': plain,
        'by gzip': gzip.compress(data),
        'stored': gzip.compress(data, 0),
        'small window': small_window.compress(data) + small_window.flush(),
        'name': gzip_member(data, 8, b'name\0'),
        'comment': gzip_member(data, 16, b'comment\0'),
        'extra field': gzip_member(data, 4, b'\4\0abcd'),
        'text': gzip_member(data, 1),
        'head checksum': gzip_member(data, 2, gzip_head_crc(2)),
        'wrong head checksum': gzip_member(data, 2, b'\0\0'),
        'every field': gzip_member(data, 31, (fields := b'\4\0abcdname\0comment\0') + gzip_head_crc(31, fields)),
        'reserved flag 5': gzip_member(data, 0x20),
        'reserved flag 7': gzip_member(data, 0x80),
        'other method': gzip_member(data, method=7),
        'wrong checksum': gzip_member(data, crc=1),
        'wrong size': gzip_member(data, size=1),
        'two members': gzip_member(data[:half]) + gzip_member(data[half:]),
        'an empty member in front': empty + plain,
        'an empty member behind': plain + empty,
        'two empty members behind': plain + empty + empty,
        'the member twice': plain + plain,
        'a small member behind': plain + gzip_member(b'abc'),
        'a byte behind': plain + b'x',
        'zeros behind': plain + bytes(100),
        'garbage behind': plain + b'garbage' * 20,
        'a member cut behind': plain + plain[:40],
        'the head of a member behind': plain + plain[:10],
        'a damaged member behind': plain + damaged(gzip_member(b'abc' * 100), 12),
        'a member with a wrong checksum behind': plain + gzip_member(b'', crc=1) + bytes(20),
        'no trailer': plain[:-8],
        'half a trailer': plain[:-4],
        'cut': plain[: len(plain) // 2],
        'head alone': plain[:10],
        'zlib': zlib.compress(data),
        'raw deflate': plain[10:-8],
        'damaged': damaged(plain, 12),
        'no bytes': b'',
    }


# --- snappy


def xerial(data: bytes, step: int = 32768, versions: tuple[int, int] = (1, 1)) -> bytes:
    framed = XERIAL + struct.pack('>ii', *versions)
    for start in range(0, len(data), step):
        block = bytes(snappy.compress_raw(data[start : start + step]))
        framed += struct.pack('>i', len(block)) + block
    return framed


def snappy_framings(data: bytes) -> dict[str, bytes]:
    plain = xerial(data)
    raw = bytes(snappy.compress_raw(data))
    half = len(data) // 2
    return {
        'as Java writes it': plain,
        'raw': raw,
        'short blocks': xerial(data, 1000),
        'long blocks': xerial(data, 1 << 20),
        **{f'versions {versions}': xerial(data, versions=versions)
           for versions in ((1, 2), (2, 1), (2, 2), (0, 1), (1, 0), (0, 0), (-1, 1), (1, -1))},
        'two streams': xerial(data[:half]) + xerial(data[half:]),
        'two streams, the second of version 0': xerial(data[:half]) + xerial(data[half:], versions=(0, 0)),
        'two streams, the second of version 2': xerial(data[:half]) + xerial(data[half:], versions=(2, 2)),
        'raw behind a stream': xerial(data[:half]) + bytes(snappy.compress_raw(data[half:])),
        'framing of snappy': bytes(snappy.compress(data)),
        'an empty block in front': plain[:16] + b'\0\0\0\1\0' + plain[16:],
        'a block of no bytes in front': plain[:16] + bytes(4) + plain[16:],
        'a block of no bytes behind': plain + bytes(4),
        'an empty block behind': plain + b'\0\0\0\1\0',
        'an empty stream in front': plain[:16] + plain,
        'an empty stream behind': plain + plain[:16],
        'half a head behind': plain + plain[:10],
        'a magic behind': plain + plain[:8],
        'a block behind': plain + b'\0\0\0\5' + bytes(snappy.compress_raw(b'abc')),
        'a byte behind': plain + b'x',
        'three bytes behind': plain + b'\0\0\0',
        'four bytes behind': plain + b'\0\0\0\7',
        'a negative block behind': plain + b'\xff\xff\xff\xff',
        'a long block behind': plain + b'\x7f\xff\xff\xff',
        'a byte behind raw': raw + b'x',
        'cut': plain[: len(plain) // 2],
        'raw cut': raw[: len(raw) // 2],
        'head alone': plain[:16],
        'cut in its head': plain[:12],
        'magic alone': plain[:8],
        'damaged': damaged(plain, 25),
        'raw damaged': damaged(raw, 3),
        'a wrong length': plain[:20] + damaged(plain[20:], 0),
        'no bytes': b'',
    }


# --- zstd


def zstd(data: bytes, **options: int) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)


def zstd_stored(data: bytes, descriptor: int, fields: bytes) -> bytes:
    """Return a frame of stored blocks. `descriptor` and `fields` are bytes of its header."""
    frame = b'\x28\xb5\x2f\xfd' + bytes((descriptor,)) + fields
    for start in range(0, len(data), 1 << 17):
        piece = data[start : start + (1 << 17)]
        frame += struct.pack('<I', len(piece) << 3 | (start + (1 << 17) >= len(data)))[:3] + piece
    return frame


def zstd_repeated(data: bytes) -> bytes:
    """Return a frame in which each block repeats one byte."""
    blocks = [struct.pack('<I', 1 << 3 | 1 << 1 | (position + 1 == len(data)))[:3] + bytes((byte,))
              for position, byte in enumerate(data)]
    return b'\x28\xb5\x2f\xfd\0' + window(20) + b''.join(blocks)


def window(log: int, mantissa: int = 0) -> bytes:
    return bytes((log - 10 << 3 | mantissa,))


def zstd_framings(data: bytes) -> dict[str, bytes]:
    plain = zstd(data)
    half = len(data) // 2
    skippable = struct.pack('<II', 0x184D2A53, 5) + b'hello'
    checked = zstd(data, write_checksum=True)
    return {
        'as Java writes it': zstd(data, write_content_size=False),
        'content size': plain,
        'no content size': zstd(data, write_content_size=False),
        'content checksum': checked,
        'wrong content checksum': damaged(checked, len(checked) - 1),
        'no content checksum': checked[:-4],
        'level 19': zstd(data, level=19),
        **{f'window of 2^{log}': zstd_stored(data, 0, window(log)) for log in (10, 17, 23, 26, 27, 28, 30, 31, 41)},
        'window of 2^27 and more': zstd_stored(data, 0, window(27, 1)),
        **{f'window of 2^{log} and a content size': zstd_stored(data, 0x80, window(log) + struct.pack('<I', len(data)))
           for log in (27, 28, 31)},
        'a window of 2^28 in the second frame': zstd_stored(data[:half], 4, window(20))
        + struct.pack('<I', xxh64_intdigest(data[:half]) & MASK) + zstd_stored(data[half:], 0, window(28)),
        'a window of 2^28 behind a skippable frame': skippable + zstd_stored(data, 0, window(28)),
        'blocks of one byte repeated': zstd_repeated(data),
        'single segment': zstd_stored(data, 0xA0, struct.pack('<I', len(data))),
        'wrong content size': zstd_stored(data, 0x80, window(20) + struct.pack('<I', len(data) + 1)),
        'too small a content size': zstd_stored(data, 0x80, window(20) + struct.pack('<I', len(data) - 1)),
        'content size of 0': zstd_stored(data, 0x80, window(20) + bytes(4)),
        'a huge content size': zstd_stored(data, 0xC0, window(20) + b'\xff' * 7 + b'\x7f'),
        'dictionary': zstd_stored(data, 1, window(20) + b'\7'),
        'dictionary 0': zstd_stored(data, 1, window(20) + b'\0'),
        'reserved flag': zstd_stored(data, 8, window(20)),
        'unused flag': zstd_stored(data, 16, window(20)),
        'reserved block': zstd_stored(data, 0, window(20))[:6] + b'\7\0\0',
        'two frames': zstd(data[:half]) + zstd(data[half:]),
        'two frames without sizes': zstd(data[:half], write_content_size=False)
        + zstd(data[half:], write_content_size=False),
        'an empty frame in front': zstd(b'') + plain,
        'an empty frame behind': plain + zstd(b''),
        'the frame twice': plain + plain,
        'skippable frame in front': skippable + plain,
        'skippable frame behind': plain + skippable,
        'skippable frame cut behind': plain + skippable[:-1],
        'skippable head cut behind': plain + skippable[:6],
        'skippable frame alone': skippable,
        'zeros behind': plain + bytes(4),
        'a byte behind': plain + b'x',
        'the head of a frame behind': plain + plain[:4],
        'cut': plain[: len(plain) // 2],
        'no last block': zstd_stored(data, 0, window(20))[:-1],
        'head alone': plain[:6],
        'magic alone': plain[:4],
        'damaged': damaged(plain, 15),
        'other magic': damaged(plain, 0),
        'magic of 0.7': b'\x27' + plain[1:],
        'no bytes': b'',
    }


def framings(data: bytes) -> dict[str, tuple[int, bytes]]:
    """Return {name of the framing: (codec, block)} for every framing of the data."""
    made = {'gzip': gzip_framings, 'snappy': snappy_framings, 'lz4': lz4_framings, 'zstd': zstd_framings}
    return {f'{name}: {kind}': (codec, block)
            for name, codec in CODECS.items() for kind, block in made[name](data).items()}


def damaged_framings(data: bytes, count: int, seed: int) -> list[tuple[int, bytes]]:
    """Return (codec, block) for `count` framings with random bytes changed, removed or added, mostly in their headers.
    """
    rng = random.Random(seed)
    whole = [(codec, block) for codec, block in framings(data).values() if block]
    found = []
    for _ in range(count):
        codec, block = rng.choice(whole)
        block = bytearray(block)
        for _ in range(rng.choice((1, 1, 2, 3))):
            _damage(block, rng, whole)
        if codec == LZ4 and rng.random() < 0.8:
            _fix_lz4_head(block)
        found.append((codec, bytes(block)))
    return found


def _damage(block: bytearray, rng: random.Random, whole: list[tuple[int, bytes]]) -> None:
    at = rng.randrange(min(len(block), 30) if rng.random() < 0.6 else len(block)) if block else 0
    kind = rng.randrange(6)
    if kind == 3:
        del block[at : at + rng.choice((1, 1, 4))]
    elif kind == 4:
        block[at:at] = rng.choice((bytes(4), b'x', bytes(1), bytes(block[: rng.randrange(40)])))
    elif kind == 5:
        block += rng.choice((bytes(block), bytes(4), b'\0', rng.choice(whole)[1]))
    elif block:
        block[at] = rng.choice((0, 1, 255, block[at] ^ 1 << rng.randrange(8), rng.randrange(256)))


def _fix_lz4_head(block: bytearray) -> None:
    """Correct the checksum of the frame's header."""
    if block[:4] != b'\x04\x22\x4d\x18' or len(block) < 7:
        return
    end = 6 + (8 if block[4] & CONTENT_SIZE else 0) + (4 if block[4] & DICTIONARY else 0)
    if end < len(block):
        block[end] = xxh32_intdigest(bytes(block[4:end])) >> 8 & 0xFF
