"""Compares compaction with a reference model: random histories with cleanings, restarts and power cuts at any time."""

import pathlib
import random
import shutil
import tempfile

import pytest
from batches import T, marker_batch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from reference.compaction import Rules, Stored, committed_values, compact
from support.disk.faulty_file_systems import FreezingFileSystem

from kbroker.base.clock import ManualClock, Timers
from kbroker.base.long_work import run_to_end
from kbroker.log.append import Origin
from kbroker.log.check import check_partition
from kbroker.log.cleaner import Cleaner
from kbroker.log.jobs import run_inline
from kbroker.log.manager import LogManager
from kbroker.log.timestamps import INLINE
from kbroker.record.abort_filter import AbortFilter
from kbroker.record.batch import encode_batch, iter_batches
from kbroker.record.records import decode_records
from kbroker.settings.config import Config
from kbroker.settings.topic_config import LogConfig

HOUR_MS = 3_600_000
BACKOFF_MS = 15_000
TOPIC = ('topic', 0)
TOPIC_SETTINGS = {
    'cleanup.policy': 'compact',
    'min.cleanable.dirty.ratio': '0',
    'delete.retention.ms': str(5 * HOUR_MS),
    'index.interval.bytes': '100',
}
PRODUCERS = st.integers(1, 3)
RECORDS = st.lists(
    st.tuples(st.sampled_from([b'a', b'b', b'c', b'd', b'']), st.none() | st.binary(max_size=30)),
    min_size=1,
    max_size=4,
)


class CleanerMachine(RuleBasedStateMachine):
    """A state machine for a partition to which producers write. `expected` has the batches of the partition according
    to the reference model. After a power cut, the machine continues in a new directory.
    """

    @initialize(segment_bytes=st.sampled_from([500, 2000]))
    def start(self, segment_bytes):
        self.work = pathlib.Path(tempfile.mkdtemp())
        self.disk = self.work / '0'
        self.disk.mkdir()
        self.clock = ManualClock(T)
        self.config = Config({})
        self.log_config = LogConfig(self.config, TOPIC_SETTINGS)
        self.log_config.segment_bytes = segment_bytes
        self.sequences = {}
        self.epochs = {}
        self.open_transactions = set()
        self.expected = []
        self.first_dirty_offset = 0
        self.open()

    def open(self):
        self.fs = FreezingFileSystem(self.disk)
        self.timers = Timers(self.clock)
        self.manager = LogManager(self.fs, str(self.disk / 'data'), self.config, self.clock, self.timers)
        self.log = self.manager.open_log(*TOPIC, bytes(range(16)), self.log_config)
        self.log.flush()
        self.fs.sync_names(str(self.disk))
        self.log.producer_state.unstable.on_high_watermark(self.log.log_end_offset)
        self.cleaner = Cleaner(self.manager, self.config, self.clock, self.timers, run_inline)
        self.cleaner.start()

    def teardown(self):
        if hasattr(self, 'work'):
            shutil.rmtree(self.work)

    def append(self, batch, origin):
        self.log.append_batch(batch, origin, 0)
        self.expected.append(Stored.read(bytes(batch)))

    # ---- producers ----

    @rule(records=RECORDS, codec=st.integers(0, 4), append_time=st.booleans())
    def write(self, records, codec, append_time):
        rows = [
            (self.clock.wall_ms() + number, key, value, [('h', b'x')]) for number, (key, value) in enumerate(records)
        ]
        self.append(
            encode_batch(rows, compression=codec, log_append_time_ms=self.clock.wall_ms() if append_time else None),
            Origin.CLIENT,
        )

    @rule(producer_id=PRODUCERS, records=RECORDS, codec=st.sampled_from([0, 0, 3]), transactional=st.booleans())
    def write_with_sequence(self, producer_id, records, codec, transactional):
        epoch, sequence = self.epochs.get(producer_id, 0), self.sequences.get(producer_id, 0)
        transactional |= producer_id in self.open_transactions
        rows = [(self.clock.wall_ms(), key, value) for key, value in records]
        self.append(
            encode_batch(
                rows,
                compression=codec,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                transactional=transactional,
            ),
            Origin.CLIENT,
        )
        self.sequences[producer_id] = sequence + len(records)
        if transactional:
            self.open_transactions.add(producer_id)

    @rule(producer_id=PRODUCERS, commit=st.booleans(), raises_epoch=st.booleans())
    def end_transaction(self, producer_id, commit, raises_epoch):
        epoch = self.epochs.get(producer_id, 0) + raises_epoch
        self.append(
            marker_batch(commit=commit, producer_id=producer_id, epoch=epoch, timestamp_ms=self.clock.wall_ms()),
            Origin.COORDINATOR,
        )
        self.open_transactions.discard(producer_id)
        if raises_epoch:
            self.epochs[producer_id] = epoch
            self.sequences[producer_id] = 0

    @rule()
    def roll(self):
        self.log.roll()

    @rule(hours=st.integers(1, 4))
    def time_passes(self, hours):
        self.clock.advance(hours * HOUR_MS)

    @rule()
    def an_idle_producer_is_forgotten(self):
        run_to_end(self.log.producer_state.remove_expired(self.clock.wall_ms() + 22 * HOUR_MS))
        for producer_id in self.epochs.keys() | self.sequences.keys():
            if self.log.producer_state.get(producer_id) is None:
                self.epochs.pop(producer_id, None)
                self.sequences[producer_id] = 0

    # ---- cleaning ----

    def clean_bound(self):
        unstable = self.log.first_unstable_offset()
        stable = self.log.log_end_offset if unstable is None else unstable
        return max(
            [segment.next_offset for segment in self.log.segments[:-1] if segment.next_offset <= stable], default=0
        )

    def flush(self):
        self.log.flush()
        self.log.producer_state.unstable.on_high_watermark(self.log.flushed_offset)

    @rule(rolls=st.booleans())
    def clean(self, rolls):
        if rolls:
            self.log.roll()
        self.flush()
        end_offset = self.clean_bound()
        self.clock.advance(BACKOFF_MS)
        entries = self.log.producer_state.entries
        rules = Rules(
            self.first_dirty_offset,
            end_offset,
            self.clock.wall_ms(),
            self.log_config.delete_retention_ms,
            self.log.log_end_offset,
            {key: (entry.last_offset, entry.producer_epoch) for key, entry in entries.items()},
        )
        is_dirty = any(
            self.first_dirty_offset < segment.next_offset <= end_offset and segment.size_bytes
            for segment in self.log.segments
        )
        values = committed_values(self.expected, self.log.log_end_offset)
        above = [batch.data for batch in self.expected if batch.header.base_offset >= end_offset]
        self.timers.run_due()
        if is_dirty:
            self.expected = compact(self.expected, rules)
            self.first_dirty_offset = end_offset
        found = [Stored.read(bytes(batch)) for _, batch in self.log.batches()]
        assert [batch.face() for batch in found] == [batch.face() for batch in self.expected]
        for batch, expected in zip(found, self.expected, strict=True):
            assert expected.data in (None, batch.data)
        assert committed_values(found, self.log.log_end_offset) == values
        assert [batch.data for batch in found if batch.header.base_offset >= end_offset] == above
        self.expected = found

    @rule(snapshots=st.integers(0, 2))
    def state_can_be_built_again_from_what_is_left(self, snapshots):
        """Check that the producer state can be built in two ways: from only the batches, and from one of the oldest
        snapshots and the batches after it.
        """
        self.flush()
        before = {
            key: (entry.producer_epoch, entry.last_sequence, entry.last_offset)
            for key, entry in self.log.producer_state.entries.items()
            if entry.last_sequence >= 0
        }
        ongoing, end_offset = self.log.producer_state.unstable.ongoing, self.log.log_end_offset
        self.manager.close(clean=False)
        for snapshot in sorted((self.disk / 'data' / 'topic-0').glob('*.snapshot'))[snapshots:]:
            snapshot.unlink()
        (self.disk / 'data' / 'recovery-point-offset-checkpoint').unlink(missing_ok=True)
        self.open()
        assert self.log.log_end_offset == end_offset
        entries = self.log.producer_state.entries
        assert {
            key: (entries[key].producer_epoch, entries[key].last_sequence, entries[key].last_offset) for key in before
        } == before
        assert self.log.producer_state.unstable.ongoing == ongoing
        self.continue_with_what_is_known()

    # ---- restarts ----

    @rule()
    def restart_cleanly(self):
        self.cleaner.stop()
        self.manager.close()
        assert [
            found for found in check_partition(self.fs, self.log.directory) if not found.file.endswith('.deleted')
        ] == []
        self.open()
        self.continue_with_what_is_known()

    @rule(seed=st.integers(0, 2**32))
    def cut_the_power(self, seed):
        durable = self.log.flushed_offset
        self.fs.crash(self.work / str(int(self.disk.name) + 1), random.Random(seed))
        shutil.rmtree(self.disk)
        self.disk = self.work / str(int(self.disk.name) + 1)
        self.open()
        assert self.log.log_end_offset >= durable
        found = [bytes(batch) for _, batch in self.log.batches()]
        self.expected = [batch for batch in self.expected if batch.last_offset < durable or batch.data in found]
        self.continue_with_what_is_known()

    def continue_with_what_is_known(self):
        """Set the expected producers from the state of the log, and the expected first dirty offset from the cleaner's
        checkpoint.
        """
        entries = self.log.producer_state.entries
        self.epochs = {key: entry.producer_epoch for key, entry in entries.items()}
        self.sequences = {key: entry.last_sequence + 1 for key, entry in entries.items()}
        self.open_transactions = {key for key, entry in entries.items() if entry.transaction_first_offset >= 0}
        text = self.disk / 'data' / 'cleaner-offset-checkpoint'
        lines = text.read_text().splitlines()[2:] if text.exists() else []
        self.first_dirty_offset = int(lines[0].split()[-1]) if lines else 0

    # ---- reading ----

    @invariant()
    def everything_is_there(self):
        if hasattr(self, 'log'):
            assert [bytes(batch) for _, batch in self.log.batches()] == [batch.data for batch in self.expected]

    @precondition(lambda self: self.expected)
    @rule(at=st.integers(0, 2**31), max_bytes=st.integers(1, 2000))
    def read_from_any_offset(self, at, max_bytes):
        self.flush()
        offset = at % self.log.log_end_offset
        expected = [batch.data for batch in self.expected if batch.last_offset >= offset]
        found = []
        while (piece := self.log.read(offset, max_bytes, self.log.log_end_offset, True)) is not None:
            batches = [(header, bytes(batch)) for header, batch in iter_batches(piece.read())]
            found += [batch for _, batch in batches]
            offset = batches[-1][0].last_offset + 1
        assert found == expected
        assert offset == self.log.log_end_offset

    @rule()
    def a_consumer_gets_what_is_committed(self):
        self.flush()
        stable = self.log.first_unstable_offset()
        stable = self.log.log_end_offset if stable is None else stable
        values = {}
        admits = AbortFilter(self.log.aborted_transactions(0, stable)).admits
        for header, batch in self.log.batches():
            if header.last_offset < stable and admits(header, batch):
                values.update((record.key, record.value) for record in decode_records(batch))
        assert {key: value for key, value in values.items() if value is not None} == committed_values(
            self.expected, stable
        )

    @precondition(lambda self: self.expected)
    @rule(hours=st.integers(0, 30))
    def find_a_time(self, hours):
        wanted_ms = T + hours * HOUR_MS
        found = run_to_end(self.log.offset_for_timestamp(wanted_ms, INLINE))
        assert found == next(
            (
                (
                    batch.header.max_timestamp_ms if batch.has(0x08) else batch.timestamp_ms(record),
                    batch.offset(record),
                    0,
                )
                for batch in self.expected
                for record in batch.records
                if (batch.header.max_timestamp_ms if batch.has(0x08) else batch.timestamp_ms(record)) >= wanted_ms
            ),
            None,
        )


TestCleanerMachine = CleanerMachine.TestCase
TestCleanerMachine.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize('seed', range(30))
def test_a_long_history_is_compacted_as_the_reference_does(seed):
    """Run a history of random steps. It is long, because short histories do not reach all states."""
    rng = random.Random(seed)
    machine = CleanerMachine()
    machine.start(segment_bytes=rng.choice([500, 2000, 100_000]))
    try:
        for _ in range(rng.choice([100, 400])):
            take_a_step(machine, rng)
            machine.everything_is_there()
    finally:
        machine.teardown()


def take_a_step(machine, rng):
    rows = [
        (rng.choice([b'a', b'b', b'c', b'd', b'e', b'']), rng.choice([None, b'', rng.randbytes(20)]))
        for _ in range(rng.randrange(1, 5))
    ]
    producer_id = rng.randrange(1, 4)
    steps = [
        (5, lambda: machine.write(rows, rng.randrange(5), rng.random() < 0.1)),
        (10, lambda: machine.write_with_sequence(producer_id, rows, rng.choice([0, 0, 3]), rng.random() < 0.6)),
        (5, lambda: machine.end_transaction(producer_id, rng.random() < 0.5, rng.random() < 0.5)),
        (2, machine.roll),
        (2, lambda: machine.time_passes(rng.randrange(1, 5))),
        (0.2, machine.an_idle_producer_is_forgotten),
        (2, lambda: machine.clean(rng.random() < 0.5)),
        (0.5, lambda: machine.state_can_be_built_again_from_what_is_left(rng.randrange(3))),
        (0.3, machine.restart_cleanly),
        (0.5, lambda: machine.cut_the_power(rng.randrange(2**32))),
        (0.5, machine.a_consumer_gets_what_is_committed),
    ]
    if machine.log.log_end_offset:
        steps += [
            (0.5, lambda: machine.read_from_any_offset(rng.randrange(2**31), rng.randrange(1, 2000))),
            (0.5, lambda: machine.find_a_time(rng.randrange(30))),
        ]
    rng.choices([step for _, step in steps], [weight for weight, _ in steps])[0]()
