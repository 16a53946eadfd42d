"""The source of kbroker-share-consume. It is a member of a share group and acknowledges the records that were shown."""
from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.base.errors import CorruptLogError, ErrorCode, KafkaError
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
"""The group id that kafka-console-share-consumer uses if neither an option nor a setting names a group."""

RecordPlace = tuple[str, int, int]
"""(topic, partition, offset)"""


class ShareSource:
    """A source that reads as a member of a share group. It acknowledges shown records with `outcome`, rejects records
    that cannot be shown, and releases all others."""

    def __init__(self, cluster: Cluster, consumer: ShareConsumer, outcome: AcknowledgeType, timeout_ms: int | None):
        self._consumer = consumer
        self._offline = OfflineNotes(cluster, consumer)
        self._outcome = outcome
        self._timeout_ms = timeout_ms
        self._outcomes: dict[RecordPlace, AcknowledgeType] = {}
        """Maps each record of the last batches to its outcome. Records that were not shown have no entry."""

    def batches(self) -> Iterator[list[DeliveredRecords]]:
        for found in self._offline.polls(self._timeout_ms):
            self._outcomes = {(batch.topic, batch.partition, record.offset): self._outcome
                              for batch in found for record in batch.records}
            yield found
            self._acknowledge()

    def unread(self, batch: DeliveredRecords) -> None:
        """Remove the outcomes of a batch's records. Closing the session releases these records."""
        for record in batch.records:
            self._outcomes.pop((batch.topic, batch.partition, record.offset), None)

    def reject(self, batch: DeliveredRecords, record: Record, error: CorruptLogError) -> None:
        """Reject a record that cannot be shown, and report the error."""
        warn(f'Error processing message, rejecting this message: {error}')
        self._outcomes[batch.topic, batch.partition, record.offset] = AcknowledgeType.REJECT

    def close(self) -> None:
        self._acknowledge()
        self._consumer.close(self._offline.close_ms(self._timeout_ms))

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
    """Open a member of a share group. Raise ConfigError if a setting is invalid, and KafkaError or ClientError if the
    broker fails."""
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
