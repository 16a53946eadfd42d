"""A table and its topic, the runs of a job, and the judgement of its rows."""
from __future__ import annotations

import itertools
import pathlib
from dataclasses import dataclass, field
from typing import Any

from support.lake.lake_runs import BEFORE_COMMIT, HOLD, KILL, Act, Driver, Outcome, Place, files_of, rows_in
from support.spark.ingest_topics import Writer, consumed, create_topic

NUMBERS = itertools.count()


@dataclass
class Cell:
    """One table, its topic, and the runs of a test."""

    place: Place
    broker: Any
    writer: Writer
    directory: pathlib.Path
    store: Any = None
    """The S3 server, if the table is there."""
    proxy: Any = None
    """The proxy in front of the REST catalog, if the table has one."""
    topic: str = ''
    drivers: list[Driver] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topic = self.topic or create_topic(self.broker.address, name=f'lake-cell{next(NUMBERS)}')

    def write(self) -> None:
        """Write three transactions, one of which aborts. Twenty records are committed."""
        for end in ('commit', 'abort', 'commit'):
            self.writer.write(self.topic, 10, end)

    def start(self, **act: Any) -> Driver:
        flag = self.directory / f'flag{len(self.drivers)}'
        self.drivers.append(Driver(self.place, self.broker.address, [self.topic], flag, Act(**act)))
        return self.drivers[-1]

    def run(self, **act: Any) -> Outcome:
        return self.start(**act).outcome()

    def held(self, at: str = BEFORE_COMMIT) -> Driver:
        """Start a run. Return it when it waits at a step."""
        driver = self.start(at=at, what=HOLD)
        driver.await_step()
        return driver

    def succeed(self, driver: Driver | None = None, **act: Any) -> Outcome:
        driver = driver or self.start(**act)
        outcome = driver.outcome()
        assert (outcome.error, outcome.exit_code, list(outcome.notes)) == (None, 0, [])
        assert driver.flag.exists() == bool(driver.act.task), 'no task has acted'
        return outcome

    def survive(self, driver: Driver | None = None, **act: Any) -> Outcome:
        """Wait for a run that may fail, but only because something did not work for a while."""
        outcome = (driver or self.start(**act)).outcome()
        assert outcome.exit_code == 0
        assert (outcome.error or 'OSError').startswith(('TableUnavailable', 'OSError')), outcome.error
        return outcome

    def killed(self, at: str) -> None:
        assert self.run(at=at, what=KILL).exit_code == -9

    def expected(self) -> list[tuple[Any, ...]]:
        return [(self.topic, *row) for row in consumed(self.broker.address, self.topic)]

    def assert_exactly_once(self) -> None:
        """Assert that the table has every row once, and that nothing else is left."""
        assert rows_in(self.place) == self.expected()
        named, stored, markers = files_of(self.place)
        assert stored - named == set()
        assert markers == []

    def finish(self) -> None:
        """Run until nothing is new, without and with more records, and judge the table after each run."""
        self.succeed()
        self.assert_exactly_once()
        self.write()
        assert self.succeed().rows == 20
        self.assert_exactly_once()
        assert self.succeed().run is None
