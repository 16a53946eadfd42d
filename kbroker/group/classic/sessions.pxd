# cython: language_level=3
from libc.stdint cimport int64_t

from kbroker.base.clock cimport Clock, Timers
from kbroker.group.classic.group cimport ClassicGroup
from kbroker.group.classic.members cimport Member
from kbroker.group.group cimport Group


cdef class Sessions:
    cdef Clock _clock
    cdef Timers _timers
    cdef object _on_silence

    cpdef restart(self, ClassicGroup group, Member member, int64_t timeout_ms=*)
    cpdef touch(self, Group group, str member_id)
    cdef await_life(self, ClassicGroup group, Member member, int64_t timeout_ms)
