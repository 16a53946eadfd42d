"""The partitions of a Produce request: reads their batches, and writes their results into the answer.

As in Kafka, if a request has several batches for one partition, only the last batch counts, and the answer has one
result.

The request is read, and the answer written, without the codec: its message objects would take more time than the
append. A test compares the answer's bytes with those of the codec. The answer never has tagged fields, because they
name another broker as the leader (KIP-951).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from kbroker.apis.serving.answer_bytes cimport put_count, put_no_tags
from kbroker.apis.serving.request_bytes cimport LONGEST_STRING_BYTES
from kbroker.apis.serving.request_fields cimport (
    FieldReader, RequestFields, end_struct, fields_of, pull_count, pull_int16, pull_int32, pull_name_or_id,
    pull_records, pull_string,
)
from kbroker.base.completion cimport Completion
from kbroker.record.batch cimport parse_header
from kbroker.wire.bytes cimport (
    Cursor, put_unsigned_varint, unsigned_varint_size, write_int16, write_int32, write_int64,
)

import os

from kbroker.base.errors import ProtocolError
from kbroker.protocol.schema import first_version, flexible_from

cdef enum:
    FEWEST_PARTS = 8
    # The most bytes of all topic names of a request together. Honest clients reach neither this bound nor MOST_PARTS
    # with requests of less than several MiB, because a batch has at least 70 bytes.
    MOST_NAME_BYTES = 8388608

MAX_PARTITIONS = MOST_PARTS

cdef uint64_t HASH_FACTOR = int.from_bytes(os.urandom(8), 'big') | 1

cdef RequestFields REQUEST = fields_of('ProduceRequest')
cdef Py_ssize_t TRANSACTIONAL_ID = REQUEST.field('transactional_id', 'string')
cdef Py_ssize_t ACKS = REQUEST.field('acks', 'int16')
cdef Py_ssize_t TIMEOUT_MS = REQUEST.field('timeout_ms', 'int32')
cdef Py_ssize_t TOPICS = REQUEST.field('topic_data', '[]struct')
cdef Py_ssize_t NAME = REQUEST.field('topic_data.name', 'string')
cdef Py_ssize_t TOPIC_ID = REQUEST.field('topic_data.topic_id', 'uuid')
cdef Py_ssize_t PARTITIONS = REQUEST.field('topic_data.partition_data', '[]struct')
cdef Py_ssize_t INDEX = REQUEST.field('topic_data.partition_data.index', 'int32')
cdef Py_ssize_t RECORDS = REQUEST.field('topic_data.partition_data.records', 'records')

cdef int FLEXIBLE_VERSION = flexible_from('ProduceResponse')
cdef int LOG_START_OFFSET_VERSION = first_version('ProduceResponse', 'responses.partition_responses.log_start_offset')
cdef int ERROR_MESSAGE_VERSION = first_version('ProduceResponse', 'responses.partition_responses.error_message')
cdef int TOPIC_ID_VERSION = first_version('ProduceResponse', 'responses.topic_id')


cdef class ProduceParts(Completion):
    """The topics and partitions of one Produce request, with the results of those that are done."""

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.topics_count):
            Py_XDECREF(self.topics[i].topic)
            Py_XDECREF(self.topics[i].name)
        for i in range(self.parts_count):
            Py_XDECREF(self.parts[i].partition)
            Py_XDECREF(self.parts[i].guard)
            Py_XDECREF(self.parts[i].refusal)
        if self.topics != &self.only_topic:
            PyMem_Free(self.topics)
        if self.parts != &self.only_part:
            PyMem_Free(self.parts)

    # ---- read

    cdef int read(self, const Cursor *body, dict topics) except -1:
        """Read the body of the request. `topics` maps each topic's encoded name, or, from version 13 on, its id, to its
        Topic."""
        cdef FieldReader reader
        REQUEST.begin(&reader, body, self.version)
        try:
            return self.read_fields(&reader, topics)
        except ProtocolError as error:
            raise ProtocolError(f'ProduceRequest version {self.version}, near byte {reader.cursor.at - body.at}: '
                                f'{error}') from None

    cdef int read_fields(self, FieldReader *reader, dict topics) except -1:
        cdef Py_ssize_t i, length
        cdef const uint8_t *text = NULL
        length = pull_string(reader, TRANSACTIONAL_ID, &text)
        if length != -1:
            self.transactional_id = PyUnicode_DecodeUTF8(<const char *>text, length, NULL)
        self.acks = pull_int16(reader, ACKS)
        self.timeout_ms = pull_int32(reader, TIMEOUT_MS)
        self.make_topics(pull_count(reader, TOPICS))
        for i in range(self.topics_count):
            self.read_topic(reader, topics, &self.topics[i])
        return end_struct(reader, 0)

    cdef int make_topics(self, Py_ssize_t count) except -1:
        self.parts = &self.only_part
        self.parts_room = 1
        self.topics = &self.only_topic
        if count > 1:
            self.topics = <TopicPart *>PyMem_Malloc(count * sizeof(TopicPart))
            if self.topics == NULL:
                raise MemoryError
        memset(self.topics, 0, count * sizeof(TopicPart))
        self.topics_count = count
        return 0

    cdef int read_topic(self, FieldReader *reader, dict topics, TopicPart *topic) except -1:
        cdef const uint8_t *key = NULL
        cdef Py_ssize_t count, length = pull_name_or_id(reader, NAME, TOPIC_ID, &key)
        cdef bytes name
        self.names_bytes += length
        if self.names_bytes > MOST_NAME_BYTES:
            raise ProtocolError(f'found more than {MOST_NAME_BYTES} bytes of topic names')
        name = PyBytes_FromStringAndSize(<const char *>key, length)
        Py_INCREF(name)
        topic.name = <PyObject *>name
        found = topics.get(name)
        if found is not None:
            Py_INCREF(found)
            topic.topic = <PyObject *>found
        count = pull_count(reader, PARTITIONS)
        if self.parts_count + count > self.parts_room:
            self.grow(self.parts_count + count)
        for count in range(count):
            self.read_part(reader, topic.topic)
        topic.end = self.parts_count
        return end_struct(reader, TOPICS)

    cdef int read_part(self, FieldReader *reader, PyObject *topic) except -1:
        cdef Part *part
        part = &self.parts[self.parts_count]
        memset(part, 0, sizeof(Part))
        part.topic = topic
        part.base_offset = part.log_append_time_ms = part.log_start_offset = -1
        part.index = pull_int32(reader, INDEX)
        part.size_bytes = pull_records(reader, RECORDS, <const uint8_t **>&part.records)
        part.header_fault = parse_header(part.records, part.size_bytes, &part.batch)
        self.parts_count += 1
        return end_struct(reader, PARTITIONS)

    cdef int grow(self, Py_ssize_t needed) except -1:
        """Allocate room for at least `needed` partitions. The frame is long enough to contain this many."""
        cdef Py_ssize_t room = max(max(needed, <Py_ssize_t>FEWEST_PARTS), 2 * self.parts_room)
        cdef Part *parts = NULL if self.parts == &self.only_part else self.parts
        cdef Part *more = <Part *>PyMem_Realloc(parts, room * sizeof(Part))
        if more == NULL:
            raise MemoryError
        if parts == NULL:
            more[0] = self.only_part
        self.parts = more
        self.parts_room = room
        return 0

    # ---- partitions that are named several times

    cdef int drop_repeated(self) except -1:
        """Remove all but the last batch of each partition. Kafka has the same result, because it collects the batches
        in a map."""
        cdef int32_t *topic_numbers = <int32_t *>PyMem_Malloc(self.parts_count * sizeof(int32_t))
        cdef Py_ssize_t room = 16
        cdef int32_t *slots
        while room < 2 * self.parts_count:
            room *= 2
        slots = <int32_t *>PyMem_Calloc(room, sizeof(int32_t))
        try:
            if topic_numbers == NULL or slots == NULL:
                raise MemoryError
            self.number_topics(topic_numbers)
            if self.mark_repeated(topic_numbers, slots, room - 1):
                self.remove_repeated()
        finally:
            PyMem_Free(slots)
            PyMem_Free(topic_numbers)
        return 0

    cdef int number_topics(self, int32_t *numbers) except -1:
        """Set `numbers[part]` to a number that stands for the part's topic. A request may name a topic several
        times."""
        cdef dict known = {}
        cdef Py_ssize_t i, part = 0
        cdef int32_t number = 0
        for i in range(self.topics_count):
            if self.topics_count > 1:
                number = known.setdefault(<bytes>self.topics[i].name, i)
            while part < self.topics[i].end:
                numbers[part] = number
                part += 1
        return 0

    cdef bint mark_repeated(self, const int32_t *topic_numbers, int32_t *slots, uint64_t mask) noexcept:
        """Mark each part whose partition occurs again in a later part. Return whether there is one.

        `slots` is a hash table whose values are part numbers plus one. The factor of the hash is random, so a client
        cannot choose partitions whose hashes collide.
        """
        cdef Py_ssize_t number, other
        cdef uint64_t slot
        cdef bint found = False
        for number in range(self.parts_count - 1, -1, -1):
            slot = (((<uint64_t>topic_numbers[number] << 32 | <uint64_t>(self.parts[number].index & 0xffffffff))
                     * HASH_FACTOR) >> 32) & mask
            while slots[slot]:
                other = slots[slot] - 1
                if (self.parts[other].index == self.parts[number].index
                        and topic_numbers[other] == topic_numbers[number]):
                    self.parts[number].is_repeated = found = True
                    break
                slot = (slot + 1) & mask
            else:
                slots[slot] = <int32_t>number + 1
        return found

    cdef int remove_repeated(self) noexcept:
        """Remove the marked parts, and the topics of which no part remains."""
        cdef Py_ssize_t i, number = 0, parts_count = 0, topics_count = 0, before
        for i in range(self.topics_count):
            before = parts_count
            while number < self.topics[i].end:
                if not self.parts[number].is_repeated:
                    self.parts[parts_count] = self.parts[number]
                    parts_count += 1
                number += 1
            if parts_count == before:
                Py_XDECREF(self.topics[i].topic)
                Py_XDECREF(self.topics[i].name)
                continue
            self.topics[topics_count] = self.topics[i]
            self.topics[topics_count].end = parts_count
            topics_count += 1
        self.topics_count = topics_count
        self.parts_count = parts_count
        return 0

    # ---- answer

    cdef int refuse(self, Part *part, error) except -1:
        cdef bytes refusal
        self.failed = True
        part.error_code = error.code
        part.base_offset = -1
        Py_XDECREF(part.partition)
        part.partition = NULL
        if self.version >= ERROR_MESSAGE_VERSION:
            refusal = encoded_refusal(error, self.version >= FLEXIBLE_VERSION)
            Py_INCREF(refusal)
            Py_XDECREF(part.refusal)
            part.refusal = <PyObject *>refusal
        return 0

    cdef Py_ssize_t encoded_bytes(self) except -1:
        cdef bint flexible = self.version >= FLEXIBLE_VERSION
        cdef Py_ssize_t i, of_part, begin = 0
        cdef Py_ssize_t size = self.request.header_bytes() + 4 + flexible + count_bytes(self.topics_count, flexible)
        of_part = 4 + 2 + 8 + 8 + flexible
        if self.version >= LOG_START_OFFSET_VERSION:
            of_part += 8
        for i in range(self.topics_count):
            size += PyBytes_GET_SIZE(<bytes>self.topics[i].name) + flexible
            if flexible and self.version < TOPIC_ID_VERSION:
                size += unsigned_varint_size(PyBytes_GET_SIZE(<bytes>self.topics[i].name) + 1)
            elif not flexible:
                size += 2
            size += count_bytes(self.topics[i].end - begin, flexible)
            begin = self.topics[i].end
        size += of_part * self.parts_count
        if self.version >= ERROR_MESSAGE_VERSION:
            for i in range(self.parts_count):
                if self.parts[i].refusal != NULL:
                    size += PyBytes_GET_SIZE(<bytes>self.parts[i].refusal)
                else:
                    size += 2 if flexible else 6
        return size

    cdef bytes encoded(self):
        """Return the encoded reply with its header."""
        cdef bint flexible = self.version >= FLEXIBLE_VERSION
        cdef Py_ssize_t size = self.encoded_bytes(), i, number = 0
        cdef bytes answer = PyBytes_FromStringAndSize(NULL, size)
        cdef bytes name
        cdef uint8_t *at = self.request.put_header(<uint8_t *>PyBytes_AS_STRING(answer))
        at = put_count(at, self.topics_count, flexible)
        for i in range(self.topics_count):
            name = <bytes>self.topics[i].name
            if not flexible:
                write_int16(at, <int16_t>PyBytes_GET_SIZE(name))
                at += 2
            elif self.version < TOPIC_ID_VERSION:
                at = put_unsigned_varint(at, PyBytes_GET_SIZE(name) + 1)
            memcpy(at, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
            at = put_count(at + PyBytes_GET_SIZE(name), self.topics[i].end - number, flexible)
            while number < self.topics[i].end:
                at = self.put_part(at, &self.parts[number])
                number += 1
            if flexible:
                at = put_no_tags(at, True)
        write_int32(at, self.request.throttle_ms)
        at += 4
        if flexible:
            at = put_no_tags(at, True)
        if at != <uint8_t *>PyBytes_AS_STRING(answer) + size:
            raise AssertionError(f'an answer of {size} bytes was announced')
        return answer

    cdef uint8_t *put_part(self, uint8_t *at, const Part *part) noexcept:
        write_int32(at, part.index)
        write_int16(at + 4, part.error_code)
        write_int64(at + 6, part.base_offset)
        write_int64(at + 14, part.log_append_time_ms)
        at += 22
        if self.version >= LOG_START_OFFSET_VERSION:
            write_int64(at, part.log_start_offset)
            at += 8
        if self.version >= ERROR_MESSAGE_VERSION:
            if part.refusal != NULL:
                memcpy(at, PyBytes_AS_STRING(<bytes>part.refusal), PyBytes_GET_SIZE(<bytes>part.refusal))
                at += PyBytes_GET_SIZE(<bytes>part.refusal)
            elif self.version >= FLEXIBLE_VERSION:
                at[0] = 1           # an empty array
                at[1] = 0           # null
                at += 2
            else:
                write_int32(at, 0)
                write_int16(at + 4, -1)
                at += 6
        if self.version >= FLEXIBLE_VERSION:
            at = put_no_tags(at, True)
        return at


# ---- the bytes of an answer


cdef inline Py_ssize_t count_bytes(Py_ssize_t count, bint flexible) noexcept:
    return unsigned_varint_size(count + 1) if flexible else 4


cdef bytes encoded_refusal(error, bint flexible):
    """Return the (empty) record errors and the error message of a refused partition, encoded for the answer."""
    record_errors = getattr(error, 'record_errors', ())
    pieces = [length_of(len(record_errors), flexible, 4)]
    for index, message in record_errors:
        pieces += [index.to_bytes(4, 'big'), text_of(message, flexible)]
        if flexible:
            pieces.append(b'\0')
    pieces.append(text_of(str(error), flexible))
    return b''.join(pieces)


cdef bytes text_of(str text, bint flexible):
    """Return an encoded string. Cut it at the maximum length of strings, because an error message may quote a long
    name."""
    encoded = text.encode('utf-8', 'replace')
    if len(encoded) > LONGEST_STRING_BYTES:
        encoded = encoded[:LONGEST_STRING_BYTES].decode('utf-8', 'ignore').encode()
    return length_of(len(encoded), flexible, 2) + encoded


cdef bytes length_of(Py_ssize_t length, bint flexible, int plain_bytes):
    cdef uint8_t varint[10]
    if not flexible:
        return length.to_bytes(plain_bytes, 'big')
    return (<char *>varint)[:put_unsigned_varint(varint, length + 1) - varint]
