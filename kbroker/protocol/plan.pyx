"""Messages as Python objects with slots, and the plans according to which the codec reads and writes them.

A `Plan` is for one struct in one version. It has a step for each field, in wire order, with the operation that reads or
writes the field, and the offset of the field's slot. Because of the offset, no step looks up a name.
"""
import sys

cimport cython
from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_GET_ITEM
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.type cimport PyType_Check
from libc.stdint cimport int64_t


cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        pass
    object PyType_GenericAlloc(PyTypeObject *type, Py_ssize_t items)
    Py_ssize_t PyVectorcall_NARGS(size_t flags)


cdef extern from *:
    """
    /* Set the function that runs instead of __new__ and __init__ when the class is called with keyword arguments. */
    static inline void kb_set_constructor(PyTypeObject *cls,
                                          PyObject *(*construct)(PyObject *, PyObject **, size_t, PyObject *)) {
        cls->tp_vectorcall = (vectorcallfunc)construct;
    }
    """
    void set_constructor "kb_set_constructor"(
        type cls, object (*construct)(PyObject *, PyObject **, size_t, PyObject *))


cdef dict OPS = {
    'bool': BOOL, 'int8': INT8, 'int16': INT16, 'uint16': UINT16, 'int32': INT32, 'int64': INT64, 'float64': FLOAT64,
    'uuid': UUID, 'string': STRING, 'bytes': BYTES, 'records': RECORDS, 'struct': STRUCT,
}
cdef frozenset ERROR_CODES = frozenset({'error_code', 'partition_error_code', 'acknowledge_error_code'})
cdef Py_ssize_t UUID_BYTES = 16
cdef Py_ssize_t MOST_TAGS = 64                  # the codec keeps one bit for each


cdef class Message:
    """The base class of all messages and nested structs. It has a constructor with keyword arguments, equality and
    repr.

    A subclass has __slots__, and their `Layout` as `_layout`. Calling a subclass runs `construct`, which takes a
    fraction of the time of an __init__ with arbitrary keyword arguments. A request creates several messages.
    """

    def __eq__(self, other):
        if type(self) is not type(other):
            return NotImplemented
        return equal_fields(<PyObject *>self, <PyObject *>other, type(self)._layout)

    def __repr__(self):
        cdef Layout layout = type(self)._layout
        return f'{type(self).__name__}({", ".join(f"{name}={getattr(self, name)!r}" for name in layout.names)})'


cdef object construct(PyObject *cls, PyObject **values, size_t flags, PyObject *names):
    """Return a new message. The fields in `names` have these values, all other fields their defaults."""
    cdef Layout layout = (<type>cls)._layout
    cdef object message = PyType_GenericAlloc(<PyTypeObject *>cls, 0)
    cdef Py_ssize_t i, place = 0, given = 0 if names == NULL else PyTuple_GET_SIZE(<object>names)
    if PyVectorcall_NARGS(flags):
        raise TypeError(f'{(<type>cls).__name__} takes its fields by name')
    for i in range(given):
        name = <object>PyTuple_GET_ITEM(<object>names, i)
        place = layout.place_of(name, place)
        if place < 0:
            raise TypeError(f'{(<type>cls).__name__} has no field {name!r}')
        set_slot(<PyObject *>message, layout.slots[place], values[i])
    if given < layout.count:
        for i in range(layout.count):
            if get_slot(<PyObject *>message, layout.slots[i]) == NULL:
                default = layout.new_default(i)
                set_slot(<PyObject *>message, layout.slots[i], <PyObject *>default)
    return message


cdef bint equal_fields(PyObject *one, PyObject *other, Layout layout) except -1:
    cdef Py_ssize_t i
    cdef PyObject *mine
    cdef PyObject *theirs
    for i in range(layout.count):
        mine = get_slot(one, layout.slots[i])
        theirs = get_slot(other, layout.slots[i])
        if mine != theirs and (mine == NULL or theirs == NULL or <object>mine != <object>theirs):
            return False
    return True


@cython.final
cdef class Layout:
    """The slots and defaults of the fields of a message class."""
    def __cinit__(self, type cls, list names, list defaults):
        self.count = len(names)
        self.slots = <Py_ssize_t *>PyMem_Calloc(self.count or 1, sizeof(Py_ssize_t))
        if self.slots == NULL:
            raise MemoryError
        self.names = [sys.intern(name) for name in names]
        self.defaults = defaults
        for i in range(self.count):
            self.slots[i] = slot_offset(getattr(cls, names[i]))
        set_constructor(cls, construct)

    def __dealloc__(self):
        PyMem_Free(self.slots)

    cdef Py_ssize_t place_of(self, object name, Py_ssize_t expected) except -2:
        """Return the index of the field with this name, or -1 if there is none. First look from index `expected` on,
        because callers usually name fields in order, by interned strings."""
        cdef Py_ssize_t i
        for i in range(expected, self.count):
            if PyList_GET_ITEM(self.names, i) == <PyObject *>name:
                return i
        for i in range(self.count):
            if <object>PyList_GET_ITEM(self.names, i) == name:
                return i
        return -1

    cdef object new_default(self, Py_ssize_t i):
        """Return the default of field `i`. A list or struct is a new object in each call, because it can be changed."""
        default = <object>PyList_GET_ITEM(self.defaults, i)
        if default is list:
            return []
        if PyType_Check(default):
            return new_message(<type>default)
        return default


cdef object new_message(type cls):
    """Return a new message in which every field has its default. Do not call its class, for speed."""
    cdef object message = PyType_GenericAlloc(<PyTypeObject *>cls, 0)
    cdef Layout layout = cls._layout
    cdef Py_ssize_t i
    for i in range(layout.count):
        value = layout.new_default(i)
        set_slot(<PyObject *>message, layout.slots[i], <PyObject *>value)
    return message


@cython.final
cdef class Plan:
    """The steps to read and write one struct in one version.

    The argument `steps` has a row (field index, op, is_array, nullable, compact, plan of the struct or None) for each
    field. `tagged` has a row for each tagged field, sorted by tag: the tag, then the same values. `absent` has the
    indexes of the fields that decoding first sets to their defaults: the tagged fields, and those that the version
    lacks.
    """
    def __cinit__(self, type cls, bint flexible, list steps, list tagged, list absent):
        cdef Py_ssize_t i
        self.cls = cls
        self.flexible = flexible
        self.layout = cls._layout
        self.parts = []
        self.defaults = []
        self.step_count, self.tag_count, self.absent_count = len(steps), len(tagged), len(absent)
        self.steps = <Step *>PyMem_Calloc(self.step_count + self.tag_count + 1, sizeof(Step))
        self.tags = <int64_t *>PyMem_Calloc(self.tag_count + 1, sizeof(int64_t))
        self.absent = <Py_ssize_t *>PyMem_Calloc(self.absent_count + 1, sizeof(Py_ssize_t))
        if self.tag_count > MOST_TAGS:
            raise TypeError(f'{cls.__name__} has {self.tag_count} tags, at most {MOST_TAGS} expected')
        if self.steps == NULL or self.tags == NULL or self.absent == NULL:
            raise MemoryError
        self.least_bytes = 1 if flexible else 0
        for i, step in enumerate(steps):
            self.least_bytes += self.fill(&self.steps[i], step)
            self.has_arrays = self.has_arrays or holds_arrays(&self.steps[i])
        for i, (tag, *step) in enumerate(tagged):
            self.fill(&self.steps[self.step_count + i], tuple(step))
            self.tags[i] = tag
            self.defaults.append(self.layout.new_default(step[0]))
        for i in range(self.absent_count):
            self.absent[i] = absent[i]

    def __dealloc__(self):
        PyMem_Free(self.steps)
        PyMem_Free(self.tags)
        PyMem_Free(self.absent)

    cdef str name_of(self, Step *step):
        cdef Py_ssize_t i
        for i in range(self.layout.count):
            if self.layout.slots[i] == step.slot:
                return self.layout.names[i]
        raise SystemError(f'{self.cls.__name__} has no field at {step.slot}')

    cdef Py_ssize_t place_of_field(self, str name) except -2:
        """Return the index of a field's step, or -1 if the version lacks the field."""
        cdef Py_ssize_t i, slot = self.layout.slots[self.layout.place_of(name, 0)]
        for i in range(self.step_count + self.tag_count):
            if self.steps[i].slot == slot:
                return i
        return -1

    cdef Py_ssize_t fill(self, Step *step, tuple row) except -1:
        """Fill in a step from a row. Return the smallest number of bytes that the step reads."""
        cdef Py_ssize_t least
        cdef Plan part
        index, op, step.is_array, step.nullable, step.compact, nested = row
        step.op = OPS[op]
        step.slot = self.layout.slots[index]
        step.is_error_code = self.layout.names[index] in ERROR_CODES
        if step.op == STRUCT:
            part = nested
            self.parts.append(part)
            step.plan = <PyObject *>part
            self.has_records = self.has_records or part.has_records
            least = 1 if step.nullable and not step.is_array else part.least_bytes
        elif step.op == UUID:
            least = UUID_BYTES
        elif step.op == INT64 or step.op == FLOAT64:
            least = 8
        elif step.op == INT32:
            least = 4
        elif step.op == INT16 or step.op == UINT16:
            least = 2
        elif step.op == BOOL or step.op == INT8:
            least = 1
        else:
            self.has_records = self.has_records or step.op == RECORDS
            least = 1 if step.compact else 2 if step.op == STRING else 4
        if not step.is_array:
            return least
        if least == 0:
            raise TypeError(f'{self.cls.__name__}: an array of elements that take no bytes')
        step.element_bytes = least
        return 1 if step.compact else 4


cdef bint holds_arrays(Step *step) except -1:
    return step.is_array or (step.op == STRUCT and (<Plan>step.plan).has_arrays)


cdef Plan plan_of(object message_class, int version):
    """Return the plan of a message in a version. Raise KeyError if the message does not have this version."""
    cdef PyObject *plan = PyDict_GetItem(message_class._plans, version)
    if plan != NULL:
        return <Plan>plan
    first, last = message_class.versions
    if not first <= version <= last:
        raise KeyError(version)
    return message_class._add_plan(version)
