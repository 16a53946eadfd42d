# cython: language_level=3


cdef class Waiter:
    cdef bint is_woken

    cpdef look_again(self)
    cpdef answer_now(self)
    cpdef give_up(self)


cdef class WaitingRoom:
    cdef dict by_connection
    cdef list woken

    cpdef enter(self, connection_id, Waiter waiter)
    cpdef leave(self, connection_id)
    cpdef wake(self, Waiter waiter)
