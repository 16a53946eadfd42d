"""The check whether the broker serves a kind of modern group: its feature must be finalized, and the settings must
allow it."""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.request import Request
from kbroker.base.errors import ErrorCode, KafkaError

FEATURES = {'consumer': 'group.version', 'share': 'share.version', 'streams': 'streams.version'}
WITHOUT_SETTING = frozenset({'share'})
"""The kinds of groups that the broker serves even if group.coordinator.rebalance.protocols does not name them."""


def is_served(node: Any, kind: str) -> bool:
    """Return whether the broker serves groups of this kind."""
    is_named = kind in WITHOUT_SETTING or kind in node.config.group_coordinator_rebalance_protocols
    return bool(is_named and node.metadata.commits.image.features.get(FEATURES[kind], 0) >= 1)


def require_group_protocol(request: Request, kind: str) -> None:
    """Raise UNSUPPORTED_VERSION unless the broker serves groups of this kind."""
    if not is_served(request.node, kind):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f'groups of type {kind} are not enabled')
