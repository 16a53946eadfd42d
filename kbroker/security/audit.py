"""The audit: logins, denials and administrative changes, one JSON object per line.

Each line has `time` (UTC), `event` and `outcome`. It also has `principal`, `host`, `listener`, `client_id`, `api` and
`resource`, if they are known. `outcome` is `ok` or the name of an error code. No line has a password, a token, a salt
or a key.

The events: `started` and `stopped`; `login`, `reauthentication`; `denied`; `change`; `lost`, which has the number of
lines that could not be written.
"""
from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, Protocol

from kbroker.base.clock import Clock
from kbroker.base.errors import ErrorCode
from kbroker.base.ledger import Line
from kbroker.security.acl_codes import name_of
from kbroker.security.escape import json_line, shown

MOST_OF_A_FIELD = 1024
QUEUE_BYTES = 8 * 1024 * 1024
"""The largest number of bytes of the lines that wait to be written to the file."""
OK = 'ok'

logger = logging.getLogger('kbroker.audit')


def outcome_of(code: int) -> str:
    """Return the value of `outcome` for one of Kafka's error codes."""
    return OK if code == 0 else name_of(ErrorCode, code)


class Sink(Protocol):
    """The destination of the audit lines."""

    @property
    def waiting_bytes(self) -> int: ...

    def put(self, line: str) -> None: ...
    def reopen(self) -> None: ...
    def close(self) -> None: ...


class LogSink:
    """A sink that writes the audit lines to the broker's own log, at level INFO."""

    waiting_bytes = 0

    def put(self, line: str) -> None:
        logger.info('%s', line)

    def reopen(self) -> None:
        """Do nothing, because the log is not a file of this process."""

    def close(self) -> None:
        """Do nothing."""


class Audit:
    """An audit that writes nothing, and the base class of the audit that writes."""

    is_on = False
    is_in_log = False
    """The lines of the audit are in the broker's log."""

    @property
    def waiting_bytes(self) -> int:
        """The number of bytes of the lines that are not yet written."""
        return 0

    def ledger(self) -> list[Line]:
        return [Line('lines of the audit that wait', 'bytes', lambda: self.waiting_bytes, lambda: QUEUE_BYTES,
                     'later lines are counted')]

    def write(self, event: str, **fields: Any) -> None:
        """Write one line. Cap the length of texts, and omit fields that are None."""

    def denied(self, fields: Mapping[str, Any]) -> None:
        """Write one line about a denial, or about several equal denials that `DecisionLog` has counted."""
        self.write('denied', outcome='denied', count=fields.get('repeated', 1), principal=fields['principal'],
                   host=fields['host'], api=fields['request'], operation=fields['operation'],
                   resource=fields['resource'], rule=fields['rule'])

    def reopen(self) -> None:
        """Continue the audit in a new file, because the old file was renamed."""

    def close(self) -> None:
        """Write the queued lines, and the line of the event `stopped`."""


class AuditLog(Audit):
    """An audit that writes to a sink."""

    is_on = True

    def __init__(self, sink: Sink, clock: Clock):
        self._sink = sink
        self.is_in_log = isinstance(sink, LogSink)
        self._clock = clock
        self.write('started', outcome=OK)

    @property
    def waiting_bytes(self) -> int:
        return self._sink.waiting_bytes

    def write(self, event: str, **fields: Any) -> None:
        line = {'time': self._now(), 'event': event}
        line |= {name: shown(value, MOST_OF_A_FIELD) if isinstance(value, str) else value
                 for name, value in fields.items() if value is not None}
        self._sink.put(json_line(line))

    def _now(self) -> str:
        now_s, now_ms = divmod(self._clock.wall_ms(), 1000)
        return f'{time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_s))}.{now_ms:03}Z'

    def reopen(self) -> None:
        self._sink.reopen()

    def close(self) -> None:
        self.write('stopped', outcome=OK)
        self._sink.close()
