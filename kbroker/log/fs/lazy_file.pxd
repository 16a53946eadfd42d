# cython: language_level=3
from kbroker.log.fs.descriptors cimport Reopenable
from kbroker.log.fs.file cimport File


cdef class LazyFile(Reopenable):
    cdef object fs
    cdef readonly str path
    cdef File file

    cdef File get(self, bint create=*)
