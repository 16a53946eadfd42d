"""The bounds on the resources that peers may use, and the settings of their sockets."""
from __future__ import annotations

import sys
from typing import NamedTuple

from kbroker.base.lean_dataclasses import dataclass

UNBOUNDED = sys.maxsize


class Limits(NamedTuple):
    """The bounds on connections and on the memory that they hold.

    `max_held_bytes` bounds the memory that all connections together hold, as `ConnectionMemory` counts it; 0 or less
    means no bound. A `max_idle_ms` below 0 never closes an idle connection.
    """

    max_request_bytes: int
    max_held_bytes: int = -1
    max_idle_ms: int = -1
    max_connections: int = UNBOUNDED
    max_connections_per_ip: int = UNBOUNDED


@dataclass(frozen=True)
class SocketOptions:
    """Settings of listening sockets. Accepted sockets inherit the buffer sizes; -1 leaves them to the kernel."""

    backlog: int = 4096
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
