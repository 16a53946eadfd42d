"""A log directory on which tests start and stop a controller, and a file system whose changes fail after a given
number."""

from __future__ import annotations

import errno
import pathlib
from collections.abc import Mapping
from typing import Any

import pytest
from reference.kraft import read_log

from kbroker.base.clock import ManualClock
from kbroker.base.errors import KafkaError
from kbroker.base.long_work import run_to_end
from kbroker.log.fs import Directory, File, FileSystem, InterposedFile, sync_inline
from kbroker.log.jobs import Sync
from kbroker.metadata.batches import encode_control, encode_data
from kbroker.metadata.controller import MetadataController
from kbroker.metadata.image import TopicImage
from kbroker.metadata.topic_operations import NewTopic
from kbroker.settings.config import Config

DATA = pathlib.Path(__file__).parent.parent / 'data'
DIRECTORIES = DATA / 'kafka-directories'


class CountdownFile(InterposedFile):
    """A file of which the file system counts each change, and decides whether the change fails."""

    def __init__(self, path: str, create: bool, fs: CountdownFileSystem):
        super().__init__(path, create)
        self.fs = fs

    def on_write(self, data: bytes, position: int) -> tuple[int, OSError] | None:
        error = self.fs.next_change()
        self.fs.tore_a_write |= error is not None
        return None if error is None else (len(data) * self.fs.torn_percent // 100, error)

    def on_truncate(self, size: int) -> None:
        self.fs.check()

    def on_sync(self) -> None:
        self.fs.check()


class CountdownDirectory(Directory):
    """A directory of which the file system counts each sync, and decides whether the sync fails."""

    def __init__(self, path: str, fs: CountdownFileSystem):
        super().__init__(path)
        self.fs = fs

    def sync(self) -> None:
        self.fs.check()
        super().sync()


class CountdownFileSystem(FileSystem):
    """A file system that fails every change after the first `allowed` ones.

    A failing write still writes `torn_percent` of its bytes.
    """

    def __init__(self, allowed: int = 1_000_000, torn_percent: int = 0):
        self.allowed = allowed
        self.torn_percent = torn_percent
        self.changes = 0
        self.tore_a_write = False
        """True if a write has failed, and so left a part of its bytes. If False, `torn_percent` had no effect."""

    def next_change(self) -> OSError | None:
        self.changes += 1
        return None if self.changes <= self.allowed else OSError(errno.EIO, 'the disk is gone')

    def check(self) -> None:
        error = self.next_change()
        if error is not None:
            raise error

    def open(self, path: str, create: bool = False) -> File:
        if create and not self.exists(path):
            self.check()
        return CountdownFile(path, create, self)

    def rename(self, old: str, new: str) -> None:
        self.check()
        super().rename(old, new)

    def mkdir(self, path: str) -> None:
        self.check()
        super().mkdir(path)

    def open_directory(self, path: str) -> File:
        return CountdownDirectory(path, self)


class ControllerDirectory:
    """A log directory, and the controllers that one broker starts and stops on it."""

    def __init__(self, log_dir: pathlib.Path, **settings: str):
        self.log_dir = log_dir
        self.clock = ManualClock()
        self.config = Config({name.replace('_', '.'): value for name, value in settings.items()})

    def open(self, fs: FileSystem | None = None, sync: Sync = sync_inline) -> MetadataController:
        return MetadataController.open(fs or FileSystem(), str(self.log_dir), self.config, self.clock, sync=sync)

    def start(self, fs: FileSystem | None = None, sync: Sync = sync_inline) -> MetadataController:
        controller = self.open(fs, sync)
        controller.register(self.config.advertised)
        return controller

    @staticmethod
    def stop(controller: MetadataController) -> None:
        controller.begin_shutdown()
        controller.finish_shutdown()

    @property
    def metadata_directory(self) -> pathlib.Path:
        return self.log_dir / '__cluster_metadata-0'

    @property
    def segment(self) -> pathlib.Path:
        """Return the path of the last segment of the metadata log."""
        return max(self.metadata_directory.glob('*.log'))

    def next_place(self) -> dict[str, int]:
        """Return the offset, the epoch and the timestamp of the next batch of the log."""
        last = read_log(self.log_dir)[-1]
        return {'base_offset': last.offset + 1, 'epoch': last.epoch, 'timestamp_ms': last.timestamp_ms}

    def append(self, data: bytes) -> None:
        self.segment.write_bytes(self.segment.read_bytes() + data)

    def append_records(self, *records: Any, control: bool = False, **place: int) -> None:
        """Append the records as the next batch of the log. `place` may replace the offset, epoch or timestamp of the
        batch."""
        place = self.next_place() | place
        self.append(encode_control(records, **place) if control else encode_data(records, **place, metadata_version=30))

    def assert_refused(self, error: type[Exception] | tuple[type[Exception], ...], match: str) -> None:
        """Check that the directory is refused and that no file has changed."""
        before = self.files()
        with pytest.raises(error, match=match):
            self.open()
        assert self.files() == before

    def files(self) -> dict[str, bytes]:
        """Return the content of every file except the preallocated indexes."""
        return {
            str(path.relative_to(self.log_dir)): path.read_bytes()
            for path in sorted(self.log_dir.rglob('*'))
            if path.is_file() and path.suffix not in ('.index', '.timeindex')
        }


# -- helpers that run a change to its end

def create_topic(controller: MetadataController, name: str, partitions: int,
                 configs: Mapping[str, str | None] | None = None) -> TopicImage:
    """Create one topic, and wait until it is durable."""
    (result,) = controller.at_once(controller.topics.create([NewTopic(name, partitions, configs or {})]))
    return image_of(result)


def allocate_producer_ids(controller: MetadataController) -> range:
    """Allocate a block of producer ids, and wait until this is durable. Return the ids."""
    return controller.at_once(controller.allocate_producer_id_block())


def create_topics(controller: MetadataController, new_topics: list[NewTopic], *,
                  validate_only: bool = False) -> list[Any]:
    return run_to_end(controller.topics.create(new_topics, validate_only=validate_only))


def create_partitions(controller: MetadataController, name: str, count: int, *,
                      validate_only: bool = False) -> TopicImage:
    (result,) = run_to_end(controller.topics.create_partitions({name: count}, validate_only=validate_only))
    return image_of(result)


def delete_topics(controller: MetadataController, topics: list[str | bytes]) -> list[Any]:
    return run_to_end(controller.topics.delete(topics))


def delete_topic(controller: MetadataController, topic: str | bytes) -> TopicImage:
    (result,) = delete_topics(controller, [topic])
    return image_of(result)


def alter_configs(
    controller: MetadataController,
    resource_type: int,
    name: str,
    changes: Mapping[str, str | None],
    *,
    validate_only: bool = False,
) -> dict[str, str]:
    """Change configs of one resource, and return all configs of the resource."""
    resource = resource_type, name
    errors = run_to_end(controller.configs.alter({resource: changes}, validate_only=validate_only))
    if errors[resource] is not None:
        raise errors[resource]
    return controller.image.configs.get(resource, {})


def image_of(result: TopicImage | KafkaError) -> TopicImage:
    if isinstance(result, KafkaError):
        raise result
    return result
