"""Producer ids, taken from blocks that the metadata log has allocated for good."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from kbroker.errors import ErrorCode, KafkaError


class ProducerIdBlocks(Protocol):
    """The controller's allocation of producer ids. A returned block is durable, and is never returned again."""

    def allocate_producer_id_block(self) -> range: ...


class ProducerIds:
    """Returns each producer id once. The rest of a block is never used after the broker stops."""

    def __init__(self, blocks: ProducerIdBlocks):
        self._blocks = blocks
        self._block: Iterator[int] = iter(())

    def next(self) -> int:
        """Return a producer id that no producer has had.

        Raises COORDINATOR_LOAD_IN_PROGRESS, on which clients retry, while no further block can be had.
        """
        for producer_id in self._block:
            return producer_id
        try:
            self._block = iter(self._blocks.allocate_producer_id_block())
        except KafkaError as error:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                             f'no further block of producer ids: {error}') from error
        return next(self._block)
