"""Settings of producer and consumer by Kafka's names: their defaults, and combinations that are refused."""
import pytest

from kbroker.base.errors import ConfigError
from kbroker.client.stream_settings import ConsumerSettings, ProducerSettings
from kbroker.record.compression import Compression


def test_without_properties_the_defaults_are_kafkas():
    assert ProducerSettings.from_properties({}) == ProducerSettings()
    assert ConsumerSettings.from_properties({'unknown': 'x'}) == ConsumerSettings()


def test_properties_are_read_by_kafkas_names():
    found = ProducerSettings.from_properties({
        'acks': 'ALL', 'compression.type': 'zstd', 'compression.zstd.level': '7', 'linger.ms': ' 20 ',
        'transactional.id': 'x', 'batch.size': '1000'})
    assert (found.acks, found.compression, found.compression_level) == (-1, Compression.ZSTD, 7)
    assert (found.linger_ms, found.transactional_id, found.batch_size_bytes) == (20, 'x', 1000)
    consumer = ConsumerSettings.from_properties({'group.id': 'g', 'isolation.level': 'read_committed',
                                                 'enable.auto.commit': 'false', 'auto.offset.reset': 'none'})
    assert (consumer.group_id, consumer.isolation_level) == ('g', 'read_committed')
    assert (consumer.enable_auto_commit, consumer.auto_offset_reset) == (False, 'none')


@pytest.mark.parametrize('properties', [{'acks': '1'}, {'retries': '0'},
                                        {'max.in.flight.requests.per.connection': '6'}])
def test_idempotence_goes_where_it_cannot_be_unless_it_was_asked_for(properties):
    assert not ProducerSettings.from_properties(properties).enable_idempotence
    for wanted in ({'enable.idempotence': 'true'}, {'transactional.id': 'x'}):
        with pytest.raises(ConfigError, match='needs acks=all'):
            ProducerSettings.from_properties({**properties, **wanted})


@pytest.mark.parametrize(('settings', 'properties', 'message'), [
    (ProducerSettings, {'linger.ms': '-1'}, "linger.ms: found '-1', expected a number from 0 to 2147483647"),
    (ProducerSettings, {'linger.ms': '1_000'}, "linger.ms: found '1_000', expected a number from 0 to 2147483647"),
    (ProducerSettings, {'compression.zstd.level': 'x'}, "level: found 'x', expected a number from -131072 to 2147"),
    (ProducerSettings, {'compression.type': 'rar'}, "compression.type: found 'rar', expected none or gzip or "),
    (ProducerSettings, {'enable.idempotence': 'no'}, "enable.idempotence: found 'no', expected true or false"),
    (ProducerSettings, {'transactional.id': 'x', 'enable.idempotence': 'false'}, 'a transactional.id needs true'),
    (ConsumerSettings, {'auto.offset.reset': 'now'}, "auto.offset.reset: found 'now', expected earliest or latest or"),
    (ConsumerSettings, {'group.protocol': 'streams'}, "group.protocol: found 'streams', expected classic or consumer"),
    (ConsumerSettings, {'partition.assignment.strategy': 'range,x'},
     'partition.assignment.strategy: found x, expected some of range, '),
    (ConsumerSettings, {'heartbeat.interval.ms': '45000'}, 'heartbeat.interval.ms: found 45000, expected less than'),
])
def test_what_is_not_valid_is_reported(settings, properties, message):
    with pytest.raises(ConfigError) as raised:
        settings.from_properties(properties)
    assert message in str(raised.value)
