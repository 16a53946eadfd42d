"""Copies of the directories of brokers."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbroker.testing.broker import Broker


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of the log directory of a broker. It stays until the test process ends, unless it is moved before."""

    directory: Path
    _broker_of: Callable[..., Broker] = field(repr=False)

    def open(self, **options: Any) -> Broker:
        """Return a new running broker with a copy of the snapshot. `options` are those of Broker, without data_dir."""
        return self._broker_of(copy_of=self.directory, **options)
