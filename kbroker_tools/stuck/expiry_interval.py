"""The interval at which the coordinator of a transaction looks for expired transactions."""
from __future__ import annotations

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.admin import Admin
from kbroker.client.admin_requests import ResourceType

EXPIRY_INTERVAL = 'transaction.abort.timed.out.transaction.cleanup.interval.ms'


def expiry_interval_ms(admin: Admin, node_id: int) -> int | None:
    """Return the interval of a broker in milliseconds. Return None if the broker does not have the setting, or if the
    user may not read it. Raise KafkaError or ClientError if the broker fails."""
    broker = (ResourceType.BROKER, str(node_id))
    found = admin.describe_configs([broker])[broker]
    if isinstance(found, KafkaError):
        if found.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise found
        return None
    return next((int(config.value) for config in found if config.name == EXPIRY_INTERVAL and config.value), None)
