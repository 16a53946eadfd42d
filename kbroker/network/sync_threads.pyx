"""Threads that sync files without the GIL. So the next sync starts immediately, however busy the loop is.

Several threads are faster than one, because concurrent syncs of independent files share work. On a journalling file
system, concurrent syncs wait together for one commit of the journal, while sequential syncs wait for one commit each.
"""
import os
import threading

from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint64_t
from posix.unistd cimport close, read, write

from kbroker.base.clock cimport now_us
from kbroker.base.time_counts cimport TimeCounts, count_time, described_times
from kbroker.log.fs import sync_inline
from kbroker.log.fs.descriptors cimport sync_descriptor
from kbroker.log.fs.file cimport Directory, File


cdef extern from '<sys/eventfd.h>' nogil:
    int EFD_NONBLOCK, EFD_CLOEXEC
    int eventfd(unsigned int count, int flags)

cdef extern from '<pthread.h>' nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_mutex_init(pthread_mutex_t *mutex, void *attributes)
    int pthread_mutex_destroy(pthread_mutex_t *mutex)
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)
    int pthread_cond_init(pthread_cond_t *condition, void *attributes)
    int pthread_cond_destroy(pthread_cond_t *condition)
    int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
    int pthread_cond_signal(pthread_cond_t *condition)
    int pthread_cond_broadcast(pthread_cond_t *condition)


cdef enum:
    # The time after which the loop starts no further completion in this tick. A completion that writes a producer
    # snapshot takes 4 ms.
    COLLECT_US = 2_000


cdef struct Target:
    int descriptor
    bint is_directory

cdef struct Job:
    Job *next
    int64_t number
    int count
    int synced          # the number of targets synced so far, from the first on
    int error           # the errno of the sync that failed, or 0

cdef struct Queue:
    Job *first
    Job *last


cdef void push(Queue *queue, Job *job) noexcept nogil:
    job.next = NULL
    if queue.last == NULL:
        queue.first = job
    else:
        queue.last.next = job
    queue.last = job


cdef Job *pop(Queue *queue) noexcept nogil:
    cdef Job *job = queue.first
    if job != NULL:
        queue.first = job.next
        if job.next == NULL:
            queue.last = NULL
    return job


cdef class SyncThreads:
    """Threads that sync files. The loop calls `done` for each finished job.

    No thread waits for the GIL while it holds the mutex.
    """
    cdef int wake_fd
    cdef pthread_mutex_t mutex
    cdef pthread_cond_t work_there
    cdef Queue waiting
    cdef Queue finished
    cdef bint closing
    cdef TimeCounts times       # of the syncs, protected by the mutex
    cdef readonly int64_t files     # that were synced
    cdef readonly int64_t failures
    cdef readonly int64_t submitted     # the number of the last job
    cdef dict in_flight         # by number: (files, done); keeps the files open until they are synced
    cdef list threads

    def __cinit__(self):
        self.wake_fd = -1
        pthread_mutex_init(&self.mutex, NULL)
        pthread_cond_init(&self.work_there, NULL)

    def __init__(self, reactor, int threads, str name='sync'):
        self.in_flight = {}
        self.wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        if self.wake_fd < 0:
            raise OSError(errno, f'eventfd: {os.strerror(errno)}')
        reactor.watch(self.wake_fd, self._collect)
        # The threads are daemons: after a failure that bypasses `close`, the process must end, and not wait for their
        # work.
        self.threads = [threading.Thread(target=self._work, name=f'{name}-{index}', daemon=True)
                        for index in range(threads)]
        for thread in self.threads:
            thread.start()

    def __dealloc__(self):
        for queue in (0, 1):
            while True:
                job = pop(&self.finished if queue else &self.waiting)
                if job == NULL:
                    break
                PyMem_RawFree(job)
        pthread_cond_destroy(&self.work_there)
        pthread_mutex_destroy(&self.mutex)
        if self.wake_fd >= 0:
            close(self.wake_fd)

    def sync(self, list files, done):
        """Sync `files` one after the other in a thread, then call `done(None)` on the loop.

        At the first failure, skip the remaining files and call `done(error)` with the OSError. If a file is of a class
        of its own, syncing it needs Python, unless the class says that it does not (`syncs_in_threads`). The calling
        thread then syncs all of `files`.
        """
        cdef Job *job
        cdef Target *target
        if self.closing:
            raise RuntimeError('sync in threads that are closed')
        for file in files:
            if (type(file) is not File and type(file) is not Directory
                    and not getattr(type(file), 'syncs_in_threads', False)):
                sync_inline(files, done)
                return
        job = <Job *>PyMem_RawMalloc(sizeof(Job) + len(files) * sizeof(Target))
        if job == NULL:
            raise MemoryError()
        self.submitted += 1
        job.number, job.count, job.synced, job.error = self.submitted, <int>len(files), 0, 0
        target = <Target *>(job + 1)
        for file in files:
            target.descriptor = (<File>file).descriptor
            target.is_directory = type(file) is Directory
            target += 1
        self.in_flight[job.number] = files, done
        pthread_mutex_lock(&self.mutex)
        push(&self.waiting, job)
        pthread_cond_signal(&self.work_there)
        pthread_mutex_unlock(&self.mutex)

    def completed(self):
        """Return the number of the last job before which all jobs have completed, itself included."""
        return next(iter(self.in_flight), self.submitted + 1) - 1

    def sync_times(self):
        """Return (bounds in seconds, counts, sum in seconds) of the times that jobs took in a thread. A job syncs the
        files of one partition."""
        return described_times(&self.times)

    def close(self):
        """Finish the submitted syncs and join the threads. Completions that have not run yet run in the next tick."""
        if self.closing:
            return
        pthread_mutex_lock(&self.mutex)
        self.closing = True
        pthread_cond_broadcast(&self.work_there)
        pthread_mutex_unlock(&self.mutex)
        for thread in self.threads:
            thread.join()

    def _work(self):
        with nogil:
            self.serve()

    cdef void serve(self) noexcept nogil:
        cdef Job *job
        cdef Target *targets
        cdef uint64_t one = 1
        cdef bint is_first
        cdef int64_t began_us
        while True:
            pthread_mutex_lock(&self.mutex)
            while self.waiting.first == NULL and not self.closing:
                pthread_cond_wait(&self.work_there, &self.mutex)
            job = pop(&self.waiting)
            pthread_mutex_unlock(&self.mutex)
            if job == NULL:
                return
            targets = <Target *>(job + 1)
            began_us = now_us()
            while job.synced < job.count:
                job.error = sync_descriptor(targets[job.synced].descriptor, targets[job.synced].is_directory)
                if job.error:
                    break
                job.synced += 1
            pthread_mutex_lock(&self.mutex)
            count_time(&self.times, now_us() - began_us)
            self.files += job.synced
            self.failures += job.error != 0
            is_first = self.finished.first == NULL
            push(&self.finished, job)
            pthread_mutex_unlock(&self.mutex)
            if is_first:        # else the loop is already woken. The write cannot fail: the counter is small
                write(self.wake_fd, &one, sizeof(one))

    def _collect(self):
        cdef uint64_t count
        cdef int64_t end_us = now_us() + COLLECT_US
        cdef Queue finished
        cdef Job *job
        read(self.wake_fd, &count, sizeof(count))
        pthread_mutex_lock(&self.mutex)
        finished = self.finished
        self.finished.first = self.finished.last = NULL
        pthread_mutex_unlock(&self.mutex)
        while True:
            job = pop(&finished)
            if job == NULL:
                return
            files, done = self.in_flight.pop(job.number)
            error = OSError(job.error, os.strerror(job.error), files[job.synced].path) if job.error else None
            PyMem_RawFree(job)
            done(error)
            if finished.first != NULL and not self.closing and now_us() >= end_us:
                self.put_back(finished)
                return

    cdef void put_back(self, Queue left) noexcept:
        """Leave the completions in `left` to the next tick."""
        cdef uint64_t one = 1
        pthread_mutex_lock(&self.mutex)
        left.last.next = self.finished.first
        self.finished.first = left.first
        if self.finished.last == NULL:
            self.finished.last = left.last
        pthread_mutex_unlock(&self.mutex)
        write(self.wake_fd, &one, sizeof(one))
