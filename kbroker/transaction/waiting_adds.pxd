# cython: language_level=3
from kbroker.base.clock cimport Timers


cdef class WaitingAdds:
    cdef Timers timers
    cdef dict by_id                 # transactional.id: list of Timer

    cdef int wait(self, str transactional_id, attempt) except -1
    cdef int wake(self, str transactional_id) except -1
