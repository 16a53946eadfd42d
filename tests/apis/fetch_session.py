"""The client's side of a fetch session with an in-process broker."""
from api_client import values_of

from kbroker.protocol.messages import FetchRequest

VERSION = 12


class Session:
    """The client's side of a session over partitions of one topic. `epoch` is the epoch of its next request."""

    def __init__(self, client, topic='wide', version=VERSION):
        self.client, self.topic, self.version = client, topic, version
        self.session_id = self.epoch = 0
        self.max_bytes = 1 << 20

    def begin(self, offsets=(), *, forget=(), connection=None, max_wait_ms=0, min_bytes=1):
        request = FetchRequest(
            max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=self.max_bytes, session_id=self.session_id,
            session_epoch=self.epoch, topics=[FetchRequest.FetchTopic(topic=self.topic, partitions=[
                FetchRequest.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
                for partition, offset in dict(offsets).items()])] if offsets else [],
            forgotten_topics_data=[FetchRequest.ForgottenTopic(topic=self.topic, partitions=list(forget))])
        self.request, self.connection = request, connection or self.client.broker.connect()
        self.before = len(self.connection.replies)
        self.client.broker.begin(request, self.version, self.connection)
        self.epoch += 1
        return self

    @property
    def is_answered(self):
        return len(self.connection.replies) > self.before

    @property
    def answer(self):
        return self.client.broker.answer_to(self.connection, self.request, self.version)

    def ask(self, offsets=(), **options):
        """Fetch in the session. Return {partition: values}, in the order of the answer."""
        answer = self.begin(offsets, **options).answer
        assert answer.error_code == 0, answer.error_code
        if self.session_id == 0:
            self.session_id = answer.session_id
        return {partition.partition_index: values_of(partition.records)
                for topic in answer.responses for partition in topic.partitions}

    def refusal(self, offsets=()):
        answer = self.begin(offsets).answer
        assert not answer.responses and answer.session_id == 0
        return answer.error_code
