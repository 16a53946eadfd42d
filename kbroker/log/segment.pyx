"""One segment of a log: adjacent batches in `<base offset>.log`, and their indexes in files that differ only in the
suffix.
"""
import os

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

from kbroker.base.errors import CorruptLogError
from kbroker.log.batch_walk cimport SCAN_BYTES, SEARCH_BYTES, BatchWalk, find_batch, walk_batches
from kbroker.log.fs.file cimport File
from kbroker.log.fs.lazy_file cimport LazyFile
from kbroker.log.header_walk cimport read_marker_at
from kbroker.log.header_walk import replay_headers
from kbroker.log.index cimport OffsetIndex, TimeIndex
from kbroker.log.producer_state cimport ProducerStateTable
from kbroker.log.time_search cimport TimeSearch, search_batches
from kbroker.log.transaction_index cimport TransactionIndex
from kbroker.record.batch cimport (
    ABORT_MARKER, HEADER_BYTES, HEADER_READ, BatchFields, Marker, batch_last_offset, batch_size_bytes,
    parse_header)

LOG_SUFFIX = '.log'
OFFSET_INDEX_SUFFIX = '.index'
TIME_INDEX_SUFFIX = '.timeindex'
TRANSACTION_INDEX_SUFFIX = '.txnindex'
SNAPSHOT_SUFFIX = '.snapshot'
CUT_SUFFIX = '.cut'
"""The suffix of a file with bytes that were cut from a log."""
SEGMENT_SUFFIXES = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)

cdef enum:
    RECENT_BATCHES = 64
    REMEMBERED_END_BITS = 5
    REMEMBERED_ENDS = 1 << REMEMBERED_END_BITS
    FIRST_ALLOCATION_BYTES = 65536
    LARGEST_ALLOCATION_BYTES = 16777216
    MAX_RELATIVE_OFFSET = 2147483647


def file_name(offset: int, suffix: str) -> str:
    """Return the name of a file in Kafka's form: 20 digits for the offset, then the suffix."""
    return f'{offset:020d}{suffix}'


cdef inline int64_t mark_of(const Place *place, bint by_position) noexcept:
    return place.position if by_position else place.offset


cdef inline int slot_of(int64_t offset) noexcept:
    """Return the slot of an offset in the table of remembered ends, by a hash. Readers advance in equal steps, so
    without a hash many offsets would share a slot.
    """
    return <int>((<uint64_t>offset * <uint64_t>0x9E3779B97F4A7C15) >> (64 - REMEMBERED_END_BITS))


class RecoveryResult:
    """The findings of a recovery of one segment. `damage` is None if every byte belongs to a valid batch."""

    def __init__(self, batches: int, valid_bytes: int, file_bytes: int, damage: str | None, next_valid_position: int):
        self.batches = batches
        self.valid_bytes = valid_bytes
        self.file_bytes = file_bytes
        self.damage = damage
        self.next_valid_position = next_valid_position
        """The position of a valid batch behind the damage, -1 if there is none. If there is one, the damage is not a
        torn tail.
        """


cdef class Segment:
    """A file of batches and its index files. Each file is opened when it is first needed. Methods raise OSError, and
    CorruptLogError for bytes that are not a batch.

    `next_offset` is known after `recover`, `find_end` or `set_next_offset`, and in a segment that this process has
    created.
    """

    def __init__(self, fs, str directory, int64_t base_offset, config, int64_t created_ms, *, dict file_sizes=None,
                 str suffix='', str index_suffix=''):
        """Create. `file_sizes` maps the suffix of each existing file of this segment to its size in bytes. `suffix` is
        appended to the names of all files, `index_suffix` to the names of the index files.
        """
        sizes = file_sizes or {}
        self.fs = fs
        self.directory = directory
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size_bytes = sizes.get(LOG_SUFFIX, 0)
        self.allocated_bytes = self.size_bytes
        self.created_ms = created_ms
        self.first_timestamp_ms = -1
        self.max_timestamp_ms = -1
        self.max_timestamp_offset = base_offset
        self.index_interval_bytes = config.index_interval_bytes
        self.allocation_limit_bytes = config.segment_bytes
        self.allocates_all = config.preallocate
        stem = self.path('')
        ends = f'{suffix}{index_suffix}'
        self.offset_index = OffsetIndex(fs, f'{stem}{OFFSET_INDEX_SUFFIX}{ends}', base_offset,
                                        config.segment_index_bytes, file_bytes=sizes.get(OFFSET_INDEX_SUFFIX, -1))
        self.time_index = TimeIndex(fs, f'{stem}{TIME_INDEX_SUFFIX}{ends}', base_offset,
                                    config.segment_index_bytes, file_bytes=sizes.get(TIME_INDEX_SUFFIX, -1))
        self.transactions = TransactionIndex(fs, f'{stem}{TRANSACTION_INDEX_SUFFIX}{ends}', base_offset,
                                             exists=TRANSACTION_INDEX_SUFFIX in sizes)
        self.log_file = LazyFile(fs, f'{stem}{LOG_SUFFIX}{suffix}')
        if LOG_SUFFIX not in sizes:
            self.log_file.get(True)

    def __dealloc__(self):
        free(self.recent)
        free(self.ends)

    def path(self, suffix: str) -> str:
        return os.path.join(self.directory, file_name(self.base_offset, suffix))

    cdef File file(self):
        if self.log_file.file is None:
            return self.log_file.get()
        self.log_file.is_used = True
        return self.log_file.file

    cdef int was_synced(self) noexcept:
        self.log_file.awaits_sync = False
        self.transactions.lazy_file.awaits_sync = False
        return 0

    # ---- append: `reserve` and `write` may fail and change nothing visible, `adopt` cannot fail ----

    cdef bint must_roll(self, const BatchFields *batch, int64_t size, int64_t segment_bytes, int64_t segment_ms,
                        int64_t now_ms) except -1:
        """Return whether the batch must go to a new segment. An empty segment accepts any batch."""
        cdef int64_t age_ms
        if self.size_bytes == 0:
            return False
        if self.size_bytes > segment_bytes - size or batch_last_offset(batch) - self.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if self.offset_index.entries >= self.offset_index.max_entries or self.time_index.is_full():
            return True
        if self.first_timestamp_ms < 0:
            self.first_timestamp()
        if batch.max_timestamp_ms >= 0 and self.first_timestamp_ms >= 0:
            age_ms = batch.max_timestamp_ms - self.first_timestamp_ms
        else:
            age_ms = now_ms - self.created_ms
        return age_ms > segment_ms - self.jitter_ms

    def first_timestamp(self) -> int:
        """Return the greatest timestamp in the first batch, in ms, -1 if unknown. The age of a segment is measured from
        this timestamp.
        """
        cdef BatchWalk walk
        if self.first_timestamp_ms < 0 and self.size_bytes:
            walk = walk_batches(self.file(), 0, self.size_bytes, SEARCH_BYTES)
            if walk.next():
                self.first_timestamp_ms = walk.fields.max_timestamp_ms
        return self.first_timestamp_ms

    cdef int reserve(self, int64_t size) except -1:
        """Reserve disk space for a batch, and room in the indexes if the batch will be indexed. Disk space is reserved
        in chunks that grow with the segment.
        """
        cdef int64_t chunk
        if self.bytes_since_entry > self.index_interval_bytes:
            self.offset_index.make_room()
            self.time_index.make_room()
        if self.size_bytes + size <= self.allocated_bytes:
            return 0
        chunk = max(<int64_t>FIRST_ALLOCATION_BYTES, min(self.size_bytes, <int64_t>LARGEST_ALLOCATION_BYTES))
        if self.allocates_all:
            chunk = self.allocation_limit_bytes
        chunk = max(size, min(chunk, self.allocation_limit_bytes - self.size_bytes))
        self.file().allocate(self.size_bytes, chunk)
        self.allocated_bytes = self.size_bytes + chunk
        return 0

    cdef int write(self, const uint8_t *data, int64_t size) except -1:
        """Write a batch behind the last batch. It becomes part of the segment only by `adopt`."""
        cdef File file = self.file()
        self.has_unadopted = True
        return file.pwrite(data, size, self.size_bytes)

    cdef int adopt(self, const BatchFields *batch, int64_t size) except -1:
        """Make the written batch part of the segment. This writes no index file, because `reserve` has made room for
        entries in memory.
        """
        self.note_timestamp(batch)
        self.index_batch(batch, self.size_bytes, size)
        if self.size_bytes == 0:
            self.first_timestamp_ms = batch.max_timestamp_ms
        self.remember(batch.base_offset)
        self.has_unadopted = False
        self.size_bytes += size
        self.next_offset = batch_last_offset(batch) + 1
        return 0

    cdef int remember(self, int64_t base_offset) except -1:
        """Remember where the batch with this base offset begins. A consumer at the end of the log then needs no index
        lookup and no file read.
        """
        if self.recent == NULL:
            self.recent = <Place *>malloc(RECENT_BATCHES * sizeof(Place))
            if self.recent == NULL:
                raise MemoryError()
        self.recent[self.remembered % RECENT_BATCHES] = Place(self.size_bytes, base_offset)
        self.remembered += 1
        return 0

    cdef const Place *recall(self, int64_t target, bint by_position) noexcept:
        """Return the last remembered batch that begins at or below the offset `target`, NULL if there is none. With
        `by_position`, `target` is a position.
        """
        cdef int64_t low = max(<int64_t>0, self.remembered - RECENT_BATCHES), high = self.remembered, middle
        if low == high or mark_of(&self.recent[low % RECENT_BATCHES], by_position) > target:
            return NULL
        while low < high:
            middle = (low + high) >> 1
            if mark_of(&self.recent[middle % RECENT_BATCHES], by_position) <= target:
                low = middle + 1
            else:
                high = middle
        return &self.recent[(low - 1) % RECENT_BATCHES]

    cdef int forget(self) noexcept:
        free(self.recent)
        free(self.ends)
        self.recent = self.ends = NULL
        self.remembered = 0
        return 0

    cdef int note_timestamp(self, const BatchFields *batch) noexcept:
        if batch.max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = batch.max_timestamp_ms
            self.max_timestamp_offset = batch_last_offset(batch)
        return 0

    cdef int index_batch(self, const BatchFields *batch, int64_t position, int64_t size) except -1:
        if self.bytes_since_entry > self.index_interval_bytes:
            self.offset_index.append(batch_last_offset(batch), position)
            self.time_index.maybe_append(self.max_timestamp_ms, self.max_timestamp_offset)
            self.bytes_since_entry = 0
        self.bytes_since_entry += size
        return 0

    cdef int cut_unadopted(self, int64_t unwritten_bytes) except -1:
        """Cut from the segment a batch that was written but not adopted, and the last `unwritten_bytes`, which were
        adopted but not written.
        """
        if self.has_unadopted or unwritten_bytes:
            self.size_bytes -= unwritten_bytes
            self.file().truncate(self.size_bytes)
            self.has_unadopted = False
        return 0

    # ---- search ----

    cdef int place_of(self, int64_t offset, Place *place) except -1:
        """Set `place` to the first batch whose last offset is at or above `offset`. If there is none, set it to the end
        of the segment.
        """
        cdef HeaderWindow window
        cdef BatchFields batch
        cdef const Place *known
        cdef int64_t indexed_offset
        if offset < self.next_offset:
            known = self.recall(offset, False)
            if known == NULL:
                known = self.recall_end(offset)
            if known != NULL:
                place[0] = known[0]
                return 0
            window.position = window.size = 0
            place.position = self.offset_index.position_for_offset(offset, &indexed_offset)
            if indexed_offset != INT64_MAX and not 0 < place.position < self.size_bytes:
                self.refuse_index(place.position, indexed_offset)
            while place.position < self.size_bytes:
                self.read_header_at(place.position, &window, True, &batch)
                if batch.base_offset > indexed_offset:
                    self.refuse_index(place.position, indexed_offset)
                indexed_offset = INT64_MAX
                if batch_last_offset(&batch) >= offset:
                    place.offset = batch.base_offset
                    return 0
                place.position += batch_size_bytes(&batch)
        place.position = self.size_bytes
        place.offset = self.next_offset
        return 0

    cdef int refuse_index(self, int64_t position, int64_t offset) except -1:
        """Raise CorruptLogError for a wrong index entry, which would let a reader skip batches."""
        raise CorruptLogError(f'{self.offset_index.path}: found position {position} for offset {offset}, expected that '
                              'of a batch that begins at or below it; kbroker-check --repair rebuilds the index')

    cdef int place_below(self, int64_t position, Place *place) except -1:
        """Set `place` to the last start of a batch at or below `position`, without waiting for the disk.

        If the exact place needs a read from the disk, set `place` to one from the index. Its offset is then the last
        offset of the batch, not the first.
        """
        cdef HeaderWindow window
        cdef BatchFields batch
        cdef const Place *known
        if position >= self.size_bytes:
            place.position = self.size_bytes
            place.offset = self.next_offset
            return 0
        known = self.recall(position, True)
        if known != NULL:
            place[0] = known[0]
            return 0
        window.position = window.size = 0
        self.offset_index.batch_at_or_below(position, &place.position, &place.offset)
        if not self.read_header_at(place.position, &window, False, &batch):
            return 0
        while place.position + batch_size_bytes(&batch) <= position:
            place.position += batch_size_bytes(&batch)
            place.offset = batch_last_offset(&batch) + 1
            if not self.read_header_at(place.position, &window, False, &batch):
                break
        else:
            place.offset = batch.base_offset
        return self.remember_end(place)

    cdef int place_behind(self, const Place *batch_place, Place *place) except -1:
        """Set `place` to the end of the batch that begins at `batch_place`."""
        cdef HeaderWindow window
        cdef BatchFields batch
        window.position = window.size = 0
        self.read_header_at(batch_place.position, &window, True, &batch)
        place.position = batch_place.position + batch_size_bytes(&batch)
        place.offset = batch_last_offset(&batch) + 1
        return self.remember_end(place)

    cdef bint read_header_at(self, int64_t position, HeaderWindow *window, bint waits, BatchFields *batch) except -1:
        """Read the header of the batch at `position`. If `waits` is False and the header is not in the page cache,
        return False.
        """
        cdef File file
        cdef int64_t size = min(<int64_t>SEARCH_BYTES, self.size_bytes - position)
        if position < window.position or position + HEADER_BYTES > window.position + window.size:
            file = self.file()
            window.position = position
            window.size = (file.pread(window.data, size, position) if waits
                           else file.pread_cached(window.data, size, position))
            if not waits and window.size < HEADER_BYTES <= size:
                return False
        if (parse_header(window.data + (position - window.position), window.position + window.size - position,
                         batch) != HEADER_READ
                or batch_size_bytes(batch) > self.size_bytes - position):
            raise CorruptLogError(f'{self.file().path}: found no batch at {position}, expected one before the end at '
                                  f'{self.size_bytes}')
        return True

    # The next request of a reader usually begins at the offset where its last slice ended. Each segment remembers the
    # ends of slices from its own file, so truncation, compaction and deletion of segments need not update a common
    # table.

    cdef int remember_end(self, const Place *place) except -1:
        """Remember the place where a slice ended."""
        if self.ends == NULL:
            self.ends = <Place *>calloc(REMEMBERED_ENDS, sizeof(Place))
            if self.ends == NULL:
                raise MemoryError()
        self.ends[slot_of(place.offset)] = place[0]
        return 0

    cdef const Place *recall_end(self, int64_t offset) noexcept:
        """Return the place where a recent slice ended at `offset`, NULL if no slice did."""
        cdef const Place *place
        if self.ends == NULL:
            return NULL
        place = &self.ends[slot_of(offset)]
        return place if place.offset == offset and place.position > 0 else NULL

    cdef int expect_end(self, BatchWalk walk) except -1:
        if walk.fault != HEADER_READ:
            self.refuse_end(walk.position)
        return 0

    cdef int refuse_end(self, int64_t position) except -1:
        raise CorruptLogError(f'{self.file().path}: found no batch at {position}, expected one before the end at '
                              f'{self.size_bytes}')

    def search_time(self, int64_t timestamp_ms, int64_t start_offset) -> TimeSearch:
        """Return a search for the first record with at least the timestamp `timestamp_ms` and at least the offset
        `start_offset`.
        """
        return self.search_from(max(start_offset, self.time_index.offset_before(timestamp_ms)), timestamp_ms,
                                start_offset)

    def search_greatest(self) -> TimeSearch:
        """Return a search for the first record with the greatest timestamp."""
        return self.search_from(self.max_timestamp_offset, self.max_timestamp_ms, self.base_offset)

    cdef TimeSearch search_from(self, int64_t offset, int64_t timestamp_ms, int64_t start_offset):
        cdef Place place
        cdef TimeSearch search
        self.place_of(offset, &place)
        search = search_batches(self.file(), place.position, self.size_bytes, timestamp_ms, start_offset)
        search.end_offset = self.next_offset
        return search

    def walk(self, int64_t position=0) -> BatchWalk:
        """Return an iterator over (header, batch) of the batches that begin at or after `position`."""
        return walk_batches(self.file(), position, self.size_bytes, SCAN_BYTES)

    # ---- opening ----

    def is_bare(self) -> bool:
        """Return whether the `.log` file and the indexes are empty, so that there is nothing to check or recover."""
        return (self.size_bytes == 0 and not self.offset_index.entries and not self.time_index.entries
                and not self.transactions.exists)

    @property
    def is_appended_to(self) -> bool:
        """True after an append since the segment was opened or sealed."""
        return self.remembered > 0

    def close_file(self) -> None:
        """Close the file descriptor. The next use of the segment opens it again."""
        self.log_file.close()

    def check_indexes(self) -> None:
        """Raise CorruptLogError if an index is missing or cannot be valid. An empty segment needs no index."""
        if self.size_bytes == 0:
            return
        self.offset_index.check()
        self.time_index.check()
        self.transactions.check()
        if self.time_index.entries:
            self.max_timestamp_ms, relative_offset = self.time_index[self.time_index.entries - 1]
            self.max_timestamp_offset = self.base_offset + relative_offset

    def find_end(self) -> None:
        """Set `next_offset` of a segment that was closed cleanly. Read only the batch headers behind its last index
        entry.
        """
        cdef BatchWalk walk
        cdef int64_t position = 0
        if self.offset_index.entries:
            position = self.offset_index[self.offset_index.entries - 1][1]
        if position > self.size_bytes:
            raise CorruptLogError(
                f'{self.offset_index.path}: found position {position}, expected one below {self.size_bytes}')
        if self.size_bytes:
            walk = walk_batches(self.file(), position, self.size_bytes, SEARCH_BYTES)
            while walk.next():
                self.note_timestamp(&walk.fields)
                self.next_offset = batch_last_offset(&walk.fields) + 1
            self.expect_end(walk)

    def set_next_offset(self, int64_t next_offset) -> None:
        """Set the end of this segment to the base offset of the next segment."""
        self.next_offset = next_offset

    def recover(self, ProducerStateTable producers not None, leader_epochs) -> RecoveryResult:
        """Check every batch, rebuild the three indexes, and apply the batches to `producers` and `leader_epochs`. The
        leader epoch file is not written.

        Stop before the first bytes that are not a valid batch, and set the end of the segment there. The caller must
        then cut these bytes with `truncate_file`.
        """
        cdef BatchWalk walk = walk_batches(self.file(), 0, self.size_bytes, SCAN_BYTES)
        cdef int64_t file_bytes = self.size_bytes, batches = 0
        cdef int32_t latest_epoch = leader_epochs.latest
        cdef str damage = None
        cdef Marker marker
        self.begin_recovery()
        while True:
            if not walk.next():
                if walk.fault != HEADER_READ:
                    damage = 'no whole batch'
                break
            if not walk.crc_matches():
                damage = 'a wrong checksum'
                break
            if (walk.fields.base_offset < self.next_offset
                    or batch_last_offset(&walk.fields) - self.base_offset > MAX_RELATIVE_OFFSET):
                damage = f'offset {walk.fields.base_offset} after {self.next_offset - 1}'
                break
            read_marker_at(walk, &marker)
            if marker.kind == ABORT_MARKER:
                row = producers.completed_by(&walk.fields)
                if row is not None:
                    self.transactions.append(row)
            if walk.fields.partition_leader_epoch > latest_epoch:
                latest_epoch = walk.fields.partition_leader_epoch
                leader_epochs.assign(latest_epoch, walk.fields.base_offset, write=False)
            producers.adopt(&walk.fields, &marker)
            self.adopt(&walk.fields, batch_size_bytes(&walk.fields))
            batches += 1
        self.forget()   # batches in the file may have gaps; appends of this process leave none
        return RecoveryResult(batches, walk.position, file_bytes, damage,
                              -1 if damage is None else find_batch(self.file(), walk.position + 1, file_bytes))

    cdef int begin_recovery(self) except -1:
        self.offset_index.reset()
        self.time_index.reset()
        self.transactions.reset()
        self.forget()
        self.size_bytes = 0
        self.next_offset = self.base_offset
        self.bytes_since_entry = 0
        self.first_timestamp_ms = -1
        self.max_timestamp_ms = -1
        self.max_timestamp_offset = self.base_offset
        return 0

    def replay(self, ProducerStateTable producers not None, int64_t start_offset) -> None:
        """Apply the batches at or above `start_offset` to `producers`."""
        cdef Place place
        self.place_of(start_offset, &place)
        place.position = replay_headers(producers, self.file(), place.position, self.size_bytes)
        if place.position != self.size_bytes:
            self.refuse_end(place.position)

    cdef int64_t offset_near(self, int64_t tail_bytes) except -1:
        """Return an offset near the end of the segment, without waiting for the disk. At most `tail_bytes` plus one
        batch follow this offset.
        """
        cdef Place place
        if self.size_bytes <= tail_bytes:
            return self.base_offset
        self.place_below(self.size_bytes - tail_bytes, &place)
        return place.offset

    # ---- closing ----

    def seal(self) -> None:
        """Close the segment for appends: add the final time index entry, trim the indexes, and release the reserved
        disk space.
        """
        self.seal_indexes()
        self.truncate_file()

    def seal_indexes(self) -> None:
        """Add the final entry to the time index, and trim both indexes."""
        if self.max_timestamp_ms >= 0:
            self.time_index.append_last(self.max_timestamp_ms, self.max_timestamp_offset)
        self.forget()
        self.offset_index.seal()
        self.time_index.seal()

    def make_index(self) -> None:
        """Create the file of the offset index if it is missing. Without the file, Apache Kafka logs an error after a
        clean stop.
        """
        self.offset_index.make()

    def truncate_file(self) -> None:
        """Cut the file at the end of the segment. This also releases the disk space that was reserved behind the end.
        """
        self.file().truncate(self.size_bytes)
        self.allocated_bytes = self.size_bytes

    def rewrite(self, int64_t offset) -> None:
        """Rewrite the batches that end at or above `offset`, because an earlier sync of these batches may have failed.

        Raise CorruptLogError if a batch that the recovery has read is no longer in the page cache. The disk lacks this
        batch too, and the next recovery cuts the log there.
        """
        cdef Place place
        cdef BatchWalk walk
        self.place_of(max(offset, self.base_offset), &place)
        self.file().rewrite(place.position, self.size_bytes)
        walk = walk_batches(self.file(), place.position, self.size_bytes, SCAN_BYTES)
        while walk.next():
            if not walk.crc_matches():
                raise CorruptLogError(f'{self.file().path}: found a wrong checksum at {walk.position}, expected the '
                                      'batch that recovery has just read there: the disk lacks it, and the next start '
                                      'cuts the log before it')
        self.expect_end(walk)

    def files_to_sync(self, *, sealed: bool) -> list[File]:
        """Return the files to sync, in this order: the transaction index, then the log with the markers that the index
        describes. With `sealed`, include the offset index and the time index.
        """
        files = [self.transactions.file()] if self.transactions.exists else []
        if sealed:
            files += [self.offset_index.sync_file(), self.time_index.sync_file()]
        return [*files, self.file()]

    def log_file_path(self) -> str:
        return self.path(LOG_SUFFIX)

    def open_file(self) -> File:
        return self.file()

    def last_modified_ms(self) -> int:
        return self.fs.modified_ms(self.path(LOG_SUFFIX))

    def existing_files(self) -> list[str]:
        """Return the names of this segment's files that exist."""
        return [os.path.basename(self.path(suffix)) for suffix in SEGMENT_SUFFIXES if self.fs.exists(self.path(suffix))]
