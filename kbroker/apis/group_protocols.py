"""The gate of the APIs of modern groups: a kind is served if its feature is finalized and the settings allow it."""
from __future__ import annotations

from kbroker.apis.request import Request
from kbroker.errors import ErrorCode, KafkaError

FEATURES = {'consumer': 'group.version', 'share': 'share.version', 'streams': 'streams.version'}
WITHOUT_SETTING = frozenset({'share'})
"""The kinds that group.coordinator.rebalance.protocols does not have to name."""


def require_group_protocol(request: Request, kind: str) -> None:
    """UNSUPPORTED_VERSION unless the broker serves groups of this kind."""
    node = request.node
    is_named = kind in WITHOUT_SETTING or kind in node.config.group_coordinator_rebalance_protocols
    if not is_named or node.metadata.image.features.get(FEATURES[kind], 0) < 1:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f'groups of type {kind} are not enabled')
