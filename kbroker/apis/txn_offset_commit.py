"""TxnOffsetCommit (key 28), versions 0-5.

Offsets that count when the producer's transaction commits. Version 2 brings leader epochs (KIP-320); 3 the consumer's
generation, which fences its successors' predecessors (KIP-447); 4 knows TRANSACTION_ABORTABLE, and 5 adds the partition
of `__consumer_offsets` to the transaction by itself (KIP-890); up to 4 AddOffsetsToTxn must have done so. Answered when
the offsets are durable. Versions 0-1 get COORDINATOR_NOT_AVAILABLE for COORDINATOR_LOAD_IN_PROGRESS, which their
clients do not know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.apis.context import Api, RequestContext
from kbroker.apis.offset_commits import offsets_to_commit
from kbroker.errors import ErrorCode, KafkaError
from kbroker.group.offsets import Commit
from kbroker.group.shard import TransactionalProducer, coordinator_error
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import TxnOffsetCommitResponse


def handle(context: RequestContext, request: Any) -> Any:
    groups, topics, version = context.broker.groups, context.broker.topics, context.version
    offsets = offsets_to_commit(request, [topics.topic(topic.name) for topic in request.topics])
    if not offsets:
        return respond(request, lambda topic, partition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, 'the group id is empty')
    commit = Commit(request.group_id, offsets, request.generation_id, request.member_id, request.group_instance_id)

    def done(results: dict[tuple[str, int], ErrorCode]) -> None:
        context.reply(
            respond(
                request,
                lambda topic, partition: for_version(
                    results.get((topic.name, partition), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), version
                ),
            )
        )

    def verified(error: KafkaError | None) -> None:
        try:
            if error is not None:
                raise coordinator_error(error)
            groups.commit_transactional(
                commit, TransactionalProducer(request.producer_id, request.producer_epoch, guard), done
            )
        except KafkaError as refused:
            done(dict.fromkeys(offsets, refused.code))

    guard = groups.start_verification(
        request.group_id, request.producer_id, request.producer_epoch, supports_epoch_bump=version >= 5
    )
    if guard is None:  # the transaction is open in this partition already
        verified(None)
    else:
        context.broker.transactions.add_or_verify_offsets_partition(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            groups.partition_of(request.group_id),
            version,
            verified,
        )
    return None


def respond(request: Any, error_of: Callable[[Any, int], ErrorCode]) -> Any:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=error_of(topic, partition.partition_index)
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def for_version(code: ErrorCode, version: int) -> ErrorCode:
    if version < 2 and code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code


def error_response(request: Any, code: ErrorCode, message: str, version: int) -> Any:
    return respond(request, lambda topic, partition: for_version(code, version))


API = Api(ApiKey.TXN_OFFSET_COMMIT, 0, 5, handle, error_response)
