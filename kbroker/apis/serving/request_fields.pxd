# cython: language_level=3
"""Reads the needed fields of a request from its bytes, for handlers in C.

The message tables of kbroker/protocol say where each version has a field. At its import, a module that reads a request
declares each field that it needs:

    cdef RequestFields REQUEST = fields_of('EndTxnRequest')
    cdef Py_ssize_t PRODUCER_ID = REQUEST.field('producer_id', 'int64')

For each request, the module calls `REQUEST.begin`, then pulls every declared field, in the order of the message table:

- If the version of the request lacks a field, the pull returns the default from the table.
- Fields that are not declared are skipped. So a handler need not be edited when the table gets a new field or version.
- `pull_count` begins an array. The `Api` declares the most elements of the array.
- `end_struct` must be called after the last field of each element, and of the request. It also skips tagged fields.

A pull raises ProtocolError if the bytes are not a field of its type. It takes about ten instructions if no field is
skipped before it; otherwise it calls `advance`.
"""
cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t

from kbroker.apis.serving.request_bytes cimport MOST_REQUEST_TAGS, take_length, take_string
from kbroker.protocol.plan cimport Plan, Step
from kbroker.wire.bytes cimport Cursor, read_int16, read_int32, read_int64, take


cdef enum:
    MOST_BOUNDS = 2             # counts that a request bounds
    MOST_VERSIONS = 64
    UUID_SIZE = 16


cdef struct FieldStep:
    # The step that reads one field in one version. If the field is an array of structs, the next step in the plan ends
    # one struct.
    bint follows                # its bytes are next, after the field that was pulled before; else `advance` finds out
    bint is_present             # at an end: nothing is left to skip but tagged fields
    bint nullable
    bint compact                # lengths are unsigned varints of length + 1; at an end, the struct has tagged fields
    int bound                   # of an array: its place in FieldReader.left
    Py_ssize_t least_bytes      # of an element of an array
    Step *skipped               # the fields before this one that are not pulled
    Py_ssize_t skipped_count
    Py_ssize_t skipped_bytes    # their size, if it does not vary
    Py_ssize_t default_number   # the default of a number; the length of that of a string or array, -1 for null
    const uint8_t *default_bytes
    PyObject *plan              # at an end: the Plan of the struct
    int64_t pulled_tag          # at the end of a request: the tag of the field that `open_tagged` opens, or -1


cdef struct FieldReader:
    Cursor cursor
    const FieldStep *steps
    Py_ssize_t tags_left            # tagged fields, and elements of skipped arrays, that the request may still have
    Py_ssize_t left[MOST_BOUNDS]    # elements of arrays that it may still have
    PyObject *fields                # RequestFields
    Cursor tagged                   # the bytes of the tagged field that is pulled


@cython.final
cdef class RequestFields:
    cdef readonly str message_name
    cdef dict places                # path: (its number, schema.Field)
    cdef set pulled                 # paths
    cdef str pulled_tagged          # the path of the tagged field among them, or None
    cdef list bounds                # (the name of what is counted, the most of it)
    cdef dict bound_of              # path of an array: its place in `bounds`
    cdef list kept                  # objects into which steps point
    cdef FieldStep *plans[MOST_VERSIONS]
    cdef Py_ssize_t most[MOST_BOUNDS]

    cdef inline int begin(self, FieldReader *reader, const Cursor *body, int version) except -1:
        """Prepare to read a request of a version that the broker serves."""
        cdef int number
        if self.plans[version] == NULL:
            self.compile(version)
        reader.cursor = body[0]
        reader.steps = self.plans[version]
        reader.tags_left = MOST_REQUEST_TAGS
        for number in range(MOST_BOUNDS):
            reader.left[number] = self.most[number]
        reader.fields = <PyObject *>self
        reader.tagged.at = NULL
        return 0

    cdef int compile(self, int version) except -1
    cdef int compile_struct(self, FieldStep *steps, str path, struct, Plan plan, Py_ssize_t end_number) except -1
    cdef int compile_field(self, FieldStep *field, str path, declared, const Step *step) except -1
    cdef int set_default(self, FieldStep *field, declared) except -1


cpdef RequestFields fields_of(str message_name)
cdef bint advance(FieldReader *reader, const FieldStep *step) except -1
cdef int end_with_tags(FieldReader *reader, const FieldStep *step) except -1
cdef int refuse_length(FieldReader *reader, const FieldStep *step, Py_ssize_t length) except -1
cdef int refuse_count(FieldReader *reader, const FieldStep *step) except -1
cdef bint open_tagged(FieldReader *reader, FieldReader *inner) noexcept


cdef inline const FieldStep *step_of(const FieldReader *reader, Py_ssize_t field) noexcept:
    return <const FieldStep *>(<const char *>reader.steps + field)


cdef inline bint has_field(const FieldReader *reader, Py_ssize_t field) noexcept:
    """Return whether the request's version has the field."""
    return step_of(reader, field).is_present


# The pull functions signal an error by returning a rare number, not -1. When a function returns its error number,
# Cython takes time to check whether there was an error, and -1 is a frequent value.


cdef inline bint pull_bool(FieldReader *reader, Py_ssize_t field) except -1:
    cdef const FieldStep *step = step_of(reader, field)
    if not step.follows and not advance(reader, step):
        return step.default_number != 0
    return take(&reader.cursor, 1)[0] != 0


cdef inline int8_t pull_int8(FieldReader *reader, Py_ssize_t field) except? -101:
    cdef const FieldStep *step = step_of(reader, field)
    if not step.follows and not advance(reader, step):
        return <int8_t>step.default_number
    return <int8_t>take(&reader.cursor, 1)[0]


cdef inline int16_t pull_int16(FieldReader *reader, Py_ssize_t field) except? -31001:
    cdef const FieldStep *step = step_of(reader, field)
    if not step.follows and not advance(reader, step):
        return <int16_t>step.default_number
    return read_int16(take(&reader.cursor, 2))


cdef inline int32_t pull_int32(FieldReader *reader, Py_ssize_t field) except? -2147483001:
    cdef const FieldStep *step = step_of(reader, field)
    if not step.follows and not advance(reader, step):
        return <int32_t>step.default_number
    return read_int32(take(&reader.cursor, 4))


cdef inline int64_t pull_int64(FieldReader *reader, Py_ssize_t field) except? -4611686018427387904:
    cdef const FieldStep *step = step_of(reader, field)
    if not step.follows and not advance(reader, step):
        return step.default_number
    return read_int64(take(&reader.cursor, 8))


cdef inline const uint8_t *pull_uuid(FieldReader *reader, Py_ssize_t field) except NULL:
    """Return the address of the 16 bytes of a UUID."""
    cdef const FieldStep *step = step_of(reader, field)
    if not step.follows and not advance(reader, step):
        return step.default_bytes
    return take(&reader.cursor, UUID_SIZE)


cdef inline Py_ssize_t pull_string(FieldReader *reader, Py_ssize_t field, const uint8_t **text) except -2:
    """Set `text` to the first byte of a string in UTF-8. Return the size of the string in bytes, or -1 for null."""
    cdef const FieldStep *step = step_of(reader, field)
    if not step.follows and not advance(reader, step):
        text[0] = step.default_bytes
        return step.default_number
    return take_string(&reader.cursor, step.compact, step.nullable, text)


cdef inline Py_ssize_t pull_name_or_id(FieldReader *reader, Py_ssize_t name, Py_ssize_t topic_id,
                                       const uint8_t **key) except -1:
    """Set `key` to the first byte of a topic's id if the version has topic ids, otherwise of its name in UTF-8. Return
    the size of the key in bytes."""
    if has_field(reader, topic_id):
        key[0] = pull_uuid(reader, topic_id)
        return UUID_SIZE
    return pull_string(reader, name, key)


cdef inline Py_ssize_t pull_records(FieldReader *reader, Py_ssize_t field, const uint8_t **records) except -2:
    """Set `records` to the first byte of the batches, and return their size in bytes. For null, return -1 and do not
    change `records`."""
    cdef const FieldStep *step = step_of(reader, field)
    cdef Py_ssize_t size
    if not step.follows and not advance(reader, step):
        return -1
    size = take_length(&reader.cursor, step.compact, False)
    if size >= 0:
        records[0] = take(&reader.cursor, size)
    elif not step.nullable:
        refuse_length(reader, step, size)
    return size


cdef inline Py_ssize_t pull_count(FieldReader *reader, Py_ssize_t field) except -1:
    """Begin to read an array. Return the number of its elements. Raise ProtocolError if the remaining bytes are too few
    for them, or BoundError if they exceed the array's bound."""
    cdef const FieldStep *step = step_of(reader, field)
    cdef Py_ssize_t count
    if not step.follows and not advance(reader, step):
        return 0
    count = take_length(&reader.cursor, step.compact, False)
    if count * step.least_bytes > reader.cursor.end - reader.cursor.at or count < 0:
        refuse_length(reader, step, count)
    reader.left[step.bound] -= count
    if reader.left[step.bound] < 0:
        refuse_count(reader, step)
    return count


cdef inline int end_struct(FieldReader *reader, Py_ssize_t array) except -1:
    """End an element of `array`, or the whole request if `array` is 0. Skip the remaining fields, and the tagged
    fields."""
    cdef const FieldStep *step = step_of(reader, array) + 1
    if step.follows:            # the version has no tagged fields, or the bytes say that there are none
        return 0
    if step.is_present and reader.cursor.at < reader.cursor.end and reader.cursor.at[0] == 0:
        reader.cursor.at += 1
        return 0
    return end_with_tags(reader, step)
