# cython: language_level=3
from kbroker.log.batch_walk cimport BatchWalk
from kbroker.record.batch cimport Marker


cdef int read_marker_at(BatchWalk walk, Marker *marker) except -1
