"""A log directory: its lock, and the partitions in it."""
import os
from collections.abc import Iterable
from errno import EACCES, ENOLCK, ENOSYS, EOPNOTSUPP, EROFS

from kbroker.base.errors import LogDirectoryError
from kbroker.log.checkpoints import (
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LEADER_EPOCH_FILE,
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
)
from kbroker.log.damage_notes import DAMAGE_FILE
from kbroker.log.directory_names import (
    CLEAN_SHUTDOWN_FILE,
    LOCK_FILE,
    METADATA_DIRECTORY,
    NOT_PARTITIONS,
    parse_directory_name,
)
from kbroker.log.fs import NO_FILE, File, FileSystem
from kbroker.log.inventory import INVENTORY_FILE, META_PROPERTIES_FILE
from kbroker.log.partition_metadata import FILE_NAME as PARTITION_METADATA_FILE

QUORUM_STATE_FILE = 'quorum-state'
WITHOUT_LOCKS = (ENOLCK, ENOSYS, EOPNOTSUPP)
"""The errors of a file system that does not lock files."""
FILES_BESIDE = (
    CLEAN_SHUTDOWN_FILE, CLEANER_FILE, DAMAGE_FILE, HIGH_WATERMARK_FILE, INVENTORY_FILE, LEADER_EPOCH_FILE, LOCK_FILE,
    LOG_START_OFFSET_FILE, META_PROPERTIES_FILE, PARTITION_METADATA_FILE, QUORUM_STATE_FILE,
    RECOVERY_POINT_FILE)


def lock_directory(fs: FileSystem, directory: str) -> File:
    """Lock the directory for as long as the returned file lives.

    Raise LogDirectoryError if another broker uses the directory, or if its file system has no locks. Raise OSError.
    """
    path = os.path.join(directory, LOCK_FILE)
    try:
        return fs.lock(path)
    except BlockingIOError as error:
        holder = fs.lock_holder(path)
        process = f' (process {holder})' if holder else ''
        raise LogDirectoryError(f'{path} is locked: another broker, kbroker or Kafka, uses {directory}{process}: stop '
                                'it first, or name another directory') from error
    except OSError as error:
        if error.errno in WITHOUT_LOCKS:
            raise LogDirectoryError(f'{path}: found a file system that locks no files ({error.strerror}), expected one '
                                    'with POSIX record locks: use a local disk, or start the lock service of NFS '
                                    '(rpc.statd)') from error
        raise


def check_access(fs: FileSystem, directory: str, partitions: Iterable[tuple[str, int]]) -> None:
    """Raise OSError for the first directory or file of the log directory that this user may not use.

    Without this check, a segment of another user would fail when a client first needs it. Files that are not the
    broker's are not checked.
    """
    refused = fs.first_refused(directory, FILES_BESIDE)
    for name in (METADATA_DIRECTORY, *(f'{topic}-{partition}' for topic, partition in partitions)):
        path = os.path.join(directory, name)
        if refused is None and fs.exists(path):
            refused = fs.first_refused(path)
    if refused is not None:
        code = EROFS if fs.is_read_only(refused) else EACCES
        raise OSError(code, os.strerror(code), refused)


def contains(fs: FileSystem, directory: str, name: str) -> bool:
    """Return whether a directory exists and contains the file `name`. Raise OSError if the directory cannot be read."""
    try:
        return name in fs.listdir(directory)
    except FileNotFoundError:
        return False


def check_files(fs: FileSystem, directory: str) -> None:
    """Raise LogDirectoryError if a path that the broker needs has the wrong kind, for example if a file is a pipe.

    Without this check, reading a pipe would return nothing, and a write to a directory would fail later.
    """
    metadata = os.path.join(directory, METADATA_DIRECTORY)
    for place in (directory, metadata) if fs.is_directory(metadata) else (directory,):
        for name, size_bytes in sorted(fs.sizes(place).items()):
            if size_bytes == NO_FILE and (name.removesuffix('.tmp') in FILES_BESIDE or name[:20].isdecimal()):
                path = os.path.join(place, name)
                raise LogDirectoryError(f'{path}: found {fs.kind(path)}, expected a file: move it away')


def list_partitions(fs: FileSystem, directory: str) -> set[tuple[str, int]]:
    """Return (topic, partition) of each partition in the log directory, except partitions that are out of use. Raise
    LogDirectoryError if a subdirectory is not a partition.
    """
    found = set()
    for name in sorted(fs.subdirectories(directory)):
        if name in NOT_PARTITIONS:
            continue
        parsed = parse_directory_name(name)
        if parsed is None:
            raise LogDirectoryError(f'{os.path.join(directory, name)}: found a directory that is not named '
                                    '<topic>-<partition>. Neither Kafka nor kbroker starts on such a log directory: '
                                    'move it away')
        if not parsed.state:
            found.add((parsed.topic, parsed.partition))
    return found
