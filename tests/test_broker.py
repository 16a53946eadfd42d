"""The daemon in this process: the state after a stop."""
from kbroker.broker import Broker
from kbroker.config import Config
from kbroker.log.origin import Origin
from kbroker.record.batch import encode_batch


def test_what_the_last_flush_sets_off_is_still_written_by_a_stop(tmp_path):
    # Once, SIGTERM arrived while a transaction was committing. The last flush made its PREPARE row durable, so its
    # markers were appended and requested another flush, but the flusher's worker was closed. The stop ended with a
    # traceback, and the next start had to recover.
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
