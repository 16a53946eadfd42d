"""UpdateFeatures (key 57), versions 0-2 (KIP-584, KIP-778): change finalized feature levels.

Either all updates of a request take effect or none does. In versions 0 and 1, the answer to a successful request has a
result for each feature. In version 2, it has no results (KIP-1022). If a request updates a feature twice, Kafka applies
the last update; kbroker refuses the request. Updates of `kraft.version` are refused. So are downgrades of
`metadata.version` that would lose metadata.

Before the broker raises a level that an earlier release of Apache Kafka does not know, it logs a warning: afterwards
that release cannot open the directory.
"""
from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.long_answers import Pace, Steps
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.metadata.feature_updates import (
    FeatureUpdate,
    UpgradeType,
    enables_eligible_leader_replicas,
    records_of_updates,
)
from kbroker.metadata.features import costs_of
from kbroker.metadata.image import ResourceType as ConfigType
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import ConfigRecord, UpdateFeaturesResponse
from kbroker.security.acl_codes import Operation, ResourceType

MOST_UPDATES = 100
"""The most updates of a request. There are fewer features."""
WITHOUT_RESULTS = 2
SUCCESS = 'NONE'
"""The error message that Kafka sends for a successful update."""
MIN_INSYNC_REPLICAS = 'min.insync.replicas'
ALL_BROKERS = ConfigType.BROKER, ''

logger = logging.getLogger(__name__)


def handle(request: Request, body: Any) -> Steps:
    node = request.node
    require(request, Operation.ALTER, ResourceType.CLUSTER)
    yield from node.metadata.commits.turns.take()
    try:
        pace = Pace()
        if len(body.feature_updates) > MOST_UPDATES:
            raise KafkaError(ErrorCode.INVALID_REQUEST,
                             f'found {len(body.feature_updates)} updates, expected at most {MOST_UPDATES}')
        updates = [wanted(update, request.version) for update in body.feature_updates]
        records = records_of_updates(updates, node.metadata.image.finalized_features, node.metadata.supported_features)
        if enables_eligible_leader_replicas(records):
            records += missing_configs(node)
        if records and not body.validate_only:
            warn_of_costs(updates, node.metadata.image.finalized_features)
            yield from node.metadata.commits.write(records)
        results = []
        if request.version < WITHOUT_RESULTS:
            for update in updates:
                results.append(UpdateFeaturesResponse.UpdatableFeatureResult(feature=update.name,
                                                                             error_message=SUCCESS))
                if pace.spend():
                    yield
        return UpdateFeaturesResponse(error_message=None, results=results)
    finally:
        node.metadata.commits.turns.end()


def wanted(update: Any, version: int) -> FeatureUpdate:
    if version == 0:
        upgrade_type = int(UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE)
    else:
        upgrade_type = update.upgrade_type
    return FeatureUpdate(update.feature, update.max_version_level, upgrade_type)


def warn_of_costs(updates: Iterable[FeatureUpdate], finalized: Mapping[str, int]) -> None:
    """Log a warning for each level that will close the directory to an earlier release of Apache Kafka."""
    for cost in costs_of({update.name: update.level for update in updates
                          if update.level > finalized.get(update.name, 0)}):
        logger.warning('%s', cost)


def missing_configs(node: Any) -> list[Any]:
    """Return the config record that KIP-966 requires in the metadata log, min.insync.replicas of the cluster, unless
    the log has it."""
    if MIN_INSYNC_REPLICAS in node.metadata.image.configs.get(ALL_BROKERS, {}):
        return []
    return [ConfigRecord(resource_type=ConfigType.BROKER, resource_name='', name=MIN_INSYNC_REPLICAS,
                         value=str(node.config.min_insync_replicas))]


def error_response(_body: Any, code: ErrorCode, message: str, _version: int) -> Any:
    return UpdateFeaturesResponse(error_code=int(code), error_message=message)


API = Api(ApiKey.UPDATE_FEATURES, 0, 2, handle, error_response)
