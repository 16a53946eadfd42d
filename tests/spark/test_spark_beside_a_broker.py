"""A reader reads a directory during appends, rolls, compaction and deletion. Each result is the state of the log at one
moment."""
import random
import re
import threading
from bisect import bisect_left, bisect_right

import pytest
from spark_rows import LogFiles, rows

from kbroker_tools.spark.file_ranges import DataLossError
from kbroker_tools.spark.options import OptionError, parse_options
from kbroker_tools.spark.tasks import open_place

WRITES = 1500
KEYS = 12
WRITES_BETWEEN_READS = 5
"""The least number of writes between two reads. Without it, the reading thread may keep the interpreter, and read the
same log thousands of times."""


class Writer(threading.Thread):
    """Appends WRITES times to a log, or until it is stopped. Each value contains its key and its number."""

    def __init__(self, log: LogFiles, seed: int, step):
        super().__init__(daemon=True)
        self.log = log
        self.random = random.Random(seed)
        self.history = []           # (offset, key, value) of committed records, noted when the transaction is decided
        self.pending = {1: [], 2: []}
        self.count = 0
        self.failure = None
        self._step = step
        self._stopped = threading.Event()
        self._written = threading.Semaphore(0)

    def run(self):
        try:
            while self.count < WRITES and not self._stopped.is_set():
                self.write()
                self._step(self)
                self._written.release()
        except BaseException as error:
            self.failure = error
        finally:
            self._written.release(WRITES_BETWEEN_READS)

    def wait_for_writes(self):
        """Wait until as many records as WRITES_BETWEEN_READS were written since the last call."""
        for _ in range(WRITES_BETWEEN_READS):
            self._written.acquire()

    def write(self):
        key = self.random.randrange(KEYS)
        producer_id = self.random.choice([-1, 1, 2])
        value = f'{key}:{self.count}:' + 'x' * self.random.randrange(60)
        self.count += 1
        offset = self.log.write(value, key=b'%d' % key, producer_id=producer_id, codec=self.random.choice([0, 4]))
        row = (offset, key, value)
        if producer_id < 0:
            self.history.append(row)
            return
        self.pending[producer_id].append(row)
        if self.random.random() < 0.3:
            commit = self.random.random() < 0.6
            self.log.end(producer_id, commit)
            if commit:
                self.history += self.pending[producer_id]
            self.pending[producer_id] = []

    def stop(self):
        self._stopped.set()
        self.join(120)
        assert self.failure is None, self.failure


def compacting(writer):
    if writer.random.random() < 0.05:
        writer.log.roll()
    if writer.random.random() < 0.02:
        writer.log.flush()
        writer.log.directory.clean(writer.log.log)


def test_compaction_beside_the_reader_takes_only_what_is_superseded(tmp_path):
    log = LogFiles(tmp_path / 'logs', cleanup_policy='compact', segment_bytes=4000)
    writer = Writer(log, 1, compacting)
    writer.start()
    answers, chance = [], random.Random(3)
    try:
        while writer.count < WRITES and writer.failure is None:
            writer.wait_for_writes()
            options = parse_options({'path': str(log.path)})
            end = open_place(options).bounds('topic', 0).end_offset
            found = rows(path=log.path, endingOffsets=f'{{"topic":{{"0":{end}}}}}',
                         splitBytes=chance.choice([1, 500, 1 << 30]))
            answers.append((end, [(row['offset'], int(row['key']), row['value'].decode()) for row in found]))
    finally:
        writer.stop()
    committed = set(writer.history)
    for end, found in answers:
        offsets = [offset for offset, _, _ in found]
        assert offsets == sorted(set(offsets)) and set(found) <= committed
        latest = {}
        for offset, key, value in sorted(writer.history):
            if offset < end:
                latest[key] = (offset, key, value)
        # Compaction may have removed only records that were superseded by a record above `end`.
        newest = {key: max(offset for offset, other, _ in writer.history if other == key) for key in latest}
        missing = {key for key, row in latest.items() if row not in found}
        assert all(newest[key] >= end for key in missing)
    assert answers[-1][0] > answers[0][0] and len(writer.history) > 200


def deleting(writer):
    if writer.random.random() < 0.05:
        writer.log.roll()
    if writer.random.random() < 0.03:
        log = writer.log.flush().log
        first = log.first_unstable_offset()
        limit = log.log_end_offset if first is None else first
        if limit > log.log_start_offset:
            log.delete_records(writer.random.randrange(log.log_start_offset, limit + 1))
            writer.log.directory.manager.start_offsets.write()
            log.apply_retention(limit)


@pytest.mark.parametrize('fail_on_data_loss', ['true', 'false'])
def test_deletion_beside_the_reader_takes_only_what_is_reported(tmp_path, caplog, fail_on_data_loss):
    log = LogFiles(tmp_path / 'logs', segment_bytes=4000)
    writer = Writer(log, 2, deleting)
    writer.start()
    answers, losses, chance = [], 0, random.Random(4)
    try:
        while writer.count < WRITES and writer.failure is None:
            writer.wait_for_writes()
            try:
                found = rows(path=log.path, splitBytes=chance.choice([1, 500, 1 << 30]),
                             failOnDataLoss=fail_on_data_loss)
            except (DataLossError, OptionError):
                losses += 1
                continue
            answers.append([(row['offset'], int(row['key']), row['value'].decode()) for row in found])
    finally:
        writer.stop()
    committed = sorted(set(writer.history))
    offsets = [offset for offset, _, _ in committed]
    reported = {offset for low, high in set(re.findall(r'offsets (\d+) to (\d+) of', caplog.text))
                for offset in range(int(low), int(high) + 1)}
    for found in filter(None, answers):
        expected = set(committed[bisect_left(offsets, found[0][0]):bisect_right(offsets, found[-1][0])])
        assert set(found) <= expected
        assert {offset for offset, _, _ in expected - set(found)} <= reported
    assert fail_on_data_loss == 'false' or not reported
    assert len(answers) > 3 and (fail_on_data_loss == 'true' or losses == 0)
