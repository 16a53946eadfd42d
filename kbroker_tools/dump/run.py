"""The run of a dump, from the first file to the error report at the end."""
from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from kbroker.base.errors import CorruptLogError, KafkaError
from kbroker_tools.dump.files import (
    BOOTSTRAP,
    CHECKPOINT,
    CUT,
    INDEX,
    LOG,
    TIME_INDEX,
    as_java_shows,
    base_offset_of,
    begins_after,
    ends_before,
    expand,
    must_be_file,
    next_segment,
    start_position,
    suffix_of,
)
from kbroker_tools.dump.options import PROGRAM, DumpOptions
from kbroker_tools.dump.segment_reader import SegmentReader
from kbroker_tools.dump.sink import Sink
from kbroker_tools.dump.text import DumpText
from kbroker_tools.rows.releases import NEWEST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn, Protocol

    from kbroker_tools.dump.error_report import ErrorReport
    from kbroker_tools.dump.gaps import Gaps
    from kbroker_tools.dump.index import IndexOptions
    from kbroker_tools.dump.selection import Selection

    class BatchWriter(Protocol):
        """The interface that DumpText and DumpJson have in common."""

        def begin(self, last_offset: int | None = None) -> None: ...

        def dump(self, reader: SegmentReader, most_bytes: int = ...) -> bool: ...


STDOUT, STDERR = 1, 2
STEP_BYTES = 8 * 1024 * 1024
PROGRESS_LEAST_BYTES = 64 * 1024 * 1024
FOLLOW_INTERVAL_S = 0.2
BATCH_SUFFIXES = (LOG, CHECKPOINT)
INDEX_SUFFIXES = (INDEX, TIME_INDEX, '.txnindex', '.snapshot')


def dump(options: DumpOptions, out: int = STDOUT, wait: Callable[[], None] | None = None) -> int:
    """Dump all files to the file descriptor `out`. Return the exit status.

    With --follow, `wait` is called before each search for new data. Raise OSError if the output fails. With --compat,
    the dump stops at the first data that cannot be read, and CorruptLogError, KafkaError or OSError is raised.
    """
    if options.stats and options.follow:
        wrong_usage('--stats describes segments as they are now and cannot be combined with --follow')
    if options.json and options.checks_indexes:
        wrong_usage('--json prints entries, but --verify-index-only and --index-sanity-check print none')
    if options.stats:
        return show_statistics(options)
    return Dump(options, Sink(out), wait or (lambda: time.sleep(FOLLOW_INTERVAL_S))).run()


def paths_of(options: DumpOptions) -> list[str]:
    return list(expand([*options.listed_files, *options.paths],
                       (INDEX, TIME_INDEX) if options.checks_indexes else (LOG,)))


def selection_of(options: DumpOptions) -> Selection | None:
    """Return the selection that --where describes. Raise click.UsageError if a term is invalid."""
    if options.where is None:
        return None
    from kbroker_tools.dump.where import WhereError, parse_where
    try:
        return parse_where(options.where)
    except WhereError as error:
        wrong_usage(f'--where: {error}')


def wrong_usage(message: str) -> NoReturn:
    """Raise click.UsageError. click is imported only in this function, because most dumps do not need it."""
    import click
    raise click.UsageError(message) from None


def show_statistics(options: DumpOptions) -> int:
    """Print a line for every segment. Return 1 if a file cannot be opened, otherwise 0. Raise OSError if the output
    fails."""
    from kbroker_tools.base.render import Output, warn
    from kbroker_tools.dump.stats import COLUMNS, statistics_of
    segments, exit_code = [], 0
    for path in paths_of(options):
        try:
            must_be_file(path)
        except OSError as error:
            print(one_line(path, error), file=sys.stderr)
            exit_code = 1
            continue
        if suffix_of(path) in BATCH_SUFFIXES:
            segments.append(path)
        else:
            warn(f'Ignoring {path}: --stats is for .log and .checkpoint files')
    Output(options.json).table(COLUMNS, (statistics.row(path) for path, statistics in
                                         statistics_of(segments, options, selection_of(options))))
    return exit_code


def one_line(path: str, error: Exception) -> str:
    """Return a line with the path of a file and the reason why it cannot be read."""
    reason = f'{error.filename}: {error.strerror}' if isinstance(error, OSError) else str(error)
    from kbroker_tools.base.render import printable
    line = reason if path in reason else f'{path}: {reason}'
    return f'{PROGRAM}: ' + printable(line.replace('\n', ' '))


class Dump:
    """A run of the dump over all files."""

    def __init__(self, options: DumpOptions, sink: Sink, wait: Callable[[], None]):
        self.options = options
        self.sink = sink
        self.selection = selection_of(options)
        self.report: ErrorReport | None = None
        self.exit_code = 0
        self._wait = wait
        self._path = ''
        self._gaps: Gaps | None = None
        self._text = self._batch_writer()

    def run(self) -> int:
        paths = [as_java_shows(path) for path in paths_of(self.options)]
        followed = paths.pop() if self.options.follow else None
        if followed is not None and suffix_of(followed) != LOG:
            wrong_usage(f'--follow: found {followed}, expected a .log')
        with progress_over(paths) as advance:
            for path in paths:
                if self._is_selected(path):
                    try:
                        self._dump_file(path, advance)
                    except (CorruptLogError, KafkaError, OSError) as error:
                        self._fail(path, error)
        if followed is not None:
            self._follow(followed)
        self.sink.flush()
        if self.report is not None:
            self.report.print(sys.stderr)
        return self.exit_code

    def _is_selected(self, path: str) -> bool:
        selection = self.selection
        return (selection is None or suffix_of(path) != LOG
                or not (begins_after(path, selection) or ends_before(path, selection)))

    # ---- one file

    def _dump_file(self, path: str, advance: Callable[[int], None]) -> None:
        self._begin(path)
        suffix = suffix_of(path)
        if not self.options.is_literal or os.path.exists(path):     # Kafka's tool checks the name first
            must_be_file(path)
        if suffix in BATCH_SUFFIXES:
            self._dump_batches(path, advance)
        elif suffix == CUT and not self.options.is_literal:
            self._dump_cut(path, advance)
        elif suffix in INDEX_SUFFIXES:
            self._dump_index(path, suffix)
        else:
            self._print_error(f'Ignoring unknown file {path}')

    def _begin(self, path: str) -> None:
        self._path, self._gaps = path, None
        if not self.options.json:
            self.sink.write(f'Dumping {path}\n')

    def _dump_batches(self, path: str, advance: Callable[[int], None]) -> None:
        reader = self._open(path)
        self._drain(reader, advance)
        left = reader.end - reader.position
        if reader.at_end and left > 0 and not self.options.is_limited:
            self._report_tail(f'Found {left} invalid bytes at the end of {os.path.basename(path)}')
        reader.close()

    def _dump_cut(self, path: str, advance: Callable[[int], None]) -> None:
        """Dump the valid batches of a `.cut` file, which has the bytes that a recovery has cut off a log. The file
        begins with invalid bytes."""
        from kbroker.log.fs import ReadOnlyFileSystem
        from kbroker.log.header_walk import find_sound_batch
        if not self.options.json:
            self.sink.write(f'Cut off the log with starting offset: {base_offset_of(path)}\n')
        file = ReadOnlyFileSystem().open(path)
        position, end = 0, file.size()
        while position < end:
            found = find_sound_batch(file, position, end)
            found = end if found < 0 else found
            if found > position:
                self._report_tail(f'Skipped {found - position} bytes at position {position}, which are no sound batch')
            position = self._dump_run(path, found, advance) if found < end else end

    def _dump_run(self, path: str, position: int, advance: Callable[[int], None]) -> int:
        """Dump consecutive batches, beginning at `position`. Return the position of the first bytes that are not a
        batch."""
        self._text.begin()
        reader = SegmentReader(path, self.options.most_file_bytes, position)
        with suppress(CorruptLogError):     # the caller searches for the next valid batch there
            self._drain(reader, advance)
        reader.close()
        return max(reader.position, position + 1)

    def _report_tail(self, line: str) -> None:
        if self.options.json:
            self._print_error(line)
        else:
            self.sink.write(line + '\n')

    def _drain(self, reader: SegmentReader, advance: Callable[[int], None]) -> None:
        position = reader.next_position
        while self._text.dump(reader, STEP_BYTES):
            advance(reader.next_position - position)
            position = reader.next_position

    def _open(self, path: str) -> SegmentReader:
        """Print the heading of the file. Return a reader that begins at or before the first selected batch."""
        if not self.options.json:
            self.sink.write(heading(path) + '\n')
        self._text.begin(-1 if self.options.compat in ('4.3', '4.4') else None)
        most = self.options.most_file_bytes
        if self.selection is not None and (position := start_position(path, self.selection)):
            reader = SegmentReader(path, most, position)
            if reader.is_at_batch():
                return reader
        return SegmentReader(path, most)

    def _dump_index(self, path: str, suffix: str) -> None:
        from kbroker_tools.dump import index as dump_index
        show = {INDEX: dump_index.dump_index, TIME_INDEX: dump_index.dump_time_index,
                '.txnindex': dump_index.dump_transaction_index, '.snapshot': dump_index.dump_snapshot}[suffix]
        if self.options.json:
            from kbroker_tools.dump.json_rows import index_rows
            for line in index_rows(path, suffix):
                self.sink.write(line)
        else:
            show(path, self._index_options(), self.sink, self._report())  # type: ignore[arg-type]

    def _index_options(self) -> IndexOptions:
        from kbroker_tools.dump.index import IndexOptions
        return IndexOptions(self.options.verify_index_only, self.options.index_sanity_check,
                            self.options.max_message_size, self.options.compat or NEWEST)

    # ---- following

    def _follow(self, path: str) -> None:
        """Dump the file, then the batches that are appended to it, then its later segments. Only Ctrl-C ends this."""
        must_be_file(path)
        self._begin(path)
        reader = self._open(path)
        while True:
            following = next_segment(path)          # once the next segment exists, this one no longer grows
            if reader.update_size() < reader.next_position:
                raise CorruptLogError(f'{path}: it was truncated to {reader.end} bytes, less than was already shown')
            self._drain(reader, _nothing)
            if following is None:
                self.sink.flush()
                self._wait()
                continue
            reader.close()
            path = following
            self._begin(path)
            reader = self._open(path)

    # ---- errors

    def _report(self) -> ErrorReport:
        if self.report is None:
            from kbroker_tools.dump.error_report import ErrorReport
            self.report = ErrorReport(self.options.compat or NEWEST)
        return self.report

    def _note_gap(self, first: int, second: int) -> None:
        if self._gaps is None:
            self._gaps = self._report().gaps(self._path)
        self._gaps.add(first, second)

    def _note_damage(self, line: str) -> None:
        if self.options.is_literal:
            raise CorruptLogError(line)
        self.sink.end_line()
        self._print_error(f'{PROGRAM}: {line}')
        self.exit_code = 1

    def _fail(self, path: str, error: Exception) -> None:
        """Report a file that cannot be read. With --compat, raise the error instead. A damaged snapshot is reported in
        both cases."""
        if self.options.is_literal and suffix_of(path) != '.snapshot':
            self.sink.flush()
            raise error
        if isinstance(error, OSError) and error.filename is None:
            raise error
        self._print_error(str(error) if self.options.is_literal else one_line(path, error))
        self.exit_code = 0 if self.options.is_literal else 1

    def _print_error(self, line: str) -> None:
        self.sink.flush()
        print(line, file=sys.stderr)

    # ---- parts

    def _batch_writer(self) -> BatchWriter:
        options = self.options
        decoder = None
        if options.decoder or options.value_decoder_class or options.key_decoder_class:
            from kbroker_tools.dump.decoding import decoder_for
            decoder = decoder_for(options)
        if options.json:
            from kbroker_tools.dump.json_rows import DumpJson
            return DumpJson(self.sink, options.payload, decoder, self.selection, self._note_damage)
        return DumpText(self.sink, deep=options.is_deep, contents=options.prints_contents,
                        skip_record_metadata=options.skip_record_metadata, decoder=decoder, control_text=control_text,
                        on_gap=None if self.selection else self._note_gap, on_damage=self._note_damage,
                        selection=self.selection)


def control_text(number: int, value: bytes | None) -> str:
    from kbroker_tools.dump import decoding as dump_decoding
    return dump_decoding.control_text(number, value)


def _nothing(amount: int) -> None:
    pass


@contextmanager
def progress_over(paths: list[str]) -> Iterator[Callable[[int], None]]:
    """Yield a function that advances a progress bar by a number of bytes. The bar is shown for large files only, and
    not if the dump is printed on the same terminal."""
    total = 0
    if os.isatty(STDERR) and not os.isatty(STDOUT):
        total = sum(os.path.getsize(path) for path in paths if os.path.exists(path))
    if total < PROGRESS_LEAST_BYTES:
        yield _nothing
        return
    from kbroker_tools.base.render import Output
    with Output().progress('dumping', total, 'bytes') as bar:
        yield bar.advance


def heading(path: str) -> str:
    """Return the heading that is printed below the path of a file of batches. It is derived from the file's name. Raise
    CorruptLogError if the name does not have the expected form."""
    name = os.path.basename(path)
    stem = name.partition('.')[0]
    offset, _, epoch = stem.partition('-')
    if suffix_of(path) == LOG and base_offset_of(path) is not None:
        return f'Log starting offset: {base_offset_of(path)}'
    if name == BOOTSTRAP:
        return 'KRaft bootstrap snapshot'
    if suffix_of(path) == CHECKPOINT and offset.isdecimal() and epoch.isdecimal():
        return f'Snapshot end offset: {int(offset)}, epoch: {int(epoch)}'
    raise CorruptLogError(f'{path}: found {stem!r} before the suffix, expected ' + (
        'an offset in digits' if suffix_of(path) == LOG else 'offset-epoch in digits'))
