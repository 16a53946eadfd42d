"""Reads, writes and syncs open files. The hot path calls the C methods of a `File`, whose system calls run without the
GIL.

A file closes when its last reference is dropped. A worker thread holds a reference while it syncs the file. A response
holds one while it sends from the file, even if the segment was deleted.
"""
import os
import stat

from libc.errno cimport EAGAIN, EINTR, EINVAL, ENOSPC, ENOSYS, EOPNOTSUPP, EPERM, errno
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from posix.fcntl cimport O_CREAT, O_DIRECTORY, O_NONBLOCK, O_RDONLY, O_RDWR
from posix.types cimport off_t
from posix.unistd cimport close as c_close, ftruncate, pread as c_pread, pwrite as c_pwrite

from kbroker.log.fs.descriptors cimport open_descriptor, sync_descriptor


cdef extern from *:
    """
    #include <errno.h>
    #include <fcntl.h>
    #include <stdint.h>
    #include <sys/uio.h>
    #include <unistd.h>
    #ifdef __linux__
    #include <linux/falloc.h>
    #include <sys/syscall.h>
    int fallocate(int fd, int mode, off_t offset, off_t len);
    int syncfs(int fd);
    #else
    /* Other systems lack these calls of Linux. The callers then do without. */
    enum { FALLOC_FL_KEEP_SIZE = 1, SYNC_FILE_RANGE_WAIT_BEFORE = 1 };
    static int kb_is_missing(void) { errno = ENOSYS; return -1; }
    #define fallocate(fd, mode, position, size) kb_is_missing()
    #define syncfs(fd) kb_is_missing()
    #define sync_file_range(fd, position, size, flags) kb_is_missing()
    #endif

    #ifndef RWF_NOWAIT
    #define RWF_NOWAIT 8
    #endif

    /* Call the kernel, because preadv2 is missing before glibc 2.26 and musl 1.2.5: a module that names it does not
     * load there. The kernel takes the position in two halves. On 64 bits, the first has all of it. */
    static ssize_t kb_pread_nowait(int fd, void *into, size_t size, off_t position)
    {
    #ifdef SYS_preadv2
        struct iovec vector = {into, size};
        return syscall(SYS_preadv2, fd, &vector, 1, (long)position, (long)((uint64_t)position >> 32), RWF_NOWAIT);
    #else
        errno = ENOSYS;
        return -1;
    #endif
    }
    """
    ssize_t pread_nowait "kb_pread_nowait"(int fd, void *into, size_t size, off_t position) nogil
    ssize_t pwritev(int fd, const iovec *pieces, int count, off_t position) nogil
    int fallocate(int fd, int mode, off_t offset, off_t length) nogil
    int syncfs(int fd) nogil
    int sync_file_range(int fd, off_t position, off_t size, unsigned int flags) nogil
    unsigned int SYNC_FILE_RANGE_WAIT_BEFORE
    int FALLOC_FL_KEEP_SIZE


cdef enum:
    WARM_BYTES = 1048576        # for one read: the kernel requests no more from the disk at a time
    SHORT_BYTES = 4096          # a read of this size takes less time than a release of the GIL


cdef int fail(str path, int code) except -1:
    raise OSError(code, os.strerror(code), path)


cdef int read_cached(int descriptor, uint8_t *into, size_t size, int64_t position, size_t *total) noexcept nogil:
    """Read bytes that are in the page cache, and add their number to `total`. Return 0, or the errno of a failure."""
    cdef ssize_t got
    while total[0] < size:
        got = pread_nowait(descriptor, into + total[0], size - total[0], position + total[0])
        if got > 0:
            total[0] += got
        elif got == 0 or errno == EAGAIN:
            break
        elif errno != EINTR:
            return errno
    return 0


cdef class File:
    """One open file. Every method may raise OSError."""

    def __cinit__(self):
        self.descriptor = -1

    def __init__(self, str path, bint create=False):
        self.path = path
        self.descriptor = open_descriptor(path, O_RDWR | (O_CREAT if create else 0))

    def __dealloc__(self):
        if self.descriptor >= 0:
            c_close(self.descriptor)

    cdef int pwrite(self, const uint8_t *data, size_t size, int64_t position) except -1:
        """Write all `size` bytes. After an error, any part of the bytes may be in the file."""
        cdef ssize_t written
        cdef int code = 0
        with nogil:
            while size:
                written = c_pwrite(self.descriptor, data, size, position)
                if written < 0:
                    code = errno
                    if code == EINTR:
                        continue
                    break
                code = 0
                data += written
                size -= written
                position += written
        return 0 if size == 0 else fail(self.path, code)

    cdef int pwrite_pieces(self, const iovec *pieces, int count, int64_t position) except -1:
        """Write several pieces of memory one after another, like `pwrite`, but in one system call. `count` is at most
        1024 (IOV_MAX).
        """
        cdef ssize_t written
        cdef size_t size
        cdef int i
        with nogil:
            written = pwritev(self.descriptor, pieces, count, position)
        # After a short write, write the remaining bytes piece by piece. After an error, write all bytes in this way: a
        # persistent error then occurs again.
        written = max(written, <ssize_t>0)
        for i in range(count):
            size = pieces[i].iov_len
            if <size_t>written < size:
                self.pwrite(<const uint8_t *>pieces[i].iov_base + written, size - written, position + written)
            written = max(written - <ssize_t>size, <ssize_t>0)
            position += size
        return 0

    cdef int64_t pread(self, uint8_t *into, size_t size, int64_t position) except -1:
        """Read `size` bytes, or fewer at the end of the file. Return the number of bytes read."""
        cdef ssize_t got
        cdef size_t total = 0
        cdef int code = 0
        with nogil:
            while total < size:
                got = c_pread(self.descriptor, into + total, size - total, position + total)
                if got > 0:
                    total += got
                elif got == 0:
                    break
                elif errno != EINTR:
                    code = errno
                    break
        return total if code == 0 else fail(self.path, code)

    cdef int64_t pread_cached(self, uint8_t *into, size_t size, int64_t position) except -1:
        """Read up to `size` bytes at `position`, as far as they are in the page cache. Return the number of bytes read.
        Never wait for the disk.

        A result below `size` means that the file ends behind the read bytes, or that the next bytes are not cached.
        `warm` brings bytes into the cache. If the file system cannot report which bytes are cached, read like `pread`.
        """
        cdef size_t total = 0
        cdef int code
        if self.always_waits:
            return self.pread(into, size, position)
        if size <= SHORT_BYTES:
            code = read_cached(self.descriptor, into, size, position, &total)
        else:
            with nogil:
                code = read_cached(self.descriptor, into, size, position, &total)
        if code == EOPNOTSUPP or code == ENOSYS or code == EPERM:     # Linux before 4.14; EPERM: a container's filter
            self.always_waits = True
            return self.pread(into, size, position)
        return total if code == 0 else fail(self.path, code)

    cdef int fdatasync(self) except -1:
        """Make the data and the size of the file durable, like `sync`."""
        cdef int code
        with nogil:
            code = sync_descriptor(self.descriptor, False)
        return 0 if code == 0 else fail(self.path, code)

    cdef int truncate(self, int64_t size) except -1:
        """Set the size of the file. Free the space that `allocate` has reserved beyond this size, even if the size does
        not change.
        """
        cdef int result, code
        with nogil:
            result = ftruncate(self.descriptor, size)
            code = errno
        return 0 if result == 0 else fail(self.path, code)

    cdef int allocate(self, int64_t position, int64_t size) except -1:
        """Reserve disk space for later writes without changing the file's size, so that a later fdatasync has less to
        do.

        Return 1, or 0 if the space cannot be reserved. After 0, a later write fails if the disk is full.
        """
        cdef int result, code
        with nogil:
            result = fallocate(self.descriptor, FALLOC_FL_KEEP_SIZE, position, size)
            code = errno
        if result == 0:
            return 1
        return 0 if code == EOPNOTSUPP or code == ENOSYS or code == ENOSPC or code == EINTR else fail(self.path, code)

    def fileno(self) -> int:
        return self.descriptor

    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def write_at(self, data, int64_t position) -> None:
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            self.pwrite(<const uint8_t *>view.buf, view.len, position)
        finally:
            PyBuffer_Release(&view)

    def read_at(self, Py_ssize_t size, int64_t position) -> bytes:
        """Return `size` bytes at `position`, or fewer at the end of the file."""
        cdef bytes data = PyBytes_FromStringAndSize(NULL, size)
        cdef int64_t got = self.pread(<uint8_t *>PyBytes_AS_STRING(data), size, position)
        return data if got == size else data[:got]

    def read_cached_at(self, Py_ssize_t size, int64_t position) -> bytes:
        """Return up to `size` bytes at `position`, as far as they are in the page cache."""
        cdef bytes data = PyBytes_FromStringAndSize(NULL, size)
        return data[:self.pread_cached(<uint8_t *>PyBytes_AS_STRING(data), size, position)]

    def warm(self, int64_t size, int64_t position) -> None:
        """Bring `size` bytes at `position` into the page cache. Call this in a worker thread: it waits for the disk,
        without the GIL.
        """
        cdef int64_t step = min(size, <int64_t>WARM_BYTES), got
        cdef uint8_t *scratch = <uint8_t *>malloc(max(step, <int64_t>1))
        if scratch == NULL:
            raise MemoryError()
        try:
            while size > 0:
                got = self.pread(scratch, min(size, step), position)
                if got == 0:
                    return
                size -= got
                position += got
        finally:
            free(scratch)

    def rewrite(self, int64_t position, int64_t end) -> None:
        """Read the bytes between `position` and `end`, and write the same bytes again. The caller must call `sync`
        afterwards.

        After a failed sync, Linux may treat data as written although the disk never received it. Later syncs skip this
        data until it is written again.
        """
        cdef int64_t step = min(end - position, <int64_t>WARM_BYTES), got
        cdef uint8_t *scratch = <uint8_t *>malloc(max(step, <int64_t>1))
        if scratch == NULL:
            raise MemoryError()
        try:
            self.forget_errors()
            while position < end:
                got = self.pread(scratch, min(end - position, step), position)
                if got == 0:
                    return
                self.pwrite(scratch, got, position)
                position += got
        finally:
            free(scratch)

    def forget_errors(self) -> None:
        """Forget the errors of earlier writes, so that `sync` reports only errors of later writes.

        The caller must write everything unsynced in the file again. Without this call, Linux reports the error of an
        earlier write to the next sync of the file, even if another process made the write.
        """
        with nogil:
            sync_file_range(self.descriptor, 0, 0, SYNC_FILE_RANGE_WAIT_BEFORE)     # like fsync, reports errors

    def resize(self, int64_t size) -> None:
        self.truncate(size)

    def sync(self) -> None:
        """Make all written bytes durable. Do not retry after an error: the content of the disk is then unknown."""
        self.fdatasync()


cdef class Directory(File):
    """An open directory. `sync` makes the creation, renaming and removal of names in it durable."""

    def __init__(self, str path):
        self.path = path
        self.descriptor = open_descriptor(path, O_RDONLY | O_DIRECTORY)

    cdef int fdatasync(self) except -1:
        cdef int code
        with nogil:
            code = sync_descriptor(self.descriptor, True)
        return 0 if code == 0 else fail(self.path, code)


cdef class WholeFileSystem(Directory):
    """The file system that contains a directory. `sync` makes everything durable that was written to this file system.
    """

    cdef int fdatasync(self) except -1:
        cdef int result, code
        with nogil:
            result = syncfs(self.descriptor)
            code = errno
        return 0 if result == 0 else fail(self.path, code)


cdef class ReadOnlyFile(File):
    """A file opened only for reading: the kernel refuses every change. Anything but a regular file is refused. A
    directory that belongs to another program may contain a pipe, and opening a pipe would wait for its other end.
    """

    def __init__(self, str path):
        self.path = path
        self.descriptor = open_descriptor(path, O_RDONLY | O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(self.descriptor).st_mode):
            raise OSError(EINVAL, 'found no regular file', path)
