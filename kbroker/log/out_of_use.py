"""Partition directories that are not served: `-delete`, `-stray` and `-future`."""
import logging
import os

from kbroker.log.directory_names import parse_directory_name
from kbroker.log.fs import FileSystem
from kbroker.log.segment import LOG_SUFFIX, OFFSET_INDEX_SUFFIX

logger = logging.getLogger(__name__)


def make_missing_indexes(fs: FileSystem, log_directory: str) -> None:
    """Create an empty offset index for each segment out of use that has none.

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
