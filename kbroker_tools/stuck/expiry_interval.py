"""The interval at which a coordinator looks for expired transactions."""
from __future__ import annotations

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.admin import Admin
from kbroker.client.admin_requests import ResourceType

EXPIRY_INTERVAL = 'transaction.abort.timed.out.transaction.cleanup.interval.ms'


def expiry_interval_ms(admin: Admin, node_id: int) -> int | None:
    """Return the interval of a broker. Return None if the broker has no such setting, or this user may not read it.

    Raise KafkaError or ClientError.
    """
    broker = (ResourceType.BROKER, str(node_id))
    found = admin.describe_configs([broker])[broker]
    if isinstance(found, KafkaError):
        if found.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise found
        return None
    return next((int(config.value) for config in found if config.name == EXPIRY_INTERVAL and config.value), None)
