"""One run's fault: armed on a fresh broker, watched by a thread, and judged when the run has ended."""
from __future__ import annotations

import functools
import os
import select
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker.testing.errors import BrokerError, NotReachedError
from kbroker.testing.exploring.faults import Case

if TYPE_CHECKING:
    from kbroker.testing.broker import Broker
    from kbroker.testing.control import Hold, Rule, Selector, Step

RESTART_LIMIT_S = 30.0
"""The longest that a step is held for the test to say how its application is restarted."""

QUESTIONS = ('send', 'topics', 'values', 'records', 'offsets', 'last_stable_offset', 'committed', 'groups',
             'transactions', 'wait_for')
"""The methods of a broker that wait while the exploration starts it again."""
END_LIMIT_S = 1.0
"""The longest that a question whose connection was lost waits for the end of the process."""
POLL_S = 0.2
"""The longest that the end of a run waits for the watch of a hold."""


class FirstRun:
    """The first run of a test on a broker, which has no fault."""

    def __init__(self, broker: Broker):
        self._broker, self._pid = broker, broker.pid

    def steps(self) -> list[Step]:
        """Return the steps that were reached. Raise ValueError if the test has started its broker again."""
        if self._broker.pid != self._pid:
            raise ValueError('the test ended its broker and started it again, found two processes, expected one: a '
                             'fault ends with its process, so leave the kills to the exploration')
        return self._broker.steps()


class Application:
    """The application of a test, as the exploration kills it: the test says how.

    `restart_with` takes a function that kills the application and starts it again. The exploration calls it from
    another thread while the broker is held at a step.
    """

    def __init__(self) -> None:
        self._restart: Callable[[], object] | None = None
        self._is_known = threading.Event()

    def restart_with(self, restart: Callable[[], object]) -> None:
        self._restart = restart
        self._is_known.set()

    def restart(self) -> None:
        """Kill the application and start it again. Raise LookupError if the test has not said how."""
        if not self._is_known.wait(RESTART_LIMIT_S):
            raise LookupError("kill='application': the test did not call restart_with(restart) before its "
                              'application reached this step: call it first, and then start the application')
        assert self._restart is not None
        self._restart()


class Injection:
    """A fault that is armed on a broker. `close` disarms it; then `has_fired` says whether the step was reached.

    While the exploration starts the broker again, a question of the test to the broker waits for the start.
    """

    def __init__(self, broker: Broker, case: Case, application: Application):
        self._broker, self._case, self._application = broker, case, application
        self.has_fired = False
        self.failure: BaseException | None = None
        """The error with which the restart failed."""
        self._is_closed = False
        self._wake_reader, self._wake_writer = os.pipe()
        self._process = os.pidfd_open(broker.pid)
        """A descriptor that becomes readable when the broker's process ends."""
        self._is_restarted = threading.Event()
        self._thread: threading.Thread | None = None
        self._arm()

    def _arm(self) -> None:
        step, fault, broker = self._case.step, self._case.fault, self._broker
        selected: Selector = {**step.select, 'exact': True, 'occurrence': step.occurrence}  # type: ignore[typeddict-item]
        if fault.name == 'broker':
            self._rule: Rule = broker.kill_at(step.point, **selected)
            for name in QUESTIONS:
                setattr(broker, name, self._through_restart(getattr(broker, name)))
            self._watch(self._restart_broker)
        elif fault.name == 'application':
            self._rule = hold = broker.hold(step.point, **selected)
            self._watch(partial(self._restart_application, hold))
        elif fault.is_error:
            self._rule = broker.fail(step.point, fault.name, **selected)
        else:
            self._rule = broker.drop(step.point, **selected)

    def _watch(self, watch: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=self._run, args=(watch,), name=self._case.name, daemon=True)
        self._thread.start()

    def _run(self, watch: Callable[[], None]) -> None:
        try:
            watch()
        except BaseException as error:  # raised again in the thread of the test
            self.failure = error

    def _restart_broker(self) -> None:
        """Start the broker again when the rule has killed it."""
        ended, _, _ = select.select([self._process, self._wake_reader], [], [])
        # If the test itself ends the broker, the rule ends before.
        if self._process in ended and self._rule.is_active:
            self.has_fired = True
            try:
                self._broker.start()
            finally:
                self._is_restarted.set()

    def _through_restart(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that asks again, once, if the broker was killed and started again meanwhile."""

        @functools.wraps(ask)
        def asked(*args: Any, **options: Any) -> Any:
            was_restarted = self._is_restarted.is_set()
            try:
                return ask(*args, **options)
            except (OSError, BrokerError):
                if was_restarted or not self._await_restart():
                    raise
            return ask(*args, **options)

        return asked

    def _await_restart(self) -> bool:
        """Return whether the rule has killed the broker. If so, wait until it is started again."""
        ended, _, _ = select.select([self._process], [], [], END_LIMIT_S)
        return bool(ended) and (self.has_fired or self._rule.is_active) and self._is_restarted.wait(RESTART_LIMIT_S)

    def _restart_application(self, hold: Hold) -> None:
        while hold.is_active and not self._is_closed:
            try:
                hold.wait(POLL_S)
            except NotReachedError:
                continue
            self.has_fired = True
            try:
                self._application.restart()
            finally:
                hold.remove()

    def close(self) -> None:
        """Disarm the fault, and wait for a restart that is under way. Raise the error of a restart that failed."""
        if self._is_closed:
            return
        self._is_closed = True
        for name in QUESTIONS:
            self._broker.__dict__.pop(name, None)
        os.write(self._wake_writer, b'.')
        if self._thread is not None:
            self._thread.join()
        self._rule.remove()
        self.has_fired |= self._rule.matched > 0
        if not self.has_fired and self._rule in self._broker.control.rules:
            # A fault that did not fire is an outcome of the exploration, and no mistake of the test.
            self._broker.control.rules.remove(self._rule)
        for descriptor in (self._wake_reader, self._wake_writer, self._process):
            os.close(descriptor)
        if self.failure is not None:
            raise self.failure
