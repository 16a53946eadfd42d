"""Types of unsynced.pyx: it has no names for Python."""
