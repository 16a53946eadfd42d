"""AddOffsetsToTxn (key 25), versions 0-4: the offsets of a consumer group join a transaction.

It adds the partition of `__consumer_offsets` that holds the group; TxnOffsetCommit follows. TV2 producers do not send
AddOffsetsToTxn: their TxnOffsetCommit adds the partition (KIP-890). Before version 2, the code is
INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED. Version 4 says that the client knows TRANSACTION_ABORTABLE.
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
    # TxnOffsetCommit writes to this partition. Partitions that were added to the topic since the start hold no group
    # yet.
    partition = request.node.groups.partition_of(body.group_id)
    request.node.transactions.add_offsets(
        body.transactional_id, body.producer_id, body.producer_epoch, partition, request.connection, Callback(added))


def respond(code: ErrorCode, version: int) -> Any:
    return AddOffsetsToTxnResponse(error_code=fencing_code(code, version, FIRST_VERSION_WITH_FENCED))


def error_response(_body: Any, code: ErrorCode, _message: str, version: int) -> Any:
    return respond(code, version)


API = Api(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, handle, error_response)
