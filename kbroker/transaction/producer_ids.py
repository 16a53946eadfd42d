"""Producer ids, from blocks that the metadata log has allocated durably."""
from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any, Protocol

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work import LongWork

FEW = 100
"""When this many ids of a block are left, the next block is requested: a tenth of a block, as in Kafka."""
NO_IDS = range(0)

logger = logging.getLogger(__name__)


class ProducerIdBlocks(Protocol):
    """The controller's allocation of blocks of producer ids.

    A returned block is durable, and is never returned again.
    """

    def allocate_producer_id_block(self) -> Generator[Any, None, range]: ...

    def at_once(self, steps: Generator[Any, None, range]) -> range: ...


class ProducerIds:
    """Returns each producer id only once. Ids of a block that are left when the broker stops are never used.

    The next block is requested before the current block is used up. So only the first id after a start waits for the
    disk.
    """

    def __init__(self, blocks: ProducerIdBlocks, long_work: LongWork):
        self._blocks = blocks
        self._long_work = long_work
        self._left = NO_IDS
        self._next_block = NO_IDS
        self._is_ordered = False

    def next(self) -> int:
        """Return a producer id that no producer has had.

        Raise COORDINATOR_LOAD_IN_PROGRESS if no further block can be allocated now. Clients then retry.
        """
        if not self._left:
            self._left, self._next_block = self._next_block or self._allocated(), NO_IDS
        producer_id, self._left = self._left[0], self._left[1:]
        if len(self._left) < FEW and not self._next_block and not self._is_ordered:
            self._is_ordered = True
            self._long_work.start(self._blocks.allocate_producer_id_block(), self._adopt)
        return producer_id

    def _allocated(self) -> range:
        try:
            return self._blocks.at_once(self._blocks.allocate_producer_id_block())
        except KafkaError as error:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                             f'no further block of producer ids: {error}') from error

    def _adopt(self, error: Exception | None, block: Any) -> None:
        """Keep the requested block as the next one.

        If the request failed, `next` requests a block again when the current block is used up.
        """
        self._is_ordered = False
        if error is None:
            self._next_block = block
        elif isinstance(error, KafkaError):
            logger.warning('no further block of producer ids yet: %s', error)
        else:
            raise error
