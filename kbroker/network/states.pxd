# cython: language_level=3


cpdef enum Intake:
    OPEN
    STALLED
    DEAF
    ENDED
    ENDED_STALLED
    LEAVING
    CLOSED


cpdef enum Output:
    READY
    WARMING
    WARM


cpdef Intake next_intake(Intake state, Intake wanted) except *
cpdef Output next_output(Output state, Output wanted) except *
