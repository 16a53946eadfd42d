"""The daemon in this process: the address that it advertises, and the state after a stop."""
import logging
import socket

import pytest

from kbroker.base.errors import ConfigError
from kbroker.daemon.broker import Broker
from kbroker.log.append import Origin
from kbroker.record.batch import encode_batch
from kbroker.settings.config import Config


def broker_on_every_interface(directory):
    return Broker(Config({'log.dirs': str(directory), 'listeners': 'PLAINTEXT://0.0.0.0:0',
                          'kbroker.allow.insecure.listener': 'true'}))


def test_a_broker_on_every_interface_advertises_the_name_of_the_machine(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(socket, 'gethostname', lambda: 'localhost')
    broker = broker_on_every_interface(tmp_path)
    with caplog.at_level(logging.WARNING):
        broker.start()
    assert broker.node.advertised_address('PLAINTEXT') == ('localhost', broker.server.addresses[0][1])
    assert 'clients connect to localhost' in caplog.text
    broker.reactor.call_soon_threadsafe(broker.stop)
    broker.run()


def test_a_broker_that_no_client_could_find_does_not_start(tmp_path, monkeypatch):
    monkeypatch.setattr(socket, 'gethostname', lambda: 'nowhere.invalid')
    with pytest.raises(ConfigError, match='expected the name or address that clients connect to'):
        broker_on_every_interface(tmp_path / 'data').start()
    assert not (tmp_path / 'data').exists()


def test_what_the_last_flush_sets_off_is_still_written_by_a_stop(tmp_path):
    # In an earlier version, a SIGTERM during a commit could cause a traceback. The last flush made the PREPARE row
    # durable, so the broker appended the markers and requested a further flush, but the flusher's worker was already
    # closed. The next start then had to recover the logs.
    broker = Broker(Config({'log.dirs': str(tmp_path), 'listeners': 'PLAINTEXT://127.0.0.1:0'}))
    broker.start()
    partition = broker.node.topics.ensure_internal('__transaction_state').partitions[0]
    durable = []

    def append():
        result = partition.append_batch(encode_batch([(0, b'key', b'value')]), Origin.COORDINATOR)
        partition.when_durable(result.last_offset + 1, on_durable)

    def on_durable(error):
        durable.append(error)
        if len(durable) < 3:
            append()

    def append_and_stop():
        append()
        broker.stop()

    broker.reactor.call_soon_threadsafe(append_and_stop)
    broker.run()
    assert durable == [None] * 3
    assert (tmp_path / '.kafka_cleanshutdown').exists()
