"""What a read answers: where in a file the batches lie."""
from kbroker.errors import CorruptLogError


cdef class LogSlice:
    """Whole batches in a file. The first may begin below the offset asked for; all of them end below `end_offset`.

    The file stays readable while the slice lives, also when its segment is deleted. Only a log makes one.
    """

    def __init__(self):
        raise TypeError('a slice is read from a log, not made')

    def read(self) -> bytes:
        """The bytes. Raises OSError, and CorruptLogError if the file became shorter."""
        data = self.file.read_at(self.size_bytes, self.position)
        if len(data) != self.size_bytes:
            raise CorruptLogError(f'{self.file.path}: found {len(data)} bytes at {self.position}, expected {self.size_bytes}')
        return data

    def __repr__(self):
        return f'<LogSlice {self.size_bytes} bytes at {self.position} of {self.file.path}, offsets {self.start_offset}..{self.end_offset}>'
