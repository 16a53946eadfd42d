"""DescribeTransactions (key 65), version 0: return the state of transactional ids (KIP-664)."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.long_answers import Pace, ReplyRoom, Steps, counted, in_parts
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import DescribeTransactionsResponse
from kbroker.security.acl_codes import Operation, ResourceType
from kbroker.transaction.state import TransactionRow

if TYPE_CHECKING:
    from kbroker.base.topic_partition import TopicPartition

Description = DescribeTransactionsResponse.TransactionState
TopicData = DescribeTransactionsResponse.TopicData


def handle(request: Request, body: Any) -> Steps:
    """Describe each id once. When the answer has its maximum size, the remaining ids get COORDINATOR_LOAD_IN_PROGRESS,
    and clients request them again."""
    pace, room = Pace(), ReplyRoom()
    states = []
    for transactional_id in (yield from counted(body.transactional_ids, pace)):
        try:
            require(request, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id)
            room.check(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            row = request.node.transactions.describe(transactional_id)
        except KafkaError as error:
            states.append(failed(transactional_id, error.code))
        else:
            partitions = list(row.partitions)
            room.take(1 + len(partitions))
            states.append((yield from describe(request, transactional_id, row, partitions, pace)))
        if pace.spend():
            yield
    return DescribeTransactionsResponse(transaction_states=states)


def describe(request: Request, transactional_id: str, row: TransactionRow, partitions: list[TopicPartition],
             pace: Pace) -> Steps:
    """Describe a transaction. Omit the topics that the client may not describe."""
    topics: dict[str, list[int]] = {}
    for part in in_parts(partitions):
        for topic, partition in part:
            topics.setdefault(topic, []).append(partition)
        if pace.spend(len(part)):
            yield
    listed = []
    for topic in sorted(topics):
        if request.may(Operation.DESCRIBE, ResourceType.TOPIC, topic):
            listed.append(TopicData(topic=topic, partitions=sorted(topics[topic])))
        if pace.spend():
            yield
    return Description(
        transactional_id=transactional_id, transaction_state=row.state.title, transaction_timeout_ms=row.timeout_ms,
        transaction_start_time_ms=row.start_timestamp_ms, producer_id=row.producer_id,
        producer_epoch=row.producer_epoch, topics=listed)


def failed(transactional_id: str, code: ErrorCode) -> Any:
    return Description(transactional_id=transactional_id, error_code=int(code), topics=[])


def error_response(body: Any, code: ErrorCode, _message: str, _version: int) -> Any:
    return DescribeTransactionsResponse(transaction_states=[
        failed(transactional_id, code) for transactional_id in body.transactional_ids])


API = Api(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, handle, error_response)
