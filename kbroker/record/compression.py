"""Compresses and decompresses the records of a batch in five codecs, with the framings that Kafka's Java client writes.

gzip: one or more members. snappy: the block framing of snappy-java ("xerial"); raw snappy is read too, as
snappy-java does. lz4: one or more LZ4 frames, written with independent 64 KiB blocks. zstd: one or more frames.

The libraries are imported on first use, so a broker without compressed topics starts without them.
"""

from __future__ import annotations

import enum
import functools
import struct
import threading
import zlib
from typing import TYPE_CHECKING, Protocol

from kbroker.base.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
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
_ZSTD_STEP_BYTES = 512 * 1024
_ZSTD_SKIPPABLE_MAGIC = 0x184D2A50  # the first of 16; the last is 0x184D2A5F
_ZSTD_LARGE_WINDOW_BYTES = 8 * 1024 * 1024
_ZSTD_AT_ONCE_EXPANSION = 64
_ZSTD_SIZE_NOT_STATED = 2**64 - 1
_ZSTD_BLOCK_BYTES = 128 * 1024  # the largest size of a block
_ZSTD_REPEATED = 1
_ZSTD_COMPRESSED = 2
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
    from lz4 import frame  # type: ignore[import-untyped]

    high = level is not None and level != DEFAULT_LZ4_LEVEL
    return frame.compress(  # type: ignore[no-any-return]
        data,
        compression_level=max(level, frame.COMPRESSIONLEVEL_MINHC)
        if high and level is not None
        else frame.COMPRESSIONLEVEL_MIN,
        block_size=frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )


class _Lz4OfThread(threading.local):
    """An LZ4 decompressor for each thread. Creating a decompressor costs as much as decompressing a small batch, and
    threads cannot share it.

    After a frame that did not end, `renew` creates a new decompressor. The library's reset would keep the content size
    of the unfinished frame, and refuse each later frame without a content size.
    """

    def __init__(self) -> None:
        from lz4 import frame

        self.create = frame.create_decompression_context
        self.decompress = frame.decompress_chunk
        self.context = self.create()

    def renew(self) -> None:
        self.context = self.create()


@functools.cache
def _lz4() -> _Lz4OfThread:
    return _Lz4OfThread()


def _lz4_at_once(data: bytes | memoryview, max_bytes: int) -> bytes | None:
    """Return the content of `data` if it is a single frame of ordinary size. Return None for any other or damaged data.
    """
    of_thread = _lz4()
    whole: bytes
    try:
        whole, used, is_end = of_thread.decompress(of_thread.context, data, max_length=min(_CHUNK_BYTES, max_bytes))
    except RuntimeError:
        is_end, used = False, 0
    if not is_end:
        of_thread.renew()
    return whole if is_end and used == len(data) else None


def _decompress_lz4(data: memoryview, output: Output) -> None:
    of_thread = _lz4()
    position = 0
    is_end = True
    try:
        while position < len(data) or not is_end:
            pending = data[position : position + _INPUT_BYTES]
            try:
                piece, used, is_end = of_thread.decompress(of_thread.context, pending, max_length=_CHUNK_BYTES)
            except RuntimeError as error:
                raise _corrupt(Compression.LZ4, error) from None
            position += used
            if not piece and not used and not is_end:
                raise _corrupt(Compression.LZ4, 'it ends early')
            output.add(piece)
    except KafkaError:
        of_thread.renew()
        raise


# --- zstd ---


def _compress_zstd(data: bytes | memoryview, level: int | None) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=DEFAULT_ZSTD_LEVEL if level is None else level).compress(data)


class _ZstdOfThread(threading.local):
    """A zstd decompressor for each thread. Creating a decompressor costs more than decompressing a small batch, and
    threads cannot share it.
    """

    def __init__(self) -> None:
        import zstandard

        self.decompressor = zstandard.ZstdDecompressor()
        self.parameters = zstandard.get_frame_parameters
        self.header_size = zstandard.frame_header_size
        self.error = zstandard.ZstdError


@functools.cache
def _zstd() -> _ZstdOfThread:
    return _ZstdOfThread()


def _zstd_at_once(data: bytes | memoryview, max_bytes: int) -> bytes | None:
    """Decompress a single frame in one call, into a buffer of the frame's stated content size or of the largest
    possible size.

    Return None if there are several frames, the frame is damaged, or the content could be more than 64 times as large
    as the data or larger than `max_bytes`.
    """
    of_thread = _zstd()
    most_bytes = min(max_bytes, _ZSTD_AT_ONCE_EXPANSION * len(data))
    try:
        parameters = of_thread.parameters(data)
        # The library checks the stated content size of a frame, unless that size is 0.
        if 0 < parameters.content_size <= most_bytes:
            whole: bytes = of_thread.decompressor.decompress(data, allow_extra_data=False)
            # For a skippable frame, older libraries return b'', because they take the frame's size for its content
            # size.
            return whole if len(whole) == parameters.content_size else None
        if parameters.content_size == _ZSTD_SIZE_NOT_STATED:
            most_bytes = min(most_bytes, _zstd_most_bytes(data, of_thread.header_size(data), parameters.has_checksum))
            if most_bytes:  # to the library, 0 means no limit
                whole = of_thread.decompressor.decompress(data, max_output_size=most_bytes)
                return whole
    except of_thread.error:
        pass
    return None


def _zstd_most_bytes(data: bytes | memoryview, position: int, has_checksum: bool) -> int:
    """Return the maximum number of bytes to which the blocks that begin at `position` can expand. Return 0 if the
    blocks do not end exactly at the end of `data`.
    """
    view = memoryview(data)
    found = 0
    is_last = False
    try:
        while not is_last:
            kind, size, is_last = _zstd_block(view, position)
            position += 3 + (1 if kind == _ZSTD_REPEATED else size)
            found += _ZSTD_BLOCK_BYTES if kind == _ZSTD_COMPRESSED else size
    except KafkaError:
        return 0
    return found if position + 4 * has_checksum == len(data) else 0


def _decompress_zstd(data: memoryview, output: Output) -> None:
    """Decompress in steps of whole blocks, each of which expands to at most 128 KiB.

    The library limits the output of a call only by the input, and four bytes of input may expand to a whole block.
    """
    position = 0
    while position < len(data):
        magic = int.from_bytes(data[position : position + 4], 'little')
        if magic & ~0xF == _ZSTD_SKIPPABLE_MAGIC:
            position += 8 + int.from_bytes(data[position + 4 : position + 8], 'little')
            if position > len(data):
                raise _corrupt(Compression.ZSTD, 'it ends early')
        else:
            position = _decompress_zstd_frame(data, position, output)


def _decompress_zstd_frame(data: memoryview, position: int, output: Output) -> int:
    """Decompress the frame at `position` into `output`. Return the position of the frame's end."""
    import zstandard

    of_thread = _zstd()
    try:
        parameters = of_thread.parameters(data[position:])
        end = position + of_thread.header_size(data[position:])
        # After a frame with a large window, a decompressor would keep the memory of the window.
        is_large = parameters.window_size > _ZSTD_LARGE_WINDOW_BYTES
        frame = (zstandard.ZstdDecompressor() if is_large else of_thread.decompressor).decompressobj()
        is_last = False
        while not is_last:
            most_bytes = 0
            while not is_last and most_bytes < _ZSTD_STEP_BYTES:
                kind, size, is_last = _zstd_block(data, end)
                end += 3 + (1 if kind == _ZSTD_REPEATED else size)
                most_bytes += _ZSTD_BLOCK_BYTES if kind == _ZSTD_COMPRESSED else size
            if is_last and parameters.has_checksum:
                end += 4
            if end > len(data):
                raise _corrupt(Compression.ZSTD, 'it ends early')
            output.add(frame.decompress(data[position:end]))
            position = end
    except of_thread.error as error:
        raise _corrupt(Compression.ZSTD, error) from None
    if not frame.eof:
        raise _corrupt(Compression.ZSTD, 'its blocks do not end it')
    return end


def _zstd_block(data: memoryview, position: int) -> tuple[int, int, bool]:
    """Return (kind, size in bytes, whether it is the frame's last block) of the block at `position`.

    A block has a header of 3 bytes, little-endian: 1 bit set on the last block, 2 bits for its kind (0 raw, 1 one byte
    repeated, 2 compressed), 21 bits for its size (RFC 8878).
    """
    if position + 3 > len(data):
        raise _corrupt(Compression.ZSTD, 'it ends early')
    header = int.from_bytes(data[position : position + 3], 'little')
    kind, size = header >> 1 & 3, header >> 3
    if size > _ZSTD_BLOCK_BYTES:
        raise _corrupt(Compression.ZSTD, f'found a block of {size} bytes, expected {_ZSTD_BLOCK_BYTES} at most')
    return kind, size, bool(header & 1)


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
