"""A supervisor of a program: it starts the program, and starts it again after each error, as an operator's would."""
import os
import subprocess
import sys
import threading
import time

from support.brokers.broker_process import ROOT


class Supervisor:
    """Runs a loop as a process until it has committed the offsets of `count` records, during a `with` block."""

    def __init__(self, module, address, name, count):
        self._command = [sys.executable, module.__file__, address, name, str(count)]
        self._lock = threading.Lock()
        self._process = None
        self.restart()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._process.kill()
        self._process.wait()

    def restart(self):
        """Kill the process, if it runs, and start it. Any thread may call this method."""
        with self._lock:
            if self._process is not None:
                self.__exit__()
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                             stderr=subprocess.DEVNULL, env=os.environ | {'PYTHONPATH': str(ROOT)})

    def wait(self, limit_s):
        """Wait until the loop has done its work. Start it again whenever it ends with an error."""
        deadline = time.monotonic() + limit_s
        while True:
            process = self._process
            try:
                code = process.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                raise AssertionError(f'the loop has not committed all offsets within {limit_s} s') from None
            if code == 0:
                return
            if process is self._process:
                self.restart()
