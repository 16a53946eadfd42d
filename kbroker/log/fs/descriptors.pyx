"""Opens and syncs file descriptors. If the process runs out of descriptors, closes files that can be opened again."""
import os
import resource

from libc.errno cimport EMFILE, ENFILE, errno
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from posix.fcntl cimport O_CLOEXEC
from posix.types cimport pid_t


cdef extern from *:
    """
    #include <errno.h>
    #include <fcntl.h>
    #include <unistd.h>
    #ifdef __APPLE__
    /* On macOS fsync leaves the bytes in the disk's cache. A file system without F_FULLFSYNC gets an fsync. */
    static int kb_sync(int fd, int is_directory)
    {
        if (fcntl(fd, F_FULLFSYNC) == 0) return 0;
        return errno == ENOTSUP || errno == EINVAL || errno == ENOTTY ? fsync(fd) : -1;
    }
    #else
    static int kb_sync(int fd, int is_directory) { return is_directory ? fsync(fd) : fdatasync(fd); }
    #endif

    /* The system has its own layout of struct flock. */
    static int kb_lock_holder(int fd, pid_t *holder)
    {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        if (fcntl(fd, F_GETLK, &lock) < 0) return -1;
        *holder = lock.l_pid;
        return lock.l_type != F_UNLCK;
    }
    """
    int c_sync "kb_sync"(int fd, int is_directory) nogil
    int c_lock_holder "kb_lock_holder"(int fd, pid_t *holder) nogil


cdef enum:
    RELEASED_AT_ONCE = 64
    FILES_SHARE = 3             # files may use this many of DESCRIPTORS_SHARES equal shares
    DESCRIPTORS_SHARES = 4


cdef class Reopenable:
    """A file that OpenFiles may close, because its owner can open it again."""

    def __cinit__(self):
        self.slot = -1

    cdef int close(self) noexcept:
        return 0


cdef class OpenFiles:
    """The open files that can be opened again. At most `limit` files stay open, because connections need descriptors
    too. `release` follows the clock algorithm: it keeps each file that was used since `release` last passed it. A use
    of a file costs only one store. `release` also keeps a file whose sync is awaited, because reopening the file can
    lose an earlier write error.
    """

    def __init__(self):
        self.limit = FILES_SHARE * resource.getrlimit(resource.RLIMIT_NOFILE)[0] // DESCRIPTORS_SHARES

    def __len__(self) -> int:
        return self.count

    def __dealloc__(self):
        PyMem_Free(self.files)

    cdef int put(self, Reopenable file) except -1:
        """Add a file that was just opened."""
        cdef PyObject **larger
        if self.count == self.capacity:
            larger = <PyObject **>PyMem_Realloc(self.files, max(16, 2 * self.capacity) * sizeof(PyObject *))
            if larger == NULL:
                raise MemoryError()
            self.files = larger
            self.capacity = max(16, 2 * self.capacity)
        file.slot = self.count
        self.files[self.count] = <PyObject *>file
        self.count += 1
        return 0

    cdef int forget(self, Reopenable file) noexcept:
        """Remove a file from the open files. The last file in the array moves to the free slot."""
        self.count -= 1
        if file.slot != self.count:
            self.files[file.slot] = self.files[self.count]
            (<Reopenable>self.files[file.slot]).slot = file.slot
        file.slot = -1
        return 0

    cpdef Py_ssize_t release(self, Py_ssize_t wanted):
        """Close up to `wanted` files that were not used recently. Return their number."""
        cdef Py_ssize_t looks = 2 * self.count, closed = 0
        cdef Reopenable file
        while looks > 0 and closed < wanted and self.count:
            looks -= 1
            self.hand += 1
            if self.hand >= self.count:
                self.hand = 0
            file = <Reopenable>self.files[self.hand]
            if file.is_used:
                file.is_used = False
            elif not file.awaits_sync:
                file.close()
                closed += 1
        return closed


cdef OpenFiles open_files = OpenFiles()


def shared_open_files() -> OpenFiles:
    """Return the OpenFiles that the whole process shares."""
    return open_files


def is_shortage(error) -> bool:
    """Return whether an OSError means that no file descriptor is left. This is a temporary shortage, not a failure of
    the disk.
    """
    return error.errno == EMFILE or error.errno == ENFILE


cdef int open_descriptor(str path, int flags) except -1:
    """Open a file. If no descriptor is left, close some of the files that can be opened again, and retry."""
    try:
        return os.open(path, flags | O_CLOEXEC, 0o644)
    except OSError as error:
        if not is_shortage(error) or open_files.release(RELEASED_AT_ONCE) == 0:
            raise
    return os.open(path, flags | O_CLOEXEC, 0o644)


cdef int sync_descriptor(int descriptor, bint is_directory) noexcept nogil:
    """Sync a directory, or the data and the size of a file. Return 0, or the errno of a failure."""
    return 0 if c_sync(descriptor, is_directory) == 0 else errno


def lock_holder(int descriptor):
    """Return the id of the process that holds a record lock on an open file, or None if the file is not locked.

    Return 0 if the id of that process is not visible to this process.
    """
    cdef pid_t holder = 0
    cdef int held = c_lock_holder(descriptor, &holder)
    if held < 0:
        raise OSError(errno, os.strerror(errno))
    return max(holder, 0) if held else None
