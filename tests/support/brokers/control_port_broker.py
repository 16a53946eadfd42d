"""A kbroker process with a control port, and a client of that port."""
from __future__ import annotations

import http.client
import json
import pathlib
import signal
from collections.abc import Mapping
from typing import Any

from support.brokers.broker_process import BrokerProcess

LIMIT_S = 120


class ControlPortBroker(BrokerProcess):
    """A kbroker process that listens on a free port for its control."""

    def __init__(self, directory: pathlib.Path, settings: Mapping[str, str] | None = None, *,
                 control: str = '127.0.0.1:0', options: tuple[str, ...] = ()):
        super().__init__(directory, settings)
        self.control = control
        self.options = options

    def launch(self, arguments: list[str]) -> None:
        super().launch([*arguments, '--control', self.control, *self.options])

    def is_ready_line(self, line: str) -> bool:
        entry = self._entry(line)
        if entry.get('event') == 'control':
            self.control = entry['address']
        return super().is_ready_line(line)

    def wait_killed(self) -> None:
        """Wait until a rule has killed the broker. Raise AssertionError if it ends in another way."""
        code = self._wait()
        assert code == -signal.SIGKILL, f'exit code {code}:\n' + ''.join(self.lines[-50:])

    def connect_to_control(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.control, timeout=LIMIT_S)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Return (status, JSON value) of the answer to a request. `body` is a JSON value, or bytes as they are."""
        connection = self.connect_to_control()
        try:
            sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, sent, {'Content-Type': 'application/json'} | headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()
