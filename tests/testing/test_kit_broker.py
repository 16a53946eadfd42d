"""The broker of a test: its directory, ports and process, and what it contains."""
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from kbroker.testing import Broker, BrokerError


def test_a_broker_serves_when_its_constructor_returns():
    with Broker() as kafka:
        kafka.create_topic('payments', partitions=2)
        kafka.send('payments', b'10', key=b'k', partition=1, headers=[('h', b'v')])
        (record,) = kafka.records('payments')
        assert (record.topic, record.partition, record.offset) == ('payments', 1, 0)
        assert (record.key, record.value, record.headers) == (b'k', b'10', (('h', b'v'),))


def test_a_killed_broker_starts_again_on_its_directory_and_port():
    with Broker() as kafka:
        kafka.create_topic('payments')
        kafka.send('payments', b'10')
        before = kafka.bootstrap_servers, kafka.data_dir
        kafka.kill()
        assert not kafka.is_running
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(('127.0.0.1', int(kafka.bootstrap_servers.rpartition(':')[2])))
        kafka.start()
        assert (kafka.bootstrap_servers, kafka.data_dir) == before
        assert kafka.values('payments') == [b'10']


def test_a_stopped_broker_starts_again():
    with Broker() as kafka:
        kafka.create_topic('payments')
        kafka.stop()
        kafka.start()
        assert kafka.values('payments') == []


def test_a_closed_broker_leaves_no_process_and_no_directory():
    with Broker() as kafka:
        data_dir = kafka.data_dir
        assert data_dir.exists()
    assert not data_dir.exists()
    with pytest.raises(BrokerError, match='closed'):
        kafka.start()


def test_the_directory_that_a_test_gives_stays(tmp_path):
    with Broker(data_dir=tmp_path / 'data') as kafka:
        kafka.create_topic('payments')
        kafka.send('payments', b'10')
    with Broker(data_dir=tmp_path / 'data') as again:
        assert again.values('payments') == [b'10']


def test_a_broker_with_a_wrong_setting_reports_the_line_of_the_broker():
    with pytest.raises(BrokerError, match=r'num\.partitions'):
        Broker(settings={'num.partitions': 'x'})


def test_two_brokers_on_one_directory_are_one_clear_error():
    with Broker() as kafka, pytest.raises(BrokerError) as raised:
        Broker(data_dir=kafka.data_dir)
    assert str(kafka.data_dir) in str(raised.value)


def test_several_threads_start_and_end_brokers_at_the_same_time():
    def start_and_end(number):
        with Broker(control=False, settings={'num.partitions': str(number + 1)}) as kafka:
            kafka.kill()
            kafka.start()
            return kafka.bootstrap_servers

    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(start_and_end, range(12)))) == 12
