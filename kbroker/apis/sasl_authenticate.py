"""SaslAuthenticate (key 36), versions 0-2 (KIP-152): take the client's next login token, and answer it.

The answer has the broker's token. Version 1 adds the time in ms after which the client must log in again (KIP-368); 0
means never.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authentication import failure
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey


def handle(request: Request, body: Any) -> Any:
    return request.node.authentication.authenticate(request, bytes(body.auth_bytes))


def error_response(_body: Any, code: ErrorCode, message: str, _version: int) -> Any:
    return failure(code, message)


API = Api(ApiKey.SASL_AUTHENTICATE, 0, 2, handle, error_response)
