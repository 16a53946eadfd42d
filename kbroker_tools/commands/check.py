"""kbroker-check. It compares the files of a log directory with each other, and repairs files that can be derived from
the log.

The exit status is 0 if there are no errors, 1 if there are errors, and 2 for wrong usage. Warnings do not change it.
After a repair, only the remaining errors count.
"""
from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kbroker.base.words import words_for_bytes
from kbroker.log.check import Finding, Severity
from kbroker.log.damage_notes import METADATA
from kbroker.log.damage_report import accept_damage, forget_partitions, lost_batches
from kbroker.log.fs import FileSystem, ReadOnlyFileSystem
from kbroker_tools.base.command import DIRECTORY, SETTINGS, Command, ToolError, output_options, version_option
from kbroker_tools.base.render import Output
from kbroker_tools.check.advice import Adviser
from kbroker_tools.check.directory_check import DirectoryCheck, PartitionTask, check_one

if TYPE_CHECKING:
    from kbroker.log.check import PartitionReport
    from kbroker.log.repair import Step

ALONE_BYTES = 16 << 20
"""A directory with fewer bytes is checked by one process, because starting a second process would take longer than the
check."""


@click.command(cls=Command, context_settings=SETTINGS)
@click.argument('directories', nargs=-1, required=True, metavar='DIR...',
                type=DIRECTORY)
@click.option('--repair', is_flag=True,
              help='Show how indexes and producer snapshots would be rebuilt from the log. --no-dry-run rebuilds them.')
@click.option('--dry-run/--no-dry-run', default=None,
              help='Only show what --repair would do, or do it. --dry-run is the default.')
@click.option('--truncate-torn-tail', is_flag=True,
              help='Let --repair also cut an unfinished write off the end of a log: bytes that no valid batch '
                   'follows. Without this option no .log file is changed.')
@click.option('--accept', is_flag=True,
              help='Let the next start take a log directory or a partition as it is, although records are gone, and '
                   'keep all sound batches. Remove the notes of damage that starts found.')
@click.option('--jobs', type=click.IntRange(1), default=None, metavar='N',
              help='How many partitions are checked at a time. The default is the number of processors.')
@output_options
@version_option
def main(directories: tuple[Path, ...], repair: bool, dry_run: bool | None, truncate_torn_tail: bool, accept: bool,
         jobs: int | None, as_json: bool) -> None:
    """Check log directories of Apache Kafka 4 or kbroker, or single partition directories in them.

    The check covers batches, indexes, producer snapshots, transaction indexes, checkpoints and metadata. It compares
    open transactions with __transaction_state, and the files with the inventory of the last clean stop. Each finding
    ends with what to do. The command writes only with --repair --no-dry-run or --accept, and refuses both while a
    broker uses the directory.
    """
    if accept and repair:
        raise click.UsageError('--accept does not go with --repair')
    if not repair and (dry_run is not None or truncate_torn_tail):
        raise click.UsageError('--dry-run, --no-dry-run and --truncate-torn-tail go with --repair')
    output = Output(as_json)
    session = Session(output, jobs or os.cpu_count() or 1)
    errors = 0
    for directory in directories:
        if accept:
            session.accept(str(directory))
        elif repair:
            errors += session.repair(str(directory), is_real=dry_run is False, cut_torn_tail=truncate_torn_tail)
        else:
            errors += session.check(str(directory))
    if errors:
        click.get_current_context().exit(1)


class Session:
    """The checks and repairs of one run. Files are read through `fs` and repaired through `writing`."""

    def __init__(self, output: Output, jobs: int, fs: FileSystem | None = None, writing: FileSystem | None = None):
        self._output = output
        self._jobs = jobs
        self._fs = fs or ReadOnlyFileSystem()
        self._writing = writing or FileSystem()

    def check(self, directory: str) -> int:
        """Check a directory and print the findings. Return the number of errors. Raise LogDirectoryError or OSError if
        the directory cannot be read."""
        check = self._run(directory)
        if check.holder is not None:
            self._output.note(f'{directory}: {_broker(check.holder)} uses it: its unfinished writes may be found '
                              'wrong, and transactions cause warnings only')
        self._show(check)
        return _errors(check.findings)

    def repair(self, directory: str, *, is_real: bool, cut_torn_tail: bool) -> int:
        """Check a directory and print the findings. Then plan the repair or, if `is_real`, repair the directory. Return
        the number of remaining errors."""
        check = self._run(directory)
        lock = self._lock(check) if is_real else None
        if lock is not None:
            check = self._run(directory, is_locked=True)    # now that no broker can change it
        self._show(check)
        steps = [(task, step) for task in check.tasks for step in self._plan(check, task, cut_torn_tail)]
        if not steps:
            self._output.note(f'{directory}: nothing to repair')
        elif not is_real:
            for _, step in steps:
                self._show_step('would', step)
            self._output.note(f'{directory}: nothing was changed; --repair --no-dry-run does it')
        else:
            self._carry_out(check, steps)
            check = self._run(directory, is_locked=True)
            self._output.note(f'{directory}: after the repair')
            self._show(check)
        return _errors(check.findings)

    def accept(self, directory: str) -> None:
        """Accept the damage to a log directory or to one partition. Raise LogDirectoryError or OSError if the directory
        cannot be read or written."""
        check = self._run(directory)
        lock = self._lock(check)
        if lock is None:
            raise ToolError(f'{directory}: found no log directory of a broker around it')
        only = (check.tasks[0].topic, check.tasks[0].partition) if check.is_partition else None
        found = {key: lost_batches(report.findings) for key, report in check.reports.items() if key != METADATA}
        accepted = accept_damage(self._writing, check.log_directory, only, found,
                                 metadata=check.proof_of_loss is not None)
        for topic, partition in accepted:
            name = check.log_directory if partition < 0 else os.path.join(check.log_directory, f'{topic}-{partition}')
            self._output.note(f'{name}: the next start takes it as it is')
        if not accepted:
            self._output.note(f'{directory}: nothing to accept')

    # ---- checking ----

    def _run(self, directory: str, *, is_locked: bool = False) -> DirectoryCheck:
        check = DirectoryCheck(self._fs, directory, is_locked)
        check.list_tasks()
        with self._output.progress(f'checking {directory}', sum(task.size_bytes for task in check.tasks),
                                   'bytes') as progress:
            for task, report in self._results(check.tasks):
                check.add(task, report)
                progress.advance(task.size_bytes)
        check.conclude()
        return check

    def _results(self, tasks: list[PartitionTask]) -> Iterator[tuple[PartitionTask, PartitionReport | OSError | None]]:
        jobs = min(self._jobs, len(tasks))
        if jobs <= 1 or sum(task.size_bytes for task in tasks) < ALONE_BYTES:
            for task in tasks:
                yield _check(self._fs, task)
            return
        from concurrent.futures import ProcessPoolExecutor, as_completed
        from concurrent.futures.process import BrokenProcessPool
        from multiprocessing import active_children
        # Check the largest partitions first, so that the last partition of the run is a small one.
        ordered = sorted(tasks, key=lambda task: task.size_bytes, reverse=True)
        with ProcessPoolExecutor(jobs, initializer=_begin_worker) as pool:
            try:
                for future in as_completed([pool.submit(_check, self._fs, task) for task in ordered]):
                    yield future.result()
            except BrokenProcessPool as error:
                raise ToolError('a process that checked a partition was killed; try fewer with --jobs') from error
            except BaseException:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                for worker in active_children():
                    worker.kill()
                raise

    # ---- showing ----

    def _show(self, check: DirectoryCheck) -> None:
        damaged = {task.path for task in check.tasks if (report := check.reports.get((task.topic, task.partition)))
                   and not report.has_state}
        adviser = Adviser(check.log_directory, damaged, is_in_use=check.holder is not None)
        for finding in check.findings:
            self._show_finding(finding, adviser.advice(finding))
        errors = _errors(check.findings)
        size_bytes = sum(task.size_bytes for task in check.tasks)
        text = (f'{check.directory}: {_count(len(check.tasks), "partition")}, {words_for_bytes(size_bytes)}: '
                f'{_count(errors, "error")}, {_count(len(check.findings) - errors, "warning")}')
        if self._output.as_json:
            self._output.note(text)
        else:
            self._output.line(text, 'red' if errors else 'yellow' if check.findings else 'green')

    def _show_finding(self, finding: Finding, advice: str) -> None:
        position = None if finding.position < 0 else finding.position
        if self._output.as_json:
            self._output.row({'severity': finding.severity.value, 'file': finding.file, 'position': position,
                              'message': finding.message, 'do': advice})
            return
        place = finding.file if position is None else f'{finding.file} at {position}'
        self._output.line(f'{finding.severity.value:7}  {place}',
                          'red' if finding.severity is Severity.ERROR else 'yellow')
        self._output.line(f'         {finding.message}')
        self._output.line(f'         do: {advice}')

    def _show_step(self, verb: str, step: Step) -> None:
        position = None if step.position < 0 else step.position
        if self._output.as_json:
            self._output.row({'step': step.remedy.value, 'file': step.file, 'position': position,
                              'done': verb != 'would'})
        else:
            self._output.line(f'{verb} {step}')

    # ---- repairing ----

    def _lock(self, check: DirectoryCheck) -> object | None:
        """Lock the log directory, as a broker does. Return None if a partition directory is checked that is not in a
        log directory."""
        path = check.lock_path
        if path is None:
            return None
        if check.holder is not None:
            raise ToolError(f'{check.directory}: {_broker(check.holder)} uses it: stop it first')
        try:
            existed = self._writing.exists(path)
            lock = self._writing.lock(path)
            if not existed:
                self._writing.take_after(path, check.log_directory)
            return lock
        except BlockingIOError as error:
            raise ToolError(f'{check.directory}: a broker or another repair has just locked it') from error

    def _plan(self, check: DirectoryCheck, task: PartitionTask, cut_torn_tail: bool) -> Iterable[Step]:
        from kbroker.log.repair import plan
        report = check.reports.get((task.topic, task.partition))
        if report is None or task.is_metadata:
            return ()
        return plan(self._fs, task.path, report, cut_torn_tail=cut_torn_tail)

    def _carry_out(self, check: DirectoryCheck, steps: list[tuple[PartitionTask, Step]]) -> None:
        from kbroker.log.repair import carry_out
        by_task: dict[PartitionTask, list[Step]] = {}
        for task, step in steps:
            by_task.setdefault(task, []).append(step)
        for task, own in by_task.items():
            carry_out(self._writing, task.path, check.log_config(task.topic), own,
                      lambda step: self._show_step('done:', step))
        if check.lock_path is not None:
            forget_partitions(self._writing, check.log_directory, [(task.topic, task.partition) for task in by_task])


def _begin_worker() -> None:
    """Make Ctrl-C end a worker process without a traceback. The terminal sends Ctrl-C to every process. If the parent
    process ignores Ctrl-C, the worker ignores it too."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _check(fs: FileSystem, task: PartitionTask) -> tuple[PartitionTask, PartitionReport | OSError | None]:
    try:
        return task, check_one(fs, task)
    except OSError as error:
        return task, error


def _errors(findings: list[Finding]) -> int:
    return sum(finding.severity is Severity.ERROR for finding in findings)


def _count(number: int, what: str) -> str:
    return f'{number:,} {what}{"" if number == 1 else "s"}'


def _broker(pid: int) -> str:
    return f'a broker (process {pid})' if pid else 'a broker'


if __name__ == '__main__':
    main(prog_name='kbroker-check')
