"""The origin of an append, which decides which checks of the producer state apply."""
import enum


class Origin(enum.IntEnum):
    """The origin of an append. The values are those of AppendOrigin in append.pxd."""

    CLIENT = 0
    """A Produce request: all checks."""
    COORDINATOR = 1
    """Transaction markers and rows of internal topics: epochs are checked, but not sequences."""
    REPLICATION = 2
    """Batches that are in a log already: nothing is checked."""
    RAFT_LEADER = 3
    """The metadata log."""
