"""Where an append comes from: it decides which checks of the producer state apply."""
import enum


class Origin(enum.IntEnum):
    """The values are those that the log compares in C."""

    CLIENT = 0
    """A Produce request: all checks."""
    COORDINATOR = 1
    """Transaction markers and the rows of internal topics: epochs are checked, sequences are not."""
    REPLICATION = 2
    """Batches that are in a log already: what they say is taken over."""
    RAFT_LEADER = 3
    """The metadata log."""
