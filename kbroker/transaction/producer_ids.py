"""Producer ids, from blocks that the metadata log has given away for good."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from kbroker.errors import ErrorCode, KafkaError


class ProducerIdBlocks(Protocol):
    """The controller's allocation of producer ids. A returned block is durable, and is never returned again."""

    def allocate_producer_id_block(self) -> range: ...


class ProducerIds:
    """Gives each producer id once. What is left of a block when the broker stops is never used."""

    def __init__(self, blocks: ProducerIdBlocks):
        self._blocks = blocks
        self._block: Iterator[int] = iter(())

    def next(self) -> int:
        """A producer id that no producer has had.

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
