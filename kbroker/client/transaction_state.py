"""The states of a transactional producer, and the severity of each error code.

    state                 entered from
    UNINITIALIZED         (the start)
    INITIALIZING          UNINITIALIZED, READY, COMMITTING, ABORTING
    READY                 INITIALIZING, COMMITTING, ABORTING
    IN_TRANSACTION        READY
    PREPARED_TRANSACTION  IN_TRANSACTION, INITIALIZING
    COMMITTING            IN_TRANSACTION, PREPARED_TRANSACTION
    ABORTING              IN_TRANSACTION, PREPARED_TRANSACTION, ABORTABLE_ERROR
    ABORTABLE_ERROR       IN_TRANSACTION, COMMITTING, ABORTABLE_ERROR
    FATAL_ERROR           any

An abort enters INITIALIZING if it needs a new epoch and EndTxn did not return one: below transaction.version 2, a
producer bumps its epoch by InitProducerId (KIP-360). INITIALIZING is followed by PREPARED_TRANSACTION if the
coordinator kept a transaction (KIP-939).
"""
from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field

from kbroker.base.errors import ErrorCode, KafkaError


class ProducerState(enum.Enum):
    UNINITIALIZED = enum.auto()
    INITIALIZING = enum.auto()
    READY = enum.auto()
    IN_TRANSACTION = enum.auto()
    PREPARED_TRANSACTION = enum.auto()
    COMMITTING = enum.auto()
    ABORTING = enum.auto()
    ABORTABLE_ERROR = enum.auto()
    FATAL_ERROR = enum.auto()


_S = ProducerState

ENTERED_FROM: dict[ProducerState, frozenset[ProducerState]] = {
    _S.UNINITIALIZED: frozenset(),
    _S.INITIALIZING: frozenset({_S.UNINITIALIZED, _S.READY, _S.COMMITTING, _S.ABORTING}),
    _S.READY: frozenset({_S.INITIALIZING, _S.COMMITTING, _S.ABORTING}),
    _S.IN_TRANSACTION: frozenset({_S.READY}),
    _S.PREPARED_TRANSACTION: frozenset({_S.IN_TRANSACTION, _S.INITIALIZING}),
    _S.COMMITTING: frozenset({_S.IN_TRANSACTION, _S.PREPARED_TRANSACTION}),
    _S.ABORTING: frozenset({_S.IN_TRANSACTION, _S.PREPARED_TRANSACTION, _S.ABORTABLE_ERROR}),
    _S.ABORTABLE_ERROR: frozenset({_S.IN_TRANSACTION, _S.COMMITTING, _S.ABORTABLE_ERROR}),
    _S.FATAL_ERROR: frozenset(_S),
}


class Severity(enum.Enum):
    """The consequence of an error for a transactional producer."""

    RETRY = enum.auto()
    """The request had no effect. Retry it after a back-off."""
    FIND_COORDINATOR = enum.auto()
    """Like RETRY, but first find the current coordinator."""
    ABORTABLE = enum.auto()
    """The transaction cannot be committed. After an abort, the next transaction may begin."""
    FATAL = enum.auto()
    """The producer is unusable: a different producer has its transactional.id, or the producer cannot find out which of
    its batches were written.
    """


_E = ErrorCode

_COORDINATOR_MOVED = frozenset({_E.COORDINATOR_NOT_AVAILABLE, _E.NOT_COORDINATOR})
_ABORTABLE = frozenset({
    _E.TRANSACTION_ABORTABLE, _E.TOPIC_AUTHORIZATION_FAILED, _E.GROUP_AUTHORIZATION_FAILED,
    _E.UNKNOWN_MEMBER_ID, _E.ILLEGAL_GENERATION, _E.GROUP_ID_NOT_FOUND, _E.STALE_MEMBER_EPOCH, _E.FENCED_INSTANCE_ID,
    _E.OPERATION_NOT_ATTEMPTED,
})
# The errors that reject the producer itself, not the content of its batch.
_FATAL_TO_PRODUCE = frozenset({
    _E.PRODUCER_FENCED, _E.CLUSTER_AUTHORIZATION_FAILED, _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    _E.INVALID_TXN_STATE, _E.INVALID_PRODUCER_ID_MAPPING, _E.UNSUPPORTED_VERSION,
})


def severity_at_coordinator(code: ErrorCode) -> Severity:
    """Return the severity of an error code that the transaction coordinator or TxnOffsetCommit returns.

    An error about an old epoch is fatal, because the coordinator knows which producer has the transactional.id.
    """
    if code in _COORDINATOR_MOVED:
        return Severity.FIND_COORDINATOR
    if code in _ABORTABLE:
        return Severity.ABORTABLE
    return Severity.RETRY if code.retriable else Severity.FATAL


def severity_at_partition(code: ErrorCode) -> Severity:
    """Return the severity of an error code that a partition returns for Produce within a transaction.

    An error about an old epoch is abortable. The epoch may have been bumped by a timeout or by a newer producer, and
    EndTxn reveals which.
    """
    if code.retriable or code is _E.CONCURRENT_TRANSACTIONS:
        return Severity.RETRY
    return Severity.FATAL if code in _FATAL_TO_PRODUCE else Severity.ABORTABLE


class TransactionError(KafkaError):
    """An error after which the transaction can only be aborted. After the abort, the next transaction may begin."""


class FatalProducerError(KafkaError):
    """An error after which the producer is unusable and must be closed."""


class ProducerFencedError(FatalProducerError):
    """An error: a newer producer has claimed the transactional.id, or the coordinator has aborted a transaction that
    timed out.
    """


class IllegalProducerState(RuntimeError):
    """A call that the producer's state does not allow, such as a commit without a transaction."""


def fatal_error(code: ErrorCode, message: str) -> FatalProducerError:
    """Return a ProducerFencedError if the error code means that a newer producer exists, else a FatalProducerError."""
    kind = ProducerFencedError if code is _E.PRODUCER_FENCED else FatalProducerError
    return kind(code, message)


_TOKEN = re.compile(r'\+?([0-9]+):\+?([0-9]+)')


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """The identity of a prepared transaction (KIP-939). `str()` returns the identity as a token, which `parse` reads. A
    program stores the token together with its own decision. Two identities are equal if their producer ids and epochs
    are equal.
    """

    producer_id: int
    producer_epoch: int
    transactional_id: str | None = field(default=None, compare=False)
    """The transactional.id; None if the identity was parsed from a token, which does not contain it."""

    def __str__(self) -> str:
        return f'{self.producer_id}:{self.producer_epoch}'

    @classmethod
    def parse(cls, token: str) -> PreparedTransaction:
        """Parse a token, `<producer id>:<epoch>`. Raise ValueError for any other text."""
        found = _TOKEN.fullmatch(token)
        if found is None or int(found[1]) >= 2**63 or int(found[2]) >= 2**15:
            raise ValueError(f'found the token {token!r}, expected <producer id>:<epoch>, two numbers from 0')
        return cls(int(found[1]), int(found[2]))


class Lifecycle:
    """The state of a transactional producer, and the error that led to the state."""

    def __init__(self) -> None:
        self.state = _S.UNINITIALIZED
        self.error: KafkaError | None = None

    def can_enter(self, state: ProducerState) -> bool:
        return self.state in ENTERED_FROM[state]

    def check_can_enter(self, state: ProducerState) -> None:
        """Raise IllegalProducerState unless the producer may change to `state`.

        In the state FATAL_ERROR, raise a FatalProducerError for every other state.
        """
        if not self.can_enter(state) or (self.state is _S.FATAL_ERROR and state is not _S.FATAL_ERROR):
            raise self.refusal(*ENTERED_FROM[state])

    def refusal(self, *expected: ProducerState) -> FatalProducerError | IllegalProducerState:
        """Return the error for a call that is allowed only in the `expected` states."""
        if self.state is _S.FATAL_ERROR:
            return self.fatal()
        return IllegalProducerState(f'found a producer that is {_words(self.state)}, expected one that is '
                                    + ' or '.join(sorted(map(_words, expected))))

    def enter(self, state: ProducerState, error: KafkaError | None = None) -> None:
        """Change to `state`. Raise the same errors as `check_can_enter`."""
        self.check_can_enter(state)
        self.state = state
        if state is _S.FATAL_ERROR or (state is _S.ABORTABLE_ERROR and self.error is None):
            self.error = error
        elif state in (_S.READY, _S.IN_TRANSACTION):
            self.error = None

    def fatal(self) -> FatalProducerError:
        """Return the error for a call of a producer in the state FATAL_ERROR."""
        return fatal_error(self._code(), f'the producer has failed for good: {self.error}')

    def check_can_send(self) -> None:
        """Raise an error unless the producer may send records in its state.

        Raise TransactionError after an abortable error, FatalProducerError after a fatal error, IllegalProducerState
        outside a transaction.
        """
        if self.state is _S.ABORTABLE_ERROR:
            raise TransactionError(self._code(), f'the transaction can only be aborted: {self.error}')
        if self.state is _S.FATAL_ERROR:
            raise self.fatal()
        if self.state is not _S.IN_TRANSACTION:
            raise IllegalProducerState(f'found a producer that is {_words(self.state)}, expected a transaction')

    def _code(self) -> ErrorCode:
        return self.error.code if self.error is not None else ErrorCode.UNKNOWN_SERVER_ERROR


def _words(state: ProducerState) -> str:
    return state.name.lower().replace('_', ' ')
