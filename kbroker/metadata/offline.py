"""Changes of the metadata in the log directory of a stopped broker."""
from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from kbroker.base.clock import Clock, Timers
from kbroker.base.errors import LogDirectoryError
from kbroker.log.fs import FileSystem
from kbroker.log.log_directory import contains
from kbroker.log.manager import LogManager
from kbroker.metadata.controller import MetadataController
from kbroker.metadata.directory import META_PROPERTIES_FILE, read_meta_properties
from kbroker.settings.config import Config


@contextmanager
def changed_directory(directory: str) -> Iterator[MetadataController]:
    """Lock the directory of a stopped broker, and yield the controller of its metadata.

    Raise LogDirectoryError if a broker uses the directory, if no broker has ever used it, or if it belongs to another
    user. The broker of another user could not open the files that this process would write.
    """
    fs = FileSystem()
    if not contains(fs, directory, META_PROPERTIES_FILE):
        raise LogDirectoryError(f'{directory}: found no {META_PROPERTIES_FILE}, expected the log directory of a broker')
    owner = os.stat(directory).st_uid
    if owner != os.geteuid():
        raise LogDirectoryError(f'{directory} belongs to user id {owner}: run this command as that user, found '
                                f'{os.geteuid()}')
    config = Config({'log.dirs': directory, 'node.id': str(read_meta_properties(fs, directory).node_id)})
    clock = Clock()
    logs = LogManager(fs, directory, config, clock, Timers(clock))
    try:
        controller = MetadataController.open(fs, directory, config, clock, logs.past())
        try:
            yield controller
        finally:
            controller.close()
    finally:
        logs.close(clean=False)
