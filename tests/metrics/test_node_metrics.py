"""The metrics of the log directory and of the broker itself."""
import os

from support.brokers.collected import collected
from support.brokers.in_process_broker import InProcessBroker
from support.clients.tv1_producer import InProcessPeer, create_topics
from support.messages.message_builder import build

from kbroker import __version__
from kbroker.log.fs import FileSystem
from kbroker.log.manager import DISK_INTERVAL_MS
from kbroker.metrics import log, node
from kbroker.record.batch import encode_batch


class CountedFileSystem(FileSystem):
    """A file system that counts how often it is asked for its free bytes."""

    asked = 0

    def free_bytes(self, path):
        self.asked += 1
        return super().free_bytes(path)


def produce(broker, topic, *keys):
    batch = bytes(encode_batch([(broker.clock.wall_ms(), key, os.urandom(200)) for key in keys]))
    broker.ask(build('ProduceRequest', acks=-1, timeout_ms=1000, topic_data=[
        dict(name=topic, partition_data=[dict(index=0, records=batch)])]), 12)


def configure(broker, topic, **configs):
    broker.ask(build('IncrementalAlterConfigsRequest', resources=[dict(
        resource_type=2, resource_name=topic,
        configs=[dict(name=name.replace('_', '.'), config_operation=0, value=value)
                 for name, value in configs.items()])]))


def test_the_disk_is_asked_at_intervals_and_not_by_each_scrape(tmp_path):
    fs = CountedFileSystem()
    with InProcessBroker(tmp_path / 'data', fs=fs) as broker:
        for _ in range(5):
            found = collected(log.collect(broker))
        assert fs.asked == 1
        assert 0 < found['kbroker_disk_free_bytes',] <= found['kbroker_disk_size_bytes',]
        broker.clock.advance(DISK_INTERVAL_MS)
        collected(log.collect(broker))
        assert fs.asked == 2


def test_retention_the_cleaner_and_removals_are_counted(tmp_path):
    with InProcessBroker(tmp_path / 'data', {'log.cleaner.backoff.ms': '15000'}) as broker:
        create_topics(InProcessPeer(broker), old=1, table=1)
        configure(broker, 'old', segment_bytes='1048576', retention_ms='60000', file_delete_delay_ms='1000')
        configure(broker, 'table', cleanup_policy='compact', segment_ms='60000', min_cleanable_dirty_ratio='0.1')
        found = collected(log.collect(broker))
        assert (found['kbroker_retention_deleted_segments',], found['kbroker_cleaner_cleanings',]) == (0, 0)
        assert ('kbroker_retention_last_run_timestamp_seconds',) not in found
        for _ in range(3):
            produce(broker, 'old', b'a')
            produce(broker, 'table', b'a')
            broker.clock.advance(61_000)
            broker.turn()
        size_bytes = broker.topics.get('old', 0).size_bytes
        broker.logs.apply_retention()
        broker.long_work.finish()
        broker.turn()
        for _ in range(20):
            broker.clock.advance(15_000)
            broker.turn()
        found = collected(log.collect(broker))
        assert found['kbroker_retention_deleted_segments',] == 1
        assert found['kbroker_retention_deleted_bytes',] == size_bytes > 0
        assert found['kbroker_retention_last_run_timestamp_seconds',] <= broker.clock.wall_ms() / 1000
        assert found['kbroker_files_removed',] > 0
        assert found['kbroker_cleaner_cleanings',] >= 1
        assert found['kbroker_cleaner_read_bytes',] > found['kbroker_cleaner_written_bytes',] > 0
        assert 0 <= found['kbroker_cleaner_worst_dirty_ratio',] <= 1
        assert found['kbroker_checkpoint_writes', 'replication-offset-checkpoint'] > 0
        assert (found['kbroker_log_directory_failed',], found['kbroker_cleaner_failed_logs',]) == (0, 0)


def test_a_failed_log_directory_is_a_metric(tmp_path):
    with InProcessBroker(tmp_path / 'data') as broker:
        broker.logs.fail('a test')
        broker.turn()
        assert collected(log.collect(broker))['kbroker_log_directory_failed',] == 1
        broker.crash()


def test_the_broker_tells_its_release_features_and_how_it_started(tmp_path):
    with InProcessBroker(tmp_path / 'data') as broker:
        found = collected(node.collect(broker))
        build_info, = (labels for name, *labels in found if name == 'kbroker_build_info')
        assert build_info[0] == __version__ and build_info[2] == broker.metadata.cluster_id
        assert found['kbroker_feature_level', 'transaction.version'] == 2
        assert found['kbroker_start_after_clean_stop',] == 0
        assert found['kbroker_metadata_end_offset',] == broker.topics.metadata_offset
        assert found['kbroker_start_timestamp_seconds',] == broker.clock.wall_ms() / 1000
        assert found['kbroker_metadata_snapshot_age_seconds',] >= 0
    with InProcessBroker(tmp_path / 'data') as broker:
        assert collected(node.collect(broker))['kbroker_start_after_clean_stop',] == 1
