"""The codec for long messages: it decodes, encodes and frees them in parts, as long work.

Each function is a generator. It yields after about PART_ELEMENTS elements of arrays, or after as much work on long
values. The results equal those of `codec`, whose functions are called for everything but structs with arrays.

For a commit of one offset, decoding the request takes 6,300 instructions in `codec`, but 11,500 here. Encoding the
answer takes 4,600 instructions in `codec` and 5,400 here. So the broker decodes short requests with `codec`, which it
also uses for rows. It encodes all answers here, because their first part needs no generator. `kbroker.client` uses only
`codec`.

A decoded message takes many times the memory of its frame, because even the smallest struct is a Python object. So the
number of its array elements is bounded. The objects are hidden from the garbage collector: they have no cycles, and
searching a large message for cycles would hold the loop.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.list cimport PyList_CheckExact, PyList_GET_ITEM, PyList_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.object cimport PyObject
from cpython.ref cimport Py_REFCNT
from libc.stdint cimport int8_t, uint8_t
from libc.string cimport memcpy

from kbroker.protocol.codec cimport (
    Input, Writer, begin_struct, check_type, field_error, find_plan, find_writing_plan, placed_error, read_count,
    read_field, read_tags, read_value, write_field, write_length, write_tags, write_value,
)
from kbroker.protocol.plan cimport STRUCT, Layout, Message, Plan, Step, get_slot, holds_arrays, set_slot
from kbroker.wire.bytes cimport take

from kbroker.base.errors import ProtocolError
from kbroker.protocol.codec import UNENCODABLE, EncodeError


cdef extern from "Python.h":
    void PyObject_GC_UnTrack(PyObject *object)


cdef enum:
    PART_ELEMENTS = 256
    # Each 256 bytes of a value count as one more element.
    ELEMENT_BYTES = 256
    # The most elements that all arrays of a message may have together. 500,000 of the smallest structs take about 80
    # MB.
    ELEMENTS_OF_A_MESSAGE = 500_000
    SEGMENT_BYTES = 64 * 1024

MOST_ELEMENTS = ELEMENTS_OF_A_MESSAGE


cdef class Decoding:
    """A message that is being read."""
    cdef Input reader
    cdef object data            # owns the bytes
    cdef object view
    cdef Py_ssize_t part_left
    cdef Py_ssize_t elements_left
    cdef Py_ssize_t array_count     # of the array that was begun last

    def __init__(self, bytes data not None, Py_ssize_t position, Plan plan):
        if not 0 <= position <= PyBytes_GET_SIZE(data):
            raise ValueError(f'position {position} is outside the {len(data)} bytes')
        self.data = data
        self.view = PyMemoryView_FromObject(data) if plan.has_records else None
        self.reader.start = <const uint8_t *>PyBytes_AS_STRING(data)
        self.reader.cursor.at = self.reader.start + position
        self.reader.cursor.end = self.reader.start + PyBytes_GET_SIZE(data)
        self.part_left = PART_ELEMENTS
        self.elements_left = ELEMENTS_OF_A_MESSAGE

    def read_struct(self, message, Plan plan):
        """Read the fields of a struct in parts. After an error, `message` has only the fields that were read before the
        error."""
        cdef Py_ssize_t i
        cdef Step *step
        PyObject_GC_UnTrack(<PyObject *>message)
        for i in range(plan.step_count):
            step = &plan.steps[i]
            if step.is_array:
                yield from self.read_array(message, plan, i)
            elif holds_arrays(step):
                held = None
                if not step.nullable or <int8_t>take(&self.reader.cursor, 1)[0] >= 0:
                    held = begin_struct(<Plan>step.plan)
                set_slot(<PyObject *>message, step.slot, <PyObject *>held)
                if held is not None:
                    yield from self.read_struct(held, <Plan>step.plan)
            else:
                read_field(&self.reader, step, message, self.view)
        if plan.flexible:
            read_tags(&self.reader, plan, message, self.view)

    def read_array(self, message, Plan plan, Py_ssize_t i):
        """Read the array of step `i` in parts."""
        cdef Step *step = &plan.steps[i]
        cdef const uint8_t *start
        cdef list values = self.begin_array(step)
        cdef Py_ssize_t count = self.array_count
        set_slot(<PyObject *>message, step.slot, <PyObject *>values)
        while values is not None and PyList_GET_SIZE(values) < count:
            if step.op == STRUCT and (<Plan>step.plan).has_arrays:
                start = self.reader.cursor.at
                values.append(begin_struct(<Plan>step.plan))
                yield from self.read_struct(values[PyList_GET_SIZE(values) - 1], <Plan>step.plan)
                self.part_left -= 1 + (self.reader.cursor.at - start) // ELEMENT_BYTES
            else:
                self.read_leaves(values, step, count)
            if self.part_left <= 0:
                self.part_left = PART_ELEMENTS
                yield

    cdef list begin_array(self, Step *step):
        """Read the number of elements into `array_count`. Return an empty list for them, or None for a null array."""
        cdef list values = []
        self.array_count = read_count(&self.reader, step)
        if self.array_count < 0:
            return None
        if self.array_count > self.elements_left:
            raise ProtocolError(f'more than {ELEMENTS_OF_A_MESSAGE} elements of arrays in one message')
        self.elements_left -= self.array_count
        PyObject_GC_UnTrack(<PyObject *>values)
        return values

    cdef int read_leaves(self, list values, Step *step, Py_ssize_t count) except -1:
        """Read elements that contain no arrays until `values` has `count` elements or the part is done."""
        cdef const uint8_t *start
        while PyList_GET_SIZE(values) < count and self.part_left > 0:
            start = self.reader.cursor.at
            value = read_value(&self.reader, step, False, self.view)
            if step.op == STRUCT:
                PyObject_GC_UnTrack(<PyObject *>value)
            values.append(value)
            self.part_left -= 1 + (self.reader.cursor.at - start) // ELEMENT_BYTES
        return 0


def decode_in_slices(message_class, bytes data not None, int version, Py_ssize_t position=0):
    """Read the message that begins at `position`, in parts, and return it. Bytes after the message are ignored.

    Raise ProtocolError if the bytes do not parse, the message does not have this version, or its arrays have more than
    MOST_ELEMENTS elements.
    """
    cdef Plan plan = find_plan(message_class, version)
    cdef Decoding decoding = Decoding(data, position, plan)
    message = begin_struct(plan)
    try:
        yield from decoding.read_struct(message, plan)
        return message
    except ProtocolError as error:
        found = placed_error(&decoding.reader, message_class, version, error)
    yield from free_in_slices(message)
    raise found


@cython.final
@cython.no_gc
@cython.freelist(32)
cdef class Place:
    """A struct that is being written, with its current array and the position in this array."""


@cython.final
@cython.no_gc
@cython.freelist(8)
cdef class Encoding:
    """A message that is being written in parts. The stack of structs being written is a chain of Places, so a part
    needs no generator."""

    cdef int enter(self, object message, Plan plan) except -1:
        """Push a nested struct onto the stack. It is written before the remaining fields of the current struct."""
        cdef Place place = Place.__new__(Place)
        check_type(message, plan)
        place.message, place.plan, place.outer = message, plan, self.place
        self.place = place
        return 0

    cdef bint write_part(self) except -1:
        """Write the next part into `segments`. Return True if it was the last part. Raise EncodeError if a value does
        not fit its field."""
        if self.message is not None:
            self.enter(self.message, find_writing_plan(self.message, self.version))
            self.message = None
        self.part_left = PART_ELEMENTS
        try:
            while self.place is not None:
                if self.is_part_done():
                    self.close_segment(SEGMENT_BYTES)
                    return False
                self.advance(self.place)
        except EncodeError as error:
            raise EncodeError(f'{self.message_class.__name__} version {self.version}: {error}') from None
        self.close_segment(1)
        return True

    cdef bint is_part_done(self) noexcept:
        return self.part_left <= 0 or self.out.size >= SEGMENT_BYTES

    cdef int close_segment(self, Py_ssize_t fewest_bytes) except -1:
        if self.out.size >= fewest_bytes:
            self.segments.append(self.out.close_segment())
        return 0

    cdef int advance(self, Place place) except -1:
        """Write fields of the struct in `place` until the struct ends, a nested struct with arrays begins, or the part
        is full."""
        cdef Plan plan = place.plan
        cdef Step *step
        cdef PyObject *value
        try:
            while True:
                if place.elements is not None and not self.write_elements(place, &plan.steps[place.next_step - 1]):
                    return 0
                if place.next_step == plan.step_count:
                    break
                step = &plan.steps[place.next_step]
                place.next_step += 1
                value = get_slot(<PyObject *>place.message, step.slot)
                if value == NULL or value == <PyObject *>None or not holds_arrays(step):
                    write_field(self.out, value, step)
                elif step.is_array:
                    self.open_array(place, <object>value, step)
                else:
                    if step.nullable:
                        self.out.room(1)[0] = 1
                    self.enter(<object>value, <Plan>step.plan)
                    return 0
        except UNENCODABLE as error:
            raise field_error(plan, place.next_step - 1, error) from None
        if plan.flexible:
            write_tags(self.out, place.message, plan)
        self.place = place.outer
        return 0

    cdef int open_array(self, Place place, object values, Step *step) except -1:
        if not isinstance(values, (list, tuple)):
            raise TypeError(f'{type(values).__name__} is not a list')
        place.elements = values if PyList_CheckExact(values) else list(values)
        place.next_element, place.count = 0, PyList_GET_SIZE(place.elements)
        return write_length(self.out, place.count, step.compact, False)

    cdef bint write_elements(self, Place place, Step *step) except -1:
        """Write elements of the current array. Return True if the array has ended."""
        cdef bint is_nested = step.op == STRUCT and (<Plan>step.plan).has_arrays
        while place.next_element < place.count:
            if self.is_part_done():
                return False
            if place.next_element >= PyList_GET_SIZE(place.elements):
                raise ValueError('a list that shrinks while it is written')
            element = <object>PyList_GET_ITEM(place.elements, place.next_element)
            place.next_element += 1
            self.part_left -= 1
            if is_nested and element is not None:
                self.enter(element, <Plan>step.plan)
                return False
            write_value(self.out, element, step, False)
        place.elements = None
        return True


cdef Encoding begin_encoding(object message, int version, bytes prefix):
    """Return the Encoding that writes `prefix`, then the message."""
    cdef Encoding encoding = Encoding.__new__(Encoding)
    encoding.segments = []
    encoding.out = Writer(encoding.segments)
    encoding.message, encoding.message_class, encoding.version = message, type(message), version
    memcpy(encoding.out.room(PyBytes_GET_SIZE(prefix)), PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix))
    return encoding


def encode_in_slices(message, int version, bytes prefix=b''):
    """Encode a message in parts. Return a list of segments and raise EncodeError as `codec.encode_segments` does."""
    cdef Encoding encoding = begin_encoding(message, version, prefix)
    message = None
    while not encoding.write_part():
        yield
    return encoding.segments


cdef class Freeing:
    """A message that is being freed in parts."""
    cdef Py_ssize_t part_left

    def free_lists(self, message):
        """Empty the lists of a struct in parts, beginning with their last elements."""
        cdef Layout layout = type(message)._layout
        cdef Py_ssize_t i
        cdef PyObject *value
        cdef list values
        for i in range(layout.count):
            value = get_slot(<PyObject *>message, layout.slots[i])
            if value == NULL or not PyList_CheckExact(<object>value) or Py_REFCNT(<object>value) != 1:
                continue
            values = <list>value
            while values:
                element = values.pop()
                if isinstance(element, Message) and Py_REFCNT(element) == 1 and holds_lists(element):
                    yield from self.free_lists(element)
                element = None
                self.part_left -= 1
                if self.part_left <= 0:
                    self.part_left = PART_ELEMENTS
                    yield


def free_in_slices(message):
    """Free the array elements of a message that is no longer needed, in parts. Skip lists to which other objects
    refer."""
    cdef Freeing freeing = Freeing()
    freeing.part_left = PART_ELEMENTS
    yield from freeing.free_lists(message)


cdef bint holds_lists(object struct) except -1:
    """Return whether a field of the struct is a non-empty list."""
    cdef Layout layout = type(struct)._layout
    cdef Py_ssize_t i
    cdef PyObject *value
    for i in range(layout.count):
        value = get_slot(<PyObject *>struct, layout.slots[i])
        if value != NULL and PyList_CheckExact(<object>value) and PyList_GET_SIZE(<object>value):
            return True
    return False
