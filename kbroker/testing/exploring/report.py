"""The report of an exploration: a table, step by fault."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker.testing.exploring.faults import Case

PASSED, FAILED, NOT_REACHED = 'passed', 'FAILED', 'not reached'
IMPOSSIBLE = '-'
VERDICTS = {'passed': PASSED, 'failed': FAILED, 'skipped': NOT_REACHED}
"""The verdicts of the outcomes of pytest."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one run. `reason` says in one line why it failed."""

    case: Case
    verdict: str
    reason: str = ''
    details: str = field(default='', repr=False)
    """The timelines of the topics that the failed run left."""


@dataclass(frozen=True)
class Report:
    """The outcomes of an exploration. `str()` of it is a table, followed by the first failure."""

    reached: int
    """The number of steps that the application reached in the first run."""
    outcomes: Sequence[Outcome]

    @property
    def failed(self) -> list[Outcome]:
        return [each for each in self.outcomes if each.verdict == FAILED]

    @property
    def not_reached(self) -> list[Outcome]:
        return [each for each in self.outcomes if each.verdict == NOT_REACHED]

    @property
    def summary(self) -> str:
        tried = {each.case.step.number for each in self.outcomes}
        passed = len(self.outcomes) - len(self.failed) - len(self.not_reached)
        parts = [f'{len(tried)} of {self.reached} steps', f'{len(self.outcomes)} runs', f'{passed} passed']
        parts += [f'{len(self.failed)} failed'] if self.failed else []
        parts += [f'{len(self.not_reached)} not reached again'] if self.not_reached else []
        return ', '.join(parts)

    @property
    def table(self) -> str:
        """The table, in which each row is a step and each column a fault."""
        ordered = sorted(self.outcomes, key=lambda each: each.case.step.number)
        faults = [fault.name for fault in sorted({each.case.fault for each in ordered}, key=lambda fault: fault.place)]
        rows: dict[int, dict[str, str]] = {}
        words = {}
        for each in ordered:
            rows.setdefault(each.case.step.number, {})[each.case.fault.name] = each.verdict
            words[each.case.step.number] = each.case.step.words
        lines = [['step', '', *faults]]
        lines += [[str(number), words[number], *(row.get(fault, IMPOSSIBLE) for fault in faults)]
                  for number, row in rows.items()]
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        return '\n'.join('  '.join(
            text.rjust(width) if column == 0 else text.ljust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))).rstrip() for line in lines)

    def __str__(self) -> str:
        parts = [self.summary, self.table]
        if self.failed:
            first = min(self.failed, key=lambda each: each.case.step.number)
            parts.append(f'First failure: {first.case.words}.\n{first.reason}')
            parts += [first.details] if first.details else []
        return '\n\n'.join(parts)


class ExplorationFailed(AssertionError):
    """At least one run of an exploration failed. `report` has all of them."""

    def __init__(self, report: Report):
        super().__init__(str(report))
        self.report = report
