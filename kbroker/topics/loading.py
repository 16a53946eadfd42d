"""The replay of a whole partition: what a coordinator does before it serves."""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.base.errors import CorruptLogError
from kbroker.record.batch import BatchHeader, CorruptBatchError

if TYPE_CHECKING:
    from kbroker.topics.partition import Partition


def replay_all(partition: Partition, replay: Callable[[BatchHeader, memoryview], object]) -> None:
    """Call `replay` for each batch of the partition. Raises CorruptLogError with the file of a batch that it cannot
    read."""
    for header, batch in partition.batches():
        try:
            replay(header, batch)
        except CorruptBatchError as error:
            raise CorruptLogError(f'{partition.file_of(header.base_offset)}: found a batch at offset '
                                  f'{header.base_offset} that cannot be read: {error}') from error
