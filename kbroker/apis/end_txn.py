"""EndTxn (key 26), versions 0-5: commit or abort. Answered when the decision is durable; the markers follow.

Version 5 is TV2 (KIP-890): each ending bumps the epoch, the answer carries the producer id and epoch to go on with,
and a repeated request whose first answer was lost gets them again. PRODUCER_FENCED is INVALID_PRODUCER_EPOCH before 2.
Version 4 says that the client knows TRANSACTION_ABORTABLE.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.context import Api, RequestContext
from kbroker.apis.producer_fencing import told_to_producer
from kbroker.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import EndTxnResponse
from kbroker.transaction.coordinator import ProducerAnswer
from kbroker.transaction.state import EPOCH_BUMPS_FROM

FIRST_VERSION_WITH_FENCED = 2
FIRST_VERSION_WITH_BUMP = 5


def handle(context: RequestContext, request: Any) -> Any:
    context.broker.transactions.end_txn(
        request.transactional_id, request.producer_id, request.producer_epoch, request.committed,
        EPOCH_BUMPS_FROM if context.version >= FIRST_VERSION_WITH_BUMP else 0,
        lambda answer: context.reply(respond(answer, context.version)))
    return None


def respond(answer: ProducerAnswer, version: int) -> Any:
    return EndTxnResponse(error_code=told_to_producer(answer.error, version, FIRST_VERSION_WITH_FENCED),
                          producer_id=answer.producer_id, producer_epoch=answer.producer_epoch)


def error_response(_request: Any, code: ErrorCode, _message: str, version: int) -> Any:
    return respond(ProducerAnswer(code), version)


API = Api(ApiKey.END_TXN, 0, 5, handle, error_response)
