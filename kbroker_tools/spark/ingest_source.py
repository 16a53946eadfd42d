"""The source of an ingest: which offsets of which topics a run reads. Ingests into files and into tables share it."""
from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from kbroker.base.topic_partition import TopicPartition
from kbroker_tools.spark.identity import Identity
from kbroker_tools.spark.ledger import IngestError, Progress
from kbroker_tools.spark.options import BY_NAME, REGISTRY_PREFIX, Options, parse_options
from kbroker_tools.spark.planning import Place, Slice, chosen_partitions
from kbroker_tools.spark.schema import ddl
from kbroker_tools.spark.skipped import Skipped

BROKER = re.compile(r'(?:[\w.-]+|\[[\w:.%]+\]):\d+(,(?:[\w.-]+|\[[\w:.%]+\]):\d+)*')
DATE = 'date'
"""A name in `--partition-by`: the date of the timestamp, in UTC."""
OF_THE_JOB = ('path', 'subscribe', 'subscribePattern', 'assign', 'startingOffsets', 'endingOffsets',
              'startingTimestamp', 'endingTimestamp', 'startingOffsetsByTimestamp', 'endingOffsetsByTimestamp',
              'startingOffsetsByTimestampStrategy', 'table', 'maxOffsetsPerTrigger', 'maxBytesPerTrigger',
              'skippedTo')
"""The options of the data source that a user cannot set. The job sets them itself, or they would break exactly-once."""
OF_THE_VALUES = ('valueFormat', 'valueSchema', 'valueReaderSchema')
"""The options about values that the job sets itself."""


@dataclass(frozen=True)
class IngestResult:
    """The result of one run. Sizes in bytes count only keys and values. `lag` is the number of offsets from the end of
    the run to the end of the log."""

    run: int | None
    """The number of the run. None if there was nothing to read."""
    rows: int
    size_bytes: int
    skipped_offsets: int
    """The number of offsets that have no row, because they belong to aborted records, markers or compacted records."""
    lost_offsets: int
    """The number of offsets whose records are lost or damaged. They were skipped because failOnDataLoss is false."""
    losses: list[str]
    """A description of each loss."""
    aborted_transactions: int
    """The number of aborted transactions. Their records were skipped."""
    undecoded: int | None
    """The number of values that do not match the schema. None if values are not decoded."""
    lag: int
    duration_ms: int
    version: str | None = None
    """The snapshot or the version of the table after the run. None for files, and for a table without one."""
    files: int | None = None
    """The number of data files that the run added to the table. None for files."""
    notes: Sequence[str] = ()
    """Sentences for the user about files of failed attempts that could not be deleted."""


@dataclass(frozen=True)
class IngestSource:
    """The source and the topics of an ingest. `source` has log directories or URIs, or addresses such as `host:port`,
    separated by commas. `options` are further options of the data source."""

    source: str
    topics: Sequence[str]
    options: dict[str, str] = field(default_factory=dict)

    @property
    def is_broker(self) -> bool:
        return BROKER.fullmatch(self.source) is not None

    def data_source_options(self) -> dict[str, str]:
        """Return all options of the data source that read these topics."""
        where = 'kafka.bootstrap.servers' if self.is_broker else 'path'
        return {'subscribe': ','.join(self.topics), **self.options, where: self.source}

    def parsed(self, partition_by: Sequence[str]) -> Options:
        """Return the parsed options. Nothing is opened. Raise IngestError or OptionError if an option or a column to
        partition by is wrong."""
        for name in self.options:
            row = BY_NAME.get(name.lower())
            if (row and row.name in OF_THE_VALUES) or name.lower().startswith(REGISTRY_PREFIX):
                raise IngestError(f'option {name}: an ingest sets it itself, from --value-format, --value-schema and '
                                  '--registry-config')
            if (row and row.name in OF_THE_JOB) or name.lower() == 'kafka.bootstrap.servers':
                raise IngestError(f'option {name}: an ingest sets it itself, from --topics, --from and the end of its '
                                  'last run')
        options = parse_options(self.data_source_options())
        columns = re.findall(r'`(\w+)`', ddl(options))
        for name in partition_by:
            if name not in [*columns, DATE]:
                raise IngestError(f'--partition-by: found {name!r}, expected some of {DATE}, {", ".join(columns)}')
        return options

    def slices(self, place: Place, options: Options, progress: Progress, identity: Identity, skipped: Skipped,
               another: str) -> list[Slice]:
        """Return the offsets from the recorded progress to the end that can be read. Add the offsets that retention
        took to `skipped`.

        Raise IngestError if a topic was recreated, or if records are lost and failOnDataLoss is true. `another` names
        the options that the user has to change to ingest a recreated topic.
        """
        for topic, topic_id in sorted(identity.topic_ids.items()):
            kept = progress.topic_ids.get(topic, topic_id)
            if kept != topic_id:
                raise IngestError(f'topic {topic} was recreated: found id {topic_id}, but rows of id {kept} were '
                                  f'ingested; give another {another}')
        found = (self._slice(place, options, each, progress, skipped) for each in chosen_partitions(place, options))
        return [each for each in found if each.end_offset > each.start_offset]

    @staticmethod
    def _slice(place: Place, options: Options, each: TopicPartition, progress: Progress, skipped: Skipped) -> Slice:
        bounds = place.bounds(*each)
        start = progress.offsets.get(each, bounds.start_offset)
        if start < bounds.start_offset and options['failOnDataLoss']:
            raise IngestError(f'{each[0]}-{each[1]}: the next offset to ingest is {start}, but retention moved the '
                              f'log start to {bounds.start_offset}; with --option failOnDataLoss=false the job '
                              'continues there')
        if bounds.end_offset < start and options['failOnDataLoss']:
            raise IngestError(f'{each[0]}-{each[1]}: ingested up to {start}, but the log ends at '
                              f'{bounds.end_offset}: it lost records, or is another log; with --option '
                              'failOnDataLoss=false the job waits until the log is past that offset')
        if start < bounds.start_offset:
            skipped.lose(*each, start, bounds.start_offset,
                         f'{each[0]}-{each[1]}: the log starts at offset {bounds.start_offset}; lost are records '
                         f'among the {bounds.start_offset - start} offsets {start} to {bounds.start_offset - 1}')
        return Slice(*each, max(start, bounds.start_offset), bounds.end_offset)

    def lag(self, place: Place, options: Options, progress: Progress) -> int:
        """Return the number of offsets from the recorded progress to the end that can be read."""
        return sum(max(0, bounds.end_offset - progress.offsets.get(each, bounds.start_offset))
                   for each in chosen_partitions(place, options) for bounds in [place.bounds(*each)])


def advanced(progress: Progress, slices: Sequence[Slice], identity: Identity) -> Progress:
    """Return the progress after a run that reads the slices."""
    return Progress(progress.job, progress.run + 1,
                    progress.offsets | {(each.topic, each.partition): each.end_offset for each in slices},
                    progress.topic_ids | identity.topic_ids)


def total_offsets(slices: Sequence[Slice]) -> int:
    return sum(each.end_offset - each.start_offset for each in slices)


def since_ms(began_s: float) -> int:
    """Return the milliseconds since a time of the monotonic clock."""
    return round((time.monotonic() - began_s) * 1000)
