"""Writes Fetch responses in all versions. A response is a list of segments, which are bytes or slices of log files. A
test compares these responses with those of the codec. Consecutive partitions of a topic share one topic entry. A
session serves its partitions round-robin, so a response may have several entries for one topic, as in Apache Kafka.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from kbroker.apis.fetch.sessions cimport WantedPartition, WantedTopic
from kbroker.apis.serving.answer_bytes cimport put_count, put_no_tags
from kbroker.apis.serving.request cimport Request
from kbroker.log.segments cimport LogSlice
from kbroker.topics.partition cimport Partition
from kbroker.wire.bytes cimport put_unsigned_varint, write_int16, write_int32, write_int64

from kbroker.protocol.schema import first_version, flexible_from

cdef enum:
    VARINT_BYTES = 5            # of a length, at most
    HEAD_BYTES = 32
    PARTITION_BYTES = 96        # without its aborted transactions
    ABORTED_BYTES = 16          # one in the transaction index's own form: producer id and first offset
    NO_REPLICA = -1
    KEPT_BYTES = 65536

# The first version of the response that has the named field, or, for FLEXIBLE, that is flexible.
cdef int FLEXIBLE = flexible_from('FetchResponse')
cdef int SESSIONS = first_version('FetchResponse', 'session_id')
cdef int TOPIC_IDS = first_version('FetchResponse', 'responses.topic_id')
cdef int LOG_START_OFFSETS = first_version('FetchResponse', 'responses.partitions.log_start_offset')
cdef int PREFERRED_REPLICAS = first_version('FetchResponse', 'responses.partitions.preferred_read_replica')


@cython.final
cdef class Buffer:
    """A growing buffer. It is reused for the next response unless it has grown large."""

    def __dealloc__(self):
        PyMem_Free(self.start)

    cdef uint8_t *room(self, Py_ssize_t size) except NULL:
        """Return the address at which the caller may write up to `size` bytes. After writing, the caller passes the end
        address to `wrote`."""
        cdef uint8_t *start
        cdef Py_ssize_t capacity
        if self.size + size > self.capacity:
            capacity = max(2 * self.capacity, self.size + size)
            start = <uint8_t *>PyMem_Realloc(self.start, capacity)
            if start == NULL:
                raise MemoryError()
            self.start, self.capacity = start, capacity
        return self.start + self.size

    cdef int wrote(self, const uint8_t *end) noexcept:
        self.size = end - self.start
        return 0

    cdef bytes take(self):
        data = PyBytes_FromStringAndSize(<const char *>self.start, self.size)
        self.size = 0
        if self.capacity > KEPT_BYTES:
            PyMem_Free(self.start)
            self.start, self.capacity = NULL, 0
        return data


cdef Buffer shared = Buffer()


@cython.final
@cython.freelist(16)
cdef class ResponseWriter:
    """A reply that is being written. Its header and its partitions, the WantedPartitions in `news`, are written to
    `segments`."""

    cdef int begin(self, Request request, int16_t error_code, int32_t session_id) except -1:
        self.buffer.size = 0
        put_head(self.buffer, request, error_code, session_id, count_runs(self.news))
        return 0

    cdef bint write(self, Request request, Py_ssize_t count) except -1:
        """Write up to `count` partitions. Return whether there are more partitions to write."""
        cdef Buffer buffer = self.buffer
        cdef WantedPartition wanted
        cdef int version = self.version
        cdef Py_ssize_t total = len(self.news), end = min(total, self.at + count)
        while self.at < end:
            wanted = self.news[self.at]
            if self.at == self.end:
                self.end = end_of_run(self.news, self.at)
                put_topic(buffer, wanted.topic, version, self.end - self.at)
            put_partition(buffer, wanted, version)
            if wanted.error_code:
                request.count_error(wanted.error_code)
            if wanted.records is not None:
                count_fetched(wanted)
                self.segments.append(buffer.take())
                self.segments.append(wanted.records)
                wanted.records = None
            if version >= FLEXIBLE:
                put_partition_tags(buffer, wanted)
            self.at += 1
            if self.at == self.end:
                buffer.wrote(put_no_tags(buffer.room(1), version >= FLEXIBLE))
            if buffer.size > KEPT_BYTES:
                self.segments.append(buffer.take())
        if self.at < total:
            return True
        buffer.wrote(put_no_tags(buffer.room(1), version >= FLEXIBLE))
        if buffer.size:
            self.segments.append(buffer.take())
        return False


cdef list write_response(Request request, int16_t error_code, int32_t session_id, list news):
    """Return the segments of a whole reply with its header. `news` has the WantedPartitions of the answer."""
    cdef ResponseWriter writer = ResponseWriter.__new__(ResponseWriter)
    writer.buffer = shared
    writer.version = request.version
    writer.news = news
    writer.segments = []
    writer.begin(request, error_code, session_id)
    writer.write(request, len(news))
    return writer.segments


cdef int64_t response_bytes(list news, int version) except -1:
    """Return the size in bytes of a response as Apache Kafka counts it: without the header, but with the length field
    before it."""
    cdef Buffer buffer = Buffer()
    cdef WantedPartition wanted
    cdef Py_ssize_t i, end = 0
    cdef int64_t size_bytes = 4 + 4 + (6 if version >= SESSIONS else 0)
    buffer.wrote(put_count(buffer.room(VARINT_BYTES), count_runs(news), version >= FLEXIBLE))
    for i in range(len(news)):
        wanted = news[i]
        if i == end:
            end = end_of_run(news, i)
            put_topic(buffer, wanted.topic, version, end - i)
        put_partition(buffer, wanted, version)
        if wanted.records is not None:
            size_bytes += wanted.records.size_bytes
        if version >= FLEXIBLE:
            put_partition_tags(buffer, wanted)
        if i + 1 == end:
            buffer.wrote(put_no_tags(buffer.room(1), version >= FLEXIBLE))
        size_bytes += buffer.size
        buffer.size = 0
    return size_bytes + buffer.size + (version >= FLEXIBLE)


cdef ResponseWriter long_response(list news, int version):
    """Return a writer for a reply that is written in parts. Other replies may be written between the parts."""
    cdef ResponseWriter writer = ResponseWriter.__new__(ResponseWriter)
    writer.buffer = Buffer()
    writer.version = version
    writer.news = news
    writer.segments = []
    return writer


cdef Py_ssize_t end_of_run(list news, Py_ssize_t i) noexcept:
    """Return the index after the last of the consecutive partitions, from index `i` on, that belong to one topic."""
    cdef WantedTopic topic = (<WantedPartition>news[i]).topic
    cdef Py_ssize_t total = len(news)
    while i < total and (<WantedPartition>news[i]).topic is topic:
        i += 1
    return i


cdef Py_ssize_t count_runs(list news) noexcept:
    cdef Py_ssize_t i = 0, runs = 0, total = len(news)
    while i < total:
        i = end_of_run(news, i)
        runs += 1
    return runs


cdef int put_head(Buffer buffer, Request request, int16_t error_code, int32_t session_id, Py_ssize_t topics) except -1:
    cdef int version = request.version
    cdef uint8_t *at = request.put_header(buffer.room(HEAD_BYTES))
    if error_code:
        request.count_error(error_code)
    write_int32(at, request.throttle_ms)
    at += 4
    if version >= SESSIONS:
        write_int16(at, error_code)
        write_int32(at + 2, session_id)
        at += 6
    return buffer.wrote(put_count(at, topics, version >= FLEXIBLE))


cdef int put_topic(Buffer buffer, WantedTopic topic, int version, Py_ssize_t partitions) except -1:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(topic.key)
    cdef uint8_t *at = buffer.room(size + 2 * VARINT_BYTES)
    if version >= FLEXIBLE and version < TOPIC_IDS:
        at = put_unsigned_varint(at, size + 1)
    elif version < FLEXIBLE:
        write_int16(at, <int16_t>size)
        at += 2
    memcpy(at, PyBytes_AS_STRING(topic.key), size)
    return buffer.wrote(put_count(at + size, partitions, version >= FLEXIBLE))


cdef int put_partition(Buffer buffer, WantedPartition wanted, int version) except -1:
    """Write a partition up to the length of its records. The records themselves become a separate segment."""
    cdef bytes aborted = wanted.aborted_transactions
    cdef Py_ssize_t aborted_bytes = 0 if aborted is None else PyBytes_GET_SIZE(aborted)
    cdef uint8_t *at = buffer.room(PARTITION_BYTES + 2 * aborted_bytes)
    write_int32(at, wanted.index)
    write_int16(at + 4, wanted.error_code)
    write_int64(at + 6, wanted.high_watermark)
    write_int64(at + 14, wanted.last_stable_offset)
    at += 22
    if version >= LOG_START_OFFSETS:
        write_int64(at, wanted.log_start_offset)
        at += 8
    at = put_aborted_transactions(at, aborted, aborted_bytes, version)
    if version >= PREFERRED_REPLICAS:
        write_int32(at, NO_REPLICA)
        at += 4
    return buffer.wrote(put_count(at, 0 if wanted.records is None else wanted.records.size_bytes, version >= FLEXIBLE))


cdef uint8_t *put_aborted_transactions(uint8_t *at, bytes rows, Py_ssize_t size, int version) noexcept:
    cdef const uint8_t *row
    cdef Py_ssize_t left
    if rows is None:
        return put_count(at, -1, version >= FLEXIBLE)
    at = put_count(at, size // ABORTED_BYTES, version >= FLEXIBLE)
    row = <const uint8_t *>PyBytes_AS_STRING(rows)
    for left in range(size // ABORTED_BYTES, 0, -1):
        memcpy(at, row, ABORTED_BYTES)
        at = put_no_tags(at + ABORTED_BYTES, version >= FLEXIBLE)
        row += ABORTED_BYTES
    return at


cdef int count_fetched(WantedPartition wanted) except -1:
    cdef Partition partition = wanted.partition
    cdef LogSlice records = wanted.records
    partition.fetched_records += records.end_offset - max(wanted.fetch_offset, records.start_offset)
    partition.fetched_bytes += records.size_bytes
    return 0


cdef int put_partition_tags(Buffer buffer, WantedPartition wanted) except -1:
    """Write the tagged fields of a partition. If its log diverges, this is tag 0, DivergingEpoch: its size of 13 bytes,
    the epoch, the end offset, and an empty tag buffer."""
    cdef uint8_t *at = buffer.room(PARTITION_BYTES)
    if wanted.diverging_epoch == -1 and wanted.diverging_end_offset == -1:
        return buffer.wrote(put_unsigned_varint(at, 0))
    at[0], at[1], at[2] = 1, 0, 13
    write_int32(at + 3, wanted.diverging_epoch)
    write_int64(at + 7, wanted.diverging_end_offset)
    at[15] = 0
    return buffer.wrote(at + 16)
