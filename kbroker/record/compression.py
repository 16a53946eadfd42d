"""The five codecs of a batch, each in the framing that Kafka's Java client writes.

gzip: one or more members. snappy: the block framing of snappy-java ("xerial"); raw snappy is read too, as
snappy-java does. lz4: one or more LZ4 frames, written with independent 64 KiB blocks. zstd: one or more frames.

The libraries are imported when first used: a broker whose topics do not compress starts without them.
"""

import enum
import functools
import struct
import threading
import zlib

from kbroker.errors import ErrorCode, KafkaError


class Compression(enum.IntEnum):
    """The numbers of the attributes of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# Kafka's own default for compression.lz4.level. In its Java library this level is the fast compressor, any other the
# high-compression one (KIP-390), so 9 is not what it says.
DEFAULT_LZ4_LEVEL = 9
DEFAULT_ZSTD_LEVEL = 3
DEFAULT_GZIP_LEVEL = -1

_GZIP_WINDOW = 31  # zlib's way to say: 32 KiB, with a gzip header
_XERIAL_HEADER = struct.Struct('>8sii')
_XERIAL_MAGIC = b'\x82SNAPPY\x00'
_XERIAL_VERSION = 1
_XERIAL_BLOCK_BYTES = 32 * 1024
_SNAPPY_MOST_EXPANSION = 22  # the shortest element is a copy of 64 bytes told in 3
_ZSTD_STEP_BYTES = 1024
_ZSTD_AT_ONCE_EXPANSION = 64
_CHUNK_BYTES = 64 * 1024


class _Output:
    """What comes out of a decompressor, refused when it passes `max_bytes`."""

    def __init__(self, max_bytes: int):
        self.pieces: list[bytes] = []
        self.room = max_bytes
        self.max_bytes = max_bytes

    def add(self, piece: bytes) -> None:
        self.expect(len(piece))
        self.room -= len(piece)
        self.pieces.append(piece)

    def expect(self, size_bytes: int) -> None:
        if size_bytes > self.room:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f'found more than {self.max_bytes} bytes in a compressed block, expected no more',
            )

    def take(self) -> bytes:
        return self.pieces[0] if len(self.pieces) == 1 else b''.join(self.pieces)


def compress(codec: int, data: bytes, level: int | None = None) -> bytes:
    """`data` in one block of `codec`.

    `level`: as in Kafka's `compression.*.level`; None is the codec's default; snappy has none.
    """
    return _COMPRESS[Compression(codec)](data, level)


def decompress(codec: int, data: bytes | memoryview, max_bytes: int) -> bytes:
    """What `codec` made of the records.

    KafkaError: UNSUPPORTED_COMPRESSION_TYPE for a codec above 4; CORRUPT_MESSAGE where the data is not what the codec
    writes; MESSAGE_TOO_LARGE where more than `max_bytes` would come out. No more than that, and one step of the
    library, is ever held.
    """
    try:
        expand = _DECOMPRESS[codec]
    except KeyError:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f'found codec {codec}, expected 0 to {max(Compression)}'
        ) from None
    output = _Output(max_bytes)
    expand(data, output)
    return output.take()


def _corrupt(codec: Compression, reason: object) -> KafkaError:
    return KafkaError(
        ErrorCode.CORRUPT_MESSAGE, f'found a {codec.name.lower()} block that cannot be decompressed: {reason}'
    )


# --- none ---


def _compress_none(data: bytes, level: int | None) -> bytes:
    return data


def _decompress_none(data: bytes | memoryview, output: _Output) -> None:
    output.expect(len(data))
    output.add(bytes(data))


# --- gzip ---


def _compress_gzip(data: bytes, level: int | None) -> bytes:
    return zlib.compress(data, DEFAULT_GZIP_LEVEL if level is None else level, _GZIP_WINDOW)


def _decompress_gzip(data: bytes | memoryview, output: _Output) -> None:
    while data:
        member = zlib.decompressobj(_GZIP_WINDOW)
        while not member.eof:
            try:
                piece = member.decompress(data, _CHUNK_BYTES)
            except zlib.error as error:
                raise _corrupt(Compression.GZIP, error) from None
            data = member.unconsumed_tail
            if not piece and not data and not member.eof:
                raise _corrupt(Compression.GZIP, 'it ends early')
            output.add(piece)
        data = member.unused_data


# --- snappy ---


def _compress_snappy(data: bytes, level: int | None) -> bytes:
    from cramjam import snappy

    framed = bytearray(_XERIAL_HEADER.pack(_XERIAL_MAGIC, _XERIAL_VERSION, _XERIAL_VERSION))
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES])
        framed += len(block).to_bytes(4, 'big')
        framed += memoryview(block)
    return bytes(framed)


def _decompress_snappy(data: bytes | memoryview, output: _Output) -> None:
    view = memoryview(data)
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        _add_snappy_block(view, output)
        return
    position = 0
    while position < len(view):
        if view[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:  # streams may follow one another
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


def _add_snappy_block(block: memoryview, output: _Output) -> None:
    from cramjam import DecompressionError, snappy

    try:
        size = snappy.decompress_raw_len(block)
        if size > _SNAPPY_MOST_EXPANSION * len(block):
            raise _corrupt(Compression.SNAPPY, f'{len(block)} bytes cannot hold {size}')
        output.expect(size)
        output.add(bytes(snappy.decompress_raw(block)))
    except DecompressionError as error:
        raise _corrupt(Compression.SNAPPY, error) from None


# --- lz4 ---


def _compress_lz4(data: bytes, level: int | None) -> bytes:
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


def _decompress_lz4(data: bytes | memoryview, output: _Output) -> None:
    from lz4 import frame  # type: ignore[import-untyped]

    while data:
        decompressor = frame.LZ4FrameDecompressor()
        pending: bytes | memoryview = data
        while not decompressor.eof:
            try:
                piece = decompressor.decompress(pending, _CHUNK_BYTES)
            except RuntimeError as error:
                raise _corrupt(Compression.LZ4, error) from None
            pending = b''
            if not piece and not decompressor.eof:
                raise _corrupt(Compression.LZ4, 'it ends early')
            output.add(piece)
        data = decompressor.unused_data or b''


# --- zstd ---


def _compress_zstd(data: bytes, level: int | None) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=DEFAULT_ZSTD_LEVEL if level is None else level).compress(data)


class _ZstdOfThread(threading.local):
    """A decompressor costs more to make than a small batch to decompress, and may not be shared between threads."""

    def __init__(self) -> None:
        import zstandard

        self.decompressor = zstandard.ZstdDecompressor()


@functools.cache
def _zstd() -> _ZstdOfThread:
    return _ZstdOfThread()


def _decompress_zstd(data: bytes | memoryview, output: _Output) -> None:
    """The library bounds what one call gives out by its input alone: a run-length block makes 32 KiB of each byte.

    So whatever is not a frame of an ordinary stated size goes through it in small steps.
    """
    import zstandard

    whole = _zstd_frame_at_once(data, min(output.room, _ZSTD_AT_ONCE_EXPANSION * len(data)))
    if whole is not None:
        output.add(whole)
        return
    while data:
        frame = _zstd().decompressor.decompressobj()
        position = 0
        while not frame.eof:
            if position >= len(data):
                raise _corrupt(Compression.ZSTD, 'it ends early')
            try:
                output.add(frame.decompress(data[position : position + _ZSTD_STEP_BYTES]))
            except zstandard.ZstdError as error:
                raise _corrupt(Compression.ZSTD, error) from None
            position += _ZSTD_STEP_BYTES
        data = data[min(position, len(data)) - len(frame.unused_data) :]


def _zstd_frame_at_once(data: bytes | memoryview, most_bytes: int) -> bytes | None:
    """What a frame that states its size holds, in a single call into a buffer of that size.

    None for whatever is not that: several frames, one larger than `most_bytes`, a damaged one.
    """
    import zstandard

    try:
        # The size of none, and of one that does not tell, is not looked at by the library as that of others is.
        if not 0 < zstandard.get_frame_parameters(data).content_size <= most_bytes:
            return None
        whole: bytes = _zstd().decompressor.decompress(data, allow_extra_data=False)
    except zstandard.ZstdError:
        return None
    return whole


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
