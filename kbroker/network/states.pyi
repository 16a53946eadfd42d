"""Types of states.pyx, which has the documentation."""
import enum

class Intake(enum.IntEnum):
    OPEN = 0
    STALLED = 1
    DEAF = 2
    ENDED = 3
    ENDED_STALLED = 4
    LEAVING = 5
    CLOSED = 6

class Output(enum.IntEnum):
    READY = 0
    WARMING = 1
    WARM = 2

INTAKE_TRANSITIONS: dict[Intake, tuple[Intake, ...]]
OUTPUT_TRANSITIONS: dict[Output, tuple[Output, ...]]

def next_intake(state: Intake, wanted: Intake) -> Intake: ...
def next_output(state: Output, wanted: Output) -> Output: ...
