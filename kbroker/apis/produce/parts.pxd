# cython: language_level=3
from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t

from kbroker.apis.serving.request cimport Request
from kbroker.apis.serving.request_fields cimport FieldReader
from kbroker.base.completion cimport Completion
from kbroker.record.batch cimport BatchFields, HeaderFault
from kbroker.wire.bytes cimport Cursor


cdef enum:
    MOST_PARTS = 50_000         # topics, and partitions, of one request


cdef struct TopicPart:
    PyObject *topic             # Topic, owned; NULL: there is none
    PyObject *name              # bytes, owned: the encoded name, or the id
    Py_ssize_t end              # of its partitions among all


cdef struct Part:
    int32_t index
    bint is_repeated            # the request has a later batch for this partition
    bint is_compressed
    bint is_guarded             # its transaction has to be open at the append, or the guard in force
    int16_t error_code
    Py_ssize_t size_bytes       # of records; -1: null
    uint8_t *records            # in the frame, or in what was kept of it
    BatchFields batch           # the header of the records, as far as `header_fault` lets it be read
    HeaderFault header_fault
    PyObject *topic             # Topic, owned by its TopicPart
    PyObject *partition         # Partition, owned; NULL: refused already
    PyObject *guard             # of the verification, owned; NULL: none, the transaction is open
    PyObject *refusal           # bytes, owned: record errors and message of a refusal as they are sent; NULL: none
    int64_t base_offset
    int64_t log_append_time_ms
    int64_t log_start_offset


cdef class ProduceParts(Completion):
    cdef Request request
    cdef int version
    cdef str transactional_id
    cdef int16_t acks
    cdef int32_t timeout_ms
    cdef bint failed
    cdef Py_ssize_t names_bytes
    cdef Py_ssize_t topics_count
    cdef Py_ssize_t parts_count
    cdef Py_ssize_t parts_room
    cdef TopicPart *topics
    cdef Part *parts
    cdef TopicPart only_topic       # nearly every request has one topic and one partition
    cdef Part only_part

    cdef int read(self, const Cursor *body, dict topics) except -1
    cdef int read_fields(self, FieldReader *reader, dict topics) except -1
    cdef int make_topics(self, Py_ssize_t count) except -1
    cdef int read_topic(self, FieldReader *reader, dict topics, TopicPart *topic) except -1
    cdef int read_part(self, FieldReader *reader, PyObject *topic) except -1
    cdef int grow(self, Py_ssize_t needed) except -1
    cdef int drop_repeated(self) except -1
    cdef int number_topics(self, int32_t *numbers) except -1
    cdef bint mark_repeated(self, const int32_t *topic_numbers, int32_t *slots, uint64_t mask) noexcept
    cdef int remove_repeated(self) noexcept
    cdef int refuse(self, Part *part, error) except -1
    cdef Py_ssize_t encoded_bytes(self) except -1
    cdef bytes encoded(self)
    cdef uint8_t *put_part(self, uint8_t *at, const Part *part) noexcept
