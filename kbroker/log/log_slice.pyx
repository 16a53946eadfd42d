"""The result of a read: where its batches are in a file."""
from kbroker.base.errors import CorruptLogError


cdef class LogSlice:
    """Whole batches in a file. The first may begin below the requested offset. All of them end below `end_offset`.

    The file stays readable while the slice exists, even if its segment is deleted. Only a log creates a slice.
    """

    def __init__(self):
        raise TypeError('a slice is read from a log, not made')

    def read(self) -> bytes:
        """Return the bytes. Raises OSError, and CorruptLogError if the file became shorter."""
        data = self.file.read_at(self.size_bytes, self.position)
        if len(data) != self.size_bytes:
            raise CorruptLogError(
                f'{self.file.path}: found {len(data)} bytes at {self.position}, expected {self.size_bytes}')
        return data

    def __repr__(self):
        return (f'<LogSlice {self.size_bytes} bytes at {self.position} of {self.file.path}, '
                f'offsets {self.start_offset}..{self.end_offset}>')
