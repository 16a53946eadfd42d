"""The sink creates topics with the option createTopics, before it writes any row."""
import pickle
from contextlib import closing

import pytest
from pyspark.sql.types import StringType, StructField, StructType
from sink_steps import VALUE, batch, create, options, planned, staged
from support.clients.committed_records import committed_records

from kbroker.client import Admin
from kbroker.client.acl import Acl
from kbroker.client.admin_requests import ResourceType
from kbroker_tools.spark import KafkaLogDataSource
from kbroker_tools.spark.options import OptionError
from kbroker_tools.spark.sink.ledger import partition_counts
from kbroker_tools.spark.sink.options import parse_sink_options
from kbroker_tools.spark.sink.store import BrokerStore
from kbroker_tools.spark.sink.topics import NewTopics, create_topics
from kbroker_tools.spark.sink.values import QUERY, SinkError, Unit

NEEDED = {'kafka.bootstrap.servers': 'b:1', 'transactionalIdPrefix': 'p', 'topic': 't'}
FORM = {'createTopics': 'true', 'topicPartitions': '6', 'topicReplicationFactor': '1',
        'topic.config.retention.ms': '86400000'}


@pytest.fixture
def admin(shared_broker):
    with Admin(shared_broker.address) as found:
        yield found


def exists(admin, topic):
    return bool(partition_counts(admin.cluster, [topic]))


def partitions(admin, topic):
    return partition_counts(admin.cluster, [topic])[topic]


def values(admin, topic):
    return [record.value for _, record in committed_records(admin, topic, partitions(admin, topic))]


def retention_ms(admin, topic):
    resource = (ResourceType.TOPIC, topic)
    return next(row.value for row in admin.describe_configs([resource])[resource] if row.name == 'retention.ms')


@pytest.mark.parametrize(('given', 'text'), [
    ({'topicPartitions': '3'}, 'topicPartitions: not allowed here: it is for createTopics=true'),
    ({'topic.config.retention.ms': '1'}, r'topic\.config\.retention\.ms: not allowed here: it is for createTopics='),
    ({'createTopics': 'false', 'topicReplicationFactor': '3'}, 'topicReplicationFactor: not allowed here'),
    ({'createTopics': 'true', 'topic.config.': '1'}, r'topic\.config\.: no such option of the sink'),
    ({'createTopics': 'true', 'topicPartition': '1'}, 'topicPartition: no such option of the sink, did you mean topic'),
])
def test_the_form_of_new_topics_needs_create_topics(given, text):
    with pytest.raises(OptionError, match=f'option {text}'):
        parse_sink_options(NEEDED | given, is_stream=True)


@pytest.mark.parametrize('delivery', ['exactly_once', 'at_least_once'])
def test_a_missing_topic_is_created_by_the_driver_before_its_tasks(shared_broker, admin, delivery):
    topic = f'new-{delivery}'
    planned(options(shared_broker, topic, delivery=delivery, **FORM))
    assert (partitions(admin, topic), retention_ms(admin, topic)) == (6, '86400000')


def test_an_existing_topic_is_not_changed(shared_broker, admin, monkeypatch):
    create(admin, 'old', 2, retention_ms='1000000')
    given = options(shared_broker, 'old', **FORM)
    task = planned(given)
    KafkaLogDataSource(given).streamWriter(VALUE, False).commit([staged(monkeypatch, task, 0, 'x')], 0)
    assert (partitions(admin, 'old'), retention_ms(admin, 'old')) == (2, '1000000')
    assert values(admin, 'old') == [b'x']


def test_a_topic_that_another_driver_has_just_created_is_used(shared_broker, admin):
    """Two drivers may both miss the topic, and then create it."""
    with closing(BrokerStore(parse_sink_options(options(shared_broker, 'raced'), is_stream=True))) as store:
        create_topics(store.cluster, ['raced'], NewTopics(3))
        create_topics(store.cluster, ['raced', 'alone'], NewTopics(5))
    assert (partitions(admin, 'raced'), partitions(admin, 'alone')) == (3, 5)


@pytest.mark.parametrize(('wrong', 'text'), [
    ({'topic.config.retention': '5'}, r"topic 'wrong' cannot be created with .*config\.retention=5: .*INVALID_CONFIG"),
    ({'topic.config.retention.ms': 'soon'}, r"topic\.config\.retention\.ms=soon: .*INVALID_CONFIG"),
], ids=['name', 'value'])
def test_a_form_that_the_broker_refuses_is_an_error_before_the_tasks(shared_broker, admin, wrong, text):
    with pytest.raises(SinkError, match=text) as error:
        planned(options(shared_broker, 'wrong', **FORM | wrong))
    assert '\n' not in str(error.value)
    assert not exists(admin, 'wrong')


def test_topics_that_rows_name_are_created_before_their_first_row(start_broker, monkeypatch):
    broker = start_broker({'auto.create.topics.enable': 'false'})
    given = {name: text for name, text in options(broker, 'by-column', **FORM).items() if name != 'topic'}
    schema = StructType([*VALUE.fields, StructField('topic', StringType())])
    task = pickle.loads(pickle.dumps(KafkaLogDataSource(given).streamWriter(schema, False)))
    with Admin(broker.address) as admin:
        create(admin, 'another', 1)
        staged(monkeypatch, planned(options(broker, 'another')), 0)     # gives the task a context
        result = task.run_task(Unit(QUERY + 'q', 0), iter([batch(value=['x', 'y'], topic=['blue', 'red'])]))
        assert not exists(admin, 'blue')
        KafkaLogDataSource(given).streamWriter(schema, False).commit([result], 0)
        assert [partitions(admin, topic) for topic in ('blue', 'red')] == [6, 6]
        assert values(admin, 'blue') + values(admin, 'red') == [b'x', b'y']


def test_without_the_right_to_create_a_topic_the_error_names_the_right(start_broker):
    broker = start_broker({'authorizer.class.name': 'org.apache.kafka.metadata.authorizer.StandardAuthorizer',
                           'allow.everyone.if.no.acl.found': 'true'})
    with Admin(broker.address) as admin:
        for kind, name in (('topic', 'denied'), ('cluster', 'kafka-cluster')):
            admin.create_acls([Acl(kind, name, 'literal', 'User:*', '*', 'all', 'allow')])
            admin.create_acls([Acl(kind, name, 'literal', 'User:*', '*', 'create', 'deny')])
    with pytest.raises(SinkError, match="found no topic 'denied', and the user of this write may not create it: give "
                       'the user the right Create on the topic, or create the topic first'):
        planned(options(broker, 'denied', **FORM))
