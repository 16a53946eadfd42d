"""The source of kbroker-share-consume: a member of a share group, which acknowledges the records that were shown."""
from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.base.errors import CorruptLogError, ErrorCode, KafkaError
from kbroker.client.membership import CLOSE_TIMEOUT_MS
from kbroker.client.share_sessions import AcknowledgeType
from kbroker_tools.base.render import warn
from kbroker_tools.console.message_source import OfflineNotes, opening_ms

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster
    from kbroker.client.consumed import DeliveredRecords
    from kbroker.client.share_consumer import ShareConsumer
    from kbroker.client.share_member import SharedPartition
    from kbroker.record.records import Record

DEFAULT_GROUP = 'console-share-consumer'
"""The group of kafka-console-share-consumer, if neither an option nor a setting names one."""

RecordPlace = tuple[str, int, int]
"""(topic, partition, offset)"""


class ShareSource:
    """A share consumer. It acknowledges shown records with `outcome`, rejects those that cannot be shown, and releases
    all others."""

    def __init__(self, cluster: Cluster, consumer: ShareConsumer, outcome: AcknowledgeType, timeout_ms: int | None):
        self._cluster = cluster
        self._consumer = consumer
        self._offline = OfflineNotes(cluster, consumer)
        self._outcome = outcome
        self._timeout_ms = timeout_ms
        self._outcomes: dict[RecordPlace, AcknowledgeType] = {}
        """The outcomes of the records of the last batches. A record that was not shown has none."""

    def batches(self) -> Iterator[list[DeliveredRecords]]:
        for found in self._offline.polls(self._timeout_ms):
            self._outcomes = {(batch.topic, batch.partition, record.offset): self._outcome
                              for batch in found for record in batch.records}
            yield found
            self._acknowledge()

    def unread(self, batch: DeliveredRecords) -> None:
        """Leave the records without an outcome. Closing the session releases them."""
        for record in batch.records:
            self._outcomes.pop((batch.topic, batch.partition, record.offset), None)

    def reject(self, batch: DeliveredRecords, record: Record, error: CorruptLogError) -> None:
        """Reject a record that cannot be shown, and report it."""
        warn(f'Error processing message, rejecting this message: {error}')
        self._outcomes[batch.topic, batch.partition, record.offset] = AcknowledgeType.REJECT

    def close(self) -> None:
        self._cluster.end_within(CLOSE_TIMEOUT_MS)
        self._acknowledge()
        self._consumer.close()

    def _acknowledge(self) -> None:
        for place, outcome in self._outcomes.items():
            try:
                self._consumer.acknowledge(*place, outcome)
            except KafkaError as error:
                if error.code != ErrorCode.INVALID_RECORD_STATE:    # its session is gone, which was reported
                    raise
        self._outcomes = {}


def open_share_group(bootstrap_server: str, command_config: Path | None, overrides: Mapping[str, str], topic: str,
                     outcome: AcknowledgeType, timeout_ms: int | None) -> ShareSource:
    """Open a member of a share group. Raise ConfigError, KafkaError or ClientError."""
    from kbroker.client.cluster import Cluster
    from kbroker.client.config import ClientConfig
    from kbroker.client.share_consumer import ShareConsumer
    from kbroker.client.stream_settings import ShareConsumerSettings
    config = ClientConfig.load(bootstrap_server, command_config, overrides)
    settings = dataclasses.replace(
        ShareConsumerSettings.from_properties({'group.id': DEFAULT_GROUP, **config.properties}), is_explicit=True)
    cluster = Cluster(config)
    cluster.retrying(lambda: cluster.topics([topic]), 'listing topics', timeout_ms=opening_ms(timeout_ms))
    consumer = ShareConsumer(cluster, settings, on_refused=report_refused)
    consumer.subscribe([topic])
    return ShareSource(cluster, consumer, outcome, timeout_ms)


def report_refused(at: SharedPartition, error: KafkaError) -> None:
    warn(f'{at.topic}-{at.partition}: the acknowledgement of records was refused, so they are delivered again: '
          f'{error}')
