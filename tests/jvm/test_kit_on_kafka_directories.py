"""A broker of the test kit serves a copy of the directory of an Apache Kafka that was killed."""
import pytest
from support.kafka.apache_kafka import KafkaProcess

from kbroker.client import Admin, Consumer, Producer
from kbroker.testing import Broker

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]


def test_a_broker_of_a_test_serves_a_copy_of_the_directory_of_apache_kafka(tmp_path):
    with KafkaProcess(tmp_path / 'kafka') as kafka:
        with Admin(kafka.address) as admin:
            assert admin.create_topics({'payments': 2}) == {'payments': None}
        with Producer(kafka.address, transactional_id='app') as producer:
            with producer.transaction():
                producer.send('payments', b'10', partition=0)
            with pytest.raises(ZeroDivisionError), producer.transaction():
                producer.send('payments', b'20', partition=1)
                producer.flush()
                raise ZeroDivisionError
        with Consumer(kafka.address, group_id='app', topics=['payments'], isolation_level='read_committed',
                      auto_offset_reset='earliest') as consumer:
            assert consumer.poll(60_000)
            consumer.commit()
        kafka.kill9()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / 'kafka').rglob('*')}
    with Broker(copy_of=tmp_path / 'kafka') as copy:
        assert copy.values('payments') == [b'10']
        assert copy.wait_for(lambda: [record.outcome for record in copy.records('payments', 'read_uncommitted')] == [
            'visible', 'aborted'])
        assert copy.committed('app') == {('payments', 0): copy.offsets('payments')[0].end,
                                         ('payments', 1): copy.offsets('payments')[1].end}
        copy.send('payments', b'30', partition=0)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / 'kafka').rglob('*')} == before
