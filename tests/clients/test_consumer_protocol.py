"""The tests of `behaviours.py` with librdkafka (confluent-kafka) and `group.protocol=consumer` (KIP-848)."""
import confluent_kafka
import pytest
from behaviours import Behaviours, Restarts, fresh, until
from test_confluent import ConfluentClient, ConfluentConsumer

pytestmark = pytest.mark.timeout(180)


class ConsumerProtocolClient(ConfluentClient):
    def consumer(self, group, isolation='read_uncommitted', **settings):
        return ConfluentConsumer({'bootstrap.servers': self.address, 'group.id': group, 'isolation.level': isolation,
                                  'auto.offset.reset': 'earliest', 'enable.auto.commit': False,
                                  'group.protocol': 'consumer', **settings})


class TestConsumerProtocol(Behaviours):
    library = ConsumerProtocolClient

    def test_a_regular_expression_follows_the_topics_that_match_it(self, client):
        prefix = fresh('pattern')
        client.create_topic(f'{prefix}-1', 1)
        with client.consumer(fresh('group')) as consumer:
            consumer.subscribe(f'^{prefix}-.*')
            until(lambda: consumer.poll() is not None and consumer.assignment() == {(f'{prefix}-1', 0)})
            client.create_topic(f'{prefix}-2', 1)
            until(lambda: consumer.poll() is not None
                  and consumer.assignment() == {(f'{prefix}-1', 0), (f'{prefix}-2', 0)})

    def test_a_static_member_that_comes_back_keeps_its_partitions(self, client):
        topic = client.new_topic('static', 4)
        group = fresh('group')
        with client.consumer(group) as other:
            other.subscribe(topic)
            with client.consumer(group, **{'group.instance.id': 'one'}) as first:
                first.subscribe(topic)
                until(lambda: other.poll() is not None and first.poll() is not None
                      and len(first.assignment()) == len(other.assignment()) == 2)
                held = first.assignment()
            with client.consumer(group, **{'group.instance.id': 'one'}) as again:
                again.subscribe(topic)
                until(lambda: again.poll() is not None and again.assignment())
                assert again.assignment() == held

    def test_a_name_that_another_live_member_has_is_refused(self, client):
        topic = client.new_topic('static', 1)
        group = fresh('group')
        with client.consumer(group, **{'group.instance.id': 'one'}) as first:
            first.subscribe(topic)
            until(lambda: first.poll() is not None and first.assignment())
            second = client.consumer(group, **{'group.instance.id': 'one'})
            second.subscribe(topic)
            with pytest.raises((AssertionError, confluent_kafka.KafkaException), match='instance ID is still used'):
                until(second.poll)
            second.close()


class TestConsumerProtocolOverRestarts(Restarts):
    library = ConsumerProtocolClient


