"""Parses and creates the names of directories in a log directory."""
import re
import uuid
from typing import NamedTuple

LOCK_FILE = '.lock'
CLEAN_SHUTDOWN_FILE = '.kafka_cleanshutdown'
METADATA_DIRECTORY = '__cluster_metadata-0'
NOT_PARTITIONS = {METADATA_DIRECTORY, 'remote-log-index-cache'}
"""The directories that are not partitions of a topic: the metadata log and Kafka's cache of remote indexes."""

LONGEST_NAME = 255
LONGEST_TOPIC = 249


class DirectoryName(NamedTuple):
    """The parts of a name: `orders-3` is ('orders', 3, ''). The third part is the state: '' in use; 'delete', 'stray'
    or 'future' out of use.
    """

    topic: str
    partition: int
    state: str


def parse_directory_name(name: str) -> DirectoryName | None:
    """Parse the name of a partition directory. Return None for any other name."""
    match = re.fullmatch(r'([a-zA-Z0-9._-]+)-(\d+)', name)
    if match and len(match[1]) <= LONGEST_TOPIC and match[1] not in ('.', '..'):
        return DirectoryName(match[1], int(match[2]), '')
    match = re.fullmatch(r'([a-zA-Z0-9._-]*)-(\d+)\.[0-9a-f]{32}-(delete|stray|future)', name)
    return DirectoryName(match[1], int(match[2]), match[3]) if match else None


def name_out_of_use(topic: str, partition: int, state: str) -> str:
    """Return a new name for a directory that is to be deleted or set aside. A long topic name is shortened, so that the
    result is a valid file name.
    """
    suffix = f'-{partition}.{uuid.uuid4().hex}-{state}'
    return topic[:LONGEST_NAME - len(suffix)] + suffix
