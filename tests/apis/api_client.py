"""A client of an in-process broker, with short methods for the frequent requests of handler tests."""

from __future__ import annotations

from typing import Any

from support.brokers.in_process_broker import InProcessBroker, InProcessConnection
from support.messages.message_builder import batch_of, build

from kbroker.base.errors import ErrorCode
from kbroker.record.batch import iter_batches
from kbroker.record.records import decode_records
from kbroker.security.session import Session


class Parked:
    """A request that was sent, and its answer once the broker has sent it."""

    def __init__(
        self,
        broker: InProcessBroker,
        request: Any,
        version: int,
        client_id: str,
        connection: InProcessConnection,
    ):
        self._broker, self._request, self._version = broker, request, version
        self.connection = connection
        self._before = len(self.connection.replies)
        broker.begin(request, version, self.connection, client_id)

    @property
    def is_answered(self) -> bool:
        return len(self.connection.replies) > self._before

    @property
    def answer(self) -> Any:
        assert self.is_answered
        return self._broker.answer_to(self.connection, self._request, self._version)


class ApiClient:
    """A client that opens a connection for each request. Without a `session`, it has all rights."""

    def __init__(self, broker: InProcessBroker, client_id: str = 'test', session: Session | None = None):
        self.broker = broker
        self.client_id = client_id
        self.session = session

    @property
    def now_ms(self) -> int:
        return self.broker.clock.wall_ms()

    def begin(
        self, api: str, version: int | None = None, *, connection: InProcessConnection | None = None, **fields: Any
    ) -> Parked:
        request = build(f'{api}Request', **fields)
        return Parked(
            self.broker,
            request,
            request.versions[1] if version is None else version,
            self.client_id,
            connection or self.broker.connect(self.session),
        )

    def ask(self, api: str, version: int | None = None, **fields: Any) -> Any:
        """Send a request, run all long work and one more tick, and return the answer. Fail if it has not arrived by
        then."""
        asked = self.begin(api, version, **fields)
        while not asked.is_answered and len(self.broker.long_work):
            self.broker.turn()
        if not asked.is_answered:
            self.broker.turn()
        return asked.answer

    def settle(self) -> None:
        """Run ticks until all work of the broker is done, except work that waits for a timer."""
        self.broker.turn()
        while len(self.broker.long_work):
            self.broker.turn()

    def create_topic(self, name: str = 'orders', partitions: int = 1, **configs: str) -> bytes:
        """Create a topic and return its id. The names of configs have _ instead of dots."""
        (answer,) = self.ask(
            'CreateTopics',
            topics=[
                {
                    'name': name,
                    'num_partitions': partitions,
                    'replication_factor': 1,
                    'configs': [{'name': key.replace('_', '.'), 'value': value} for key, value in configs.items()],
                }
            ],
        ).topics
        assert answer.error_code == 0, answer
        topic_id: bytes = answer.topic_id
        return topic_id

    def change(
        self, resource_type: int, name: str, *changes: tuple[str, int, str | None], version: int = 1, **options: Any
    ) -> Any:
        """Change configs of one resource. Each change is (config, operation, value). Return the resource's part of the
        answer."""
        configs = [{'name': key, 'config_operation': operation, 'value': value} for key, operation, value in changes]
        resource = {'resource_type': resource_type, 'resource_name': name, 'configs': configs}
        (answer,) = self.ask('IncrementalAlterConfigs', version, resources=[resource], **options).responses
        return answer

    def alter(self, resource_type: int, name: str, **configs: str | None) -> int:
        """Set configs, and delete each config whose value is None. The names have _ instead of dots. Return the error
        code."""
        changes = ((key.replace('_', '.'), int(value is None), value) for key, value in configs.items())
        code: int = self.change(resource_type, name, *changes).error_code
        return code

    def batch(self, *values: Any, **options: Any) -> bytes:
        return batch_of(self.now_ms, *(values or (b'value',)), **options)

    def begin_produce(
        self,
        records: bytes | None,
        version: int = 12,
        *,
        topic: str = 'orders',
        partition: int = 0,
        acks: int = -1,
        transactional_id: str | None = None,
        connection: InProcessConnection | None = None,
    ) -> Parked:
        return self.begin(
            'Produce',
            version,
            acks=acks,
            timeout_ms=1000,
            transactional_id=transactional_id,
            connection=connection,
            topic_data=[{'name': topic, 'partition_data': [{'index': partition, 'records': records}]}],
        )

    def produce(self, records: bytes | None, version: int = 12, **options: Any) -> Any:
        """Produce to one partition, and return the answer for this partition."""
        return self.begin_produce(records, version, **options).answer.responses[0].partition_responses[0]

    def begin_fetch(
        self,
        version: int = 12,
        *,
        topic: str = 'orders',
        partition: int = 0,
        offset: int = 0,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        partition_max_bytes: int = 1 << 20,
        isolation_level: int = 0,
        connection: InProcessConnection | None = None,
        **more: Any,
    ) -> Parked:
        return self.begin(
            'Fetch',
            version,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            connection=connection,
            topics=[
                {
                    'topic': topic,
                    'partitions': [
                        {
                            'partition': partition,
                            'fetch_offset': offset,
                            'partition_max_bytes': partition_max_bytes,
                            **more,
                        }
                    ],
                }
            ],
        )

    def fetch(self, version: int = 12, **options: Any) -> Any:
        """Fetch from one partition, and return the answer for this partition."""
        return self.begin_fetch(version, **options).answer.responses[0].partitions[0]

    def list_offset(self, timestamp: int, version: int = 9, *, topic: str = 'orders', isolation_level: int = 0) -> Any:
        return (
            self.ask(
                'ListOffsets',
                version,
                replica_id=-1,
                isolation_level=isolation_level,
                topics=[{'name': topic, 'partitions': [{'partition_index': 0, 'timestamp': timestamp}]}],
            )
            .topics[0]
            .partitions[0]
        )


class TransactionalClient(ApiClient):
    """A client that has initialized its transactional id and holds a producer id."""

    def __init__(self, broker: InProcessBroker, transactional_id: str = 'tx'):
        super().__init__(broker)
        self.transactional_id = transactional_id
        self.ask('FindCoordinator', coordinator_keys=[transactional_id], key_type=1)
        answer = self.ask('InitProducerId', 5, transactional_id=transactional_id, transaction_timeout_ms=60000)
        if answer.error_code == ErrorCode.CONCURRENT_TRANSACTIONS:
            # The broker first aborts the open transaction of the id's previous producer. The abort ends within the
            # tick.
            answer = self.ask('InitProducerId', 5, transactional_id=transactional_id, transaction_timeout_ms=60000)
        assert answer.error_code == 0
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch

    def batch(self, *values: Any, base_sequence: int = 0, **options: Any) -> bytes:
        return batch_of(
            self.now_ms,
            *(values or (b'value',)),
            base_sequence=base_sequence,
            transactional=True,
            **{'producer_id': self.producer_id, 'producer_epoch': self.producer_epoch, **options},
        )

    def begin_produce(self, *arguments: Any, **options: Any) -> Parked:
        return super().begin_produce(*arguments, **{'transactional_id': self.transactional_id, **options})

    def add_partition(self, topic: str = 'orders', partition: int = 0) -> int:
        answer = self.ask(
            'AddPartitionsToTxn',
            3,
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=[{'name': topic, 'partitions': [partition]}],
        )
        code: int = answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        return code

    def begin_end(self, committed: bool, version: int = 5) -> Parked:
        return self.begin(
            'EndTxn',
            version,
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=committed,
        )

    def end(self, committed: bool, version: int = 5) -> None:
        answer = self.begin_end(committed, version).answer
        assert answer.error_code == 0
        if version >= 5:
            self.producer_epoch = answer.producer_epoch


def values_of(records: Any) -> list[bytes | None]:
    """Return the values of all data records in `records`, the batches of a fetch answer."""
    return [
        record.value
        for header, batch in iter_batches(records)
        if not header.is_control
        for record in decode_records(batch)
    ]
