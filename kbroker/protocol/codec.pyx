"""The codec, which decodes and encodes messages according to their plans.

The depth of its recursion is the depth of nested structs in the message table. The decoded bytes cannot increase it.
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_Clear
from cpython.list cimport PyList_CheckExact, PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_Check
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from cpython.unicode cimport PyUnicode_Check
from libc.stdint cimport INT64_MAX, INT64_MIN, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove

from kbroker.protocol.plan cimport (
    BOOL, BYTES, INT8, INT16, INT32, INT64, RECORDS, STRING, STRUCT, UINT16, UUID, Plan, Step, equal_fields, get_slot,
    plan_of, set_slot,
)
from kbroker.wire.bytes cimport (
    LARGEST_TAG_COUNT, Cursor, put_unsigned_varint, read_int16, read_int32, read_int64, take, take_unsigned_varint,
    unsigned_varint_size, write_int16, write_int32, write_int64,
)

from kbroker.base.errors import ProtocolError


cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        pass
    object PyType_GenericAlloc(PyTypeObject *type, Py_ssize_t items)
    PyObject *PyUnicode_DecodeUTF8(const char *text, Py_ssize_t size, const char *errors) noexcept
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    double PyFloat_AsDouble(object number) except? -1.0


cdef Py_ssize_t LONGEST_STRING = 32767          # Kafka rejects a longer one, compact or not
cdef Py_ssize_t UUID_BYTES = 16
cdef Py_ssize_t LARGEST_MESSAGE = 0x7fffffff    # a frame's size is an int32

MAX_STRING_BYTES = LONGEST_STRING


class EncodeError(ValueError):
    """Raised if a field has a value that its type does not allow in this version. The error message has the field, the
    value and the expected values.
    """


UNENCODABLE = (ValueError, TypeError, AttributeError, BufferError)


# ---- decode


cdef inline Py_ssize_t take_length(Cursor *cursor, bint compact, bint short) except? -2:
    """Read and return a length. Return -1 for null: as in Kafka, every length below 0 means null. The caller must check
    that enough bytes are left."""
    if compact:
        return max(<int32_t>(<uint32_t>take_unsigned_varint(cursor, 5) - 1), -1)
    return max(read_int16(take(cursor, 2)) if short else read_int32(take(cursor, 4)), -1)


cdef object refuse_null():
    raise ProtocolError('null where null is not allowed')


cdef object read_string(Cursor *cursor, Step *step, bint nullable):
    cdef Py_ssize_t length = take_length(cursor, step.compact, True)
    cdef const uint8_t *text
    cdef PyObject *decoded
    if length < 0:
        return None if nullable else refuse_null()
    if length > LONGEST_STRING:
        raise ProtocolError(f'a string of {length} bytes, at most {LONGEST_STRING} expected')
    text = take(cursor, length)
    decoded = PyUnicode_DecodeUTF8(<const char *>text, length, NULL)
    if decoded == NULL:
        PyErr_Clear()
        sample = PyBytes_FromStringAndSize(<const char *>text, min(length, 40))
        raise ProtocolError(f'a string that is not UTF-8: {sample!r}')
    value = <object>decoded
    Py_DECREF(value)                    # the reference of the decoder
    return value


cdef object read_bytes(Input *data, Step *step, bint nullable, object view):
    cdef Py_ssize_t at, length = take_length(&data.cursor, step.compact, False)
    cdef const uint8_t *start
    if length < 0:
        return None if nullable else refuse_null()
    start = take(&data.cursor, length)
    if step.op == RECORDS:
        at = start - data.start
        return view[at:at + length]
    return PyBytes_FromStringAndSize(<const char *>start, length)


cdef object read_value(Input *data, Step *step, bint nullable, object view):
    cdef Cursor *cursor = &data.cursor
    cdef double number
    cdef int64_t bits
    cdef int op = step.op
    if op == INT32:
        return read_int32(take(cursor, 4))
    if op == INT64:
        return read_int64(take(cursor, 8))
    if op == INT16:
        return read_int16(take(cursor, 2))
    if op == STRING:
        return read_string(cursor, step, nullable)
    if op == STRUCT:
        if nullable and <int8_t>take(cursor, 1)[0] < 0:
            return None
        return read_struct(data, <Plan>step.plan, view)
    if op == BYTES or op == RECORDS:
        return read_bytes(data, step, nullable, view)
    if op == BOOL:
        return take(cursor, 1)[0] != 0
    if op == INT8:
        return <int8_t>take(cursor, 1)[0]
    if op == UUID:
        return PyBytes_FromStringAndSize(<const char *>take(cursor, UUID_BYTES), UUID_BYTES)
    if op == UINT16:
        return <uint16_t>read_int16(take(cursor, 2))
    bits = read_int64(take(cursor, 8))
    memcpy(&number, &bits, sizeof(number))
    return number


cdef Py_ssize_t read_count(Input *data, Step *step) except -2:
    """Read and return the number of elements of an array, -1 for null. Raise ProtocolError if too few bytes are left
    for them."""
    cdef Py_ssize_t left, count = take_length(&data.cursor, step.compact, False)
    if count < 0:
        if not step.nullable:
            refuse_null()
        return -1
    left = data.cursor.end - data.cursor.at
    if count > left // step.element_bytes:
        raise ProtocolError(f'an array of {count} elements of at least {step.element_bytes} bytes, {left} bytes left')
    return count


cdef object read_array(Input *data, Step *step, object view):
    cdef Py_ssize_t i, count = read_count(data, step)
    cdef list values
    if count < 0:
        return None
    values = []
    for i in range(count):
        values.append(read_value(data, step, False, view))
    return values


cdef int read_field(Input *data, Step *step, object message, object view) except -1:
    value = read_array(data, step, view) if step.is_array else read_value(data, step, step.nullable, view)
    set_slot(<PyObject *>message, step.slot, <PyObject *>value)
    return 0


cdef inline bint is_struct_or_null(Step *step) noexcept:
    """Return whether a field is a nullable struct.

    An int8 precedes a nullable struct: 1 if it is present, or -1 for null. In a tagged field, a varint precedes it: 1
    if it is present, or 0 for null.
    """
    return step.op == STRUCT and step.nullable and not step.is_array


cdef int read_tags(Input *data, Plan plan, object message, object view) except -1:
    """Read the tag buffer: the number of tagged fields, then tag, size and value of each field. Skip unknown tags."""
    cdef Cursor *cursor = &data.cursor
    cdef const uint8_t *value
    cdef const uint8_t *end = cursor.end
    cdef uint64_t tag, size, count = take_unsigned_varint(cursor, 5)
    cdef Py_ssize_t i
    cdef Step *step
    if count > LARGEST_TAG_COUNT:
        raise ProtocolError(f'{count} tagged fields, at most {LARGEST_TAG_COUNT} expected')
    while count:
        count -= 1
        tag = take_unsigned_varint(cursor, 5)
        size = take_unsigned_varint(cursor, 5)
        value = take(cursor, <Py_ssize_t>size)
        for i in range(plan.tag_count):
            if <uint64_t>plan.tags[i] == tag:
                cursor.at, cursor.end = value, value + size
                step = &plan.steps[plan.step_count + i]
                if is_struct_or_null(step):
                    held = read_struct(data, <Plan>step.plan, view) if take_unsigned_varint(cursor, 5) else None
                    set_slot(<PyObject *>message, step.slot, <PyObject *>held)
                else:
                    read_field(data, step, message, view)
                if cursor.at != cursor.end:
                    raise ProtocolError(f'{cursor.end - cursor.at} bytes left over in tag {tag}')
                cursor.end = end
                break
    return 0


cdef inline object begin_struct(Plan plan):
    """Return a new struct. Its tagged fields, and the fields that the version lacks, have their defaults; all other
    fields are not set yet."""
    cdef object message = PyType_GenericAlloc(<PyTypeObject *>plan.cls, 0)
    cdef Py_ssize_t i
    for i in range(plan.absent_count):
        default = plan.layout.new_default(plan.absent[i])
        set_slot(<PyObject *>message, plan.layout.slots[plan.absent[i]], <PyObject *>default)
    return message


cdef object read_struct(Input *data, Plan plan, object view):
    cdef object message = begin_struct(plan)
    cdef Py_ssize_t i
    for i in range(plan.step_count):
        read_field(data, &plan.steps[i], message, view)
    if plan.flexible:
        read_tags(data, plan, message, view)
    return message


cdef object decode_some(object message_class, object data, int version, Py_ssize_t position, bint whole,
                        Py_ssize_t *end):
    cdef Py_buffer buffer
    cdef Input reader
    cdef Plan plan = find_plan(message_class, version)
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        if not 0 <= position <= buffer.len:
            raise ValueError(f'position {position} is outside the {buffer.len} bytes')
        reader.start = <const uint8_t *>buffer.buf
        reader.cursor.at = reader.start + position
        reader.cursor.end = reader.start + buffer.len
        message = read_message(&reader, plan, message_class, version,
                               PyMemoryView_FromObject(data) if plan.has_records else None, whole)
        end[0] = reader.cursor.at - reader.start
        return message
    finally:
        PyBuffer_Release(&buffer)


cdef object decode_bytes(object message_class, Cursor *cursor, int version):
    """Read a message at the cursor, and advance the cursor. No field refers to the read bytes. Raise ProtocolError as
    `decode` does."""
    cdef Input reader
    cdef Plan plan = find_plan(message_class, version)
    view = None
    if plan.has_records:
        copy = PyBytes_FromStringAndSize(<const char *>cursor.at, cursor.end - cursor.at)
        view = PyMemoryView_FromObject(copy)
    reader.start = cursor.at
    reader.cursor = cursor[0]
    message = read_message(&reader, plan, message_class, version, view, False)
    cursor[0] = reader.cursor
    return message


cdef Plan find_plan(object message_class, int version):
    try:
        return plan_of(message_class, version)
    except KeyError:
        raise ProtocolError(f'{message_class.__name__} has no version {version}') from None


cdef object read_message(Input *reader, Plan plan, object message_class, int version, object view, bint whole):
    try:
        message = read_struct(reader, plan, view)
        if whole and reader.cursor.at != reader.cursor.end:
            raise ProtocolError(f'{reader.cursor.end - reader.cursor.at} bytes left over')
        return message
    except ProtocolError as error:
        raise placed_error(reader, message_class, version, error) from None


cdef object placed_error(Input *reader, object message_class, int version, object error):
    """Return a copy of the error whose text begins with the message's name and the position in the bytes."""
    at = reader.cursor.at - reader.start
    return ProtocolError(f'{message_class.__name__} version {version}, near byte {at}: {error}')


def decode(message_class, data, int version, Py_ssize_t position=0):
    """Return the message in `data`, which must begin at `position` and end where `data` ends.

    `records` fields are memoryviews into `data`, so `data` cannot be resized if it is a bytearray. All other values are
    copied. Raise ProtocolError if the bytes do not parse, or if the message does not have this version.
    """
    cdef Py_ssize_t end
    return decode_some(message_class, data, version, position, True, &end)


def decode_prefix(message_class, data, int version, Py_ssize_t position=0):
    """Return (message, position after the message). Unlike `decode`, allow further bytes after the message."""
    cdef Py_ssize_t end
    message = decode_some(message_class, data, version, position, False, &end)
    return message, end


# ---- encode


@cython.final
cdef class Writer:

    def __cinit__(self, list segments):
        self.capacity = 512
        self.start = <uint8_t *>PyMem_Malloc(self.capacity)
        if self.start == NULL:
            raise MemoryError
        self.segments = segments

    def __dealloc__(self):
        PyMem_Free(self.start)

    cdef int grow(self, Py_ssize_t bytes_count) except -1:
        cdef Py_ssize_t capacity
        cdef uint8_t *start
        if bytes_count > LARGEST_MESSAGE - self.size:
            raise ValueError(f'more than {LARGEST_MESSAGE} bytes')
        capacity = max(2 * self.capacity, self.size + bytes_count)
        start = <uint8_t *>PyMem_Realloc(self.start, capacity)
        if start == NULL:
            raise MemoryError
        self.start = start
        self.capacity = capacity
        return 0

    cdef bytes close_segment(self):
        data = PyBytes_FromStringAndSize(<const char *>self.start, self.size)
        self.size = 0
        return data

    cdef int count_error(self, int code) except -1:
        if self.errors is None:
            self.errors = {}
        self.errors[code] = self.errors.get(code, 0) + 1
        return 0


cdef inline int write_unsigned_varint(Writer out, uint64_t value) except -1:
    put_unsigned_varint(out.room(unsigned_varint_size(value)), value)
    return 0


cdef int write_length(Writer out, Py_ssize_t length, bint compact, bint short) except -1:
    if compact:
        write_unsigned_varint(out, <uint64_t>(length + 1))
    elif short:
        write_int16(out.room(2), <int16_t>length)
    elif length > 0x7fffffff:
        raise ValueError(f'a length of {length}')
    else:
        write_int32(out.room(4), <int32_t>length)
    return 0


cdef int64_t integer(object value, int64_t lowest, int64_t highest) except? -1:
    cdef int overflow = 0
    cdef int64_t number
    if not PyLong_Check(value):
        raise TypeError(f'{value!r} is not an integer')
    number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow or not lowest <= number <= highest:
        raise ValueError(f'{value} is outside {lowest} to {highest}')
    return number


cdef int write_string(Writer out, object value, Step *step) except -1:
    cdef Py_ssize_t length = 0
    cdef const char *text
    if not PyUnicode_Check(value):
        raise TypeError(f'{value!r} is not a string')
    text = PyUnicode_AsUTF8AndSize(value, &length)
    if length > LONGEST_STRING:
        raise ValueError(f'a string of {length} bytes, at most {LONGEST_STRING} expected')
    write_length(out, length, step.compact, True)
    memcpy(out.room(length), text, length)
    return 0


cdef int write_bytes(Writer out, object value, Step *step) except -1:
    cdef Py_buffer buffer
    if PyBytes_CheckExact(value):
        write_length(out, PyBytes_GET_SIZE(value), step.compact, False)
        memcpy(out.room(PyBytes_GET_SIZE(value)), PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
        return 0
    if step.op == RECORDS and out.segments is not None and not PyObject_CheckBuffer(value):
        write_length(out, value.size_bytes, step.compact, False)
        out.segments.append(out.close_segment())
        out.segments.append(value)
        return 0
    PyObject_GetBuffer(value, &buffer, PyBUF_SIMPLE)
    try:
        write_length(out, buffer.len, step.compact, False)
        memcpy(out.room(buffer.len), buffer.buf, buffer.len)
    finally:
        PyBuffer_Release(&buffer)
    return 0


cdef int write_null(Writer out, Step *step, bint nullable) except -1:
    if not nullable:
        raise ValueError('null where null is not allowed')
    if step.op == STRUCT and not step.is_array:
        out.room(1)[0] = 0xff
    else:
        write_length(out, -1, step.compact, step.op == STRING and not step.is_array)
    return 0


cdef int write_value(Writer out, object value, Step *step, bint nullable) except -1:
    cdef int op = step.op
    cdef double number
    cdef int64_t bits
    if op == INT32:
        write_int32(out.room(4), <int32_t>integer(value, -0x80000000, 0x7fffffff))
    elif op == INT64:
        write_int64(out.room(8), integer(value, INT64_MIN, INT64_MAX))
    elif op == INT16:
        bits = integer(value, -0x8000, 0x7fff)
        write_int16(out.room(2), <int16_t>bits)
        if bits and step.is_error_code:
            out.count_error(<int>bits)
    elif op == STRING:
        if value is None:
            return write_null(out, step, nullable)
        write_string(out, value, step)
    elif op == STRUCT:
        if value is None:
            return write_null(out, step, nullable)
        if nullable:
            out.room(1)[0] = 1
        write_struct(out, value, <Plan>step.plan)
    elif op == BYTES or op == RECORDS:
        if value is None:
            return write_null(out, step, nullable)
        write_bytes(out, value, step)
    elif op == BOOL:
        out.room(1)[0] = 1 if value else 0
    elif op == INT8:
        out.room(1)[0] = <uint8_t>integer(value, -0x80, 0x7f)
    elif op == UUID:
        if not PyBytes_CheckExact(value) or PyBytes_GET_SIZE(value) != UUID_BYTES:
            raise ValueError(f'{value!r} is not a uuid of {UUID_BYTES} bytes')
        memcpy(out.room(UUID_BYTES), PyBytes_AS_STRING(value), UUID_BYTES)
    elif op == UINT16:
        write_int16(out.room(2), <int16_t>integer(value, 0, 0xffff))
    else:
        number = PyFloat_AsDouble(value)
        memcpy(&bits, &number, sizeof(bits))
        write_int64(out.room(8), bits)
    return 0


cdef int write_array(Writer out, object values, Step *step) except -1:
    cdef Py_ssize_t i, count
    if values is None:
        return write_null(out, step, step.nullable)
    if not PyList_CheckExact(values):
        if not isinstance(values, (list, tuple)):
            raise TypeError(f'{type(values).__name__} is not a list')
        values = list(values)
    count = PyList_GET_SIZE(values)
    write_length(out, count, step.compact, False)
    for i in range(count):
        if i >= PyList_GET_SIZE(values):            # a `size_bytes` property may run any code
            raise ValueError('a list that shrinks while it is written')
        value = <object>PyList_GET_ITEM(values, i)
        write_value(out, value, step, False)
    return 0


cdef int write_field(Writer out, PyObject *value, Step *step) except -1:
    if value == NULL:
        raise ValueError('deleted')
    held = <object>value                            # must survive a change of the slot
    if step.is_array:
        return write_array(out, held, step)
    return write_value(out, held, step, step.nullable)


cdef int write_tag(Writer out, PyObject *value, Step *step, int64_t tag) except -1:
    """Write a tagged field: tag, size and value. The size is written last, into one byte reserved for it; in the rare
    case that it needs more, the value is moved."""
    cdef Py_ssize_t at, size, more
    write_unsigned_varint(out, tag)
    at = out.size
    out.room(1)
    if is_struct_or_null(step) and value == <PyObject *>None:
        out.room(1)[0] = 0
    else:
        write_field(out, value, step)
    size = out.size - at - 1
    more = unsigned_varint_size(size) - 1
    if more:
        out.room(more)
        memmove(out.start + at + 1 + more, out.start + at + 1, size)
    put_unsigned_varint(out.start + at, size)
    return 0


cdef bint differs(PyObject *value, Step *step, object default) except -1:
    """Return whether a tagged field must be written, because it differs from its default."""
    if value == NULL:
        return True                     # writing it raises the error
    if step.is_array and default is not None:
        return <object>value is None or len(<object>value) != 0
    if step.op == STRUCT and default is not None and type(<object>value) is type(default):
        return not equal_fields(value, <PyObject *>default, (<Plan>step.plan).layout)
    return <object>value != default


cdef int write_struct(Writer out, object message, Plan plan) except -1:
    cdef Py_ssize_t i = 0
    check_type(message, plan)
    try:
        for i in range(plan.step_count):
            write_field(out, get_slot(<PyObject *>message, plan.steps[i].slot), &plan.steps[i])
    except UNENCODABLE as error:
        raise field_error(plan, i, error) from None
    if plan.flexible:
        write_tags(out, message, plan)
    return 0


cdef int check_type(object message, Plan plan) except -1:
    if type(message) is not plan.cls:
        raise TypeError(f'{plan.cls.__name__} expected, not {type(message).__name__}')
    return 0


cdef object field_error(Plan plan, Py_ssize_t i, object error):
    """Return an EncodeError with the name of the field of step `i`. If the error names a field already, return it
    unchanged."""
    if isinstance(error, EncodeError):
        return error
    return EncodeError(f'{plan.cls.__name__}.{plan.name_of(&plan.steps[i])}: {error}')


cdef int write_tags(Writer out, object message, Plan plan) except -1:
    """Write the tag buffer: the tagged fields that differ from their defaults."""
    cdef Py_ssize_t i = plan.step_count
    cdef Py_ssize_t tags_written = 0
    cdef uint64_t present = 0
    cdef Step *step
    try:
        for i in range(plan.step_count, plan.step_count + plan.tag_count):
            step = &plan.steps[i]
            if differs(get_slot(<PyObject *>message, step.slot), step, plan.defaults[i - plan.step_count]):
                present |= <uint64_t>1 << (i - plan.step_count)
                tags_written += 1
        write_unsigned_varint(out, tags_written)
        if present:
            for i in range(plan.step_count, plan.step_count + plan.tag_count):
                if present >> (i - plan.step_count) & 1:
                    step = &plan.steps[i]
                    write_tag(out, get_slot(<PyObject *>message, step.slot), step, plan.tags[i - plan.step_count])
        return 0
    except UNENCODABLE as error:
        raise field_error(plan, i, error) from None


cdef Plan find_writing_plan(object message, int version):
    try:
        return plan_of(type(message), version)
    except KeyError:
        raise EncodeError(f'{type(message).__name__} has no version {version}') from None


cdef Writer encode_some(object message, int version, object prefix, list segments):
    cdef Writer out = Writer(segments)
    cdef Plan plan = find_writing_plan(message, version)
    if prefix:
        memcpy(out.room(PyBytes_GET_SIZE(prefix)), PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix))
    try:
        write_struct(out, message, plan)
    except EncodeError as error:
        raise EncodeError(f'{type(message).__name__} version {version}: {error}') from None
    return out


def encode(message, int version) -> bytes:
    """Encode the message in the given version. Omit fields that the version lacks, whatever their values.

    Raise EncodeError if a value does not fit its field's type, if a field must not be null, or if the message does not
    have this version. The error names the field.
    """
    return encode_some(message, version, None, None).close_segment()


def encode_segments(message, int version, bytes prefix=b'') -> list:
    """Encode the message as a list of segments. A `records` field may hold a slice of a file: an object with
    `size_bytes`. The slice becomes an element of the list, between the bytes before it and the bytes after it. The
    first segment begins with `prefix`."""
    cdef list segments = []
    cdef Writer out = encode_some(message, version, prefix, segments)
    if out.size:
        segments.append(out.close_segment())
    return segments
