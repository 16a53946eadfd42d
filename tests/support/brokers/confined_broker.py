"""A broker process with a clock that tests set, or with limits of the operating system."""
from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Mapping, Sequence

import click
from support.brokers.broker_process import PROMPT, BrokerProcess
from support.runner.machine_requirements import do_without

from kbroker_tools.commands.verify import fake_time

LIMIT_S = 120
PAUSE_S = 0.05


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until the condition holds. This is for changes of the broker for which it sends no event."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(PAUSE_S)     # the broker acts at intervals of its own


class ConfinedBroker(BrokerProcess):
    """A broker started by another program: `env` or `prlimit` with arguments, which runs the broker in its own process.
    """

    def __init__(self, directory: pathlib.Path, settings: Mapping[str, str], starter: Sequence[str]):
        super().__init__(directory, PROMPT | settings)
        self._starter = list(starter)

    def launch(self, arguments: list[str]) -> None:
        super().launch([*self._starter, *arguments])


class BrokerClock:
    """The wall clock of a broker process, which libfaketime replaces. Its monotonic clock is the machine's."""

    def __init__(self, file: pathlib.Path):
        self._file = file
        try:
            self._variables = fake_time(file)
        except click.ClickException as error:
            do_without('faketime', error.message)

    @property
    def starter(self) -> list[str]:
        return ['env', *(f'{name}={value}' for name, value in self._variables.items())]

    def set(self, hours: float) -> None:
        """Set the wall clock to `hours` after the machine's time. A rename replaces the file of the clock atomically.
        """
        fresh = self._file.with_suffix('.new')
        fresh.write_text(f'{round(hours * 3600):+d}\n')
        fresh.rename(self._file)
