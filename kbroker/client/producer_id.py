"""The producer id and epoch under which a producer numbers its batches."""
from __future__ import annotations

from typing import NamedTuple

from kbroker.record.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH

    @property
    def is_valid(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID
