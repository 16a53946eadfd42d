"""SaslHandshake (key 17), versions 0-1: the client chooses a SASL mechanism. After a request of version 0, the client
sends its tokens without request headers. On a connection that is logged in, the request begins a re-authentication if
the session has a limited lifetime (KIP-368). If the lifetime is unlimited, or the listener does not use SASL, the
answer is ILLEGAL_SASL_STATE and the connection stays open.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import SaslHandshakeResponse


def handle(request: Request, body: Any) -> Any:
    return request.node.authentication.handshake(request, body.mechanism)


def error_response(_body: Any, code: ErrorCode, _message: str, _version: int) -> Any:
    return SaslHandshakeResponse(error_code=int(code), mechanisms=[])


API = Api(ApiKey.SASL_HANDSHAKE, 0, 1, handle, error_response)
