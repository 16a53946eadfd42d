"""The class that makes a transaction of a `with` block."""
from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from kbroker.base.topic_partition import TopicPartition
from kbroker.client.admin import OffsetAndMetadata
from kbroker.client.transaction_manager import GroupMetadata, TransactionManager
from kbroker.client.transaction_state import PreparedTransaction, ProducerState

if TYPE_CHECKING:
    from kbroker.client.consumer import Consumer

_ABORTABLE = (ProducerState.IN_TRANSACTION, ProducerState.ABORTABLE_ERROR)


class TransactionalProducer(Protocol):
    """The methods of a producer that a transaction calls."""

    @property
    def transactions(self) -> TransactionManager: ...

    def begin_transaction(self) -> None: ...

    def commit_transaction(self) -> None: ...

    def abort_transaction(self) -> None: ...

    def prepare_transaction(self) -> PreparedTransaction: ...

    def send_offsets_to_transaction(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
                                    group: GroupMetadata | str) -> None: ...


class Transaction:
    """The transaction of a `with` block. It begins at the start of the block, and is committed at the end of the block.

    An exception in the block, or a TransactionError of the commit, aborts the transaction, and the error is raised
    again. A transaction that the block has prepared is neither committed nor aborted.
    """

    def __init__(self, producer: TransactionalProducer):
        self._producer = producer

    def __enter__(self) -> Transaction:
        self._producer.begin_transaction()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        if error is None:
            if self._producer.transactions.state in _ABORTABLE:
                self._commit()
        else:
            self._abort_after(error)

    def send_offsets(self, consumer: Consumer | Mapping[TopicPartition, OffsetAndMetadata | int],
                     group: GroupMetadata | str | None = None) -> None:
        """Add a consumer's positions, or the given offsets for a group, to the transaction, which commits them.

        The position of a partition is the offset after the last record that the consumer has returned. Raise
        TransactionError if the group has reassigned a partition to a different member.
        """
        if isinstance(consumer, Mapping):
            if group is None:
                raise TypeError('found offsets without a group, expected its name or its metadata')
            offsets: Mapping[TopicPartition, OffsetAndMetadata | int] = consumer
        else:
            offsets, group = consumer.offsets_to_commit(), group or consumer.group_metadata
        self._producer.send_offsets_to_transaction(offsets, group)

    def prepare(self) -> PreparedTransaction:
        """Wait until each record is written, and prepare the transaction: only `Producer.complete` can end it
        (KIP-939).
        """
        return self._producer.prepare_transaction()

    def _commit(self) -> None:
        try:
            self._producer.commit_transaction()
        except BaseException as error:
            self._abort_after(error)
            raise

    def _abort_after(self, error: BaseException) -> None:
        """Abort the transaction because of `error`. If the abort fails, its error does not replace `error`."""
        if self._producer.transactions.state not in _ABORTABLE:
            return
        try:
            self._producer.abort_transaction()
        except Exception as second:
            error.add_note(f'The transaction could not be aborted: {second}')
