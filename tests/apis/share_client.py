"""A member of a share group that sends raw requests to an in-process broker."""
from __future__ import annotations

from typing import Any

from api_client import ApiClient, Parked

from kbroker.group.share.rows import ShareKey

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


class ShareClient(ApiClient):
    """One member of a share group on one connection. `epoch` is the session epoch in its next request."""

    def __init__(self, broker: Any, topic_id: bytes, member_id: str = 'm1', group_id: str = 'g1', partitions: int = 1):
        super().__init__(broker)
        self.topic_id = topic_id
        self.member_id = member_id
        self.group_id = group_id
        self.partitions = partitions
        self.connection = broker.connect()
        self.epoch = 0

    def initialize(self, start_offset: int = 0, state_epoch: int = 1) -> None:
        keys = [ShareKey(self.group_id, self.topic_id, index) for index in range(self.partitions)]
        failed: list[Any] = []
        self.broker.share_states.initialize(dict.fromkeys(keys, start_offset), state_epoch, failed.append)
        self.broker.long_work.finish()
        self.broker.turn()
        assert failed == [{}], failed

    def begin_fetch_shares(self, version: int = 2, *, epoch: int | None = None, acknowledge: Any = (),
                           partitions: Any = None, **fields: Any) -> Parked:
        epoch = self.epoch if epoch is None else epoch
        said: dict[int, list[Any]] = {}
        for partition, first, last, *types in acknowledge:
            said.setdefault(partition, []).append(batch(first, last, types))
        named = range(self.partitions) if partitions is None and epoch == 0 else partitions or ()
        topics = [{'topic_id': self.topic_id, 'partitions': [
            {'partition_index': index, 'acknowledgement_batches': said.get(index, [])}
            for index in dict.fromkeys([*named, *said])]}]
        options = {'max_wait_ms': 0, 'min_bytes': 1, 'max_bytes': 1 << 20, 'max_records': 500, 'batch_size': 500}
        parked = self.begin('ShareFetch', version, connection=self.connection, group_id=self.group_id,
                            member_id=self.member_id, share_session_epoch=epoch, topics=topics,
                            **(options | fields))
        self.settle()
        return parked

    def fetch_shares(self, version: int = 2, **options: Any) -> Any:
        """Fetch and return the answer. Without an error, the next request continues the session."""
        answer = self.begin_fetch_shares(version, **options).answer
        self.advance(answer)
        return answer

    def advance(self, answer: Any) -> None:
        if answer.error_code == 0:
            self.epoch += 1

    def acquired(self, **options: Any) -> list[tuple[int, int, int]]:
        """Fetch. Return the acquired ranges of partition 0, each as (first offset, last offset, delivery count)."""
        return ranges(self.fetch_shares(**options))

    def acknowledge(self, *batches: Any, epoch: int | None = None, version: int = 2, **fields: Any) -> Any:
        """Acknowledge batches, each given as (partition, first offset, last offset, types...). Return the answer."""
        said: dict[int, list[Any]] = {}
        for partition, first, last, *types in batches:
            said.setdefault(partition, []).append(batch(first, last, types))
        parked = self.begin('ShareAcknowledge', version, connection=self.connection, group_id=self.group_id,
                            member_id=self.member_id, share_session_epoch=self.epoch if epoch is None else epoch,
                            topics=[{'topic_id': self.topic_id, 'partitions': [
                                {'partition_index': index, 'acknowledgement_batches': rows}
                                for index, rows in said.items()]}], **fields)
        self.settle()
        answer = parked.answer
        self.advance(answer)
        return answer

    def say(self, first: int, last: int, *types: int, **options: Any) -> int:
        """Acknowledge the records from `first` to `last` of partition 0. Return the error code of the partition."""
        answer = self.acknowledge((0, first, last, *types), **options)
        assert answer.error_code == 0, answer
        code: int = answer.responses[0].partitions[0].error_code
        return code

    def disconnect(self) -> None:
        self.broker.disconnect(self.connection)
        self.settle()


def batch(first: int, last: int, types: Any) -> dict[str, Any]:
    return {'first_offset': first, 'last_offset': last, 'acknowledge_types': list(types) or [ACCEPT]}


def ranges(answer: Any) -> list[tuple[int, int, int]]:
    """Return the acquired ranges of partition 0, each as (first offset, last offset, delivery count)."""
    assert answer.error_code == 0, answer
    return [(acquired.first_offset, acquired.last_offset, acquired.delivery_count)
            for topic in answer.responses for partition in topic.partitions if partition.partition_index == 0
            for acquired in partition.acquired_records]
