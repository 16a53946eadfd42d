"""Opens a partition directory: builds the segments, the producer state and the leader epochs from its files.

After a clean stop, indexes are trusted if they look sound, and the producer state is read from the newest snapshot.
After an unclean stop, recovery reads every segment at or above the recovery point completely. It checks the checksums,
sizes and order of the batches, and rebuilds the indexes and the producer state from them.

Recovery ends the log before the first bytes that are not a batch, as Apache Kafka does. Valid batches may follow these
bytes, because unsynced writes may survive a power cut in any order. Recovery preserves the valid batches next to the
log in `.cut` files. kbroker-dump-log reads these files; no broker does. If an operator has accepted the damage, all
sound batches stay in the log instead (`salvage`).

Recovery rewrites all bytes above the recovery point before it syncs them. The reason is that a sync by the previous
broker may have failed: the kernel may then treat bytes as written that are only in memory. The next acknowledged record
must not follow bytes that a power cut would lose.

All records below the recovery point or below the checkpointed high watermark were acknowledged. If the log ends below
one of these offsets, the disk has lost synced bytes, and the broker logs an error. Records above both offsets may have
been acknowledged since the last checkpoint, but no file shows this. If a power cut took records there, the broker logs
a warning.
"""
import logging
import os
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from itertools import pairwise
from typing import Any

from kbroker.base.clock import Clock
from kbroker.base.errors import CorruptLogError, KafkaError
from kbroker.base.lean_dataclasses import dataclass, field
from kbroker.base.long_work import run_to_end
from kbroker.log.checkpoints import LEADER_EPOCH_FILE
from kbroker.log.fs import NO_FILE, File, FileSystem
from kbroker.log.leader_epochs import LeaderEpochs
from kbroker.log.partition_metadata import FILE_NAME as PARTITION_METADATA_FILE
from kbroker.log.producer_state import ProducerRoom, ProducerStateTable
from kbroker.log.removals import Removals
from kbroker.log.segment import (
    CUT_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    RecoveryResult,
    Segment,
    file_name,
)
from kbroker.log.snapshots import ProducerSnapshots
from kbroker.log.swap import finish_swaps, parse_file_name

TEMPORARY_SUFFIX = '.tmp'
COPY_BYTES = 1 << 20
BESIDE_SEGMENTS = (LEADER_EPOCH_FILE, PARTITION_METADATA_FILE)
MOST_TRANSACTIONS = 5
"""The maximum number of open transactions that a log message names."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LogOptions:
    """The options for opening a log. The defaults are for a log that was closed cleanly and has no LogManager."""

    log_start_offset: int = 0
    recovery_point: int = 0
    """Segments that end at or below this offset were synced before the last stop."""
    high_watermark: int = 0
    """The offset below which everything was acknowledged, according to the checkpoint of high watermarks."""
    clean_shutdown: bool = True
    """True after a clean stop. Otherwise the opening reads segments above the recovery point completely."""
    expected_end_offset: int = 0
    """After a clean stop, the opening raises CorruptLogError for a log that ends below this offset."""
    distrusted: frozenset[str] = frozenset()
    """The names of damaged files. The opening recovers the segments of these files, and rebuilds the files that can be
    derived from the log.
    """
    keeps_holes: bool = False
    """If True, keep all sound batches of a damaged segment, and all later segments. Otherwise the log ends at the
    damage.
    """
    refuse_damage: bool = False
    """If True, the opening raises CorruptLogError for damage that recovery would otherwise mend by cutting the log."""
    sync_later: bool = False
    """If True, the recovered bytes are durable only after `Log.finish_recovery`. Otherwise the opening syncs them."""
    producer_expiration_ms: int = 86400000
    producer_room: ProducerRoom | None = None
    """The bound on the number of producers, which this log shares with other logs. If None, the log has a separate
    bound.
    """
    removals: Removals | None = None
    """An object that removes the files of deleted segments after file.delete.delay.ms. If None, the log removes these
    files immediately.
    """
    maker: Callable[[], Iterable[str]] | None = None
    """For a new log, a function that creates its directory, and returns the paths of further files that the first flush
    must sync. The first append or `Log.make` calls it. None for an existing log.
    """
    start_work: Callable[[Generator[None, None, None]], object] = run_to_end
    """Runs a generator whose work may take long, in slices. The default runs it in one piece."""
    on_failure: Callable[[KafkaError], object] = lambda failure: None
    """Called when the disk has failed."""


@dataclass
class Opening:
    """Opens a partition directory, and holds its files and state during the opening."""

    fs: FileSystem
    directory: str
    config: Any
    clock: Clock
    options: LogOptions
    segments: list[Segment] = field(default_factory=list)
    was_cut: bool = False
    was_kept: bool = False
    """True if valid batches from behind the end of the log were preserved in `.cut` files."""
    is_unsynced: bool = False
    """True if data was recovered. Before the data becomes visible to clients, the caller must call `rewrite` and
    `finish`.
    """
    recovered: list[Segment] = field(default_factory=list)
    rewritten: list[str] = field(default_factory=list)
    """The paths of the files outside segments that `rewrite` has written again."""

    def __post_init__(self) -> None:
        self.log_start_offset = self.options.log_start_offset
        self.producers = ProducerStateTable(self.options.producer_expiration_ms, self.options.producer_room)
        if self.options.maker is not None:
            self.snapshots = ProducerSnapshots(self.fs, self.directory, [])
            self.leader_epochs = LeaderEpochs(self.fs, self.directory, read=False)
            self.segments = [Segment(self.fs, self.directory, 0, self.config, self.clock.wall_ms(),
                                     file_sizes={LOG_SUFFIX: 0})]
        else:
            self._find_and_recover()

    def _find_and_recover(self) -> None:
        sizes = self._find_files()
        if self.options.keeps_holes and self._keep_sound_batches(sizes):
            sizes = self.fs.sizes(self.directory)
        self.snapshots = ProducerSnapshots(self.fs, self.directory, list(sizes))
        if not self.options.clean_shutdown:
            self.snapshots.remove_damaged()
        self.segments = self._find_segments(sizes)
        self.leader_epochs, epochs_are_known = self._read_leader_epochs(LEADER_EPOCH_FILE in sizes)
        if self.segments:
            self.log_start_offset = max(self.log_start_offset, self.segments[0].base_offset)
            if epochs_are_known and self._has_records_before_the_first_epoch():
                self.leader_epochs.clear()
                epochs_are_known = False
        to_recover = self._segments_to_recover(epochs_are_known)
        self._build_state(to_recover)
        if self.options.clean_shutdown and self.log_end_offset < self.options.expected_end_offset:
            raise CorruptLogError(f'{self.directory}: found the end of the log at offset {self.log_end_offset}, '
                                  f'expected {self.options.expected_end_offset} as in the checkpoints')
        self._report_loss()
        self._report_open_transactions()
        if self.segments and self.log_end_offset < self.log_start_offset:
            logger.warning('%s: the log ends at %d, below its start %d: no record is visible, it restarts empty',
                           self.directory, self.log_end_offset, self.log_start_offset)
            for segment in self.segments:
                self._remove(segment, keep=False)
            self.segments = []
        if not self.segments:
            self.segments = [Segment(self.fs, self.directory, self.log_start_offset, self.config, self.clock.wall_ms())]
            self.producers.clear(self.log_start_offset)
        if self.was_cut or any(segment.size_bytes for segment in to_recover):
            self.is_unsynced = True
            self.recovered = [segment for segment in self.segments if segment in to_recover]
            self.leader_epochs.truncate_from_end(self.log_end_offset)
            self.leader_epochs.write()
        self.snapshots.remove_outside(self.log_start_offset, self.log_end_offset)
        self.snapshots.keep_for([segment.base_offset for segment in self.segments])
        self.leader_epochs.truncate_from_end(self.log_end_offset)
        self.leader_epochs.truncate_from_start(self.log_start_offset)
        self._close_files()

    def _close_files(self) -> None:
        """Close the files of the segments, because an idle partition must not use file descriptors."""
        for segment in self.segments:
            segment.close_file()

    @property
    def log_end_offset(self) -> int:
        return self.segments[-1].next_offset if self.segments else self.log_start_offset

    def _find_files(self) -> dict[str, int]:
        """Finish interrupted swaps and remove incomplete files. Then return {file name: size in bytes} of the
        directory.
        """
        sizes = self.fs.sizes(self.directory)
        for name in [name for name, size_bytes in sizes.items() if size_bytes == NO_FILE]:
            del sizes[name]
            if parse_file_name(name) or name in BESIDE_SEGMENTS or name.endswith(TEMPORARY_SUFFIX):
                path = os.path.join(self.directory, name)
                raise CorruptLogError(f'{path}: found {self.fs.kind(path)}, expected a file')
        for name in [name for name in sizes if name.endswith(TEMPORARY_SUFFIX)]:
            self.fs.unlink(os.path.join(self.directory, name))
            del sizes[name]
        for name in sizes.keys() & self.options.distrusted:
            if name.endswith(SNAPSHOT_SUFFIX) or name == LEADER_EPOCH_FILE:
                self.fs.unlink(os.path.join(self.directory, name))
                del sizes[name]
        return self.fs.sizes(self.directory) if finish_swaps(self.fs, self.directory, sizes) else sizes

    def _keep_sound_batches(self, sizes: dict[str, int]) -> bool:
        """Remove the bytes that are not a batch from the log files, even between batches. Return whether a file has
        changed.
        """
        from kbroker.log.salvage import keep_sound_batches  # needed only after accepted damage

        bases = sorted(parsed.offset for name in sizes if (parsed := parse_file_name(name))
                       and (parsed.kind, parsed.state) == (LOG_SUFFIX, ''))
        has_changed = False
        for base, following in zip(bases, [*bases[1:], None], strict=True):
            path = os.path.join(self.directory, file_name(base, LOG_SUFFIX))
            has_changed |= keep_sound_batches(self.fs, path, base, following)
        return has_changed

    def _read_leader_epochs(self, is_there: bool) -> tuple[LeaderEpochs, bool]:
        """Return the leader epochs, and whether they can be trusted."""
        try:
            epochs = LeaderEpochs(self.fs, self.directory, read=is_there)
            return epochs, bool(epochs.rows)
        except CorruptLogError as error:
            logger.warning('%s; it is rebuilt from the batches', error)
            self.fs.unlink(os.path.join(self.directory, LEADER_EPOCH_FILE))
            return LeaderEpochs(self.fs, self.directory, read=False), False

    def _has_records_before_the_first_epoch(self) -> bool:
        """Return whether a power cut has undone the removal of a segment.

        After retention removes a segment, it changes the leader epochs. The disk may lose the removal, but keep the
        change of the epochs and the end of the log.
        """
        return not self.options.clean_shutdown and self.log_start_offset < self.leader_epochs.rows[0][1]

    def _find_segments(self, sizes: dict[str, int]) -> list[Segment]:
        """Remove the index files that have no `.log` file. Then return all segments, oldest first."""
        by_offset: dict[int, dict[str, int]] = {}
        for name, size_bytes in sizes.items():
            parsed = parse_file_name(name)
            if parsed and parsed.kind in SEGMENT_SUFFIXES and not parsed.state:
                by_offset.setdefault(parsed.offset, {})[parsed.kind] = size_bytes
        segments = []
        for base_offset, files in sorted(by_offset.items()):
            segment = Segment(self.fs, self.directory, base_offset, self.config, self.clock.wall_ms(),
                              file_sizes={LOG_SUFFIX: 0, **files})
            if LOG_SUFFIX in files:
                segments.append(segment)
                continue
            for kind in files:
                logger.warning('%s: found an index without its log; it is removed', segment.path(kind))
                self.fs.unlink(segment.path(kind))
        for segment, following in pairwise(segments):
            segment.set_next_offset(following.base_offset)
        return segments

    def _segments_to_recover(self, epochs_are_known: bool) -> set[Segment]:
        found = set()
        for segment in self.segments:
            is_last = segment is self.segments[-1]
            if is_last and segment.is_bare():
                continue
            may_be_torn = is_last or segment.next_offset > self.options.recovery_point
            if ((may_be_torn and not self.options.clean_shutdown) or self.options.keeps_holes
                    or self._is_distrusted(segment)):
                found.add(segment)
                continue
            try:
                segment.check_indexes()
                if is_last:
                    segment.find_end()
            except CorruptLogError as error:
                logger.warning('%s; the segment is recovered', error)
                found.add(segment)
        if not epochs_are_known and (found or self.log_end_offset > self.log_start_offset):
            return {segment for segment in self.segments if not (segment is self.segments[-1] and segment.is_bare())}
        return found

    def _is_distrusted(self, segment: Segment) -> bool:
        """Return whether an index of the segment must be rebuilt."""
        return not self.options.distrusted.isdisjoint(
            os.path.basename(segment.path(suffix)) for suffix in SEGMENT_SUFFIXES)

    def _build_state(self, to_recover: set[Segment]) -> None:
        """Build the producer state at the end of the log, and recover the segments in `to_recover`."""
        first = next((segment.base_offset for segment in self.segments if segment in to_recover), self.log_end_offset)
        self.snapshots.load(self.producers, self.log_start_offset, first, self.clock.wall_ms())
        for number, segment in enumerate(self.segments):
            if segment in to_recover:
                if self._recover(segment):
                    self.was_cut = True
                    self._cut_after(number)
                    return
                if number + 1 < len(self.segments):
                    segment.set_next_offset(self.segments[number + 1].base_offset)
            elif segment.next_offset > self.producers.end_offset:
                try:
                    segment.replay(self.producers, self.producers.end_offset)
                except CorruptLogError as error:
                    logger.warning('%s; the segment is recovered', error)
                    to_recover.add(segment)
                    self._build_state(to_recover)
                    return

    def _report_loss(self) -> None:
        """Log an error or a warning if the log ends before records that were or may have been acknowledged."""
        proof = None
        if self.options.clean_shutdown:
            proof = 'the last broker stopped cleanly' if self.was_cut else None
        elif self.log_end_offset < self.options.recovery_point:
            proof = f'they were synced below the recovery point {self.options.recovery_point}'
        elif self.log_end_offset < self.options.high_watermark:
            proof = f'the checkpoint has high watermark {self.options.high_watermark}'
        if proof is not None:
            logger.error('%s: acknowledged records from offset %d on are lost: %s', self.directory,
                         self.log_end_offset, proof)
        elif self.was_kept:
            logger.warning('%s: no checkpoint says that records from offset %d on were acknowledged: this is what a '
                           'power cut leaves of unsynced writes. The %s files may be removed', self.directory,
                           self.log_end_offset, CUT_SUFFIX)

    def _report_open_transactions(self) -> None:
        """Log the transactions that are open in a log with accepted damage.

        The damage may have removed the marker of such a transaction. The coordinator has ended the transaction and will
        not write the marker again.
        """
        if not self.options.keeps_holes:
            return
        found = sorted((producer.transaction_first_offset, producer.producer_id)
                       for producer in self.producers.active_producers() if producer.transaction_first_offset >= 0)
        if found:
            named = ', '.join(f'of producer id {producer_id} from offset {first_offset} on'
                              for first_offset, producer_id in found[:MOST_TRANSACTIONS])
            more = f' and {len(found) - MOST_TRANSACTIONS} more' if len(found) > MOST_TRANSACTIONS else ''
            topic, _, partition = os.path.basename(self.directory).rpartition('-')
            logger.warning('%s: transactions are open: %s%s. If a marker is among what is gone, nothing ends its '
                           'transaction: kbroker-transactions why-stuck %s:%s shows it, and how to abort it',
                           self.directory, named, more, topic, partition)

    def _recover(self, segment: Segment) -> bool:
        """Recover a segment. Return True if the log was cut in this segment and now ends there."""
        result = segment.recover(self.producers, self.leader_epochs)
        if result.damage is not None:
            self._report(segment, result)
            segment.truncate_file()
            if segment is self.segments[-1] or not self.options.keeps_holes:
                return True
        if segment is self.segments[-1]:
            return False
        segment.seal()
        return self._lost_its_end(segment)

    def _lost_its_end(self, segment: Segment) -> bool:
        """Return whether a power cut took the end of a segment that is not the last.

        A disk may write in any order, so later segments may exist. The batches after the gap were never acknowledged,
        and the sequences of their producers would not match. In a compacted topic the gap is accepted: compaction makes
        gaps too, and Kafka may have compacted above its last recovery point.
        """
        following = self.segments[self.segments.index(segment) + 1]
        if self.options.clean_shutdown or 'compact' in self.config.cleanup_policy or not (
                segment.next_offset < following.base_offset > self.options.recovery_point):
            return False
        logger.warning('%s: ends at offset %d, expected %d', segment.log_file_path(), segment.next_offset - 1,
                       following.base_offset - 1)
        return True

    def _report(self, segment: Segment, result: RecoveryResult) -> None:
        lost_bytes = result.file_bytes - result.valid_bytes
        text = (f'{segment.log_file_path()}: found {result.damage} at {result.valid_bytes}; {result.batches} batches '
                f'before it up to offset {segment.next_offset - 1} are kept, {lost_bytes} bytes are cut off')
        if result.next_valid_position < 0:
            logger.warning('%s', text)
            return
        if self.options.refuse_damage:
            raise CorruptLogError(f'{segment.log_file_path()}: found {result.damage} at {result.valid_bytes}, expected '
                                  f'a batch: valid ones follow at {result.next_valid_position}')
        path = f'{segment.log_file_path()}.{result.valid_bytes}{CUT_SUFFIX}'
        source, target = segment.open_file(), self.fs.open(path, True)
        for position in range(0, lost_bytes, COPY_BYTES):
            target.write_at(source.read_at(COPY_BYTES, result.valid_bytes + position), position)
        target.sync()
        self.was_kept = True
        logger.warning('%s, although valid batches follow at %d. The part cut off is kept in %s', text,
                       result.next_valid_position, path)

    def _cut_after(self, number: int) -> None:
        for segment in self.segments[number + 1:]:
            if self.options.refuse_damage and segment.size_bytes:
                raise CorruptLogError(f'{segment.log_file_path()}: found {segment.size_bytes} bytes behind a damaged '
                                      'segment, expected none')
            self._remove(segment, keep=segment.size_bytes > 0)
        del self.segments[number + 1:]

    def _remove(self, segment: Segment, *, keep: bool) -> None:
        """Remove a segment from the log. If `keep` is True, preserve its batches in a `.cut` file."""
        path = segment.log_file_path()
        logger.warning('%s: %d bytes from offset %d on are cut off%s', path, segment.size_bytes, segment.base_offset,
                       f' and kept in {path}{CUT_SUFFIX}' if keep else '')
        if keep:
            self.was_kept = True
            self.fs.rename(path, path + CUT_SUFFIX)
        for name in segment.existing_files():
            self.fs.unlink(os.path.join(self.directory, name))

    @property
    def only_at_the_end(self) -> bool:
        """Return True if only the last segment was recovered, and the log was not cut. Every start after a power cut
        recovers at least the last segment.
        """
        return not self.was_cut and self.recovered == self.segments[-1:]

    def rewrite(self) -> None:
        """Rewrite all bytes that a sync might skip although the disk lacks them. Raise OSError, CorruptLogError.

        If a sync by the previous broker failed, a new sync skips the bytes that were not written: see `File.rewrite`.
        Not rewritten are the bytes below the recovery point, which were synced, and the indexes, which the opening has
        just written. If the recovery point is above 0, `partition.metadata` was synced too.
        """
        if self.options.clean_shutdown:
            return
        for segment in self.recovered:
            segment.rewrite(self.options.recovery_point)
        names = [LEADER_EPOCH_FILE]
        if self.options.recovery_point == 0:
            names.append(PARTITION_METADATA_FILE)
        self.rewritten = []
        for name in names:
            path = os.path.join(self.directory, name)
            with suppress(FileNotFoundError):
                file = self.fs.open(path)
                file.rewrite(0, file.size())
                self.rewritten.append(path)

    def files_to_sync(self) -> list[File]:
        """Return the files of recovered segments, which must be synced. Snapshots are written after this sync, because
        a snapshot must never be ahead of the synced log.
        """
        files = [file for segment in self.recovered
                 for file in segment.files_to_sync(sealed=segment is not self.segments[-1])]
        files += [self.fs.open(path) for path in self.rewritten]
        if self.leader_epochs.is_unsynced and not self.rewritten:
            files.append(self.leader_epochs.sync_file())
        return [*files, self.fs.open_directory(self.directory)]

    def finish(self, is_synced: bool) -> None:
        """Make the recovered data durable, unless the caller has synced it (`is_synced`). Call `rewrite` first. Raise
        OSError.

        Write no snapshot inside the last segment: after a crash, the last segment is read from its start, and a clean
        stop writes a snapshot of the later state.
        """
        if not is_synced:
            for file in self.files_to_sync():
                file.sync()
        self._close_files()
        self.is_unsynced = False
        self.leader_epochs.is_unsynced = False
        if self.producers.end_offset > self.log_start_offset and not self.only_at_the_end:
            self.snapshots.write(self.producers.end_offset, self.producers.encode_snapshot())
            self.snapshots.keep_for([segment.base_offset for segment in self.segments])
