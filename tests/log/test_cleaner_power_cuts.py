"""Log compaction when the power fails at any change of the disk."""

import math
import os
import random
import shutil

from support.disk.directory_with_cleaner import DirectoryWithCleaner, end, write
from support.disk.faulty_file_systems import FreezingFileSystem

from kbroker.log.check import Severity, check_partition
from kbroker.record.abort_filter import AbortFilter
from kbroker.record.records import decode_records


class PowerCutError(BaseException):
    pass


def sample_topic(log):
    """Write several segments with superseded, aborted and compressed data, a tombstone and an open transaction."""
    write(log, ('a', '1'), ('b', '1'), producer=(1, 0, 0))
    write(log, ('a', 'aborted'), ('c', 'aborted'), producer=(2, 0, 0), transactional=True)
    log.roll()
    write(log, ('b', None), ('c', '1'), codec=3, producer=(1, 0, 2))
    end(log, 2, 0, commit=False)
    log.roll()
    write(log, ('c', '2'), ('a', '2'), producer=(2, 0, 2), transactional=True)
    end(log, 2, 0, commit=True)
    write(log, ('x' * 600, 'large'))
    log.roll()
    write(log, ('d', '1'), producer=(3, 0, 0), transactional=True)
    log.flush()
    log.producer_state.unstable.on_high_watermark(log.flushed_offset)


COMMITTED = {'a': '2', 'c': '2', 'x' * 600: 'large'}


def committed_values(log):
    stable = log.first_unstable_offset()
    admits = AbortFilter(log.aborted_transactions(0, stable)).admits
    values = {}
    for header, batch in log.batches():
        if header.last_offset < stable and admits(header, batch):
            values.update((record.key.decode(), record.value) for record in decode_records(batch))
    return {key: value.decode() for key, value in values.items() if value is not None}


def state_of(log):
    return (
        {
            key: (entry.producer_epoch, entry.last_sequence, entry.last_offset, entry.transaction_first_offset)
            for key, entry in log.producer_state.entries.items()
        },
        log.log_end_offset,
        log.first_unstable_offset(),
    )


def missing_indexes(log):
    """Return the names of the index files that the active segment lacks. An index file is created with its first entry.
    """
    paths = [log.segments[-1].path(kind) for kind in ('.index', '.timeindex')]
    return [path for path in paths if not os.path.exists(path)]


def test_a_power_cut_at_any_change_of_a_cleaning_loses_nothing(tmp_path):
    """The power fails before a cleaning, during one of its jobs, during a swap, or after the cleaning. The next start
    must find the same records and must be able to clean the log.
    """
    number, is_cut = 0, True
    while is_cut:
        root = tmp_path / str(number)
        root.mkdir()
        left_changes = math.inf

        def tick(change, path):
            nonlocal left_changes
            left_changes -= 1
            if left_changes < 0:
                raise PowerCutError

        fs = FreezingFileSystem(root, tick)
        directory = DirectoryWithCleaner(root / 'data', fs)
        log = directory.open()
        log.update_config(log.config)
        log.config.segment_bytes = 700
        sample_topic(log)
        fs.sync_names(str(root))
        fs.sync_names(str(root / 'data'))
        before = state_of(log)
        directory.cleaner.start()
        left_changes = number
        try:
            directory.run()
            is_cut = False
        except PowerCutError:
            pass
        assert committed_values(log) == COMMITTED
        for seed in range(3):
            left = tmp_path / f'{number}-{seed}'
            fs.crash(left, random.Random(seed))
            again = DirectoryWithCleaner(left / 'data')
            found = again.open()
            found.producer_state.unstable.on_high_watermark(found.log_end_offset)
            assert committed_values(found) == COMMITTED
            assert state_of(found) == before
            assert [
                finding
                for finding in check_partition(again.manager.fs, found.directory)
                if finding.severity is Severity.ERROR and finding.file not in missing_indexes(found)
            ] == []
            again.cleaner.start()
            again.run()
            assert committed_values(found) == COMMITTED
            again.manager.close()
            assert {os.path.splitext(name)[1] for name in os.listdir(found.directory)} <= {
                '.log',
                '.index',
                '.timeindex',
                '.txnindex',
                '.snapshot',
                '.deleted',
                '.metadata',
                '',
            }
            shutil.rmtree(left)
        shutil.rmtree(root)
        number += 1
    assert number > 40
