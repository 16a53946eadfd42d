"""The one door to the disk.

Everything the broker reads or writes goes through a `FileSystem` and its `File`s, so that a test can fail, freeze or tear
any of it. On the hot path a `File` is called through C methods; the system calls run without the GIL.

A file is closed when the last reference to it goes. Nobody closes one under a worker thread that syncs it, nor under
a response that still sends from it after its segment was deleted.
"""
import fcntl
import os
import re
import resource
import stat
import struct

cimport cython
from libc.errno cimport EAGAIN, EINTR, EINVAL, EMFILE, ENFILE, ENOSYS, EOPNOTSUPP, ENOSPC, EROFS, errno
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from posix.fcntl cimport O_CLOEXEC, O_CREAT, O_DIRECTORY, O_NONBLOCK, O_RDONLY, O_RDWR
from posix.types cimport off_t
from posix.unistd cimport close as c_close, fdatasync as c_fdatasync, fsync as c_fsync, ftruncate, pread as c_pread, pwrite as c_pwrite


cdef extern from *:
    """
    #include <fcntl.h>
    #include <linux/falloc.h>
    int fallocate(int fd, int mode, off_t offset, off_t len);
    int syncfs(int fd);

    #include <sys/uio.h>
    static ssize_t kb_pread_nowait(int fd, void *into, size_t size, off_t position)
    {
        struct iovec vector = {into, size};
        return preadv2(fd, &vector, 1, position, RWF_NOWAIT);
    }
    """
    ssize_t pread_nowait "kb_pread_nowait"(int fd, void *into, size_t size, off_t position) nogil
    ssize_t pwritev(int fd, const iovec *pieces, int count, off_t position) nogil
    int fallocate(int fd, int mode, off_t offset, off_t length) nogil
    int syncfs(int fd) nogil
    int FALLOC_FL_KEEP_SIZE


cdef enum:
    WARM_BYTES = 1048576        # at once: as much as the kernel will ask the disk for in one piece
    # A read up to here is over sooner than the GIL is given back and taken again.
    SHORT_BYTES = 4096
    RELEASED_AT_ONCE = 64
    FILES_SHARE = 3             # of DESCRIPTORS_SHARES
    DESCRIPTORS_SHARES = 4

_SYNCFS_IS_SILENT = tuple(int(number) for number in re.findall(r'\d+', os.uname().release)[:2]) < (5, 8)

FLOCK = struct.Struct('@hhqqi')    # struct flock: type, whence, start, length, pid


cdef int fail(str path, int code) except -1:
    raise OSError(code, os.strerror(code), path)


def is_shortage(error) -> bool:
    """Whether an OSError says that there is no file descriptor left: that passes, and says nothing about the disk."""
    return error.errno == EMFILE or error.errno == ENFILE


cdef int open_descriptor(str path, int flags) except -1:
    """Where there is no descriptor left, files that can be opened again give theirs up."""
    try:
        return os.open(path, flags | O_CLOEXEC, 0o644)
    except OSError as error:
        if not is_shortage(error) or open_files.release(RELEASED_AT_ONCE) == 0:
            raise
    return os.open(path, flags | O_CLOEXEC, 0o644)


cdef int sync_descriptor(int descriptor, bint is_directory) noexcept nogil:
    """Returns 0, or the errno. Of a directory everything is synced, of a file its data and its size."""
    if (c_fsync(descriptor) if is_directory else c_fdatasync(descriptor)) == 0:
        return 0
    return errno


cdef int read_cached(int descriptor, uint8_t *into, size_t size, int64_t position, size_t *total) noexcept nogil:
    """Returns 0, or the errno. `total` is how many bytes there were in the page cache."""
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
    """One open file. Every method raises OSError."""

    def __cinit__(self):
        self.descriptor = -1

    def __init__(self, str path, bint create=False):
        self.path = path
        self.descriptor = open_descriptor(path, O_RDWR | (O_CREAT if create else 0))

    def __dealloc__(self):
        if self.descriptor >= 0:
            c_close(self.descriptor)

    cdef int pwrite(self, const uint8_t *data, size_t size, int64_t position) except -1:
        """Write all of it. After an error any part of it may be in the file."""
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
        """As `pwrite`, of what lies in several places, by one call; `count` is at most 1024 (IOV_MAX)."""
        cdef ssize_t written
        cdef size_t size
        cdef int i
        with nogil:
            written = pwritev(self.descriptor, pieces, count, position)
        # What is left, after an error all of it, is tried once more piece by piece, and the error met there.
        written = max(written, <ssize_t>0)
        for i in range(count):
            size = pieces[i].iov_len
            if <size_t>written < size:
                self.pwrite(<const uint8_t *>pieces[i].iov_base + written, size - written, position + written)
            written = max(written - <ssize_t>size, <ssize_t>0)
            position += size
        return 0

    cdef int64_t pread(self, uint8_t *into, size_t size, int64_t position) except -1:
        """Read up to `size` bytes; fewer than that only at the end of the file."""
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
        """Read without ever waiting for the disk: what the page cache holds from `position` on, up to `size` bytes.

        Fewer than asked for, 0 included, mean that the next ones are cold (or that the file ends): `warm` fetches them.
        A file system that cannot tell what it has is read as `pread` does.
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
        if code == EOPNOTSUPP or code == ENOSYS:
            self.always_waits = True
            return self.pread(into, size, position)
        return total if code == 0 else fail(self.path, code)

    cdef int fdatasync(self) except -1:
        cdef int code
        with nogil:
            code = sync_descriptor(self.descriptor, False)
        return 0 if code == 0 else fail(self.path, code)

    cdef int truncate(self, int64_t size) except -1:
        """Set the size. Space that `allocate` reserved beyond it is given back, even when the size stays."""
        cdef int result, code
        with nogil:
            result = ftruncate(self.descriptor, size)
            code = errno
        return 0 if result == 0 else fail(self.path, code)

    cdef int allocate(self, int64_t position, int64_t size) except -1:
        """Reserve space for writes to come without changing the file's size: an fdatasync then has less to do.

        Returns 1, or 0 where there is nothing to reserve from: the write itself will tell whether that matters.
        """
        cdef int result, code
        with nogil:
            result = fallocate(self.descriptor, FALLOC_FL_KEEP_SIZE, position, size)
            code = errno
        if result == 0:
            return 1
        return 0 if code == EOPNOTSUPP or code == ENOSPC or code == EINTR else fail(self.path, code)

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
        """Up to `size` bytes; fewer than that only at the end of the file."""
        cdef bytes data = PyBytes_FromStringAndSize(NULL, size)
        cdef int64_t got = self.pread(<uint8_t *>PyBytes_AS_STRING(data), size, position)
        return data if got == size else data[:got]

    def read_cached_at(self, Py_ssize_t size, int64_t position) -> bytes:
        """What the page cache holds of it, from `position` on."""
        cdef bytes data = PyBytes_FromStringAndSize(NULL, size)
        return data[:self.pread_cached(<uint8_t *>PyBytes_AS_STRING(data), size, position)]

    def warm(self, int64_t size, int64_t position) -> None:
        """Bring so many bytes into the page cache. For a worker thread: it waits for the disk, without the GIL."""
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

    def resize(self, int64_t size) -> None:
        self.truncate(size)

    def sync(self) -> None:
        """Make what was written durable. After an error nobody knows what is on the disk: never call it again."""
        self.fdatasync()


cdef class Directory(File):
    """A directory, for its `sync`: names made, renamed or removed in it are durable afterwards."""

    def __init__(self, str path):
        self.path = path
        self.descriptor = open_descriptor(path, O_RDONLY | O_DIRECTORY)

    cdef int fdatasync(self) except -1:
        cdef int code
        with nogil:
            code = sync_descriptor(self.descriptor, True)
        return 0 if code == 0 else fail(self.path, code)


cdef class WholeFileSystem(Directory):
    """The file system that a directory lies in, for its `sync`."""

    cdef int fdatasync(self) except -1:
        cdef int result, code
        with nogil:
            result = syncfs(self.descriptor)
            code = errno
        return 0 if result == 0 else fail(self.path, code)


cdef class ReadOnlyFile(File):
    """A file opened for reading: the kernel refuses every change.

    OSError, too, for what is no regular file: in a directory that is somebody else's a pipe may lie, and who opens one
    waits for its other end.
    """

    def __init__(self, str path):
        self.path = path
        self.descriptor = open_descriptor(path, O_RDONLY | O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(self.descriptor).st_mode):
            raise OSError(EINVAL, 'found no regular file', path)


cdef class InterposedFile(File):
    """A file whose changes pass through Python: `on_write`, `on_truncate` and `on_sync` see each before it happens, and may raise.

    `cached_bytes` says how many bytes from a position are to pass for cached.

    `on_write` returns how many of the bytes reach the file: all of them, or fewer and the write fails after those.
    """

    cdef int pwrite(self, const uint8_t *data, size_t size, int64_t position) except -1:
        error = self.on_write(PyBytes_FromStringAndSize(<const char *>data, size), position)
        if error is None:
            return File.pwrite(self, data, size, position)
        reached, exception = error
        File.pwrite(self, data, min(size, <size_t>reached), position)
        raise exception

    cdef int pwrite_pieces(self, const iovec *pieces, int count, int64_t position) except -1:
        cdef bytes data = b''.join([(<const char *>pieces[i].iov_base)[:pieces[i].iov_len] for i in range(count)])
        return self.pwrite(<const uint8_t *>PyBytes_AS_STRING(data), len(data), position)

    cdef int64_t pread_cached(self, uint8_t *into, size_t size, int64_t position) except -1:
        return File.pread_cached(self, into, self.cached_bytes(size, position), position)

    cdef int truncate(self, int64_t size) except -1:
        self.on_truncate(size)
        return File.truncate(self, size)

    cdef int fdatasync(self) except -1:
        self.on_sync()
        return File.fdatasync(self)

    def on_write(self, data: bytes, position: int):
        """None to let it pass, or (bytes that reach the file, the OSError to raise)."""

    def cached_bytes(self, size: int, position: int) -> int:
        """Of the `size` bytes at `position`."""
        return size

    def on_truncate(self, size: int) -> None:
        pass

    def on_sync(self) -> None:
        pass


@cython.no_gc_clear
cdef class LazyFile:
    """A file that is opened when it is needed, and closed when others need the descriptor more."""

    def __init__(self, fs, str path):
        self.fs = fs
        self.path = path
        self.slot = -1

    def __dealloc__(self):
        if self.slot >= 0:
            open_files.forget(self)

    cdef File get(self, bint create=False):
        """The open file. Who keeps it, or has a sync of it under way, keeps it open."""
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


cdef class OpenFiles:
    """The LazyFiles that are open: `limit` of them, for descriptors are the process's, and connections want some too.

    One that was used since the last look stays (the clock algorithm: use costs a store, not a place in a list). One that
    has bytes for which somebody awaits a sync stays: a file opened anew may not hear of what failed before.
    """

    def __init__(self):
        self.limit = FILES_SHARE * resource.getrlimit(resource.RLIMIT_NOFILE)[0] // DESCRIPTORS_SHARES

    def __len__(self) -> int:
        return self.count

    def __dealloc__(self):
        PyMem_Free(self.files)

    cdef int put(self, LazyFile file) except -1:
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

    cdef int forget(self, LazyFile file) noexcept:
        """The last one takes its place."""
        self.count -= 1
        if file.slot != self.count:
            self.files[file.slot] = self.files[self.count]
            (<LazyFile>self.files[file.slot]).slot = file.slot
        file.slot = -1
        return 0

    cpdef Py_ssize_t release(self, Py_ssize_t wanted):
        """Close up to `wanted` files that were not used lately. Returns how many."""
        cdef Py_ssize_t looks = 2 * self.count, closed = 0
        cdef LazyFile file
        while looks > 0 and closed < wanted and self.count:
            looks -= 1
            self.hand += 1
            if self.hand >= self.count:
                self.hand = 0
            file = <LazyFile>self.files[self.hand]
            if file.is_used:
                file.is_used = False
            elif not file.awaits_sync:
                file.close()
                closed += 1
        return closed


cdef OpenFiles open_files = OpenFiles()


def shared_open_files() -> OpenFiles:
    """Those of this process."""
    return open_files


def sync_inline(files, done):
    """Sync `files` here, one after the other, then `done(None)`, or `done(error)` with the OSError of the first that failed."""
    failure = None
    try:
        for file in files:
            file.sync()
    except OSError as error:
        failure = error
    done(failure)


class FileSystem:
    """The machine's files. Every method raises OSError."""

    def open(self, path: str, create: bool = False) -> File:
        return File(path, create)

    def open_directory(self, path: str) -> File:
        return Directory(path)

    def listdir(self, path: str) -> list[str]:
        return os.listdir(path)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def subdirectories(self, path: str) -> list[str]:
        """Their names, in one look."""
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir()]

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def sizes(self, path: str) -> dict[str, int]:
        """The files and directories in a directory, in one look."""
        with os.scandir(path) as entries:
            return {entry.name: entry.stat().st_size for entry in entries}

    def modified_ms(self, path: str) -> int:
        """Wall-clock time of the last change, in milliseconds."""
        return os.stat(path).st_mtime_ns // 1_000_000

    def free_bytes(self, path: str) -> int:
        """What an unprivileged process may still write in this file system."""
        state = os.statvfs(path)
        return state.f_bavail * state.f_frsize

    def total_bytes(self, path: str) -> int:
        state = os.statvfs(path)
        return state.f_blocks * state.f_frsize

    def mkdir(self, path: str) -> None:
        os.mkdir(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def rename(self, old: str, new: str) -> None:
        """Atomic; durable only after the directory is synced."""
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        """Remove a directory and the files in it. A partition directory has no directories inside."""
        for name in self.listdir(path):
            self.unlink(os.path.join(path, name))
        self.rmdir(path)

    def sync_directory(self, path: str) -> None:
        self.open_directory(path).sync()

    def sync_everything(self, path: str) -> None:
        """Make durable what was written anywhere in the file system of a directory: for many files cheaper than one after the other.

        OSError ENOSYS where Linux, before 5.8, would not tell what it could not write.
        """
        if _SYNCFS_IS_SILENT:
            raise OSError(ENOSYS, os.strerror(ENOSYS), path)
        WholeFileSystem(path).sync()

    def read_file(self, path: str) -> bytes:
        file = self.open(path)
        return file.read_at(file.size(), 0)

    def write_file(self, path: str, data: bytes) -> File:
        """Replace the content in place, without a sync: for files whose checksum tells when they are torn."""
        file = self.open(path, create=True)
        if file.size():     # the close of a file that was cut to nothing makes ext4 write it at once
            file.resize(0)
        file.write_at(data, 0)
        return file

    def write_file_atomically(self, path: str, data: bytes) -> None:
        """Readers, and a power cut, see the old content or the new: `<path>.tmp`, synced, renamed, directory synced."""
        self.write_file(path + '.tmp', data).sync()
        self.rename(path + '.tmp', path)
        self.sync_directory(os.path.dirname(path))

    def lock(self, path: str) -> File:
        """Hold the POSIX record lock on the whole file for as long as the returned File lives.

        Raises BlockingIOError or PermissionError when another process holds it. Closing any other descriptor of
        the same file in this process would drop the lock: open it through this method only.
        """
        file = File(path, True)
        fcntl.lockf(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file

    def lock_holder(self, path: str) -> int | None:
        """The process that holds the lock of `path`; 0 when it cannot be seen from here, None when nobody does.

        Never to be asked by a process that holds the lock: closing the file again would drop it.
        """
        file = ReadOnlyFile(path)
        asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = FLOCK.unpack(fcntl.fcntl(file.fileno(), fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else max(pid, 0)

    def take_after(self, path: str, model: str) -> None:
        """Give a file the owner and the mode of another: what a tool makes must be the broker's to write."""
        state = os.stat(model)
        os.chown(path, state.st_uid, state.st_gid)
        os.chmod(path, state.st_mode & 0o666)


class ReadOnlyFileSystem(FileSystem):
    """The machine's files, of which none is made, changed, renamed or removed: OSError EROFS for every attempt.

    For looking into a directory that is somebody else's, a live broker's or one that may only be read.
    """

    def open(self, path: str, create: bool = False) -> File:
        """`create` is what a writer would do with a missing file: here it stays missing."""
        return ReadOnlyFile(path)

    def mkdir(self, path: str) -> None:
        refuse_change(path)

    def rmdir(self, path: str) -> None:
        refuse_change(path)

    def rename(self, old: str, new: str) -> None:
        refuse_change(old)

    def unlink(self, path: str) -> None:
        refuse_change(path)

    def write_file(self, path: str, data: bytes) -> File:
        refuse_change(path)

    def lock(self, path: str) -> File:
        refuse_change(path)

    def take_after(self, path: str, model: str) -> None:
        refuse_change(path)


cdef refuse_change(str path):
    fail(path, EROFS)
