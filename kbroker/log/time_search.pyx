"""Searches the batches of one segment for a timestamp.

The event loop makes only short searches: a few headers and one small batch. A worker thread makes longer searches in
parts. A search is longer if it needs many headers, a large or compressed batch, or bytes that are not in the page
cache.

A search uses the open file, not the segment. So the segment may roll, or be deleted or replaced, during the search.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc

from kbroker.log.fs.file cimport File
from kbroker.record.batch cimport (
    COMPRESSION_MASK, HEADER_BYTES, HEADER_READ, BatchFields, batch_size_bytes, parse_header)
from kbroker.record.timestamp_scan cimport TimestampScan, scan_of

from kbroker.base.errors import CorruptLogError

cdef enum:
    HEADERS_ON_LOOP = 64
    HEADERS_OF_A_PART = 100000
    PIECE_BYTES = 262144        # of an uncompressed batch, read at a time


cdef class TimeSearch:
    """A search for a timestamp in one segment.

    When `is_over` is True, `found` is (timestamp in ms, offset, leader epoch) of the found record, or None. Methods
    raise OSError, CorruptLogError for bytes that are not a batch, and the KafkaErrors of `record.timestamp_scan`.
    """

    def __dealloc__(self):
        free(self.window)

    def start(self) -> bool:
        """Search on the event loop while this is cheap and does not wait for the disk. Return whether the search is
        over.
        """
        cdef BatchFields batch
        cdef TimestampScan scan
        cdef int i
        for i in range(HEADERS_ON_LOOP):
            if not self.read_header(&batch, False):
                break
            if batch.max_timestamp_ms >= self.timestamp_ms:
                if (batch.attributes & COMPRESSION_MASK == 0 and batch_size_bytes(&batch) <= WINDOW_BYTES
                        and self.fill(batch_size_bytes(&batch), False)):
                    scan = scan_of(&batch, self.timestamp_ms, self.start_offset)
                    if scan.add_bytes(self.window + (self.position - self.window_position) + HEADER_BYTES,
                                      batch_size_bytes(&batch) - HEADER_BYTES):
                        self.adopt(scan)
                break
            self.position += batch_size_bytes(&batch)
        return self.is_over

    def advance(self) -> None:
        """Do the next part of the search in a worker thread: read many headers, or one batch."""
        cdef BatchFields batch
        cdef int i
        for i in range(HEADERS_OF_A_PART):
            if not self.read_header(&batch, True):
                break
            self.position += batch_size_bytes(&batch)
            if batch.max_timestamp_ms >= self.timestamp_ms:
                self.search_batch(&batch)
                break
        if self.position >= self.end:
            self.is_over = True

    cdef int search_batch(self, const BatchFields *batch) except -1:
        """Search the records of the batch that ends at `position`."""
        cdef int64_t at = self.position - batch_size_bytes(batch) + HEADER_BYTES, size
        cdef TimestampScan scan = scan_of(batch, self.timestamp_ms, self.start_offset)
        cdef uint8_t *piece
        if batch.attributes & COMPRESSION_MASK:
            data = self.file.read_at(self.position - at, at)
            if scan.decompress(memoryview(data)):
                self.adopt(scan)
            return 0
        piece = <uint8_t *>malloc(min(self.position - at, <int64_t>PIECE_BYTES) + 1)
        if piece == NULL:
            raise MemoryError
        try:
            while at < self.position:
                size = self.file.pread(piece, min(self.position - at, <int64_t>PIECE_BYTES), at)
                if size == 0:
                    break
                at += size
                if scan.add_bytes(piece, size):
                    return self.adopt(scan)
        finally:
            free(piece)
        return scan.end()

    cdef int adopt(self, TimestampScan scan) except -1:
        self.found = (scan.found_timestamp_ms, scan.found_offset, scan.fields.partition_leader_epoch)
        self.is_over = True
        return 0

    cdef bint read_header(self, BatchFields *batch, bint waits) except -1:
        """Read the header at `position`. Return False at the end of the search range, or if `fill` returns False."""
        if self.position >= self.end:
            self.is_over = True
            return False
        if not self.fill(min(<int64_t>HEADER_BYTES, self.end - self.position), waits):
            return False
        if (parse_header(self.window + (self.position - self.window_position),
                         self.window_position + self.window_bytes - self.position, batch) != HEADER_READ
                or batch_size_bytes(batch) > self.end - self.position):
            raise CorruptLogError(f'{self.file.path}: found no batch at {self.position}, expected one before the end '
                                  f'at {self.end}')
        return True

    cdef bint fill(self, int64_t size, bint waits) except -1:
        """Read until the window has `size` bytes that begin at `position`. Return False if this needs the disk and
        `waits` is False.

        `size` is at most WINDOW_BYTES. Raise CorruptLogError if the file is too short.
        """
        cdef int64_t wanted = min(<int64_t>WINDOW_BYTES, self.end - self.position)
        if (self.window_position <= self.position
                and self.position + size <= self.window_position + self.window_bytes):
            return True
        if self.window == NULL:
            self.window = <uint8_t *>malloc(WINDOW_BYTES)
            if self.window == NULL:
                raise MemoryError
        self.window_position = self.position
        self.window_bytes = 0
        if waits:
            self.window_bytes = self.file.pread(self.window, wanted, self.position)
            if self.window_bytes < size:
                raise CorruptLogError(f'{self.file.path}: found {self.window_bytes} bytes at {self.position}, '
                                      f'expected {size}')
        else:
            self.window_bytes = self.file.pread_cached(self.window, wanted, self.position)
        return self.window_bytes >= size


cdef TimeSearch search_batches(File file, int64_t position, int64_t end, int64_t timestamp_ms, int64_t start_offset):
    """Return a search of the batches between the file positions `position` and `end`. A batch must begin at `position`.
    Records below `start_offset` are ignored.
    """
    cdef TimeSearch search = TimeSearch.__new__(TimeSearch)
    search.file = file
    search.position = position
    search.end = end
    search.timestamp_ms = timestamp_ms
    search.start_offset = start_offset
    return search
