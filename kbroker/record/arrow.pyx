"""Columns for other libraries, through Arrow's C data interface: nothing is copied, and pyarrow is not imported."""
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdlib cimport calloc, free

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
    if array.release != NULL:   # else the library that took the array releases it
        array.release(array)
    free(array)


cdef tuple binary_capsules(Py_ssize_t count, Py_ssize_t nulls, const void *validity, const void *offsets,
                           const void *data, object owner):
    """Return the capsules (schema, array) of a column of bytes with int32 offsets. `owner` holds the memory."""
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
