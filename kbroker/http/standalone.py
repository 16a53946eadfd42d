"""An HTTP server that is a process of its own: a loop for its connections, and a thread for blocking work."""
from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterable

from kbroker.base.clock import Clock, Timers
from kbroker.base.long_work import LongWork
from kbroker.http.routes import Route, Routes
from kbroker.http.server import HttpServer
from kbroker.network.reactor import Reactor
from kbroker.network.worker import Submit, Worker


class StandaloneServer:
    """Serves routes until SIGTERM or SIGINT.

    `submit(job, done)` runs `job()` in the thread, and then `done(result)` on the loop; the result of a job that fails
    is its exception.
    """

    def __init__(self) -> None:
        self.clock = Clock()
        self.timers = Timers(self.clock)
        self.reactor = Reactor(self.clock, self.timers)
        self._worker = Worker(self.reactor, name='http')

    @property
    def submit(self) -> Submit:
        return self._worker.submit

    def run(self, listener: socket.socket, routes: Iterable[Route], *, only_local_names: bool,
            at_end: Callable[[], object] | None = None) -> None:
        """Serve until a signal ends the process, or until `stop`. In the end, call `at_end` and close the listener."""
        server = HttpServer(self.reactor, LongWork(self.timers), listener,
                            Routes(routes, only_local_names=only_local_names))

        def end() -> None:
            if at_end is not None:
                at_end()
            server.close()
            listener.close()

        self.run_loop(end)

    def run_loop(self, at_end: Callable[[], object]) -> None:
        """Run the loop until a signal ends the process, or until `stop`. In the end, call `at_end`."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self.reactor.on_signal(number, self.reactor.stop)
        try:
            self.reactor.run()
        finally:
            at_end()
            self.reactor.close()

    def stop(self) -> None:
        """Let `run` return."""
        self.reactor.stop()
