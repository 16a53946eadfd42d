"""Compresses and decompresses the records of a batch in five codecs, with the framings that Kafka's Java client writes.

gzip: one or more members. snappy: the block framing of snappy-java ("xerial"); raw snappy is read too, as
snappy-java does. lz4: one or more LZ4 frames, written with independent 64 KiB blocks. zstd: one or more frames.

The libraries are imported on first use, so a broker without compressed topics starts without them.
"""

from __future__ import annotations

import enum
import functools
import struct
import sys
import threading
import zlib
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kbroker.base.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    from typing_extensions import Buffer


class Compression(enum.IntEnum):
    """The codecs, with their numbers in the attributes of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# The default of compression.lz4.level in Kafka. Kafka's Java library uses the fast compressor for this level, and the
# high-compression one for any other level (KIP-390). So this 9 is not level 9 of LZ4.
DEFAULT_LZ4_LEVEL = 9
DEFAULT_ZSTD_LEVEL = 3
DEFAULT_GZIP_LEVEL = -1

_GZIP_WINDOW = 31  # zlib's code for a 32 KiB window and a gzip header
_XERIAL_HEADER = struct.Struct('>8sii')
_XERIAL_MAGIC = b'\x82SNAPPY\x00'
_XERIAL_VERSION = 1
_XERIAL_BLOCK_BYTES = 32 * 1024
_SNAPPY_MOST_EXPANSION = 22  # the best element yields 64 bytes and takes 3
_SKIPPABLE_MAGIC = 0x184D2A50  # of a frame without content in LZ4 and zstd: the first of 16; the last is 0x184D2A5F
_LZ4_MAGIC = b'\x04\x22\x4d\x18'
_LZ4_BLOCK_BYTES = 64 * 1024  # the largest block that Java writes
_LZ4_HEAD = _LZ4_MAGIC + b'\x60\x40\x82'  # with independent blocks of this size, and nothing else
_LZ4_INDEPENDENT_BLOCKS = 0x20
_LZ4_HAS_BLOCK_CHECKSUMS = 0x10
_LZ4_HAS_SIZE = 0x08
_LZ4_HAS_CHECKSUM = 0x04
_LZ4_HAS_DICTIONARY = 0x01
_LZ4_NOT_COMPRESSED = 1 << 31  # in the size of a block
_LZ4_LONGEST_DESCRIPTOR = 14
_LZ4_WINDOW_BYTES = 64 * 1024  # to which a block can refer
_LZ4_MOST_EXPANSION = 255  # a byte of a match's length yields as many bytes
_LZ4_STEP_BYTES = 512 * 1024
_ZSTD_AT_ONCE_BYTES = 1024 * 1024
_LZ4_LEAST_HIGH_LEVEL = 3  # the lowest level of the compressor that compresses more
_CHUNK_BYTES = 64 * 1024
_INPUT_BYTES = 64 * 1024  # of one call: the libraries copy the input that a call does not use


class ExpansionError(KafkaError):
    """Raised if a compressed block expands to more bytes than allowed. Clients receive MESSAGE_TOO_LARGE."""

    def __init__(self, max_bytes: int):
        super().__init__(
            ErrorCode.MESSAGE_TOO_LARGE,
            f'found more than {max_bytes} bytes in a compressed block, expected no more',
        )


class Output(Protocol):
    """The interface of an object that receives the output of a decompressor piece by piece."""

    def expect(self, size_bytes: int) -> None:
        """Raise ExpansionError if there is no room for `size_bytes` more."""

    def add(self, piece: Buffer) -> None:
        """Add the next bytes of the output. Raise ExpansionError if there is no room for them."""


class _Pieces:
    """An Output that joins its pieces to one bytes object."""

    def __init__(self, max_bytes: int):
        self.pieces: list[bytes] = []
        self.room = max_bytes
        self.max_bytes = max_bytes

    def expect(self, size_bytes: int) -> None:
        if size_bytes > self.room:
            raise ExpansionError(self.max_bytes)

    def add(self, piece: Buffer) -> None:
        taken = bytes(piece)
        self.expect(len(taken))
        self.room -= len(taken)
        self.pieces.append(taken)

    def take(self) -> bytes:
        return self.pieces[0] if len(self.pieces) == 1 else b''.join(self.pieces)


def compress(codec: int, data: bytes | memoryview, level: int | None = None) -> bytes | memoryview:
    """Return `data` compressed to one block of `codec`. `level` has the meaning of Kafka's `compression.*.level`; None
    means the default of the codec. Snappy has no level.
    """
    return _COMPRESS[Compression(codec)](data, level)


def decompress(codec: int, data: bytes | memoryview, max_bytes: int) -> bytes:
    """Return the decompressed content of a block of `codec`.

    Raise KafkaError UNSUPPORTED_COMPRESSION_TYPE if the codec is above 4, and CORRUPT_MESSAGE if the data is not a
    valid block. Raise ExpansionError (MESSAGE_TOO_LARGE) if the output has more than `max_bytes`. Memory is used for at
    most `max_bytes`, plus the output of one step of the library.
    """
    at_once = _AT_ONCE.get(codec)
    if at_once is not None:
        whole = at_once(data, max_bytes)
        if whole is not None:
            return whole
    output = _Pieces(max_bytes)
    decompress_to(codec, memoryview(data), output)
    return output.take()


def decompress_to(codec: int, data: memoryview, output: Output) -> None:
    """Decompress a block of `codec`, and pass the content to `output` in pieces. Raise the errors of `decompress`.

    The libraries hold the GIL only for a small part of the time, so a worker thread can call this function.
    """
    try:
        expand = _DECOMPRESS[codec]
    except KeyError:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f'found codec {codec}, expected 0 to {max(Compression)}'
        ) from None
    expand(data, output)


def _corrupt(codec: Compression, reason: object) -> KafkaError:
    return KafkaError(
        ErrorCode.CORRUPT_MESSAGE, f'found a {codec.name.lower()} block that cannot be decompressed: {reason}'
    )


# --- none ---


def _compress_none(data: bytes | memoryview, level: int | None) -> bytes | memoryview:
    return data


def _decompress_none(data: memoryview, output: Output) -> None:
    output.expect(len(data))
    output.add(data)


# --- gzip ---


def _compress_gzip(data: bytes | memoryview, level: int | None) -> bytes:
    return zlib.compress(data, DEFAULT_GZIP_LEVEL if level is None else level, _GZIP_WINDOW)


def _decompress_gzip(data: memoryview, output: Output) -> None:
    position = 0
    while position < len(data):
        member = zlib.decompressobj(_GZIP_WINDOW)
        pending: bytes | memoryview = b''
        while not member.eof:
            if not pending:
                pending = data[position : position + _INPUT_BYTES]
                position += len(pending)
            try:
                piece = member.decompress(pending, _CHUNK_BYTES)
            except zlib.error as error:
                raise _corrupt(Compression.GZIP, error) from None
            pending = member.unconsumed_tail
            if not piece and not pending and not member.eof and position >= len(data):
                raise _corrupt(Compression.GZIP, 'it ends early')
            output.add(piece)
        position -= len(member.unused_data)


# --- snappy ---


def _compress_snappy(data: bytes | memoryview, level: int | None) -> bytes:
    from cramjam import snappy

    framed = bytearray(_XERIAL_HEADER.pack(_XERIAL_MAGIC, _XERIAL_VERSION, _XERIAL_VERSION))
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES])
        framed += len(block).to_bytes(4, 'big')
        framed += memoryview(block)
    return bytes(framed)


def _decompress_snappy(view: memoryview, output: Output) -> None:
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        _add_snappy_block(view, output)
        return
    position = 0
    while position < len(view):
        if view[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:  # streams may be concatenated
            position += _XERIAL_HEADER.size
            continue
        start = position + 4
        size = int.from_bytes(view[position:start], 'big')
        position = start + size
        if position > len(view):
            raise _corrupt(Compression.SNAPPY, f'a piece of {size} bytes is expected, {len(view) - start} are left')
        _add_snappy_block(view[start:position], output)
    if position > len(view):
        raise _corrupt(Compression.SNAPPY, 'it ends in its header')


def _add_snappy_block(block: memoryview, output: Output) -> None:
    from cramjam import DecompressionError, snappy

    try:
        size = snappy.decompress_raw_len(block)
        if size > _SNAPPY_MOST_EXPANSION * len(block):
            raise _corrupt(Compression.SNAPPY, f'{len(block)} bytes cannot hold {size}')
        output.expect(size)
        piece = snappy.decompress_raw(block)
    except DecompressionError as error:
        raise _corrupt(Compression.SNAPPY, error) from None
    output.add(memoryview(piece))


# --- lz4 ---


def _compress_lz4(data: bytes | memoryview, level: int | None) -> bytes:
    return _lz4().compress(data, DEFAULT_LZ4_LEVEL if level is None else level)


def _lz4_at_once(data: bytes | memoryview, max_bytes: int) -> bytes | None:
    return _lz4().at_once(data, max_bytes)


def _decompress_lz4(data: memoryview, output: Output) -> None:
    _lz4().decompress_to(data, output)


@functools.cache
def _lz4() -> _Lz4OfLz4 | _Lz4OfCramjam:
    """Return the codec of the package lz4, if it is installed, or else the slower one of cramjam.

    lz4 has wheels neither for musl nor for Python 3.15, and pip would compile it there. So it is an extra of kbroker.
    """
    try:
        return _Lz4OfLz4()
    except ImportError:
        return _Lz4OfCramjam()


class _Lz4OfLz4(threading.local):
    """The LZ4 codec of the package lz4, with a decompressor for each thread. Creating a decompressor costs as much as
    decompressing a small batch, and threads cannot share it.

    After a frame that did not end, `renew` creates a new decompressor. The library's reset would keep the content size
    of the unfinished frame, and refuse each later frame without a content size.
    """

    def __init__(self) -> None:
        from lz4 import frame  # type: ignore[import-untyped]

        self.frame = frame
        self.step = frame.decompress_chunk
        self.renew()

    def renew(self) -> None:
        self.context = self.frame.create_decompression_context()

    def compress(self, data: bytes | memoryview, level: int) -> bytes:
        frame = self.frame
        fast = level == DEFAULT_LZ4_LEVEL
        return frame.compress(  # type: ignore[no-any-return]
            data,
            compression_level=frame.COMPRESSIONLEVEL_MIN if fast else max(level, frame.COMPRESSIONLEVEL_MINHC),
            block_size=frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            store_size=False,
        )

    def at_once(self, data: bytes | memoryview, max_bytes: int) -> bytes | None:
        """Return the content of `data` if it is a single frame of ordinary size. Return None for any other or damaged
        data.
        """
        whole: bytes
        try:
            whole, used, is_end = self.step(self.context, data, max_length=min(_CHUNK_BYTES, max_bytes))
        except RuntimeError:
            is_end, used = False, 0
        if not is_end:
            self.renew()
        return whole if is_end and used == len(data) else None

    def decompress_to(self, data: memoryview, output: Output) -> None:
        position = 0
        is_end = True
        try:
            while position < len(data) or not is_end:
                pending = data[position : position + _INPUT_BYTES]
                try:
                    piece, used, is_end = self.step(self.context, pending, max_length=_CHUNK_BYTES)
                except RuntimeError as error:
                    raise _corrupt(Compression.LZ4, error) from None
                position += used
                if not piece and not used and not is_end:
                    raise _corrupt(Compression.LZ4, 'it ends early')
                output.add(piece)
        except KafkaError:
            self.renew()
            raise


class _Lz4OfCramjam:
    """The LZ4 codec of the package cramjam, which decompresses only whole frames.

    A large frame is therefore cut into small ones, which bounds the memory of a step. A small frame has the next blocks
    of the large one. If these refer to the content before them, it comes first, as a block that is not compressed.
    """

    def __init__(self) -> None:
        import cramjam
        import xxhash

        self.library = cramjam.lz4
        self.error = cramjam.DecompressionError
        self.checksum = xxhash.xxh32

    def compress(self, data: bytes | memoryview, level: int) -> bytes:
        """Return a frame as Java writes it: without the checksums that the library adds to its blocks."""
        level = 0 if level == DEFAULT_LZ4_LEVEL else max(level, _LZ4_LEAST_HIGH_LEVEL)
        compressor = self.library.Compressor(level=level, content_checksum=False, block_linked=False)
        compressor.compress(bytes(data))  # it takes nothing but bytes
        frame = _Lz4Frame(memoryview(compressor.finish()), 0)
        cut = 4 * bool(frame.flags & _LZ4_HAS_BLOCK_CHECKSUMS)
        return b''.join([_LZ4_HEAD, *(frame.data[start : end - cut] for start, end, _ in frame.blocks()), bytes(4)])

    def at_once(self, data: bytes | memoryview, max_bytes: int) -> bytes | None:
        """Return the content of `data` if it is a single frame as Java writes it. Return None for any other or damaged
        data.
        """
        view = memoryview(data)
        if view[: len(_LZ4_HEAD)] != _LZ4_HEAD:
            return None
        room = memoryview(bytearray(_LZ4_BLOCK_BYTES))
        pieces: list[bytes | memoryview] = []
        left = max_bytes
        start = len(_LZ4_HEAD) + 4
        while header := int.from_bytes(view[start - 4 : start], 'little'):
            block = view[start : start + (header & ~_LZ4_NOT_COMPRESSED)]
            if header & _LZ4_NOT_COMPRESSED:
                pieces.append(block)
            else:
                try:
                    size = self.library.decompress_block_into(block, room)
                except self.error:
                    return None
                pieces.append(bytes(room[:size]))
            left -= len(pieces[-1])
            if left < 0:
                return None
            start += len(block) + 4
        return b''.join(pieces) if start == len(view) else None

    def decompress_to(self, data: memoryview, output: Output) -> None:
        _decompress_frames(
            Compression.LZ4, data, lambda position: self.decompress_frame(_Lz4Frame(data, position), output)
        )

    def decompress_frame(self, frame: _Lz4Frame, output: Output) -> int:
        """Decompress a frame into `output`. Return the position of the frame's end."""
        if self.checksum(frame.descriptor).intdigest() >> 8 & 0xFF != frame.descriptor_checksum:
            raise _corrupt(Compression.LZ4, 'its header has a wrong checksum')
        content = _Lz4Content(self, frame, output)
        waiting: list[_Lz4Block] = []
        most_bytes = 0
        for block in frame.blocks():
            if waiting and most_bytes + block.most_bytes > _LZ4_STEP_BYTES:
                content.add(waiting)
                waiting, most_bytes = [], 0
            waiting.append(block)
            most_bytes += block.most_bytes
        content.add(waiting)
        content.end()
        return frame.end


class _Lz4Block(NamedTuple):
    start: int  # of the four bytes before the block that contain its size
    end: int  # of its checksum, if it has one
    most_bytes: int  # to which it can expand


class _Lz4Frame:
    """The header and the places of the blocks of an LZ4 frame.

    A frame has a magic number of 4 bytes and a descriptor: a byte of flags, a byte with the largest size of a block,
    the size of the content (8 bytes) and the id of a dictionary (4 bytes) if the flags say so, and a byte of the
    descriptor's checksum. Blocks follow, then 4 zero bytes and, if the flags say so, the content's checksum (4 bytes).
    Integers are little-endian, and a checksum is an xxHash of 32 bits.
    """

    def __init__(self, data: memoryview, position: int):
        if data[position : position + 4] != _LZ4_MAGIC:
            raise _corrupt(Compression.LZ4, 'it does not begin with the magic number of a frame')
        self.data = data
        header = bytes(data[position + 4 : position + 4 + _LZ4_LONGEST_DESCRIPTOR + 1]).ljust(2)
        self.flags, sizes = header[0], header[1]
        if self.flags & 0xC2 != 0x40 or sizes & 0x8F or sizes < 0x40:
            raise _corrupt(Compression.LZ4, f'found flags {self.flags:#x} and {sizes:#x} in its header')
        self.block_bytes = 1 << 2 * (sizes >> 4) + 8
        size = 2 + 8 * bool(self.flags & _LZ4_HAS_SIZE) + 4 * bool(self.flags & _LZ4_HAS_DICTIONARY)
        if len(header) <= size:
            raise _corrupt(Compression.LZ4, 'it ends early')
        self.descriptor = header[:size]
        self.descriptor_checksum = header[size]
        self.stated_bytes = int.from_bytes(header[2:10], 'little') if self.flags & _LZ4_HAS_SIZE else 0
        self.end = position + 4 + size + 1

    def blocks(self) -> Iterator[_Lz4Block]:
        """Yield the blocks, then set `end` to the end of the frame. Raise CORRUPT_MESSAGE if a block is too long."""
        checksum_bytes = 4 * bool(self.flags & _LZ4_HAS_BLOCK_CHECKSUMS)
        while True:
            start = self.end
            header = int.from_bytes(self.data[start : start + 4], 'little')
            size = header & ~_LZ4_NOT_COMPRESSED
            if size > self.block_bytes:
                raise _corrupt(Compression.LZ4, f'found a block of {size} bytes, expected {self.block_bytes} at most')
            self.end += 4 + (size + checksum_bytes if header else 4 * bool(self.flags & _LZ4_HAS_CHECKSUM))
            if self.end > len(self.data):
                raise _corrupt(Compression.LZ4, 'it ends early')
            if not header:
                return
            most_bytes = size if header & _LZ4_NOT_COMPRESSED else min(size * _LZ4_MOST_EXPANSION, self.block_bytes)
            yield _Lz4Block(start, self.end, most_bytes)


class _Lz4Content:
    """The content of a frame, which the codec of cramjam decompresses step by step."""

    def __init__(self, codec: _Lz4OfCramjam, frame: _Lz4Frame, output: Output):
        self.codec = codec
        self.frame = frame
        self.output = output
        self.size_bytes = 0
        self.checksum = codec.checksum() if frame.flags & _LZ4_HAS_CHECKSUM else None
        self.window: bytes | None = None if frame.flags & _LZ4_INDEPENDENT_BLOCKS else b''
        kept = frame.flags & ~(_LZ4_HAS_SIZE | _LZ4_HAS_CHECKSUM | _LZ4_HAS_DICTIONARY)
        descriptor = bytes((kept, frame.descriptor[1]))
        self.head = _LZ4_MAGIC + descriptor + bytes((codec.checksum(descriptor).intdigest() >> 8 & 0xFF,))

    def add(self, blocks: Sequence[_Lz4Block]) -> None:
        """Decompress the next blocks."""
        if not blocks:
            return
        window = self.window or b''
        room = memoryview(bytearray(len(window) + sum(block.most_bytes for block in blocks)))
        small = b''.join(
            (self.head, self.block_of(window), self.frame.data[blocks[0].start : blocks[-1].end], b'\0\0\0\0')
        )
        try:
            size = self.codec.library.decompress_into(small, room)
        except self.codec.error as error:
            raise _corrupt(Compression.LZ4, error) from None
        piece = room[len(window) : size]
        self.output.add(piece)
        self.size_bytes += len(piece)
        if self.checksum is not None:
            self.checksum.update(piece)
        if self.window is not None:
            self.window = bytes(room[max(0, size - _LZ4_WINDOW_BYTES) : size])

    def block_of(self, window: bytes) -> bytes:
        """Return `window` as a block that is not compressed."""
        if not window:
            return b''
        size = (len(window) | _LZ4_NOT_COMPRESSED).to_bytes(4, 'little')
        has_checksum = self.frame.flags & _LZ4_HAS_BLOCK_CHECKSUMS
        return size + window + (self.codec.checksum(window).digest()[::-1] if has_checksum else b'')

    def end(self) -> None:
        """Raise CORRUPT_MESSAGE if the content is not what the frame states."""
        stated = self.frame.stated_bytes
        if stated and stated != self.size_bytes:  # to the libraries, 0 means a size that is not known
            raise _corrupt(Compression.LZ4, f'it states {stated} bytes of content and has {self.size_bytes}')
        if self.checksum is not None:
            found = bytes(self.frame.data[self.frame.end - 4 : self.frame.end])
            if self.checksum.digest()[::-1] != found:
                raise _corrupt(Compression.LZ4, 'its content has a wrong checksum')


# --- zstd ---


def _compress_zstd(data: bytes | memoryview, level: int | None) -> bytes:
    whole: bytes = _zstd().compress(data, DEFAULT_ZSTD_LEVEL if level is None else level)
    return whole


@functools.cache
def _zstd() -> ModuleType:
    """Return the module of the standard library, or the package that brings it to Python before 3.14."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


def _zstd_at_once(data: bytes | memoryview, max_bytes: int) -> bytes | None:
    """Return the content of `data` if it is a single frame of ordinary size. Return None for any other or damaged data.
    """
    zstd = _zstd()
    frame = zstd.ZstdDecompressor()
    try:
        whole: bytes = frame.decompress(data, min(_ZSTD_AT_ONCE_BYTES, max_bytes))
    except zstd.ZstdError:
        return None
    return whole if frame.eof and not frame.unused_data else None


def _decompress_zstd(data: memoryview, output: Output) -> None:
    _decompress_frames(Compression.ZSTD, data, lambda position: _decompress_zstd_frame(data, position, output))


def _decompress_zstd_frame(data: memoryview, position: int, output: Output) -> int:
    """Decompress the frame at `position` into `output`. Return the position of the frame's end."""
    zstd = _zstd()
    frame = zstd.ZstdDecompressor()
    try:
        while not frame.eof:
            pending = data[position : position + _INPUT_BYTES] if frame.needs_input else b''
            if frame.needs_input and not pending:
                raise _corrupt(Compression.ZSTD, 'it ends early')
            position += len(pending)
            output.add(frame.decompress(pending, _CHUNK_BYTES))
    except zstd.ZstdError as error:
        raise _corrupt(Compression.ZSTD, error) from None
    return position - len(frame.unused_data)


def _decompress_frames(codec: Compression, data: memoryview, decompress: Callable[[int], int]) -> None:
    """Call `decompress(position)`, which returns the end of the frame, for each frame that is not skippable."""
    position = 0
    while position < len(data):
        magic = int.from_bytes(data[position : position + 4], 'little')
        is_skippable = magic & ~0xF == _SKIPPABLE_MAGIC
        position = _end_of_skippable(codec, data, position) if is_skippable else decompress(position)


def _end_of_skippable(codec: Compression, data: memoryview, position: int) -> int:
    """Return the end of the skippable frame at `position`, which has a magic number and a size of 4 bytes each."""
    end = position + 8 + int.from_bytes(data[position + 4 : position + 8], 'little')
    if end > len(data):
        raise _corrupt(codec, 'it ends early')
    return end


_COMPRESS = {
    Compression.NONE: _compress_none,
    Compression.GZIP: _compress_gzip,
    Compression.SNAPPY: _compress_snappy,
    Compression.LZ4: _compress_lz4,
    Compression.ZSTD: _compress_zstd,
}
_DECOMPRESS = {
    0: _decompress_none,
    1: _decompress_gzip,
    2: _decompress_snappy,
    3: _decompress_lz4,
    4: _decompress_zstd,
}
_AT_ONCE = {3: _lz4_at_once, 4: _zstd_at_once}
