"""Copies of the directories of brokers."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbroker.testing.broker import Broker


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of the log directory of a broker. It stays until the test process ends, unless it is moved before."""

    directory: Path

    def open(self, **options: Any) -> Broker:
        """Return a new running broker with a copy of the snapshot. `options` are those of Broker, without data_dir."""
        from kbroker.testing.broker import Broker

        return Broker(copy_of=self.directory, **options)
