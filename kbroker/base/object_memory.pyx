"""The memory of strings, bytes, and the table entries that contain them.

Every limit on names from clients uses this measure.

A client chooses the length of its names and the width of their characters. CPython stores a string with 1, 2 or 4 bytes
for each character, depending on its widest character. So one emoji in a long ASCII name multiplies its memory by four.
A string that is not ASCII also keeps its UTF-8 form once a response has contained it. `memory_of` counts both forms.
"""
from collections import OrderedDict

from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.tuple cimport PyTuple_GET_SIZE

cdef extern from "Python.h":
    ctypedef struct PyASCIIObject:
        pass
    ctypedef struct PyCompactUnicodeObject:
        pass
    ctypedef struct PyVarObject:
        pass
    ctypedef struct PyTupleObject:      # its size includes one element; since Python 3.14 also a hash
        pass
    bint PyUnicode_IS_ASCII(object text)
    int PyUnicode_KIND(object text)                 # bytes of a character
    void *PyUnicode_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    Py_UCS4 PyUnicode_READ(int kind, void *data, Py_ssize_t index)

cdef enum:
    ALLOCATION_BYTES = 16       # the allocators round up to a multiple of it
    GC_HEAD_BYTES = 16          # before a tuple
    NUMBER_BYTES = 32


cdef inline Py_ssize_t allocated(Py_ssize_t size) noexcept:
    return (size + ALLOCATION_BYTES - 1) & ~<Py_ssize_t>(ALLOCATION_BYTES - 1)


cdef Py_ssize_t utf8_length(str text) except -1:
    """Return the number of bytes that a string has in UTF-8.

    A lone surrogate, which UTF-8 cannot express, counts three.
    """
    cdef Py_ssize_t length = PyUnicode_GET_LENGTH(text), size = length, i
    cdef int kind
    cdef void *data
    cdef Py_UCS4 character
    if PyUnicode_IS_ASCII(text):
        return length
    kind, data = PyUnicode_KIND(text), PyUnicode_DATA(text)
    for i in range(length):
        character = PyUnicode_READ(kind, data, i)
        size += (character >= 0x80) + (character >= 0x800) + (character >= 0x10000)
    return size


cpdef Py_ssize_t memory_of(object value) except -1:
    """Return the bytes of memory that an object takes: a string, bytes, a number, None, or a tuple of these with its
    elements.

    The result for an object never changes, and equal strings have equal results. So a caller can later subtract exactly
    what it has added.
    """
    cdef Py_ssize_t size
    if value is None:
        return 0
    if type(value) is str:
        if PyUnicode_IS_ASCII(value):
            return allocated(<Py_ssize_t>sizeof(PyASCIIObject) + PyUnicode_GET_LENGTH(value) + 1)
        return (allocated(<Py_ssize_t>sizeof(PyCompactUnicodeObject)
                          + (PyUnicode_GET_LENGTH(value) + 1) * PyUnicode_KIND(value))
                + allocated(utf8_length(value) + 1))
    if type(value) is bytes:
        return allocated(<Py_ssize_t>sizeof(PyVarObject) + 8 + PyBytes_GET_SIZE(value) + 1)
    if isinstance(value, tuple):
        size = GC_HEAD_BYTES + allocated(
            <Py_ssize_t>sizeof(PyTupleObject) + (PyTuple_GET_SIZE(value) - 1) * <Py_ssize_t>sizeof(void *))
        for each in value:
            size += memory_of(each)
        return size
    if isinstance(value, (int, float)):
        return NUMBER_BYTES
    if isinstance(value, str):
        return memory_of(str(value))
    raise TypeError(f'found {type(value).__name__}, expected a string, bytes, a number, a tuple of these, or None')


cdef class RecentEntries:
    """A mapping that is limited in bytes and in entries. At a limit, the entry whose last use is oldest is removed.

    An entry counts with the memory of its key, plus `entry_bytes` for its value and its place in the table.
    """

    def __init__(self, Py_ssize_t most_bytes, Py_ssize_t most_entries, Py_ssize_t entry_bytes):
        self.most_bytes = most_bytes
        self.most_entries = most_entries
        self.entry_bytes = entry_bytes
        self.entries = OrderedDict()

    def __len__(self):
        return len(self.entries)

    cpdef object get(self, object key):
        """Return the value of a key, and make its entry the newest. Raise KeyError if the key has no entry."""
        value = self.entries[key]
        self.entries.move_to_end(key)
        return value

    cpdef put(self, object key, object value):
        """Add an entry, as the newest one. The key must not have an entry already.

        If the entry alone exceeds the limit in bytes, it is not added.
        """
        cdef Py_ssize_t more_bytes = self.entry_bytes + memory_of(key)
        if more_bytes > self.most_bytes:
            return
        while self.entries and (self.held_bytes + more_bytes > self.most_bytes
                                or len(self.entries) >= self.most_entries):
            self.forget(next(iter(self.entries)))
        self.entries[key] = value
        self.held_bytes += more_bytes

    cpdef forget(self, object key):
        """Remove the entry of a key. Raise KeyError if the key has no entry."""
        del self.entries[key]
        self.held_bytes -= self.entry_bytes + memory_of(key)

    cpdef tuple oldest(self):
        """Return (key, value) of the entry whose last use is oldest, or None if there are no entries."""
        return next(iter(self.entries.items()), None)

    cpdef clear(self):
        self.entries.clear()
        self.held_bytes = 0
