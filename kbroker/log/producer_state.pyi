from collections.abc import Generator
from typing import NamedTuple

from _typeshed import ReadableBuffer

from kbroker.log.producer_entry import ProducerEntry
from kbroker.log.transaction_index import AbortedTransaction
from kbroker.log.unstable_transactions import UnstableTransactions

class ActiveProducer(NamedTuple):
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_first_offset: int

MOST_PRODUCERS_OF_PARTITION: int
MOST_PRODUCERS: int
MOST_VERIFICATIONS: int

class Verification: ...

class ProducerRoom:
    held: int
    most: int
    def __init__(self, most: int = ...) -> None: ...

class ProducerSnapshot:
    offset: int
    content: bytes
    is_encoded: bool
    def __init__(self, offset: int, number: int, entries: dict[int, ProducerEntry]) -> None: ...
    def encode(self) -> Generator[None]: ...

class ProducerStateTable:
    most_producers: int
    @property
    def room(self) -> ProducerRoom: ...
    entries: dict[int, ProducerEntry]
    @property
    def unstable(self) -> UnstableTransactions: ...
    verifications: dict[int, Verification]
    end_offset: int
    expiration_ms: int
    def __init__(self, expiration_ms: int = ..., room: ProducerRoom | None = None) -> None: ...
    def check_room(self, producer_id: int) -> None: ...
    def clear(self, end_offset: int) -> None: ...
    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool: ...
    def start_verification(self, producer_id: int, producer_epoch: int, base_sequence: int, supports_epoch_bump: bool,
                           now_ms: int) -> Verification | None: ...
    def replay_batch(self, batch: ReadableBuffer) -> AbortedTransaction | None: ...
    def active_producers(self) -> list[ActiveProducer]: ...
    def get(self, producer_id: int) -> ProducerEntry | None: ...
    def remove_expired(self, now_ms: int) -> Generator[None, None, int]: ...
    def encode_snapshot(self) -> bytes: ...
    def load_snapshot(self, data: bytes, end_offset: int, now_ms: int) -> None: ...
