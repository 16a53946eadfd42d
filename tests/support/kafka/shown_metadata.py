"""A wait for the changes of metadata that a broker has acknowledged.

Apache Kafka acknowledges a topic, config, ACL, quota or feature when its controller has written it. The broker shows it
a moment later, in the order of the metadata log: a change is applied in full before the next one is shown.
"""
from __future__ import annotations

import time
import uuid

from kbroker.client.admin import Admin
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig

LIMIT_S = 120
QUOTAS = {'producer_byte_rate': 1e9}


def await_shown_metadata(address: str) -> None:
    """Wait until the broker shows and applies all changes that it has acknowledged.

    Set a quota, remove it, and wait for both changes. When the broker shows the second change, it has applied all
    changes before the first one. Raise AssertionError if it takes longer than LIMIT_S.
    """
    cluster = Cluster(ClientConfig.load(address))
    try:
        admin = Admin(cluster)
        mark = 'client-id', uuid.uuid4().hex
        _change(admin, mark, dict(QUOTAS), {(mark,): QUOTAS})
        _change(admin, mark, dict.fromkeys(QUOTAS), {})
    finally:
        cluster.close()


def _change(admin: Admin, mark: tuple[str, str], changes: dict[str, float | None], expected: object) -> None:
    """Change the quotas of the mark, and wait until the broker shows them."""
    assert (error := admin.alter_client_quotas([mark], changes)) is None, error
    deadline = time.monotonic() + LIMIT_S
    while (found := admin.describe_client_quotas([(*mark, False)])) != expected:
        assert time.monotonic() < deadline, f'found quotas {found}, expected {expected}'
