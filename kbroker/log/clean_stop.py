"""Makes a clean stop of all logs in a log directory: seals, syncs and closes the logs, and writes the inventory."""
import errno
import logging
import os
from collections.abc import Callable, Mapping

from kbroker.base.errors import KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker.log.directory_names import parse_directory_name
from kbroker.log.fs import FileSystem
from kbroker.log.inventory import Inventory, PartitionNote, note_beside, note_partition
from kbroker.log.log import Log
from kbroker.log.segment import LOG_SUFFIX, OFFSET_INDEX_SUFFIX
from kbroker.log.verification import Verification

SYNCED_ONE_BY_ONE = 16
"""If more logs than this have changed, a stop syncs the whole file system once, not each file."""

Progress = Callable[..., object]
"""Called with the name of the work, the number of finished parts, and the total number of parts. `is_sync=True` means
that the work waits for a sync of the whole disk, which may take long.
"""

logger = logging.getLogger(__name__)


def ignore_progress(what: str, done: int = 0, total: int = 0, *, is_sync: bool = False) -> None:
    """Do nothing. Use this if the progress of a stop is not reported."""


def sync_everything(fs: FileSystem, directory: str) -> bool:
    """Sync the whole file system. Return whether that succeeded. Raise OSError."""
    try:
        fs.sync_everything(directory)
        return True
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return False
        raise


class CleanStop:
    """A clean stop of all logs. Call its methods in this order: `seal_all`, `close_all`, `write_inventory`."""

    def __init__(self, fs: FileSystem, directory: str, logs: Mapping[TopicPartition, Log], progress: Progress):
        self._fs = fs
        self._directory = directory
        self._logs = logs
        self._progress = progress

    def seal_all(self) -> bool:
        """Make the final writes of all logs durable by a single sync before the logs close. Return whether this was
        done. Otherwise `close_all` must sync each log, for example if few logs have changed. Raise KafkaError, OSError.
        """
        touched = [log for log in self._logs.values() if log.is_touched]
        if len(touched) <= SYNCED_ONE_BY_ONE:
            return False
        for number, log in enumerate(touched):
            self._progress('sealing logs', number, len(touched))
            log.seal()
        self._progress('syncing the file system', is_sync=True)
        return sync_everything(self._fs, self._directory)

    def close_all(self, *, is_synced: bool) -> set[Log]:
        """Close the logs. Return the logs that failed in this call or earlier."""
        failed = set()
        for number, log in enumerate(self._logs.values()):
            self._progress('closing logs', number, len(self._logs))
            if log.failure is not None:     # perhaps because an earlier log failed
                failed.add(log)
                continue
            try:
                log.close(is_synced=is_synced)
            except KafkaError as error:
                logger.error('%s: cannot be closed cleanly: %s', log.directory, error)
                failed.add(log)
        return failed

    def write_inventory(self, inventory: Inventory, verification: Verification,
                        topic_ids: Mapping[TopicPartition, bytes]) -> None:
        """Write the inventory, which lists the files of all logs. If that fails, the next start succeeds, but verifies
        less.
        """
        try:
            inventory.beside = note_beside(self._fs, self._directory)
            for number, (key, log) in enumerate(self._logs.items()):
                self._progress('noting the files of logs', number, len(self._logs))
                if log.is_made and (log.log_end_offset or log.segments.size_bytes):
                    inventory.rows[key] = self._row_of(key, log, verification, topic_ids[key])
            inventory.write(self._fs, self._directory)
        except OSError as error:
            logger.warning('%s: the inventory cannot be written, the next start verifies less: %s', self._directory,
                           error)

    def _row_of(self, key: TopicPartition, log: Log, verification: Verification, topic_id: bytes) -> str:
        """Return the inventory row of a closed log. If the log has not changed, this is the row that it had at the
        start.
        """
        row, offsets = verification.rows.get(key), (log.log_start_offset, log.log_end_offset)
        if row is not None and not log.is_rewritten and offsets == (
                verification.start_offsets[key], verification.end_offsets[key]):
            return row
        previous = None if row is None else PartitionNote.decode(row)
        return note_partition(self._fs, log.directory, topic_id.hex(), offsets, previous).encode()


def make_missing_indexes(fs: FileSystem, log_directory: str) -> None:
    """Create the missing offset indexes, without entries, in all directories that are out of use (`-delete`, `-stray`,
    `-future`).

    Apache Kafka loads these directories too, and logs an error for each missing index after a clean stop. The indexes
    are not synced, and an OSError is logged.
    """
    try:
        for name in fs.subdirectories(log_directory):
            parsed = parse_directory_name(name)
            if parsed is not None and parsed.state:
                _make_missing(fs, os.path.join(log_directory, name))
    except OSError as error:
        logger.warning('%s: cannot create the indexes of partitions out of use: %s', log_directory, error)


def _make_missing(fs: FileSystem, directory: str) -> None:
    names = set(fs.listdir(directory))
    for name in names:
        index = f'{name.removesuffix(LOG_SUFFIX)}{OFFSET_INDEX_SUFFIX}'
        if name.endswith(LOG_SUFFIX) and index not in names:
            fs.open(os.path.join(directory, index), True)
