"""Declares the structures of Arrow's C data interface, and the Arrow formats that kbroker reads and writes."""
from libc.stdint cimport int64_t, uint8_t


cdef extern from *:
    """
    #include <stdint.h>
    #ifndef KB_ARROW
    #define KB_ARROW
    struct kb_arrow_schema {
        const char *format; const char *name; const char *metadata; int64_t flags; int64_t n_children;
        struct kb_arrow_schema **children; struct kb_arrow_schema *dictionary;
        void (*release)(struct kb_arrow_schema *); void *private_data;
    };
    struct kb_arrow_array {
        int64_t length; int64_t null_count; int64_t offset; int64_t n_buffers; int64_t n_children;
        const void **buffers; struct kb_arrow_array **children; struct kb_arrow_array *dictionary;
        void (*release)(struct kb_arrow_array *); void *private_data;
    };
    struct kb_arrow_stream {
        int (*get_schema)(struct kb_arrow_stream *, struct kb_arrow_schema *);
        int (*get_next)(struct kb_arrow_stream *, struct kb_arrow_array *);
        const char *(*get_last_error)(struct kb_arrow_stream *);
        void (*release)(struct kb_arrow_stream *); void *private_data;
    };
    #endif
    """
    ctypedef struct ArrowSchema "struct kb_arrow_schema":
        const char *format
        const char *name
        int64_t flags
        void (*release)(ArrowSchema *) noexcept
    ctypedef struct ArrowArray "struct kb_arrow_array":
        int64_t length
        int64_t null_count
        int64_t offset
        int64_t n_buffers
        const void **buffers
        void (*release)(ArrowArray *) noexcept
        void *private_data
    ctypedef struct ArrowStream "struct kb_arrow_stream":
        int (*get_schema)(ArrowStream *, ArrowSchema *) noexcept
        int (*get_next)(ArrowStream *, ArrowArray *) noexcept
        const char *(*get_last_error)(ArrowStream *) noexcept


cdef class ArrowColumn:
    cdef readonly bytes format
    cdef readonly int64_t count
    cdef Py_ssize_t chunks_count
    cdef list capsules          # the capsules that own the arrays not in `own`
    cdef ArrowArray *only
    cdef ArrowArray *own        # the chunks of a stream, which this object owns
    cdef ArrowSchema own_schema

    cdef int read_stream(self, capsule) except -1
    cdef int add_chunk(self, const ArrowArray *chunk) except -1
    cdef const ArrowArray *chunk(self, Py_ssize_t index) noexcept


cdef inline bint is_null(const ArrowArray *chunk, Py_ssize_t row) noexcept nogil:
    cdef const uint8_t *validity = <const uint8_t *>chunk.buffers[0]
    row += chunk.offset
    return validity != NULL and not validity[row >> 3] >> (row & 7) & 1


cdef tuple binary_capsules(Py_ssize_t count, Py_ssize_t nulls, const void *validity, const void *offsets,
                           const void *data, object owner)
