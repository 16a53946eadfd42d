# cython: language_level=3

cdef dict offsets_to_commit(list topics, list hosted)
