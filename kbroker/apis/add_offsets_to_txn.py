"""AddOffsetsToTxn (key 25), versions 0-4: add the offsets of a consumer group to a transaction.

The broker adds the partition of `__consumer_offsets` that stores the group. The producer then sends TxnOffsetCommit.
TV2 producers do not send AddOffsetsToTxn, because their TxnOffsetCommit adds the partition (KIP-890).

In versions 0 and 1, a fenced producer gets INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED. A client that sends
version 4 knows the error code TRANSACTION_ABORTABLE.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.producer_fencing import fencing_code
from kbroker.apis.serving.request import Api, Request
from kbroker.base.completion import Callback
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.internal_topics import CONSUMER_OFFSETS
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import AddOffsetsToTxnResponse
from kbroker.security.acl_codes import Operation, ResourceType

READ, WRITE = Operation.READ, Operation.WRITE
GROUP, TRANSACTIONAL_ID = ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
FIRST_VERSION_WITH_FENCED = 2


def handle(request: Request, body: Any) -> None:
    require(request, WRITE, TRANSACTIONAL_ID, body.transactional_id)
    require(request, READ, GROUP, body.group_id)

    def added(error: KafkaError | None, _: None) -> None:
        request.reply(respond(ErrorCode.NONE if error is None else error.code, request.version))

    request.node.topics.ensure_internal(CONSUMER_OFFSETS)
    # The partition to which TxnOffsetCommit writes. Partitions that were added to `__consumer_offsets` after the start
    # of the broker store no group until the next start.
    partition = request.node.groups.partition_of(body.group_id)
    request.node.transactions.add_offsets(
        body.transactional_id, body.producer_id, body.producer_epoch, partition, request.connection, Callback(added))


def respond(code: ErrorCode, version: int) -> Any:
    return AddOffsetsToTxnResponse(error_code=fencing_code(code, version, FIRST_VERSION_WITH_FENCED))


def error_response(_body: Any, code: ErrorCode, _message: str, version: int) -> Any:
    return respond(code, version)


API = Api(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, handle, error_response)
