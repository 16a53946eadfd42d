"""A buffered writer of text to a file descriptor, in C."""
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    DECIMAL_BYTES = 20          # the longest text of an int64
    LINE_BYTES = 1024           # the room that `room_for_line` provides

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    static const char kb_pairs[201] =
        "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849"
        "5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";
    static inline char *kb_put_decimal(char *at, int64_t value) {
        char digits[20], *first = digits + 20;
        uint64_t rest = (uint64_t)value;
        if (value < 0) { *at++ = '-'; rest = 0 - rest; }
        while (rest >= 100) { first -= 2; memcpy(first, kb_pairs + 2 * (rest % 100), 2); rest /= 100; }
        if (rest >= 10) { first -= 2; memcpy(first, kb_pairs + 2 * rest, 2); }
        else *--first = (char)('0' + rest);
        memcpy(at, first, digits + 20 - first);
        return at + (digits + 20 - first);
    }
    #define kb_put_literal(at, text) (memcpy(at, text, sizeof(text) - 1), (at) + sizeof(text) - 1)
    """
    char *put_decimal "kb_put_decimal"(char *at, int64_t value) noexcept nogil
    char *put_literal "kb_put_literal"(char *at, const char *text) noexcept nogil   # takes a string literal


cdef class Sink:
    cdef readonly int fd
    cdef readonly int64_t written_bytes
    cdef char *buffer
    cdef Py_ssize_t used

    cdef char *room_for_line(self) except NULL
    cdef void end_at(self, const char *at) noexcept
    cpdef int end_line(self) except -1
    cdef int put_bytes(self, const char *data, Py_ssize_t size) except -1
    cdef int put_text(self, const uint8_t *data, Py_ssize_t size) except -1
    cpdef int flush(self) except -1
