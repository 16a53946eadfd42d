# cython: language_level=3

cdef dict offsets_to_commit(list topics, list hosted)
cdef Py_ssize_t count_partitions(groups, str group_id, list topics) except -1
