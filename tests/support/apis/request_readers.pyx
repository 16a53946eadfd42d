# cython: language_level=3
"""Functions that call the broker's C readers of requests and C writers of answers. Tests compare their results with the
codec's.
"""
from libc.stdint cimport int32_t, uint8_t

from kbroker.apis.fetch.request cimport (
    AskedPartition, AskedTopic, FetchRequest, begin_forgotten_topics, begin_topics, end_forgotten_topic, end_topic,
    read_request, take_forgotten_partition, take_forgotten_topic, take_partition, take_topic,
)
from kbroker.apis.produce.parts cimport Part, ProduceParts
from kbroker.apis.serving.request cimport Request
from kbroker.apis.serving.request_fields cimport (
    FieldReader, RequestFields, end_struct, open_tagged, pull_bool, pull_count, pull_int8, pull_int16, pull_int32,
    pull_int64, pull_records, pull_string, pull_uuid,
)
from kbroker.wire.bytes cimport Cursor, read_int32, read_int64, take

import kbroker.apis.fetch.fetch     # its declaration has the bounds of a Fetch request
from kbroker.apis.produce.produce import API as PRODUCE
from kbroker.base.errors import KafkaError
from kbroker.protocol import schema


cdef const char *NOTHING = b''      # `take` grants no address that is NULL


cdef Cursor cursor_at(const uint8_t[::1] frame, Py_ssize_t position) except *:
    cdef Cursor cursor
    cursor.at = (&frame[0] if len(frame) else <const uint8_t *>NOTHING) + position
    cursor.end = cursor.at + len(frame) - position
    return cursor


# ---- any request


def pull(str message_name not None, list paths not None, frame, int version):
    """Pull the fields with these paths from a request. Return {field name: value}. The value of a struct is a
    dictionary, too.
    """
    cdef RequestFields fields = RequestFields(message_name)
    cdef FieldReader reader
    cdef Cursor body = cursor_at(frame, 0)
    declared = {path: fields.places[path][1] for path in paths}
    numbers = {path: fields.field(path, '[]' * field.is_array + field.type) for path, field in declared.items()}
    fields.set_bounds({'elements': (1_000_000, *(path for path, field in declared.items() if field.is_array))})
    fields.begin(&reader, &body, version)
    found = pull_struct(&reader, schema.load(message_name).struct, '', numbers)
    end_struct(&reader, 0)
    for path, field in declared.items():
        if field.tag is not None and '.' not in path:
            found[path] = pull_tagged(&reader, field, path, numbers)
    return found


def fields_that_were_used(str message_name not None, frame, int version, *named):
    """Begin to read a request. Return its RequestFields. `named` is the path and the type of a field to pull, or empty.
    """
    cdef RequestFields fields = RequestFields(message_name)
    cdef FieldReader reader
    cdef Cursor body = cursor_at(frame, 0)
    if named:
        fields.field(*named)
    fields.begin(&reader, &body, version)
    return fields


cdef dict pull_struct(FieldReader *reader, struct, str before, dict numbers):
    return {field.name: pull_field(reader, field, before + field.name, numbers)
            for field in struct.fields if before + field.name in numbers and field.tag is None}


cdef object pull_field(FieldReader *reader, field, str path, dict numbers):
    cdef Py_ssize_t size, number = numbers[path]
    cdef const uint8_t *text = NULL
    if field.is_array:
        size = pull_count(reader, number)
        return [pull_element(reader, field, path, numbers) for _ in range(size)]
    if field.type == 'string':
        size = pull_string(reader, number, &text)
        return None if size < 0 else (<const char *>text)[:size].decode()
    if field.type == 'records':
        size = pull_records(reader, number, &text)
        return None if size < 0 else (<const char *>text)[:size]
    if field.type == 'uuid':
        return (<const char *>pull_uuid(reader, number))[:16]
    if field.type == 'bool':
        return pull_bool(reader, number)
    if field.type == 'int8':
        return pull_int8(reader, number)
    if field.type == 'int16':
        return pull_int16(reader, number)
    return pull_int32(reader, number) if field.type == 'int32' else pull_int64(reader, number)


cdef object pull_element(FieldReader *reader, field, str path, dict numbers):
    if field.type == 'int32':
        return read_int32(take(&reader.cursor, 4))
    if field.type == 'int64':
        return read_int64(take(&reader.cursor, 8))
    found = pull_struct(reader, field.struct, f'{path}.', numbers)
    end_struct(reader, numbers[path])
    return found


cdef object pull_tagged(FieldReader *reader, field, str path, dict numbers):
    cdef FieldReader inner
    if not open_tagged(reader, &inner):
        return None
    if field.struct is None:
        return pull_field(&inner, field, path, numbers)
    return pull_struct(&inner, field.struct, f'{path}.', numbers)


# ---- Produce


cdef ProduceParts read_parts(frame, int version, Py_ssize_t position):
    cdef ProduceParts parts = ProduceParts.__new__(ProduceParts)
    cdef Cursor body = cursor_at(frame, position)
    parts.request = Request.__new__(Request)
    parts.request.api = PRODUCE
    parts.request.version = parts.version = version
    parts.read(&body, {})
    return parts


def read_produce(frame, int version, Py_ssize_t position=0):
    """Return the fields that the reader finds in a Produce request: (transactional id, acks, [(topic name or id,
    [(partition, records)])]).
    """
    cdef ProduceParts parts = read_parts(frame, version, position)
    cdef Py_ssize_t i, number = 0
    cdef Part *part
    topics = []
    for i in range(parts.topics_count):
        found = []
        while number < parts.topics[i].end:
            part = &parts.parts[number]
            found.append((part.index, None if part.size_bytes < 0 else (<char *>part.records)[:part.size_bytes]))
            number += 1
        topics.append((<bytes>parts.topics[i].name, found))
    return parts.transactional_id, parts.acks, topics


def write_produce_answer(frame, int version, int32_t correlation_id, answers, Py_ssize_t position=0):
    """Return the reply to the Produce request in `frame`. `answers` are the answers to its partitions, in their order.
    An answer is a KafkaError, or (base offset, log append time in ms, log start offset).
    """
    cdef ProduceParts parts = read_parts(frame, version, position)
    cdef Py_ssize_t number
    cdef Part *part
    parts.request.correlation_id = correlation_id
    for number, answer in enumerate(answers):
        part = &parts.parts[number]
        if isinstance(answer, KafkaError):
            parts.refuse(part, answer)
        else:
            part.base_offset, part.log_append_time_ms, part.log_start_offset = answer
    return parts.encoded()


# ---- Fetch


def read_fetch(frame, int version, Py_ssize_t position=0):
    """Return (fields, topics, forgotten topics) of a Fetch request as plain Python values. Raise ProtocolError if the
    request is malformed.
    """
    cdef FetchRequest request
    cdef FieldReader reader
    cdef AskedTopic topic
    cdef AskedPartition asked
    cdef Cursor body = cursor_at(frame, position)
    cdef list topics = [], forgotten = [], partitions
    read_request(&request, &body, version)
    reader = request.topics
    for _ in range(begin_topics(&reader)):
        take_topic(&reader, &topic)
        partitions = []
        for _ in range(topic.partitions):
            take_partition(&reader, &asked)
            partitions.append((asked.index, asked.current_leader_epoch, asked.fetch_offset, asked.last_fetched_epoch,
                               asked.max_bytes))
        end_topic(&reader)
        topics.append(((<const char *>topic.key)[:topic.key_bytes], partitions))
    reader = request.forgotten_topics
    for _ in range(begin_forgotten_topics(&reader)):
        take_forgotten_topic(&reader, &topic)
        partitions = [take_forgotten_partition(&reader) for _ in range(topic.partitions)]
        end_forgotten_topic(&reader)
        forgotten.append(((<const char *>topic.key)[:topic.key_bytes], partitions))
    fields = (request.replica_id, request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level,
              request.session_id, request.session_epoch)
    return fields, topics, forgotten
