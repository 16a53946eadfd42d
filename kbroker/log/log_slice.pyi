"""Types of log_slice.pyx, which has the documentation."""
from kbroker.log.fs import File

class LogSlice:
    file: File
    position: int
    size_bytes: int
    start_offset: int
    end_offset: int
    def read(self) -> bytes: ...
