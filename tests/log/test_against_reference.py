"""Compares the log with a reference model: appends of every kind, rolls, reads, restarts, and power cuts at any moment.
"""
import pathlib
import random
import shutil
import tempfile

from batches import T, data_batch, marker_batch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from reference.log import CLIENT, COORDINATOR, Batch, ReferenceLog, Refused
from support.disk.faulty_file_systems import FreezingFileSystem

from kbroker.base.clock import ManualClock
from kbroker.base.errors import KafkaError
from kbroker.log.append import Origin
from kbroker.log.check import check_partition
from kbroker.log.log import Log
from kbroker.log.recovery import LogOptions
from kbroker.record.batch import iter_batches
from kbroker.settings.config import Config
from kbroker.settings.topic_config import LogConfig

SETTINGS = {'segment.bytes': '1048576', 'index.interval.bytes': '100'}
PRODUCERS = st.integers(1, 3)


class LogMachine(RuleBasedStateMachine):
    """A state machine that applies random steps to a log in the directory `disk` and to the reference model. After a
    power cut, it continues in a new directory with the files that the cut left.
    """

    @initialize()
    def start(self):
        self.work = pathlib.Path(tempfile.mkdtemp())
        self.disk = self.work / '0'
        self.disk.mkdir()
        self.clock = ManualClock(T)
        self.config = LogConfig(Config({}), SETTINGS)
        self.config.segment_bytes = 3000
        self.reference = ReferenceLog()
        self.recovery_point = 0
        self.restarted_at = 0
        self.high_watermark = 0
        self.open(clean=True)

    def open(self, *, clean: bool):
        self.fs = FreezingFileSystem(self.disk)
        if not clean:
            self.fs.sync_names(str(self.disk))
        self.log = Log(self.fs, str(self.disk / 'topic-0'), 'topic', 0, self.config, self.clock,
                       LogOptions(clean_shutdown=clean, recovery_point=self.recovery_point))
        self.fs.sync_names(str(self.disk))
        # After a clean stop, the recovery point is the log end. A broker writes its own recovery point before it
        # appends. Once, a segment was rolled exactly at the log end of the stop, and a power cut left zeros as its last
        # time index entry.
        self.recovery_point = self.log.recovery_point
        self.high_watermark = self.log.log_end_offset
        self.log.producer_state.unstable.on_high_watermark(self.high_watermark)

    def teardown(self):
        if hasattr(self, 'work'):
            shutil.rmtree(self.work)

    def append(self, batch: Batch, origin: str, epoch: int = 0):
        epoch = max(epoch, self.log.leader_epochs.latest)
        buffer = bytearray(batch.data)
        try:
            expected = self.reference.append(batch, origin, self.restarted_at)
        except Refused as refused:
            expected = str(refused)
        try:
            result = self.log.append_batch(buffer, Origin[origin.upper()], epoch,
                                     transaction_version=batch.transaction_version)
            found = (result.base_offset, result.is_duplicate)
            if not result.is_duplicate:
                batch.data = bytes(buffer)
        except KafkaError as error:
            found = error.code.name
        assert found == expected

    @rule(count=st.integers(1, 5), size=st.integers(0, 300), epoch=st.integers(0, 3))
    def append_plain(self, count, size, epoch):
        self.append(Batch(bytes(data_batch(count, value=b'v' * size, timestamp_ms=T + size)), count), CLIENT, epoch)

    @rule(producer_id=PRODUCERS, count=st.integers(1, 3), epoch_step=st.sampled_from([0, 0, 0, 0, 1, -1]),
          step=st.sampled_from([0, 0, 0, 0, -1, -2, 1]), transactional=st.booleans())
    def append_idempotent(self, producer_id, count, epoch_step, step, transactional):
        producer = self.reference.producers(self.restarted_at).get(producer_id)
        epoch = max(0, (producer.epoch if producer else 0) + epoch_step)
        last = producer.last_sequence if producer and epoch == producer.epoch else -1
        sequence = max(0, last + 1 + step)
        data = data_batch(count, producer_id=producer_id, epoch=epoch, sequence=sequence, transactional=transactional)
        self.append(Batch(bytes(data), count, producer_id, epoch, sequence, transactional), CLIENT)

    @rule(producer_id=PRODUCERS, back=st.integers(0, 6))
    def repeat_a_batch(self, producer_id, back):
        sent = [batch for batch in self.reference.batches if batch.producer_id == producer_id and not batch.marker]
        if len(sent) > back:
            old = sent[-1 - back]
            self.append(Batch(old.data, old.count, producer_id, old.epoch, old.sequence, old.transactional), CLIENT)

    @rule(producer_id=PRODUCERS, commit=st.booleans(), bump=st.integers(-1, 1), coordinator_epoch=st.integers(0, 1),
          transaction_version=st.sampled_from([0, 2]))
    def append_marker(self, producer_id, commit, bump, coordinator_epoch, transaction_version):
        producer = self.reference.producers().get(producer_id)
        epoch = max(0, (producer.epoch if producer else 0) + bump)
        data = marker_batch(commit=commit, producer_id=producer_id, epoch=epoch, coordinator_epoch=coordinator_epoch)
        self.append(Batch(bytes(data), 1, producer_id, epoch, -1, True, 'commit' if commit else 'abort',
                          coordinator_epoch, transaction_version), COORDINATOR)

    @rule()
    def roll(self):
        self.log.roll()

    @rule()
    def flush(self):
        self.log.flush()
        self.high_watermark = self.log.flushed_offset
        self.log.producer_state.unstable.on_high_watermark(self.high_watermark)

    @rule(synced=st.integers(0, 3))
    def sync_some_files_and_no_more(self, synced):
        files, _ = self.log.files_to_sync()
        for file in files[:synced]:
            file.sync()

    @rule()
    def flush_while_appends_go_on(self):
        files, offset = self.log.files_to_sync()
        self.append_plain(1, 10, 0)
        self.log.roll()
        self.append_plain(1, 10, 0)
        for file in files:
            file.sync()
        self.log.mark_flushed(offset)
        assert self.log.flushed_offset == offset

    @rule()
    def checkpoint(self):
        self.recovery_point = self.log.recovery_point

    @rule()
    def restart_cleanly(self):
        self.log.close()
        assert check_partition(self.fs, self.log.directory) == []
        self.recovery_point = self.log.log_end_offset
        self.open(clean=True)
        self.forget_what_a_snapshot_does_not_hold()

    @rule()
    def restart_after_a_kill(self):
        self.log.close(clean=False)
        self.open(clean=False)
        assert self.log.log_end_offset == self.reference.end_offset
        self.forget_what_a_snapshot_does_not_hold()

    @rule(seed=st.integers(0, 2**32))
    def cut_the_power(self, seed):
        durable = self.log.flushed_offset
        left = self.work / str(int(self.disk.name) + 1)
        self.fs.crash(left, random.Random(seed))
        shutil.rmtree(self.disk)
        self.disk = left
        self.open(clean=False)
        end = self.log.log_end_offset
        assert durable <= end <= self.reference.end_offset
        self.reference.truncate_to(end)
        assert self.reference.end_offset == end
        self.forget_what_a_snapshot_does_not_hold()

    def forget_what_a_snapshot_does_not_hold(self):
        """Remove from the reference the batches that the start's snapshot lacks, because duplicates of these batches
        are no longer recognised. The state of the log shows which snapshot the start has used.
        """
        for restarted_at in [0, *(batch.base_offset for batch in self.reference.batches), self.reference.end_offset]:
            producers = self.reference.producers(restarted_at)
            if all(len(producers[entry.producer_id].batches) == len(entry.batches)
                   for entry in self.log.producer_state.entries.values()):
                self.restarted_at = restarted_at
                return
        raise AssertionError('no restart explains the batches that the log remembers')

    @invariant()
    def the_ends_agree(self):
        if hasattr(self, 'log'):
            assert self.log.log_end_offset == self.reference.end_offset
            assert self.log.first_unstable_offset() == self.reference.first_unstable_offset(self.high_watermark)
            found = {entry.producer_id: (entry.producer_epoch, entry.last_sequence) for entry in
                     self.log.producer_state.entries.values()}
            assert found == {producer_id: (producer.epoch, producer.last_sequence)
                             for producer_id, producer in self.reference.producers(self.restarted_at).items()}

    @precondition(lambda self: self.reference.batches)
    @rule(at=st.integers(0, 2**31), upto=st.integers(0, 2**31), max_bytes=st.integers(0, 2000), min_one=st.booleans())
    def read(self, at, upto, max_bytes, min_one):
        batches = self.reference.batches
        start = at % self.reference.end_offset
        upper = batches[upto % len(batches)].last_offset + 1
        piece = self.log.read(start, max_bytes, upper, min_one)
        expected = [batch for batch in batches if batch.last_offset >= start and batch.last_offset < upper]
        if piece is None:
            assert not expected or start >= upper or not min_one
            return
        got = [bytes(batch) for _, batch in iter_batches(piece.read())]
        assert got and got == [batch.data for batch in expected[:len(got)]]
        assert piece.end_offset == expected[len(got) - 1].last_offset + 1
        assert piece.size_bytes <= max_bytes or (min_one and len(got) == 1)
        aborted = set(self.log.aborted_transactions(start, piece.end_offset))
        assert self.reference.aborted(start, piece.end_offset) == aborted

    @rule()
    def everything_is_there(self):
        assert [bytes(batch) for _, batch in self.log.batches()] == [batch.data for batch in self.reference.batches]


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None,
                                   suppress_health_check=list(HealthCheck))
