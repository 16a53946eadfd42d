"""InitProducerId (key 22), versions 0-6: return a producer id and epoch to an idempotent or a transactional producer.

- From version 3 on, a producer can send its id and epoch, to recover from an error (KIP-360).
- From version 4 on, a fenced producer gets PRODUCER_FENCED, in versions 0-3 INVALID_PRODUCER_EPOCH.
- A client that sends version 5 knows the error code TRANSACTION_ABORTABLE (KIP-890).
- Version 6 adds two-phase commit (KIP-939). Kafka marks version 6 as unstable, so it is served only if
  transaction.two.phase.commit.enable is on. Its flags are ignored in requests without a transactional id.

If the transactional id has an open transaction, the broker first fences its producer and aborts it. Until the abort is
complete, InitProducerId gets CONCURRENT_TRANSACTIONS. The exception is a client that keeps its prepared transaction:
the transaction stays open, and the answer also has the producer id and epoch with which its batches were written.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authorization import require, require_idempotent_write
from kbroker.apis.serving.producer_fencing import fencing_code
from kbroker.apis.serving.request import Api, Request
from kbroker.base.completion import Callback
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import InitProducerIdResponse
from kbroker.security.acl_codes import Operation, ResourceType
from kbroker.transaction.state import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TransactionRow

WRITE, TWO_PHASE_COMMIT = Operation.WRITE, Operation.TWO_PHASE_COMMIT
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
FIRST_VERSION_WITH_FENCED = 4
LAST_VERSION = 5
LAST_VERSION_WITH_TWO_PHASE_COMMIT = 6


def handle(request: Request, body: Any) -> None:
    if body.transactional_id is not None:
        require(request, WRITE, TRANSACTIONAL_ID, body.transactional_id)
        if body.enable2_pc:
            require(request, TWO_PHASE_COMMIT, TRANSACTIONAL_ID, body.transactional_id)
    else:
        require_idempotent_write(request)
    request.node.transactions.init_producer_id(
        body.transactional_id, body.transaction_timeout_ms, body.producer_id, body.producer_epoch,
        Callback(lambda error, row: request.reply(respond(error, row, request.version))),
        body.enable2_pc, body.keep_prepared_txn)


def respond(error: KafkaError | None, row: TransactionRow, version: int) -> Any:
    if error is not None:
        return error_response(None, error.code, '', version)
    response = InitProducerIdResponse(producer_id=row.client_producer_id, producer_epoch=row.client_producer_epoch)
    if row.is_kept:
        response.ongoing_txn_producer_id = row.producer_id
        response.ongoing_txn_producer_epoch = row.producer_epoch
    return response


def error_response(_body: Any, code: ErrorCode, _message: str, version: int) -> Any:
    return InitProducerIdResponse(error_code=fencing_code(code, version, FIRST_VERSION_WITH_FENCED),
                                  producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH)


API = Api(ApiKey.INIT_PRODUCER_ID, 0, LAST_VERSION, handle, error_response,
          with_setting=('transaction.two.phase.commit.enable', LAST_VERSION_WITH_TWO_PHASE_COMMIT))
