# cython: language_level=3
"""The C interface of plan.pyx for the codec: the slots of messages, `Plan` and `Layout`."""
cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int64_t


cdef extern from *:
    """
    #include <structmember.h>
    /* Return the offset of a member of __slots__ in its object, or -1 with TypeError. */
    static inline Py_ssize_t kb_slot_offset(PyObject *descriptor) {
        if (!PyObject_TypeCheck(descriptor, &PyMemberDescr_Type)) {
            PyErr_SetString(PyExc_TypeError, "not a member of __slots__");
            return -1;
        }
        return ((PyMemberDescrObject *)descriptor)->d_member->offset;
    }
    static inline PyObject *kb_get_slot(PyObject *object, Py_ssize_t offset) {
        return *(PyObject **)((char *)object + offset);
    }
    /* Set a slot: take a new reference to `value`, and drop the reference to the previous value. */
    static inline void kb_set_slot(PyObject *object, Py_ssize_t offset, PyObject *value) {
        PyObject **slot = (PyObject **)((char *)object + offset);
        PyObject *before = *slot;
        Py_INCREF(value);
        *slot = value;
        Py_XDECREF(before);
    }
    """
    Py_ssize_t slot_offset "kb_slot_offset"(object descriptor) except -1
    PyObject *get_slot "kb_get_slot"(PyObject *message, Py_ssize_t offset) noexcept
    void set_slot "kb_set_slot"(PyObject *message, Py_ssize_t offset, PyObject *value) noexcept


cdef enum Op:
    BOOL, INT8, INT16, UINT16, INT32, INT64, FLOAT64, UUID, STRING, BYTES, RECORDS, STRUCT


cdef struct Step:
    int op
    bint is_array
    bint nullable
    bint is_error_code          # of the answer to a request, or to a part of it
    bint compact                # lengths are unsigned varints of length + 1
    Py_ssize_t slot
    Py_ssize_t element_bytes    # the fewest bytes of an element
    PyObject *plan              # of a struct; Plan.parts holds the reference


cdef class Message:
    pass


@cython.final
cdef class Layout:
    cdef:
        readonly list names
        list defaults           # a value; `list` for a new list, a class for a new struct
        Py_ssize_t *slots
        Py_ssize_t count

    cdef Py_ssize_t place_of(self, object name, Py_ssize_t expected) except -2
    cdef object new_default(self, Py_ssize_t i)


@cython.final
cdef class Plan:
    cdef:
        readonly type cls
        readonly bint flexible
        readonly bint has_records
        readonly bint has_arrays                # or a struct has, apart from tagged fields
        readonly Py_ssize_t least_bytes         # the fewest bytes of the struct on the wire
        Layout layout
        list parts
        list defaults                           # of the tagged fields
        Step *steps                             # step_count in wire order, then tag_count tagged ones
        int64_t *tags
        Py_ssize_t *absent
        Py_ssize_t step_count, tag_count, absent_count

    cdef str name_of(self, Step *step)
    cdef Py_ssize_t place_of_field(self, str name) except -2
    cdef Py_ssize_t fill(self, Step *step, tuple row) except -1


cdef bint equal_fields(PyObject *one, PyObject *other, Layout layout) except -1
cdef bint holds_arrays(Step *step) except -1
cdef Plan plan_of(object message_class, int version)
