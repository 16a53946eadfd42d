"""Counts the open connections by the software that their clients name in ApiVersions (KIP-511)."""
from __future__ import annotations

from typing import Any

MOST_KINDS = 200
"""The most combinations of listener, name and version that are counted separately at a time."""
MOST_CHARACTERS = 64
OTHER = 'other'

Kind = tuple[str, str, str]
"""(listener, name, version)."""


class ClientSoftware:
    """The software of each open connection whose client has named it.

    A client chooses its name and version, so both are bounded: a connection above MOST_KINDS, or with a text of more
    than MOST_CHARACTERS, counts as OTHER.
    """

    def __init__(self) -> None:
        self._open: dict[Kind, _Open] = {}
        self._of_connections: dict[int, _Open] = {}

    def counts(self) -> list[tuple[Kind, int]]:
        """Return (kind, number of its open connections) of each kind."""
        return [(found.kind, found.connections) for found in self._open.values()]

    def note(self, connection: Any, name: str, version: str) -> None:
        """Record the name and version that a client has sent. The caller has checked their characters."""
        self.connection_closed(connection.connection_id)
        kind = connection.listener_name, name, version
        if max(len(name), len(version)) > MOST_CHARACTERS or (kind not in self._open and len(self._open) >= MOST_KINDS):
            kind = connection.listener_name, OTHER, OTHER
        found = self._open.setdefault(kind, _Open(kind))
        found.connections += 1
        self._of_connections[connection.connection_id] = found

    def connection_closed(self, connection_id: int) -> None:
        found = self._of_connections.pop(connection_id, None)
        if found is not None:
            found.connections -= 1
            if not found.connections:
                del self._open[found.kind]


class _Open:
    """The number of open connections of a kind. All of them refer to this object, which saves memory."""

    __slots__ = ('connections', 'kind')

    def __init__(self, kind: Kind):
        self.kind = kind
        self.connections = 0
