"""Exchanges columns with other libraries through Arrow's C data interface. No data is copied, and pyarrow is not
imported.
"""
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

cdef enum:
    NULLABLE = 2

cdef struct Lent:
    const void *buffers[3]
    PyObject *owner


cdef void release_schema(ArrowSchema *schema) noexcept:
    schema.release = NULL


cdef void release_array(ArrowArray *array) noexcept with gil:
    cdef Lent *lent = <Lent *>array.private_data
    Py_DECREF(<object>lent.owner)
    free(lent)
    array.release = NULL


cdef void end_schema(object capsule) noexcept:
    cdef ArrowSchema *schema = <ArrowSchema *>PyCapsule_GetPointer(capsule, 'arrow_schema')
    if schema.release != NULL:
        schema.release(schema)
    free(schema)


cdef void end_array(object capsule) noexcept:
    cdef ArrowArray *array = <ArrowArray *>PyCapsule_GetPointer(capsule, 'arrow_array')
    if array.release != NULL:   # NULL if the receiver has taken the array
        array.release(array)
    free(array)


cdef tuple binary_capsules(Py_ssize_t count, Py_ssize_t nulls, const void *validity, const void *offsets,
                           const void *data, object owner):
    """Return the Arrow capsules (schema, array) of a column of bytes with int32 offsets. The array keeps a reference to
    `owner`, which owns the memory.
    """
    cdef ArrowSchema *schema = <ArrowSchema *>calloc(1, sizeof(ArrowSchema))
    cdef ArrowArray *array = <ArrowArray *>calloc(1, sizeof(ArrowArray))
    cdef Lent *lent = <Lent *>calloc(1, sizeof(Lent))
    if schema == NULL or array == NULL or lent == NULL:
        free(schema)
        free(array)
        free(lent)
        raise MemoryError
    schema.format, schema.name, schema.flags, schema.release = b'z', b'', NULLABLE, release_schema
    lent.buffers[0], lent.buffers[1], lent.buffers[2] = validity, offsets, data
    lent.owner = <PyObject *>owner
    Py_INCREF(owner)
    array.length, array.null_count, array.n_buffers = count, nulls, 3
    array.buffers, array.private_data, array.release = lent.buffers, lent, release_array
    schema_capsule = PyCapsule_New(schema, 'arrow_schema', end_schema)
    return schema_capsule, PyCapsule_New(array, 'arrow_array', end_array)


cdef class ArrowColumn:
    """A column that another library has passed, as one Arrow array or in chunks. `format` is Arrow's format string for
    its type.
    """

    def __cinit__(self, source):
        if hasattr(source, '__arrow_c_array__'):
            self.capsules = list(source.__arrow_c_array__())
            self.format = (<ArrowSchema *>PyCapsule_GetPointer(self.capsules[0], 'arrow_schema')).format
            self.only = <ArrowArray *>PyCapsule_GetPointer(self.capsules[1], 'arrow_array')
            self.chunks_count, self.count = 1, self.only.length
        else:
            self.read_stream(source.__arrow_c_stream__())

    def __dealloc__(self):
        cdef Py_ssize_t i
        if self.own != NULL:
            for i in range(self.chunks_count):
                self.own[i].release(&self.own[i])
            free(self.own)
        if self.own_schema.release != NULL:
            self.own_schema.release(&self.own_schema)

    cdef int read_stream(self, capsule) except -1:
        cdef ArrowStream *stream = <ArrowStream *>PyCapsule_GetPointer(capsule, 'arrow_array_stream')
        cdef ArrowArray chunk
        cdef const char *reason
        cdef int code = stream.get_schema(stream, &self.own_schema)
        while code == 0:
            memset(&chunk, 0, sizeof(chunk))
            code = stream.get_next(stream, &chunk)
            if code == 0 and chunk.release == NULL:
                self.format = self.own_schema.format
                return 0
            if code == 0:
                self.add_chunk(&chunk)
        reason = stream.get_last_error(stream)
        raise ValueError(f'an Arrow stream failed with code {code}: {"" if reason == NULL else reason.decode()}')

    cdef int add_chunk(self, const ArrowArray *chunk) except -1:
        cdef ArrowArray *wider = <ArrowArray *>realloc(self.own, (self.chunks_count + 1) * sizeof(ArrowArray))
        if wider == NULL:
            chunk.release(<ArrowArray *>chunk)
            raise MemoryError(f'{self.chunks_count + 1} chunks')
        self.own = wider
        self.own[self.chunks_count] = chunk[0]
        self.chunks_count += 1
        self.count += chunk.length
        return 0

    cdef const ArrowArray *chunk(self, Py_ssize_t index) noexcept:
        return self.only if self.only != NULL else &self.own[index]
