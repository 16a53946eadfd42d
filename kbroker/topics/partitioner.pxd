# cython: language_level=3
from libc.stdint cimport uint32_t


cpdef uint32_t partition_for(str key, uint32_t partitions) except? 0xFFFFFFFF
