"""A client that also does what few applications do: it keeps tables, alters configs, lets records expire, and uses up
producer ids and epochs.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support.clients.promises import READ_UNCOMMITTED, TRANSACTIONAL_ID, Client, RefusedError, TopicPartition
from support.messages.message_builder import build

from kbroker.base.errors import ErrorCode
from kbroker.record.batch import encode_batch
from kbroker.record.records import decode_records

TOPIC_RESOURCE = 2


class BusyClient(Client):
    """A client that also keeps tables in compacted topics, and changes configs."""

    def create_topic_with(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Create a topic with configs."""
        for known in [found for found in self.promises.configs if found[0] == name]:
            del self.promises.configs[known]
        self.promises.configs.update({(name, config): {value} for config, value in configs.items()})
        self.configs_of_new_topics = configs
        try:
            self.create_topic(name, partitions)
        finally:
            self.configs_of_new_topics = {}

    def alter_config(self, topic: str, name: str, value: str) -> None:
        known = self.promises.configs.setdefault((topic, name), {None})
        known.add(value)

        def noted(answer: Any) -> None:
            self.promises.configs[topic, name] = {value}

        self.expect('IncrementalAlterConfigs', 1, noted, resources=[
            {'resource_type': TOPIC_RESOURCE, 'resource_name': topic, 'configs': [
                {'name': name, 'config_operation': 0, 'value': value}]}])

    def put(self, topic_partition: TopicPartition, entries: dict[str, str | None]) -> None:
        """Write entries of a table. The value None deletes its key."""
        producer = self.promises.plain_producer
        assert producer is not None
        table = self.promises.tables.setdefault(topic_partition, {})
        for key, value in entries.items():
            table.setdefault(key, {None}).add(value)

        def noted(answer: Any) -> None:
            table.update({key: {value} for key, value in entries.items()})
            self.promises.sequences[*producer, topic_partition] = sequence + len(entries)

        now_ms, sequence = self.broker.clock.wall_ms(), self._sequence(producer, topic_partition)
        batch = encode_batch([(now_ms, key.encode(), None if value is None else value.encode())
                              for key, value in entries.items()],
                             producer_id=producer[0], producer_epoch=producer[1], base_sequence=sequence)
        topic, partition = topic_partition
        self.expect('Produce', 12, noted, acks=-1, timeout_ms=1000, topic_data=[
            {'name': topic, 'partition_data': [{'index': partition, 'records': bytes(batch)}]}])

    def use_up_producer_ids(self, count: int) -> None:
        for _ in range(count):
            self.init_idempotent()

    def jump_to_epoch(self, epoch: int) -> None:
        """Set the epoch of the transactional producer directly. The next transaction makes it durable."""
        _, metadata = self.broker.transactions.store.find(TRANSACTIONAL_ID)
        metadata.current = metadata.current._replace(producer_epoch=epoch, last_producer_epoch=epoch - 1)
        self.promises.producer = metadata.current.producer_id, epoch

    def expire(self, topic_partition: TopicPartition, ms: int, offset: int) -> None:
        """Advance the clock past the retention time of a partition. The promises no longer include its records. Raise
        RefusedError unless the partition then begins at `offset` or later.
        """
        self.promises.records[topic_partition].clear()
        for _ in range(4):
            self.let_pass(ms)
        found = self.broker.topics.get(*topic_partition).log_start_offset
        if found < offset:
            failure = self.broker.logs.failure
            raise RefusedError(f'{topic_partition} begins at {found}, expected {offset} at least',
                               None if failure is None else failure.code)

    # ---- checking ----

    def check_everything_else(self) -> None:
        self._check_tables()
        self._check_configs()

    def _check_tables(self) -> None:
        for topic_partition, table in self.promises.tables.items():
            if topic_partition[0] not in self.topic_ids():
                continue
            found: dict[str, str | None] = {}
            for batch in self.batches(topic_partition, READ_UNCOMMITTED):
                for record in decode_records(batch):
                    assert record.key is not None
                    value = record.value
                    found[bytes(record.key).decode()] = None if value is None else bytes(value).decode()
            for key, values in table.items():
                assert found.get(key) in values, f'{topic_partition}: {key} is {found.get(key)}, expected {values}'

    def _check_configs(self) -> None:
        topics = self.topic_ids()
        for (topic, name), values in self.promises.configs.items():
            if topic not in topics:
                continue
            answer = self.broker.ask(build('DescribeConfigsRequest', resources=[
                {'resource_type': TOPIC_RESOURCE, 'resource_name': topic, 'configuration_keys': [name]}]), 4)
            assert answer.results[0].error_code == ErrorCode.NONE, answer
            config = answer.results[0].configs[0]
            value = config.value if config.config_source == 1 else None
            assert value in values, f'{topic}: {name} is {value}, expected {values}'
