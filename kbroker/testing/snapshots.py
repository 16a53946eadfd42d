"""Copies of the directories of brokers."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from typing import Unpack

    from kbroker.testing.broker import Broker


class CopyOptions(TypedDict, total=False):
    settings: Mapping[str, str]
    listeners: Mapping[str, str]
    control: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of the log directory of a broker. It stays until the test process ends, unless it is moved before."""

    directory: Path
    _broker_of: Callable[..., Broker] = field(repr=False)

    def open(self, **options: Unpack[CopyOptions]) -> Broker:
        """Return a new running broker with a copy of the snapshot. `options` are those of Broker."""
        return self._broker_of(copy_of=self.directory, **options)
