"""Files that hold a descriptor only while they are used."""
cimport cython

from kbroker.log.fs.descriptors cimport Reopenable, open_files
from kbroker.log.fs.file cimport File


@cython.no_gc_clear
cdef class LazyFile(Reopenable):
    """A file that is opened on its first use. OpenFiles may close it when another file needs a descriptor; the next use
    opens it again.
    """

    def __init__(self, fs, str path):
        self.fs = fs
        self.path = path

    def __dealloc__(self):
        if self.slot >= 0:
            open_files.forget(self)

    cdef File get(self, bint create=False):
        """Return the open file. It stays open as long as the caller keeps the reference."""
        if self.file is None:
            open_files.release(open_files.count + 1 - open_files.limit)
            self.file = self.fs.open(self.path, create)
            if self.slot < 0:
                open_files.put(self)
        self.is_used = True
        return self.file

    cdef int close(self) noexcept:
        if self.slot >= 0:
            open_files.forget(self)
        self.file = None
        return 0
