"""A function that waits until a broker shows the metadata changes that it has acknowledged.

Apache Kafka acknowledges a change of a topic, config, ACL, quota or feature when its controller has written the change.
The broker shows the change a moment later. It applies the changes in the order of the metadata log, each in full before
it shows the next.
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
    """Change the quotas of the entity `mark`, and wait until the broker shows the `expected` quotas."""
    assert (error := admin.alter_client_quotas([mark], changes)) is None, error
    deadline = time.monotonic() + LIMIT_S
    while (found := admin.describe_client_quotas([(*mark, False)])) != expected:
        assert time.monotonic() < deadline, f'found quotas {found}, expected {expected}'
