"""Types of unsynced.pyx; the documentation stands there."""

class Unsynced:
    def write_snapshot(self, offset: int, content: bytes) -> None: ...
