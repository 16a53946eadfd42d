"""The lines of the broker's log about administrative changes: one line for each request that changed something.

A line has the principal, its address, its listener and its client id, then the changed resources. Only changes that
succeeded are in the line: the audit has the others, and the log of decisions has the denials. A line names the first
MOST_NAMED resources. A client that makes changes without a pause gets MOST_LINES in 10 seconds, and the rest is
counted.
"""
from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from kbroker.base.clock import Timers
from kbroker.protocol.api_keys import ApiKey
from kbroker.security.escape import quoted, shown

MOST_NAMED = 20
MOST_LINES = 100
WINDOW_MS = 10_000
MOST_OF_A_RESOURCE = 500
"""The most characters of a line about one resource and its values."""

logger = logging.getLogger('kbroker.changes')

VERBS = {
    ApiKey.CREATE_TOPICS: 'created', ApiKey.DELETE_TOPICS: 'deleted', ApiKey.CREATE_PARTITIONS: 'added partitions to',
    ApiKey.DELETE_RECORDS: 'deleted records of', ApiKey.ALTER_CONFIGS: 'set all configs of',
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 'changed configs of', ApiKey.CREATE_ACLS: 'created',
    ApiKey.DELETE_ACLS: 'deleted',
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: 'changed the credentials of', ApiKey.ALTER_CLIENT_QUOTAS: 'changed',
    ApiKey.DELETE_GROUPS: 'deleted', ApiKey.OFFSET_DELETE: 'deleted offsets of',
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: 'changed offsets of', ApiKey.DELETE_SHARE_GROUP_OFFSETS: 'deleted offsets of',
    ApiKey.UPDATE_FEATURES: 'changed', ApiKey.UNREGISTER_CONTROLLER: 'unregistered',
    ApiKey.WRITE_TXN_MARKERS: 'wrote markers for'}


class ChangeLog:
    """The lines about changes within 10 seconds, and how many changes had no line."""

    def __init__(self, timers: Timers):
        self._timers = timers
        self._lines = self._left_out = 0

    def write(self, line: str) -> None:
        """Log a line, or count it if there were too many."""
        if not self._lines:
            self._timers.after(WINDOW_MS, self._end_window)
        if self._lines == MOST_LINES:
            self._left_out += 1
            return
        self._lines += 1
        logger.info('%s', line)

    def _end_window(self) -> None:
        if self._left_out:
            logger.info('%d more requests changed something within %d s; kbroker.audit.log has a line for each change',
                        self._left_out, WINDOW_MS // 1000)
        self._lines = self._left_out = 0


class ChangedResources:
    """The resources that one request has changed."""

    def __init__(self) -> None:
        self._named: list[str] = []
        self._count = 0

    def add(self, resource: str, details: Mapping[str, Any]) -> None:
        self._count += 1
        if self._count <= MOST_NAMED:
            kind, _, name = resource.partition(':')
            words = f'{kind} {quoted(name)}' if name else kind
            values = ', '.join(_values(details))
            self._named.append(shown(f'{words} ({values})' if values else words, MOST_OF_A_RESOURCE))

    def line(self, request: Any) -> str | None:
        """Return the line about a request, or None if it changed nothing."""
        if not self._count:
            return None
        left_out = self._count - len(self._named)
        client = f', client {quoted(shown(request.client_id))}' if request.client_id else ''
        return (f'{quoted(shown(str(request.principal)))} from {request.client_host} by listener '
                f'{request.connection.listener_name}{client}: {VERBS[request.api.key]} {", ".join(self._named)}'
                + (f' and {left_out} more' if left_out else ''))


def _values(details: Mapping[str, Any]) -> list[str]:
    """Return `name=value` for each detail. A detail that is a dict has several. The value None deletes a setting."""
    found: list[str] = []
    for name, value in details.items():
        if isinstance(value, Mapping):
            found += [f'{key}={quoted(str(each))}' if each is not None else f'{key} removed'
                      for key, each in value.items()]
        elif value is not None:
            found.append(f'{name}={quoted(str(value))}')
    return found
