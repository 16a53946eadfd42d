"""The two states of a connection, and the transitions between them. A wrong transition raises ValueError.

`Intake` says what happens to the bytes that the peer sends:

    OPEN            they are read, and their frames are served
    STALLED         frames are held back
    DEAF            frames are held back, and the socket has unread bytes, which epoll must not report
    ENDED           the peer sends no more; the frames that have arrived are served
    ENDED_STALLED   the peer sends no more; the frames that have arrived are held back
    LEAVING         no more frames are served; the missing replies are still sent
    CLOSED          nothing is sent, and the socket is closed

`Output` says what happens to the replies:

    READY           they are sent
    WARMING         a worker reads the next part of a file into the page cache; nothing is sent until it is done
    WARM            the worker is done; the next part is read once, even if that means waiting for the disk
"""

INTAKE_TRANSITIONS = {
    Intake.OPEN: (Intake.STALLED, Intake.ENDED, Intake.LEAVING, Intake.CLOSED),
    Intake.STALLED: (Intake.OPEN, Intake.DEAF, Intake.LEAVING, Intake.CLOSED),
    Intake.DEAF: (Intake.OPEN, Intake.LEAVING, Intake.CLOSED),
    Intake.ENDED: (Intake.ENDED_STALLED, Intake.LEAVING, Intake.CLOSED),
    Intake.ENDED_STALLED: (Intake.ENDED, Intake.LEAVING, Intake.CLOSED),
    Intake.LEAVING: (Intake.CLOSED,),
    Intake.CLOSED: (),
}

OUTPUT_TRANSITIONS = {
    Output.READY: (Output.WARMING,),
    Output.WARMING: (Output.WARM,),
    Output.WARM: (Output.READY,),
}


cdef int allowed_intakes[Intake.CLOSED + 1]     # by state; one bit for each state that may follow it
cdef int allowed_outputs[Output.WARM + 1]


cdef int fill(int *allowed, dict transitions) except -1:
    for state, followers in transitions.items():
        allowed[<int>state] = sum([1 << follower for follower in followers])
    return 0


fill(allowed_intakes, INTAKE_TRANSITIONS)
fill(allowed_outputs, OUTPUT_TRANSITIONS)


cpdef Intake next_intake(Intake state, Intake wanted) except *:
    """Return `wanted`. Raise ValueError if `wanted` may not follow `state`."""
    if not allowed_intakes[<int>state] >> <int>wanted & 1:
        raise ValueError(f'intake: {Intake(wanted).name} does not follow {Intake(state).name}')
    return wanted


cpdef Output next_output(Output state, Output wanted) except *:
    """Return `wanted`. Raise ValueError if `wanted` may not follow `state`."""
    if not allowed_outputs[<int>state] >> <int>wanted & 1:
        raise ValueError(f'output: {Output(wanted).name} does not follow {Output(state).name}')
    return wanted
