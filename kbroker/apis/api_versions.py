"""ApiVersions (key 18), versions 0-5.

The version ranges in the answer come from the declarations of the APIs and from the settings. The features come from
the metadata log.

A request in a version that is not served is answered in version 0, with UNSUPPORTED_VERSION and the declared ranges,
whatever the settings (KIP-511): `dispatch` does this. The client then repeats its request in a version that both
support.

From version 3 on, the client names its software. A name or version that does not match Kafka's pattern gets
INVALID_REQUEST. Before a login, a connection gets only one successful answer. This answer lists the same APIs as an
answer after the login. Answers of versions 0-3 omit supported features whose lowest level is 0, because older clients
reject that level (KIP-1022).

From version 5 on, a client may send the cluster id and the node id that an earlier Metadata answer gave it for this
address (KIP-1242). If the address belongs to another cluster or node now, the answer is REBOOTSTRAP_REQUIRED. The
client then forgets all nodes and begins with `bootstrap.servers` again. A request with only one of the two ids gets
INVALID_REQUEST. The connection stays open in both cases. Before a login, the broker does not compare the ids, as in
Apache Kafka: a client that logs in asks again afterwards.
"""
from __future__ import annotations

import re
from typing import Any

from kbroker.apis.serving.request import Api, Request
from kbroker.apis.serving.served import apis_under, served_apis
from kbroker.base.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import ApiVersionsResponse
from kbroker.security.session import LoginState

SOFTWARE = re.compile(r'[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?')

NO_NODE = -1
"""The node id in a request of a client that expects no particular node."""


def handle(request: Request, body: Any) -> Any:
    metadata = request.node.metadata
    session = request.connection.session
    is_before_login = session is not None and session.state == LoginState.UNKNOWN
    if not is_sound(body, request.version):
        return ApiVersionsResponse(error_code=int(ErrorCode.INVALID_REQUEST))
    if request.version >= 3:
        request.node.client_software.note(request.connection, body.client_software_name, body.client_software_version)
    expected = body.cluster_id, body.node_id
    if not is_before_login and expected not in ((None, NO_NODE), (metadata.cluster_id, metadata.node_id)):
        return ApiVersionsResponse(error_code=int(ErrorCode.REBOOTSTRAP_REQUIRED))
    response = with_ranges(ErrorCode.NONE, apis_under(request.node.config))
    image = metadata.image
    response.supported_features = [
        ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
        for name, (lowest, highest) in sorted(metadata.supported_features.items())
        if lowest > 0 or request.version >= 4
    ]
    response.finalized_features_epoch = image.metadata_offset
    response.finalized_features = [
        ApiVersionsResponse.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
        for name, level in sorted(image.finalized_features.items())
    ]
    if is_before_login:
        session.move(LoginState.INTRODUCED)
    return response


def is_sound(body: Any, version: int) -> bool:
    """Return whether the names of the software match the pattern, and either both ids are given or none is.

    An empty cluster id is an id, and so is each node id but -1.
    """
    names = (body.client_software_name, body.client_software_version) if version >= 3 else ()
    return all(map(SOFTWARE.fullmatch, names)) and (body.cluster_id is None) == (body.node_id == NO_NODE)


def with_ranges(code: ErrorCode, apis: list[Api]) -> Any:
    return ApiVersionsResponse(error_code=int(code), api_keys=[
        ApiVersionsResponse.ApiVersion(
            api_key=int(api.key),
            min_version=api.min_version if api.advertised_min_version is None else api.advertised_min_version,
            max_version=api.max_version)
        for api in apis
    ])


def error_response(_body: Any, code: ErrorCode, _message: str, _version: int) -> Any:
    return with_ranges(code, served_apis())


API = Api(ApiKey.API_VERSIONS, 0, 5, handle, error_response)
