"""The check of a whole log directory. Each partition is checked first. Then the partitions are compared with the other
files.

`check_one` checks one partition and can run in any process. The contents of the partitions are then compared with the
checkpoints, the metadata log and the rows of `__transaction_state`.
"""
from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kbroker.base.errors import CorruptLogError, LogDirectoryError, NewerFormatError
from kbroker.base.internal_topics import TRANSACTION_STATE
from kbroker.base.topic_partition import TopicPartition
from kbroker.log.check import Finding, PartitionCheck, PartitionReport, Severity
from kbroker.log.checkpoints import (
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    PartitionOffsets,
    read_partition_offsets,
)
from kbroker.log.directory_names import (
    CLEAN_SHUTDOWN_FILE,
    LOCK_FILE,
    METADATA_DIRECTORY,
    NOT_PARTITIONS,
    parse_directory_name,
)
from kbroker.log.fs import FileSystem
from kbroker.log.inventory import INVENTORY_FILE, META_PROPERTIES_FILE
from kbroker.log.partition_metadata import FILE_NAME as PARTITION_METADATA_FILE
from kbroker.log.partition_metadata import format_uuid, read_topic_id
from kbroker.log.partition_reader import PartitionReader, SegmentReader, are_of_a_partition
from kbroker.log.segment import LOG_SUFFIX
from kbroker_tools.base.render import shell_word

if TYPE_CHECKING:
    from kbroker.log.verification import Past
    from kbroker.metadata.directory import MetaProperties
    from kbroker.metadata.image import MetadataImage
    from kbroker.settings.topic_config import LogConfig

LOST_METADATA = ('restore the metadata log from a backup that was taken together with the partitions. Without one, '
                 '{accept} lets the next start take the metadata as it is: partitions of unknown topics are then '
                 'renamed to -stray and not served')
OF_A_LATER_RELEASE = 'check the directory with kbroker-check of that release'
CHECKPOINTS = (RECOVERY_POINT_FILE, LOG_START_OFFSET_FILE, HIGH_WATERMARK_FILE, CLEANER_FILE)

LIVE_REPETITIONS = 2
LIVE_PAUSE_S = 0.2
"""The pause between two checks of a directory that a broker uses. A broker renames all files of a segment in less
time."""


@dataclass(frozen=True)
class PartitionTask:
    """One partition directory to check."""

    topic: str
    partition: int
    path: str
    size_bytes: int
    """The size of the partition's log files. The progress bar shows it."""
    recovered_from: int | None
    """The recovery point of the log, if the broker would recover the log at its next start. None after a clean stop."""
    is_metadata: bool
    log_start_offset: int
    """The log start offset in the checkpoint. 0 if the checkpoint has none, which means that the log begins with its
    first segment."""
    acknowledged_offset: int
    """The higher of the recovery point and the high watermark in the checkpoints. All records below it were
    acknowledged."""
    is_live: bool
    """True if a broker uses the directory. The check is then repeated, and only findings that occur in every repetition
    are reported."""


def check_one(fs: FileSystem, task: PartitionTask) -> PartitionReport | None:
    """Check one partition. Return None if it is deleted during the check. Raise OSError if its directory cannot be
    listed."""
    def run() -> PartitionReport:
        return PartitionCheck(fs, task.path, task.recovered_from, task.is_metadata, task.log_start_offset,
                              task.acknowledged_offset).run()

    try:
        report = run()
        for _ in range(LIVE_REPETITIONS if task.is_live else 0):
            if report.findings:
                seen = {(finding.file, finding.message) for finding in report.findings}
                time.sleep(LIVE_PAUSE_S)
                report = run()
                report.findings[:] = [
                    finding for finding in report.findings if (finding.file, finding.message) in seen]
    except FileNotFoundError:
        if fs.exists(task.path):
            raise
        return None
    return report if fs.exists(task.path) else None


@dataclass
class DirectoryCheck:
    """The check of a log directory or of a single partition directory. `list_tasks` lists the partitions to check.
    `add` receives the report of each partition. After that, `conclude` compares the partitions with the other files."""

    fs: FileSystem
    directory: str
    is_locked: bool = False
    """True if this process holds the lock of the directory, so that no broker uses it. The check must then not test the
    lock."""
    findings: list[Finding] = field(default_factory=list)
    tasks: list[PartitionTask] = field(default_factory=list)
    reports: dict[TopicPartition, PartitionReport] = field(default_factory=dict)
    proof_of_loss: str | None = None
    """A sentence that proves that the metadata log has lost records, or None."""

    def list_tasks(self) -> None:
        """List the partitions, and read the other files of the directory. Raise LogDirectoryError if it is not a log
        directory."""
        names = sorted(self.fs.listdir(self.directory))
        self.is_partition = are_of_a_partition(names)
        self.log_directory = os.path.dirname(os.path.abspath(self.directory)) if self.is_partition else self.directory
        has_owner = self.fs.exists(os.path.join(self.log_directory, META_PROPERTIES_FILE))
        if not has_owner and not self.is_partition and not any(self._is_partition(name) for name in names):
            shown = ', '.join(names[:3]) + (', ...' if len(names) > 3 else '') if names else 'nothing'
            raise LogDirectoryError(
                f'{self.directory}: found {shown}; expected a log directory of a broker ({META_PROPERTIES_FILE} and '
                'directories named <topic>-<partition>) or one partition directory (<offset>.log files)')
        self.lock_path = os.path.join(self.log_directory, LOCK_FILE) if has_owner else None
        self.holder = None if self.lock_path is None or self.is_locked else self._find_holder(self.lock_path)
        """The process id of the broker that uses the directory. 0 if this process cannot see the id."""
        self._deleted: dict[TopicPartition, str] = {}
        self.is_clean = not has_owner or self.fs.exists(os.path.join(self.log_directory, CLEAN_SHUTDOWN_FILE))
        self._checkpoints = {name: self._read_checkpoint(name) for name in CHECKPOINTS} if has_owner else {}
        if self.is_partition:
            self._add_task(os.path.abspath(self.directory))
        else:
            self._list_directories(names, has_owner)

    def _find_holder(self, lock_path: str) -> int | None:
        try:
            return self.fs.lock_holder(lock_path)
        except FileNotFoundError:
            return None

    def _is_partition(self, name: str) -> bool:
        return parse_directory_name(name) is not None and self.fs.is_directory(os.path.join(self.directory, name))

    def _list_directories(self, names: list[str], has_owner: bool) -> None:
        self._meta_properties: MetaProperties | None = None
        if has_owner:
            self._read_meta_properties()
        else:
            self._warn(META_PROPERTIES_FILE, 'found no such file: these partitions are checked without the rest of '
                       'their log directory', do='nothing, if these are copies; else check the log directory itself')
        for name in names:
            path = os.path.join(self.directory, name)
            parsed = parse_directory_name(name)
            if not self.fs.is_directory(path):
                if parsed is not None:
                    self._warn(name, 'found a file with the name of a partition directory', do='move it away')
            elif name == METADATA_DIRECTORY or (parsed is not None and name == f'{parsed.topic}-{parsed.partition}'):
                self._add_task(path)
            elif parsed is not None and parsed.state:
                self._warn(name, f'found a partition that is out of use (-{parsed.state})',
                           do='nothing: the next start removes it' if parsed.state == 'delete' else
                           'nothing, or remove it once its records are not needed')
                if parsed.state == 'delete':
                    self._deleted[parsed.topic, parsed.partition] = path
            elif name not in NOT_PARTITIONS:
                self._error(name, 'found a directory that is not named <topic>-<partition>: neither Kafka nor kbroker '
                                  'starts on such a log directory', do='move it away')

    def _add_task(self, path: str) -> None:
        parsed = parse_directory_name(os.path.basename(path))
        topic, partition = (parsed.topic, parsed.partition) if parsed is not None else (os.path.basename(path), 0)
        try:
            size_bytes = sum(self.fs.size(os.path.join(path, name)) for name in self.fs.listdir(path)
                             if name.endswith(LOG_SUFFIX))
        except OSError:
            size_bytes = 0      # the check of this partition reports the error
        log_start_offset, recovery_point, high_watermark = (
            self._checkpoints.get(name, {}).get((topic, partition), 0)
            for name in (LOG_START_OFFSET_FILE, RECOVERY_POINT_FILE, HIGH_WATERMARK_FILE))
        self.tasks.append(PartitionTask(
            topic, partition, path, size_bytes, None if self.is_clean else recovery_point,
            os.path.basename(path) == METADATA_DIRECTORY, log_start_offset, max(recovery_point, high_watermark),
            self.holder is not None))

    def _read_meta_properties(self) -> None:
        from kbroker.metadata.directory import read_meta_properties
        try:
            self._meta_properties = read_meta_properties(self.fs, self.directory)
        except (LogDirectoryError, OSError) as error:
            self._error(META_PROPERTIES_FILE, _without_path(error))

    def _read_checkpoint(self, name: str) -> PartitionOffsets:
        try:
            return read_partition_offsets(self.fs, self.log_directory, name)
        except (CorruptLogError, OSError) as error:
            self._error(name, _without_path(error))
            return {}

    # ---- partitions ----

    def add(self, task: PartitionTask, report: PartitionReport | OSError | None) -> None:
        """Add the result of `check_one` for a partition: the report that it returned, or the error that it raised."""
        if report is None:
            self._warn(task.path, 'was deleted while it was checked', do='nothing')
        elif isinstance(report, OSError):
            self._error(task.path, f'cannot be read: {report.strerror or report}',
                        do='run the command as the user of the broker; otherwise check the disk')
        else:
            self.findings += report.findings
            self.reports[task.topic, task.partition] = report

    def conclude(self) -> list[Finding]:
        """Return all findings. Errors come first; findings of the same severity are sorted by file and position."""
        self._check_offsets()
        self._image = self._read_metadata()
        self._add_damage()
        if not self.is_partition:
            if self._image is not None:
                self._check_metadata(self._image)
            self._check_transactions(self._image)
        self.findings.sort(key=lambda finding: (finding.severity is Severity.WARNING, finding.file, finding.position))
        return self.findings

    @property
    def _readable(self) -> set[TopicPartition]:
        """Return the partitions of which all batches could be read."""
        return {key for key, report in self.reports.items() if report.has_state}

    def _add_damage(self) -> None:
        """Report two kinds of damage. The first is damage that the broker recorded at its start. The second is files
        that have changed since the last clean stop and have no other errors."""
        from kbroker.log.damage_report import new_damage, noted_damage
        found = noted_damage(self.fs, self.log_directory)
        known = {os.path.abspath(finding.file) for finding in [*self.findings, *found]
                 if finding.severity is Severity.ERROR}
        found += [finding for finding in new_damage(self.fs, self.log_directory)
                  if os.path.abspath(finding.file) not in known]
        own = os.path.join(os.path.abspath(self.directory), '')
        self.findings += [finding for finding in found
                          if not self.is_partition or f'{os.path.abspath(finding.file)}/'.startswith(own)]

    # ---- comparison of checkpoints with logs ----

    def _check_offsets(self) -> None:
        readable = self._readable
        for name, offsets in self._checkpoints.items():
            for topic_partition, offset in sorted(offsets.items()):
                if topic_partition in readable:
                    self._check_offset(name, topic_partition, offset, self.reports[topic_partition])

    def _check_offset(self, name: str, topic_partition: TopicPartition, offset: int, report: PartitionReport) -> None:
        what = f'{offset} for {_name(topic_partition)}'
        if offset < 0:
            self._error(name, f'found {what}, expected an offset')
        elif offset > report.end_offset and name == CLEANER_FILE:
            self._warn(name, f'found {what}, whose log ends at {report.end_offset}')
        elif offset > report.end_offset and self.holder is None and not self._is_stale(name, topic_partition):
            meaning = {RECOVERY_POINT_FILE: 'what was on the disk is gone',
                       LOG_START_OFFSET_FILE: 'nothing of the log can be read',
                       HIGH_WATERMARK_FILE: 'records that consumers may have seen are gone'}[name]
            self._error(name, f'found {what}, whose log ends at {report.end_offset}: {meaning}',
                        do=f'restore {_name(topic_partition)} from a backup. Without one, {{accept}} lets the next '
                           'start serve what is there')

    def _is_stale(self, name: str, topic_partition: TopicPartition) -> bool:
        """Return whether the high watermark in the checkpoint may belong to a deleted topic with the same name.

        Kafka writes the checkpoint every few seconds. The file may therefore be older than the present partition.
        """
        if name != HIGH_WATERMARK_FILE:
            return False
        task = next(task for task in self.tasks if (task.topic, task.partition) == topic_partition)
        try:
            topic_id = read_topic_id(self.fs, task.path)
            is_older = topic_id is not None and (
                self.fs.modified_ms(os.path.join(self.log_directory, name))
                < self.fs.modified_ms(os.path.join(task.path, PARTITION_METADATA_FILE)))
        except (CorruptLogError, OSError):
            return False
        # If the broker was killed, the directory of a new partition may have no topic id yet.
        is_new = topic_id is not None or not self.is_clean
        return is_older or (is_new and self._follows_a_deleted(topic_partition, topic_id))

    # ---- comparison of the metadata log with directories ----

    def _read_metadata(self) -> MetadataImage | None:
        directory = os.path.join(self.log_directory, METADATA_DIRECTORY)
        if not self.fs.is_directory(directory):
            self._report_missing_metadata(directory)
            return None
        from kbroker.metadata.directory import later_release
        from kbroker.metadata.features import KRAFT_VERSION, newer_level
        from kbroker.metadata.image import MetadataImage
        from kbroker.metadata.lost_log import proof_of_loss
        from kbroker.metadata.quorum_log import QuorumLog
        from kbroker.metadata.snapshots import BOOTSTRAP_FILE, read_snapshot
        snapshots = [os.path.join(directory, name) for name in sorted(self.fs.listdir(directory))
                     if name.endswith('.checkpoint')]
        bootstrap = os.path.join(self.log_directory, BOOTSTRAP_FILE)
        for path in [bootstrap, *snapshots] if self.fs.exists(bootstrap) else snapshots:
            try:
                for _ in read_snapshot(self.fs, path):
                    pass
            except NewerFormatError:
                pass        # reported below
            except (CorruptLogError, OSError) as error:
                self._error(path, _without_path(error))
        image = MetadataImage()
        try:
            log = QuorumLog(self.fs, self.log_directory, 0)
            log.load(image)
        except NewerFormatError as error:
            self._error(directory, f'{error}. {later_release(self.fs, self.log_directory)}', do=OF_A_LATER_RELEASE)
            return None
        except (CorruptLogError, OSError) as error:
            self._error(directory, str(error))
            return None
        problem = newer_level({KRAFT_VERSION: image.kraft_version, **image.features})
        if problem:
            self._error(directory, f'{problem}. {later_release(self.fs, self.log_directory)}', do=OF_A_LATER_RELEASE)
        self.proof_of_loss = None if self.is_partition else proof_of_loss(self._past(), log, image)
        if self.proof_of_loss is not None:
            self._error(directory, self.proof_of_loss, do=LOST_METADATA)
        return image if image.metadata_offset >= 0 else None

    def _report_missing_metadata(self, directory: str) -> None:
        """Report that the log directory has no metadata log. It is an error if kbroker has stopped there: the log must
        have existed then."""
        if self.is_partition or self.lock_path is None:
            return
        from kbroker.metadata.image import MetadataImage
        from kbroker.metadata.lost_log import proof_of_loss
        from kbroker.metadata.quorum_log import QuorumLog
        self.proof_of_loss = proof_of_loss(self._past(), QuorumLog(self.fs, self.log_directory, 0), MetadataImage())
        if self.fs.exists(os.path.join(self.log_directory, INVENTORY_FILE)):
            self._error(directory, 'found no such directory beside partitions, expected the metadata log',
                        do=LOST_METADATA)
        elif self.proof_of_loss is not None:
            node = '' if self._meta_properties is None else f' of broker {self._meta_properties.node_id}'
            self._warn(directory, f'found no such directory: this is one of several log directories{node}, and another '
                       'one has the metadata log, or it is lost', do='nothing, if another directory has it: its '
                       f'partitions are checked without the metadata. Otherwise {LOST_METADATA}')

    def _past(self) -> Past:
        from kbroker.log.damage_report import past_of
        topic_ids = {}
        for task in self.tasks:
            try:
                topic_id = None if task.is_metadata else read_topic_id(self.fs, task.path)
            except (CorruptLogError, OSError):
                continue        # the check of this partition reports the error
            if topic_id is not None:
                topic_ids[task.topic, task.partition] = topic_id
        return past_of(self.fs, self.log_directory, topic_ids)

    def _check_metadata(self, image: MetadataImage) -> None:
        found = {(task.topic, task.partition): task.path for task in self.tasks if not task.is_metadata}
        expected = dict(self._partitions_of(image))
        for topic_partition, path in sorted(found.items()):
            if topic_partition not in expected:
                self._warn(path, 'found a partition of no topic in the metadata log: the next start sets it aside',
                           do='nothing, if its topic was deleted. Otherwise restore it together with the metadata log')
                continue
            try:
                topic_id = read_topic_id(self.fs, path)
            except (CorruptLogError, OSError):
                continue        # the check of this partition reports the error
            if topic_id != expected[topic_partition]:
                text = 'no topic id' if topic_id is None else f'topic id {format_uuid(topic_id)}'
                # A broker that was killed may have kept the directory of a deleted topic with this name.
                report = self._warn if topic_id is None or not self.is_clean else self._error
                report(os.path.join(path, 'partition.metadata'), f'found {text}, the metadata log says '
                       f'{format_uuid(expected[topic_partition])}')
        known = {key for offsets in self._checkpoints.values() for key in offsets}
        for topic_partition in sorted(expected.keys() - found.keys()):
            if topic_partition in known and not self._follows_a_deleted(topic_partition, expected[topic_partition]):
                self._error(_name(topic_partition), 'found no such directory, and checkpoints list its log: it is lost',
                            do='restore it from a backup. Without one, {accept} lets the next start create it, empty')
            else:
                self._warn(_name(topic_partition), 'found no such directory: the next start creates it, empty',
                           do='nothing')

    def _follows_a_deleted(self, topic_partition: TopicPartition, topic_id: bytes | None) -> bool:
        """Return whether a topic with the same name may just have been deleted. Its offsets may then still be in the
        checkpoints."""
        path = self._deleted.get(topic_partition)
        try:
            return path is not None and read_topic_id(self.fs, path) != topic_id
        except (CorruptLogError, OSError):
            return False

    def _partitions_of(self, image: MetadataImage) -> Iterator[tuple[TopicPartition, bytes]]:
        """Yield each partition that belongs in this directory, with its topic id."""
        owner = self._meta_properties
        for topic in image.topics.values():
            for partition in topic.partitions:
                directories = dict(zip(partition.replicas, partition.directories, strict=False))
                is_here = owner is None or (owner.node_id in partition.replicas and (
                    directories.get(owner.node_id, owner.directory_id) in (owner.directory_id, *RESERVED_DIRECTORIES)))
                if is_here:
                    yield (topic.name, partition.index), topic.topic_id

    # ---- comparison of `__transaction_state` with partitions ----

    def _check_transactions(self, image: MetadataImage | None) -> None:
        from kbroker_tools.check.transaction_check import TransactionCheck
        owned = {task.partition: task for task in self.tasks if task.topic == TRANSACTION_STATE}
        if image is None and not owned:
            return      # copied partitions without the state of their transactions
        topic = image.topics.get(TRANSACTION_STATE) if image is not None else None
        expected = len(topic.partitions) if topic is not None else max(owned, default=-1) + 1
        is_whole = image is not None and all(
            (TRANSACTION_STATE, partition) in self._readable for partition in range(expected))
        check = TransactionCheck({
            partition: PartitionReader(self.fs, task.path).batches() for partition, task in sorted(owned.items())
            if (TRANSACTION_STATE, partition) in self._readable})
        paths = {(task.topic, task.partition): task.path for task in self.tasks}
        known = {key for key, _ in self._partitions_of(image)} | set(paths) if image is not None else None
        for remark in check.run({key: self.reports[key].open_transactions for key in self._readable}, known):
            path = paths[remark.topic_partition]
            is_error = remark.is_error and is_whole and self.holder is None
            file, position = self._place(path, remark.offset)
            hint = '' if is_whole or not remark.is_error else f' (not all of {TRANSACTION_STATE} can be read here)'
            where = shell_word(':'.join(map(str, remark.topic_partition)))
            do = None if not remark.is_error else (
                f'kbroker-transactions why-stuck {where} --data-dir '
                f'{shell_word(self.log_directory)} says how to end it')
            (self._error if is_error else self._warn)(file, remark.message + hint, position, do)

    def _place(self, path: str, offset: int) -> tuple[str, int]:
        """Return (file, position) of the batch that contains an offset."""
        try:
            bases = [base for base in PartitionReader(self.fs, path).base_offsets() if base <= offset]
            segment = SegmentReader(self.fs, path, bases[-1])
            return segment.file.path, segment.position_of(offset)
        except (OSError, IndexError):
            return path, -1

    def log_config(self, topic: str) -> LogConfig:
        """Return the topic's settings from the metadata log. The settings determine how the indexes of the topic are
        built."""
        from kbroker.settings.config import Config
        from kbroker.settings.topic_config import LogConfig
        known = self._image.topics.get(topic) if self._image is not None else None
        return LogConfig(Config({}), known.configs if known is not None else {})

    # ---- findings ----

    def _error(self, name: str, message: str, position: int = -1, do: str | None = None) -> None:
        self._add(Severity.ERROR, name, message, position, do)

    def _warn(self, name: str, message: str, position: int = -1, do: str | None = None) -> None:
        self._add(Severity.WARNING, name, message, position, do)

    def _add(self, severity: Severity, name: str, message: str, position: int, do: str | None) -> None:
        file = os.path.join(self.log_directory, name)
        self.findings.append(Finding.of(severity, file, position, message, None, do))


RESERVED_DIRECTORIES = tuple(number.to_bytes(16, 'big') for number in range(100))
"""The directory ids that Kafka reserves: unassigned, lost and migrating."""


def _name(topic_partition: TopicPartition) -> str:
    topic, partition = topic_partition
    return f'{topic}-{partition}'


def _without_path(error: Exception) -> str:
    """Return the message without its leading path, because a finding names the file separately."""
    if isinstance(error, OSError):
        return f'cannot be read: {error.strerror or error}'
    text = str(error)
    head, _, rest = text.partition(': ')
    return rest if head.startswith('/') or os.sep in head else text
