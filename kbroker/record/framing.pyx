"""Refuses a produced batch if our libraries can decompress its framing, but Kafka's Java clients cannot.

`compression` accepts these framings, because a log may have batches that were written by other software. `compression`
also finds every other fault of a block. Therefore the functions here return without an error if a block ends early.

An LZ4 frame consists of these fields, little-endian:

- magic uint32
- FLG uint8: bits 6-7 version (1), bit 5 independent blocks, bit 4 block checksums, bit 3 content size, bit 2 content
  checksum, bit 1 reserved, bit 0 dictionary
- BD uint8
- content size uint64 and dictionary id uint32, each only if its bit in FLG is set
- header checksum uint8
- blocks: size uint32, whose top bit is set for a stored block; the bytes; a checksum uint32 if bit 4 of FLG is set
- end mark uint32 (0), which is a block size of 0
- content checksum uint32, if bit 2 of FLG is set

A skippable frame has a magic uint32, a size uint32 and as many bytes.

A zstd frame consists of these fields, little-endian:

- magic uint32
- descriptor uint8: bits 6-7 size of the content size field, bit 5 single segment, bit 2 content checksum, bits 0-1 size
  of the dictionary id
- window uint8, unless the frame is a single segment: bits 3-7 exponent (0 means 10), bits 0-2 eighths
- dictionary id and content size, of the sizes in the descriptor
- blocks: a header of 3 bytes (see `compression._zstd_block`) and the bytes
- content checksum uint32, if bit 2 of the descriptor is set

A stream of snappy-java has a magic of 8 bytes, a version int32 and the lowest compatible version int32, big-endian.
Blocks follow: a size int32 and the bytes. A further stream may follow the last block.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

from kbroker.wire.bytes cimport read_int32

from kbroker.base.errors import ErrorCode, KafkaError

cdef enum:
    RELEASE_GIL_BYTES = 8192
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4
    LZ4_HEADER_BYTES = 7            # of a header without a content size
    VERSION_MASK = 0xC0
    VERSION_1 = 0x40
    INDEPENDENT_BIT = 0x20
    BLOCK_CHECKSUM_BIT = 0x10
    CONTENT_SIZE_BIT = 0x08
    CONTENT_CHECKSUM_BIT = 0x04
    DICTIONARY_BIT = 0x01
    SINGLE_SEGMENT_BIT = 0x20
    ZSTD_HEADER_BYTES = 5           # of a header without optional fields
    ZSTD_LARGEST_WINDOW = 17 << 3   # 128 MiB
    ZSTD_REPEATED = 1
    MAGIC_BYTES = 8
    STREAM_HEADER_BYTES = 16

cdef uint32_t LZ4_MAGIC = 0x184D2204
cdef uint32_t ZSTD_MAGIC = 0xFD2FB528U
cdef uint32_t SKIPPABLE_MAGIC = 0x184D2A50      # to 0x184D2A5F
cdef uint32_t STORED_BIT = 0x80000000U
cdef const char *SNAPPY_MAGIC = b'\x82SNAPPY\0'


cdef int check_framing(int codec, const uint8_t *block, Py_ssize_t size_bytes) except -1:
    """Raise KafkaError, with the error code that Apache Kafka returns, if Kafka's Java clients cannot read the framing.
    """
    if size_bytes == 0 and codec != ZSTD:
        return refuse_framing(b'bytes of a compressed block', 0)
    if size_bytes < RELEASE_GIL_BYTES:
        return check_block(codec, block, size_bytes)
    with nogil:
        return check_block(codec, block, size_bytes)


cdef int check_block(int codec, const uint8_t *block, Py_ssize_t size_bytes) except -1 nogil:
    if codec == LZ4:
        return check_lz4(block, size_bytes)
    if codec == SNAPPY:
        return check_snappy(block, size_bytes)
    if codec == ZSTD:
        return check_zstd(block, size_bytes)
    return 0


cdef int refuse_framing(const char *what, int64_t found) except -1 with gil:
    raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR,
                     f'{what.decode()}: found {found:#x}, which Java clients cannot read')


cdef int refuse_blocks(const char *what, int64_t found) except -1 with gil:
    raise KafkaError(ErrorCode.INVALID_RECORD, f'{what.decode()}: found {found}')


cdef inline uint32_t little_endian(const uint8_t *at) noexcept nogil:
    return at[0] | <uint32_t>at[1] << 8 | <uint32_t>at[2] << 16 | <uint32_t>at[3] << 24


cdef int check_lz4(const uint8_t *block, Py_ssize_t size_bytes) except -1 nogil:
    """Raise an error if Java clients cannot read the block. They read one frame, which must have independent blocks and
    no dictionary. They ignore the bytes behind the frame.
    """
    cdef Py_ssize_t at, end, blocks = 0
    cdef int flags
    if size_bytes < LZ4_HEADER_BYTES:
        return 0
    if little_endian(block) != LZ4_MAGIC:
        refuse_framing(b'magic of an lz4 block, expected 0x184d2204', little_endian(block))
    flags = block[4]
    if flags & VERSION_MASK == VERSION_1:
        if not flags & INDEPENDENT_BIT:
            refuse_framing(b'flags of an lz4 frame, of linked blocks', flags)
        if flags & DICTIONARY_BIT:
            refuse_framing(b'flags of an lz4 frame, with a dictionary', flags)
    at = pass_lz4_frame(block, size_bytes, 0, &blocks)
    while at < size_bytes:
        blocks = 0
        end = pass_lz4_frame(block, size_bytes, at, &blocks)
        if blocks:
            refuse_blocks(b'bytes after the first frame of an lz4 block, expected none', size_bytes - at)
        at = end
    return 0


cdef Py_ssize_t pass_lz4_frame(const uint8_t *block, Py_ssize_t size_bytes, Py_ssize_t at,
                               Py_ssize_t *blocks) except -1 nogil:
    """Return the position of the end of the frame at `at`, and count its blocks. Return `size_bytes` if the frame ends
    early, or if there is no frame.

    Refuse an empty block: Java clients read an empty stored block as the end of the frame, and fail at an empty
    compressed block.
    """
    cdef Py_ssize_t left = size_bytes - at
    cdef uint32_t size
    cdef int flags
    if left >= 8 and little_endian(block + at) & ~<uint32_t>0xF == SKIPPABLE_MAGIC:
        return at + min(left, 8 + <Py_ssize_t>little_endian(block + at + 4))
    if left < LZ4_HEADER_BYTES or little_endian(block + at) != LZ4_MAGIC:
        return size_bytes
    flags = block[at + 4]
    at += LZ4_HEADER_BYTES + (8 if flags & CONTENT_SIZE_BIT else 0) + (4 if flags & DICTIONARY_BIT else 0)
    while size_bytes - at >= 4:
        size = little_endian(block + at)
        at += 4
        if size == 0:
            return min(size_bytes, at + (4 if flags & CONTENT_CHECKSUM_BIT else 0))
        if size == STORED_BIT or size == 1:
            refuse_blocks(b'position of an lz4 block without contents, expected none', at - 4)
        blocks[0] += 1
        at += <Py_ssize_t>(size & ~STORED_BIT) + (4 if flags & BLOCK_CHECKSUM_BIT else 0)
    return size_bytes


cdef int check_zstd(const uint8_t *block, Py_ssize_t size_bytes) except -1 nogil:
    """Raise an error if Java clients cannot read the block. They accept a window of more than 128 MiB only if the
    content fits a buffer.
    """
    cdef Py_ssize_t at = 0
    while size_bytes - at > ZSTD_HEADER_BYTES:
        if little_endian(block + at) & ~<uint32_t>0xF == SKIPPABLE_MAGIC and size_bytes - at >= 8:
            at += 8 + <Py_ssize_t>little_endian(block + at + 4)
            continue
        if little_endian(block + at) != ZSTD_MAGIC:
            return 0
        if not block[at + 4] & SINGLE_SEGMENT_BIT and block[at + 5] > ZSTD_LARGEST_WINDOW:
            refuse_framing(b'window of a zstd frame, expected 0x88 at most', block[at + 5])
        at = pass_zstd_frame(block, size_bytes, at)
    return 0


cdef Py_ssize_t pass_zstd_frame(const uint8_t *block, Py_ssize_t size_bytes, Py_ssize_t at) noexcept nogil:
    """Return the position of the end of the frame at `at`. Return `size_bytes` if the frame ends early."""
    cdef int descriptor = block[at + 4]
    cdef int size_code = descriptor >> 6, dictionary_code = descriptor & 3
    cdef uint32_t header
    at += ZSTD_HEADER_BYTES + (0 if descriptor & SINGLE_SEGMENT_BIT else 1)
    at += 4 if dictionary_code == 3 else dictionary_code
    if size_code or descriptor & SINGLE_SEGMENT_BIT:
        at += 1 << size_code
    while size_bytes - at >= 3:
        header = block[at] | <uint32_t>block[at + 1] << 8 | <uint32_t>block[at + 2] << 16
        at += 3 + (1 if header >> 1 & 3 == ZSTD_REPEATED else <Py_ssize_t>(header >> 3))
        if header & 1:
            return min(size_bytes, at + (4 if descriptor & CONTENT_CHECKSUM_BIT else 0))
    return size_bytes


cdef int check_snappy(const uint8_t *block, Py_ssize_t size_bytes) except -1 nogil:
    """Raise an error if Java clients cannot read the block. They accept any version in the first stream, but only
    version 1 or above in later streams.
    """
    cdef Py_ssize_t at = STREAM_HEADER_BYTES
    cdef int32_t version
    if size_bytes < STREAM_HEADER_BYTES or memcmp(block, SNAPPY_MAGIC, MAGIC_BYTES) != 0:
        return 0
    while size_bytes - at >= STREAM_HEADER_BYTES:
        if memcmp(block + at, SNAPPY_MAGIC, MAGIC_BYTES) != 0:
            at += 4 + <Py_ssize_t><uint32_t>read_int32(block + at)
            continue
        version = read_int32(block + at + MAGIC_BYTES)
        if version < 1:
            refuse_framing(b'version of a second snappy stream, expected 1 or above', version)
        at += STREAM_HEADER_BYTES
    return 0
