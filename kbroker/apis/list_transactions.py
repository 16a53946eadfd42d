"""ListTransactions (key 66), versions 0-2: list transactional ids (KIP-664).

The answer has the ids that pass all filters of the request:

- states, and producer ids
- from version 1 on, the minimum duration of the transaction in ms (KIP-994)
- from version 2 on, a regular expression that the whole id must match (KIP-1152), in the syntax of `linear_pattern`

As in Kafka, an id without a transaction passes every duration filter. State names that do not exist are returned in
`unknown_state_filters`.
"""
from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from kbroker.apis.serving.long_answers import PART, Pace, Steps, counted
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import ListTransactionsResponse
from kbroker.security.acl_codes import Operation, ResourceType
from kbroker.transaction.state import IDLE, TransactionRow, TransactionState

if TYPE_CHECKING:
    from kbroker.base.linear_pattern import LinearPattern

Listed = ListTransactionsResponse.TransactionState
STATES = {state.title: state for state in TransactionState}


def handle(request: Request, body: Any) -> Steps:
    pattern = compile_pattern(body.transactional_id_pattern)
    pace = Pace()
    filters = Filters((yield from counted(body.state_filters, pace)),
                      (yield from counted(body.producer_id_filters, pace)),
                      body.duration_filter, request.node.clock.wall_ms())
    listed = []
    for transactional_id, row in request.node.transactions.list_transactions(filters.want_open_only):
        if filters.pass_row(row) and (
                pattern is None or (yield from pattern.match_in_parts(transactional_id))) and (
                request.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id)):
            listed.append(Listed(transactional_id=transactional_id, producer_id=row.producer_id,
                                 transaction_state=row.state.title))
        if pace.spend(1 if pattern is None else PART // 4):
            yield
    unknown = []
    for name in filters.states:
        if name not in STATES:
            unknown.append(name)
        if pace.spend():
            yield
    return ListTransactionsResponse(transaction_states=listed, unknown_state_filters=unknown)


def compile_pattern(text: str | None) -> LinearPattern | None:
    if not text:
        return None
    from kbroker.base.linear_pattern import LinearPattern, PatternError  # a start does without it
    try:
        return LinearPattern(text)
    except PatternError as error:
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from None


class Filters:
    """The filters of one request. A filter that is empty accepts every transaction."""

    def __init__(self, states: Collection[str], producer_ids: Collection[int], shortest_ms: int, now_ms: int):
        self.states = states
        self._producer_ids = producer_ids
        self._shortest_ms = shortest_ms
        self._now_ms = now_ms

    @property
    def want_open_only(self) -> bool:
        """Return whether the state filter excludes all ids without an open transaction. If so, only the index of open
        transactions is visited."""
        return bool(self.states) and not any(title in self.states for title, state in STATES.items() if state in IDLE)

    def pass_row(self, row: TransactionRow) -> bool:
        if self.states and row.state.title not in self.states:
            return False
        if self._producer_ids and row.producer_id not in self._producer_ids:
            return False
        return self._shortest_ms < 0 or self._now_ms - row.start_timestamp_ms > self._shortest_ms


API = Api(ApiKey.LIST_TRANSACTIONS, 0, 2, handle)
