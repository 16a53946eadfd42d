"""ListTransactions (key 66), versions 0-2: the transactional ids that pass every filter given (KIP-664).

Filters: states and producer ids; from version 1 the least duration in ms (KIP-994), which an id without a transaction
passes always, as in Kafka; from version 2 a regular expression that the whole id must match (KIP-1152). Names of states
that do not exist are sent back in `unknown_state_filters`. See `linear_pattern` for the syntax of the expression.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.request import Api, Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.linear_pattern import LinearPattern, PatternError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import ListTransactionsResponse
from kbroker.transaction.state import TransactionRow, TransactionState

Listed = ListTransactionsResponse.TransactionState
STATES = {state.title: state for state in TransactionState}


def handle(request: Request, body: Any) -> Any:
    pattern = compile_pattern(body.transactional_id_pattern)
    unknown = [name for name in body.state_filters if name not in STATES]
    now_ms = request.node.clock.wall_ms()
    return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=[
        Listed(transactional_id=transactional_id, producer_id=row.producer_id, transaction_state=row.state.title)
        for transactional_id, row in request.node.transactions.list_transactions()
        if passes(body, row, now_ms) and (pattern is None or pattern.matches(transactional_id))])


def compile_pattern(text: str | None) -> LinearPattern | None:
    if not text:
        return None
    try:
        return LinearPattern(text)
    except PatternError as error:
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from None


def passes(body: Any, row: TransactionRow, now_ms: int) -> bool:
    if body.state_filters and row.state.title not in body.state_filters:
        return False
    if body.producer_id_filters and row.producer_id not in body.producer_id_filters:
        return False
    shortest_ms: int = body.duration_filter
    return shortest_ms < 0 or now_ms - row.start_timestamp_ms > shortest_ms


API = Api(ApiKey.LIST_TRANSACTIONS, 0, 2, handle)
