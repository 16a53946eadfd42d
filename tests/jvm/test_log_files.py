"""Kafka's dump tool reads every file that the log wrote for a partition, and finds no error in it."""
import pathlib

import pytest
from decoded import sound_dump

from kbroker.base.clock import ManualClock
from kbroker.log.append import Origin
from kbroker.log.fs import FileSystem
from kbroker.log.log import Log
from kbroker.record.batch import encode_batch
from kbroker.record.control import encode_end_txn_marker
from kbroker.settings.config import Config
from kbroker.settings.topic_config import LogConfig

T = 1_700_000_000_000
pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]


@pytest.fixture
def directory(tmp_path):
    """A closed partition of three segments. Each has plain, idempotent and transactional batches, a commit and an
    abort.
    """
    config = LogConfig(Config({}), {'index.interval.bytes': '300'})
    log = Log(FileSystem(), str(tmp_path / 'topic-0'), 'topic', 0, config, ManualClock(T))
    for segment in range(3):
        for number in range(10):
            timestamp_ms = T + segment * 100 + number
            log.append_batch(encode_batch([(timestamp_ms, b'key', b'v' * 200)]), Origin.CLIENT, segment)
            batch = encode_batch([(timestamp_ms, b'key', b'v')] * 2, producer_id=number % 2 + 1, producer_epoch=segment,
                                 base_sequence=number // 2 * 2, transactional=True)
            log.append_batch(batch, Origin.CLIENT, segment)
        for producer_id in (1, 2):
            log.append_batch(encode_end_txn_marker(
                commit=producer_id == 1, producer_id=producer_id, producer_epoch=segment, coordinator_epoch=0,
                timestamp_ms=T), Origin.COORDINATOR, segment)
        if segment < 2:
            log.roll()
    log.close()
    return pathlib.Path(log.directory)


def test_the_dump_tool_finds_nothing_wrong(directory):
    suffixes = {'.log', '.index', '.timeindex', '.txnindex', '.snapshot'}
    files = sorted(path for path in directory.iterdir() if path.suffix in suffixes)
    assert [path.suffix for path in files].count('.snapshot') == 3
    text = sound_dump(files)
    assert text.count('endTxnMarker: ABORT') == text.count('lastStableOffset: ') == 3
    assert text.count('endTxnMarker: COMMIT') == 3
