"""The proxy of a test: `kbroker-proxy` in a process of its own, in front of any broker."""
from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, Unpack
from urllib.parse import urlencode

import kbroker
from kbroker.testing.control import WAIT_S, Control, Fault, Hold, Selector, Step
from kbroker.testing.errors import BrokerError

END_S = 10.0
PROGRAM = """
import os, signal, sys, threading

def end_with_parent():
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=end_with_parent, daemon=True).start()
from kbroker_tools.commands.proxy import main
main(prog_name='kbroker-proxy')
"""
"""Runs the command until its input ends, which it does with the process of the test, also after SIGKILL."""
READY = re.compile(r'listening on (\S+) .*the control port is on http://127\.0\.0\.1:(\d+)')


class Proxy:
    """A proxy in front of a broker or a cluster: kbroker, Apache Kafka, or another one that speaks Kafka's protocol.

    The constructor returns when the proxy serves clients at `bootstrap_servers`. `close`, or the end of a `with` block,
    ends it. Several threads may use it.

    `nodes` lets one broker appear as so many. `command_config` has the client settings for a broker with TLS or a
    login. With `tls`, the proxy speaks TLS with the clients: this directory gets `ca.pem`, which they trust.
    """

    def __init__(self, bootstrap_servers: str, *, nodes: int | None = None, command_config: Path | str | None = None,
                 tls: Path | str | None = None):
        options = ['--bootstrap-server', bootstrap_servers, '--listen', '127.0.0.1:0', '--control', '127.0.0.1:0']
        for name, value in (('--nodes', nodes), ('--command-config', command_config), ('--tls', tls)):
            if value is not None:
                options += [name, str(value)]
        packages = str(Path(kbroker.__file__).parents[1])
        path = os.pathsep.join(filter(None, (packages, os.environ.get('PYTHONPATH'))))
        self._process = subprocess.Popen([sys.executable, '-c', PROGRAM, *options], stdin=subprocess.PIPE,
                                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                         env=os.environ | {'PYTHONPATH': path})
        self.log: list[str] = []
        """The lines that the proxy has printed, such as the reason why a client was disconnected."""
        found = self._await_ready()
        self.bootstrap_servers = found[1]
        """HOST:PORT of the proxy; with `nodes`, of all virtual brokers."""
        self.control = Control(int(found[2]))
        if nodes is not None:
            self.bootstrap_servers = ','.join(each['address'] for each in self.nodes())
        self._reader = threading.Thread(target=self._read, name='proxy-log', daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _await_ready(self) -> re.Match[str]:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line.rstrip('\n'))
            if (found := READY.search(line)) is not None:
                return found
        self._process.wait()
        raise BrokerError(f'the proxy could not start: {" ".join(self.log)}')

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line.rstrip('\n'))

    def close(self) -> None:
        """End the proxy, and close all of its connections."""
        if self._process.poll() is None:
            self.control.close()
            self._process.terminate()
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._reader.join()
        for stream in (self._process.stdin, self._process.stderr):
            assert stream is not None
            stream.close()

    # ---- holds and faults

    def hold(self, point: str, **selector: Unpack[Selector]) -> Hold:
        """Hold requests at `request`, before the broker gets them, or answers at `reply`. Use the result as a context
        manager."""
        return Hold(self.control, point, 'hold', selector)

    def fail(self, point: str, error: str, **selector: Unpack[Selector]) -> Fault:
        """Answer requests with an error of Kafka, before the broker gets them. The point is `request`."""
        return Fault(self.control, point, 'error', selector, error=error)

    def delay(self, point: str, ms: int, **selector: Unpack[Selector]) -> Fault:
        """Delay requests or answers."""
        return Fault(self.control, point, 'delay', selector, delay_ms=ms)

    def drop(self, point: str, **selector: Unpack[Selector]) -> Fault:
        """Close the connection of a request: at `request` before its effect, at `reply` after it."""
        return Fault(self.control, point, 'drop', selector)

    def steps(self, since: int = 0) -> list[Step]:
        """Return the requests and replies after step `since`, in order."""
        return self.control.steps(since)

    def requests(self, since: int = 0, *, wait_s: float = 0, **select: str) -> list[Step]:
        """Return the requests after step `since` that clients have sent. Wait up to `wait_s` until there is one.

        `select` may have `api`, `client_id`, `topic`, `group` and `transactional_id`.
        """
        wait_ms = int(min(wait_s, WAIT_S) * 1000)
        query: Mapping[str, Any] = {'since': since, 'wait_ms': wait_ms, **select}
        return [Step.of(facts) for facts in self.control.ask('GET', f'/requests?{urlencode(query)}')['requests']]

    def unmatched(self) -> list[str]:
        """Return a description of each hold and fault that has matched nothing so far."""
        return self.control.unmatched()

    # ---- virtual brokers

    def nodes(self) -> list[dict[str, Any]]:
        """Return the virtual brokers, each with `id`, `address` and `is_running`."""
        found: list[dict[str, Any]] = self.control.ask('GET', '/nodes')['nodes']
        return found

    def stop_node(self, node: int) -> None:
        """Stop a virtual broker: its connections are closed, and its leaders and coordinators move to others."""
        self.control.ask('POST', f'/nodes/{node}/stop', {})

    def start_node(self, node: int) -> None:
        """Start a virtual broker again. What it has lost by its stop moves back."""
        self.control.ask('POST', f'/nodes/{node}/start', {})

    def move(self, topic: str, partition: int, to: int) -> None:
        """Let another virtual broker lead a partition."""
        self.control.ask('POST', '/move', {'topic': topic, 'partition': partition, 'to': to})
