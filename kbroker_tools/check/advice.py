"""The advice at the end of each finding of kbroker-check: what the operator can do, and the command for it."""
from __future__ import annotations

import os
from collections.abc import Collection

from kbroker.log.check import Finding, Remedy, Severity
from kbroker_tools.base.render import shell_word

REPAIRED = (Remedy.REBUILD_INDEXES, Remedy.WRITE_SNAPSHOT, Remedy.REMOVE)


class Adviser:
    """The source of advice for the findings of one check."""

    def __init__(self, log_directory: str, damaged: Collection[str], *, is_in_use: bool):
        """`damaged` has the paths of the partitions in which at least one batch could not be read."""
        self._log_directory = log_directory
        self._damaged = damaged
        self._when = ' (once the broker is stopped)' if is_in_use else ''

    def advice(self, finding: Finding) -> str:
        """Return the advice for a finding."""
        place = self._place(finding.file)
        if finding.do is not None:
            return finding.do.replace('{accept}', self._command(place, '--accept'))
        if finding.severity is Severity.WARNING and finding.message.endswith('the next start repairs it'):
            return 'nothing: start the broker'
        if finding.remedy is Remedy.KEEP_SOUND_BATCHES:
            return ('restore the file from a backup: no other file has these records, so --repair cannot help. '
                    f'Without a backup, {self._command(place, "--accept")} lets the next start keep all sound '
                    f'batches. To read them before: kbroker-dump-log --print-data-log {shell_word(finding.file)}')
        if finding.remedy is Remedy.CUT_TORN_TAIL:
            command = self._command(place, '--repair --truncate-torn-tail --no-dry-run')
            return f'{command} cuts it off. Restore the file from a backup if records are missing'
        if finding.remedy in REPAIRED:
            command = self._command(place, '--repair --no-dry-run')
            return f'mend the log of the partition first, then {command}' if place in self._damaged else command
        if finding.severity is Severity.WARNING:
            return 'nothing: it does no harm'
        return (f'restore {shell_word(finding.file)} from a backup that was taken together with the rest of the '
                'directory')

    def _command(self, place: str, options: str) -> str:
        return f'kbroker-check {options} {shell_word(place)}{self._when}'

    def _place(self, file: str) -> str:
        """Return the partition directory that contains a file. If no partition contains it, return the log
        directory."""
        inside = os.path.relpath(file, self._log_directory).split(os.sep)
        path = os.path.join(self._log_directory, inside[0])
        return path if len(inside) > 1 or os.path.isdir(path) else self._log_directory
