"""A log directory: its lock, and the partitions in it."""
import os

from kbroker.errors import LogDirectoryError
from kbroker.log.directory_names import LOCK_FILE, NOT_PARTITIONS, parse_directory_name
from kbroker.log.fs import File, FileSystem


def lock_directory(fs: FileSystem, directory: str) -> File:
    """Lock the directory until the file that is returned is freed. Raises LogDirectoryError if another broker uses it.
    """
    path = os.path.join(directory, LOCK_FILE)
    try:
        return fs.lock(path)
    except (BlockingIOError, PermissionError) as error:
        raise LogDirectoryError(f'{path} is locked: another broker, kbroker or Kafka, uses {directory}') from error


def list_partitions(fs: FileSystem, directory: str) -> set[tuple[str, int]]:
    """Return topic and number of each partition in the directory, except those out of use.

    Raises LogDirectoryError if a directory in it is no partition.
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
