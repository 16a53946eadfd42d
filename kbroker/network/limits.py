"""The limits on the resources that peers may use, and the options of their sockets."""
from __future__ import annotations

import sys
from typing import NamedTuple

from kbroker.base.lean_dataclasses import dataclass

UNBOUNDED = sys.maxsize


class Limits(NamedTuple):
    """The limits on connections and on the memory that they hold.

    `max_held_bytes` limits the memory that all connections together hold, as `ConnectionMemory` counts it; 0 or less
    means no limit. If `max_idle_ms` is below 0, idle connections are never closed.
    """

    max_request_bytes: int
    max_held_bytes: int = -1
    max_idle_ms: int = -1
    max_connections: int = UNBOUNDED
    max_connections_per_ip: int = UNBOUNDED


@dataclass(frozen=True)
class SocketOptions:
    """The options of listening sockets. Accepted sockets inherit the buffer sizes. -1 lets the kernel choose a size."""

    backlog: int = 4096
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
