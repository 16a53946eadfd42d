"""AddPartitionsToTxn (key 24), versions 0-5: partitions join a transaction before they are written to.

Versions 0-3 come from producers, one transaction each; PRODUCER_FENCED is INVALID_PRODUCER_EPOCH before 2. Versions 4
and 5 carry many transactions and can merely verify (KIP-890); brokers send them to each other, so that internal topics
are allowed there. A producer adds its offsets with AddOffsetsToTxn, and is denied internal topics here.

A producer whose previous transaction is not complete yet waits for that a little before CONCURRENT_TRANSACTIONS.
If one partition of a transaction fails nothing of it is added, and the others answer OPERATION_NOT_ATTEMPTED.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kbroker.apis.context import Api, RequestContext
from kbroker.apis.producer_fencing import told_to_producer
from kbroker.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import AddPartitionsToTxnResponse
from kbroker.transaction.state import EPOCH_BUMPS_FROM, TopicPartition

TransactionResult = AddPartitionsToTxnResponse.AddPartitionsToTxnResult
TopicResult = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
PartitionResult = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult

FIRST_BATCHED_VERSION = 4
FIRST_VERSION_WITH_FENCED = 2
INTERNAL_TOPICS = frozenset({'__consumer_offsets', '__transaction_state'})

Results = dict[TopicPartition, ErrorCode]


def handle(context: RequestContext, request: Any) -> Any:
    if context.version >= FIRST_BATCHED_VERSION:
        handle_batched(context, request)
        return None
    wanted = partitions_of(request.v3_and_below_topics)
    refused = refuse_missing(context, wanted) | {
        partition: ErrorCode.TOPIC_AUTHORIZATION_FAILED for partition in wanted if partition[0] in INTERNAL_TOPICS}
    if not request.v3_and_below_transactional_id:
        refused = each(wanted, ErrorCode.INVALID_REQUEST)
    if refused:
        return respond_to_one(request.v3_and_below_topics, all_or_nothing(wanted, refused), context.version)
    context.broker.transactions.add_partitions_in_turn(
        request.v3_and_below_transactional_id, request.v3_and_below_producer_id, request.v3_and_below_producer_epoch,
        wanted, 0,
        lambda code: context.reply(respond_to_one(request.v3_and_below_topics, each(wanted, code), context.version)))
    return None


def handle_batched(context: RequestContext, request: Any) -> None:
    """Answer when the last transaction has its result."""
    response = AddPartitionsToTxnResponse(results_by_transaction=[])
    unanswered = len(request.transactions)

    def finish(transaction: Any, results: Results) -> None:
        nonlocal unanswered
        response.results_by_transaction.append(TransactionResult(
            transactional_id=transaction.transactional_id,
            topic_results=topic_results(transaction.topics, results, context.version)))
        unanswered -= 1
        if unanswered == 0:
            context.reply(response)

    for transaction in request.transactions:
        add_or_verify(context, transaction, partial(finish, transaction))
    if not request.transactions:
        context.reply(response)


def add_or_verify(context: RequestContext, transaction: Any, done: Callable[[Results], None]) -> None:
    wanted = partitions_of(transaction.topics)
    refused = refuse_missing(context, wanted)
    coordinator = context.broker.transactions
    who = transaction.transactional_id, transaction.producer_id, transaction.producer_epoch
    if refused:
        done(all_or_nothing(wanted, refused))
    elif transaction.verify_only:
        done(coordinator.verify_partitions(*who, wanted))
    else:
        coordinator.add_partitions(*who, wanted, EPOCH_BUMPS_FROM, lambda code: done(each(wanted, code)))


def partitions_of(topics: Any) -> list[TopicPartition]:
    return [(topic.name, partition) for topic in topics for partition in topic.partitions]


def refuse_missing(context: RequestContext, wanted: list[TopicPartition]) -> Results:
    return {partition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for partition in wanted
            if context.broker.topics.find(*partition) is None}


def each(wanted: list[TopicPartition], code: ErrorCode) -> Results:
    return dict.fromkeys(wanted, code)


def all_or_nothing(wanted: list[TopicPartition], refused: Results) -> Results:
    return each(wanted, ErrorCode.OPERATION_NOT_ATTEMPTED) | refused


def topic_results(topics: Any, results: Results, version: int) -> list[Any]:
    return [TopicResult(name=topic.name, results_by_partition=[
        PartitionResult(partition_index=partition, partition_error_code=told_to_producer(
            results[topic.name, partition], version, FIRST_VERSION_WITH_FENCED))
        for partition in topic.partitions]) for topic in topics]


def respond_to_one(topics: Any, results: Results, version: int) -> Any:
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topic_results(topics, results, version))


def error_response(request: Any, code: ErrorCode, _message: str, version: int) -> Any:
    if version >= FIRST_BATCHED_VERSION:
        return AddPartitionsToTxnResponse(error_code=int(code), results_by_transaction=[])
    topics = request.v3_and_below_topics
    return respond_to_one(topics, each(partitions_of(topics), code), version)


API = Api(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, handle, error_response)
