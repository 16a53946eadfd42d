# cython: language_level=3


cdef class Topic:
    cdef readonly str name
    cdef readonly bytes encoded_name
    cdef readonly bytes topic_id
    cdef readonly list partitions
    cdef readonly bint is_internal
    cdef public dict overrides
    cdef public object config
    cdef public object produce_rules
    cdef public object metadata
