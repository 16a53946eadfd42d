"""The audit file. A thread writes it, so that the event loop never waits for the disk.

While the file cannot be written, for example because the disk is full, the broker continues to serve. Lines wait in
memory, up to QUEUE_BYTES, and the thread repeats the write every RETRY_S seconds. If the memory is full, lines are
dropped and counted. A line with the event `lost` later reports their number. The file is not synced, so a power failure
may lose the last lines.
"""
from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from kbroker.base.clock import Clock
from kbroker.security.audit import QUEUE_BYTES, Audit, AuditLog, LogSink
from kbroker.security.escape import json_line

WRITE_BYTES = 256 * 1024
RETRY_S = 1.0
FILE_MODE = 0o600

logger = logging.getLogger('kbroker.audit')

IN_THE_LOG = 'log'
"""The value of `kbroker.audit.log` that selects the broker's own log."""

Write = Callable[[int, bytes], int]
"""os.write."""


def open_audit(setting: str, clock: Clock) -> Audit:
    """Return the audit that the value of `kbroker.audit.log` selects. Raise OSError if its file cannot be opened."""
    if not setting:
        return Audit()
    return AuditLog(LogSink() if setting == IN_THE_LOG else AuditFile(setting), clock)


class AuditFile:
    """A file to which lines are appended. The constructor raises OSError if the file cannot be opened."""

    def __init__(self, path: str, write: Write = os.write, retry_s: float = RETRY_S):
        self.path = path
        self._write = write
        self._retry_s = retry_s
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        # Each counter is changed by only one thread: `_queued_bytes` and `_lost` by the event loop, the other two by
        # the writer.
        self._queued_bytes = 0
        self._taken_bytes = 0
        self._lost = 0
        self._lost_reported = 0
        self._wants_reopening = False
        self._is_failing = False
        self._closing = threading.Event()
        self._fd = self._open()
        self._thread = threading.Thread(target=self._run, name='audit', daemon=True)
        self._thread.start()

    @property
    def waiting_bytes(self) -> int:
        """The number of bytes of the lines that are not written yet."""
        return self._queued_bytes - self._taken_bytes

    def put(self, line: str) -> None:
        """Queue a line. If the waiting lines exceed QUEUE_BYTES, drop the line, and count it as lost."""
        data = line.encode('utf-8', 'backslashreplace') + b'\n'
        if self.waiting_bytes + len(data) > QUEUE_BYTES:
            self._lost += 1
            return
        self._queued_bytes += len(data)
        self._lines.put(data)

    def reopen(self) -> None:
        """Let the thread open the path again before its next write, because the file was renamed."""
        self._wants_reopening = True
        self._lines.put(b'')

    def close(self) -> None:
        """Let the thread write the queued lines and end. The thread does not repeat a write that fails after this
        call.
        """
        self._closing.set()
        self._lines.put(b'')
        self._thread.join()
        if self._fd >= 0:
            os.close(self._fd)

    def _open(self) -> int:
        """Open the file. If a killed broker has left an incomplete last line, append a line break to it."""
        fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b'\n':
                self._write(fd, b'\n')
        except OSError:
            os.close(fd)
            raise
        return fd

    def _run(self) -> None:
        while not (self._closing.is_set() and self._lines.empty()):
            data = self._take()
            self._put_down(data)
            self._taken_bytes += len(data)
        self._report_lost()

    def _take(self) -> bytes:
        """Wait for lines, and return the lines to write next."""
        data = bytearray(self._lines.get())
        while len(data) < WRITE_BYTES:
            try:
                data += self._lines.get_nowait()
            except Empty:
                break
        return bytes(data)

    def _put_down(self, data: bytes) -> None:
        """Write the lines. Repeat the write until it succeeds, but only once after `close` was called."""
        while True:
            is_last = self._closing.is_set()
            try:
                if self._wants_reopening:
                    self._wants_reopening = False
                    self._reopen()
                while data:
                    data = data[self._write(self._fd, data):]
                self._report_lost()
            except OSError as error:
                if not self._is_failing:
                    self._is_failing = True
                    logger.error('%s: cannot be written, lines of the audit wait in memory: %s', self.path,
                                 error.strerror)
                if is_last:
                    if data:
                        logger.error('%s: %d lines of the audit are lost', self.path, data.count(b'\n'))
                    return
                self._closing.wait(self._retry_s)
                continue
            if self._is_failing:
                self._is_failing = False
                logger.info('%s: can be written again', self.path)
            return

    def _reopen(self) -> None:
        """Replace the descriptor. If the path cannot be opened, keep the old descriptor and raise OSError."""
        fd = self._open()
        os.close(self._fd)
        self._fd = fd

    def _report_lost(self) -> None:
        lost = self._lost - self._lost_reported
        if lost:
            line = json_line({'event': 'lost', 'count': lost, 'outcome': 'lost'}).encode() + b'\n'
            while line:
                line = line[self._write(self._fd, line):]
            self._lost_reported += lost
