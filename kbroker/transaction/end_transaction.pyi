"""Types of end_transaction.pyx, which has the documentation."""
from collections.abc import Generator
from typing import Any

from kbroker.base.clock import Clock
from kbroker.base.completion import Completion, Steps
from kbroker.base.long_work import LongWork
from kbroker.topics.registry import TopicRegistry
from kbroker.transaction.producer_ids import ProducerIds
from kbroker.transaction.store import TransactionStore

RETRY_BACKOFF_MS: int
ADD_RETRY_BACKOFF_MS: int
MARKERS_AT_ONCE: int

class TransactionEnder:
    steps: Steps | None
    @property
    def timed_out(self) -> int: ...
    @property
    def fenced(self) -> int: ...
    def __init__(self, store: TransactionStore, clock: Clock, long_work: LongWork, topics: TopicRegistry,
                 producer_ids: ProducerIds, *, transaction_version: int) -> None: ...
    def end_txn(self, transactional_id: str | None, producer_id: int, producer_epoch: int, committed: bool,
                client_transaction_version: int, connection: Any, done: Completion) -> None: ...

class Ending(Completion):
    def reply_and_mark(self) -> None: ...
    def write_held(self, number: int) -> None: ...
    def finish_if_open(self) -> None: ...
    def retry(self) -> None: ...
    def write_in_parts(self, numbers: list[int] | None, count: int) -> Generator[None]: ...
