# cython: language_level=3

from kbroker.apis.serving.request cimport Request


cdef list topics_to_commit(Request request, list topics, bint by_id)
cdef dict offsets_to_commit(list topics, list hosted)
cdef Py_ssize_t count_partitions(groups, str group_id, list topics) except -1
