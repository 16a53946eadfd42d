"""DescribeTransactions (key 65), version 0: the state of transactional ids (KIP-664)."""
from __future__ import annotations

from typing import Any

from kbroker.apis.request import Api, Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import DescribeTransactionsResponse

Description = DescribeTransactionsResponse.TransactionState
TopicData = DescribeTransactionsResponse.TopicData


def handle(request: Request, body: Any) -> Any:
    return DescribeTransactionsResponse(transaction_states=[
        describe(request, transactional_id) for transactional_id in body.transactional_ids])


def describe(request: Request, transactional_id: str) -> Any:
    try:
        row = request.node.transactions.describe(transactional_id)
    except KafkaError as error:
        return failed(transactional_id, error.code)
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(row.partitions):
        topics.setdefault(topic, []).append(partition)
    return Description(
        transactional_id=transactional_id, transaction_state=row.state.title, transaction_timeout_ms=row.timeout_ms,
        transaction_start_time_ms=row.start_timestamp_ms, producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
        topics=[TopicData(topic=topic, partitions=partitions) for topic, partitions in topics.items()])


def failed(transactional_id: str, code: ErrorCode) -> Any:
    return Description(transactional_id=transactional_id, error_code=int(code), topics=[])


def error_response(body: Any, code: ErrorCode, _message: str, _version: int) -> Any:
    return DescribeTransactionsResponse(transaction_states=[
        failed(transactional_id, code) for transactional_id in body.transactional_ids])


API = Api(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, handle, error_response)
