"""Shares each collection among all scrapes that ask for it, and keeps its facts for a while."""
from __future__ import annotations

from collections.abc import Callable, Generator

from kbroker.base.clock import Clock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work import Pause
from kbroker.client.time_limit import OutOfTime
from kbroker_tools.exporter.facts import ClusterFacts
from kbroker_tools.exporter.metrics import Counts

Submit = Callable[[Callable[[], ClusterFacts], Callable[[object], None]], None]
REFUSED = (ErrorCode.SASL_AUTHENTICATION_FAILED, ErrorCode.ILLEGAL_SASL_STATE, ErrorCode.UNSUPPORTED_SASL_MECHANISM)
"""The errors of a login. No later collection can succeed unless an administrator changes something."""


class SharedFacts:
    """The facts of the last collection. At most one collection runs at a time.

    `submit` runs a collection in a thread, and calls back on the loop. `warn` prints a line. A failure is printed when
    it begins or changes, not at each scrape. `refuse(error)` is called if the first collection ends with a refused
    login, `on_facts(facts)` after each collection that reached the cluster.
    """

    def __init__(self, collect: Callable[[], ClusterFacts], submit: Submit, interval_ms: int, clock: Clock,
                 warn: Callable[[str], None], refuse: Callable[[KafkaError], None],
                 on_facts: Callable[[ClusterFacts], object] | None = None):
        self._collect = collect
        self._submit = submit
        self._interval_ms = interval_ms
        self._clock = clock
        self._warn = warn
        self._refuse = refuse
        self._on_facts = on_facts
        self._began_ms: int | None = None
        self._running: Pause | None = None
        self._failure: str | None = None
        self._told: set[str] = set()
        """The parts that were missing in the last collection."""
        self.facts: ClusterFacts | None = None
        """None before the first collection, and after one that did not reach the cluster."""
        self.counts = Counts()

    @property
    def problem(self) -> str | None:
        """Return why the cluster was not reached, or None if the last collection reached it."""
        return None if self.facts is not None else self._failure or 'the first collection is not finished'

    def begin(self) -> None:
        """Begin a collection, unless one runs or the last one began less than the interval ago."""
        now_ms = self._clock.monotonic_ms()
        if self._running is None and (self._began_ms is None or now_ms - self._began_ms >= self._interval_ms):
            self._began_ms = now_ms
            self._running = Pause()
            self._submit(self._collect, self._end)

    def current(self) -> Generator[object, None, ClusterFacts | None]:
        """Begin a collection if one is due. Yield until the collection in progress has ended, and return its facts."""
        self.begin()
        if self._running is not None:
            yield from self._running.wait()
        return self.facts

    def _end(self, result: object) -> None:
        running, self._running = self._running, None
        is_first = not self.counts.successes and not self.counts.failures
        if isinstance(result, ClusterFacts):
            self.counts.successes += 1
            self.facts = result
            if self._on_facts is not None:
                self._on_facts(result)
            self._tell_problems(result)
        else:
            self.counts.failures += 1
            self.facts = None
            if is_first and isinstance(result, KafkaError) and result.code in REFUSED:
                self._refuse(result)
            else:
                self._tell_failure(result)
        if running is not None:
            running.end()

    def _tell_problems(self, facts: ClusterFacts) -> None:
        if self._failure is not None:
            self._warn('the cluster is reached again')
            self._failure = None
        keys = set()
        for problem in facts.problems:
            key = f'{problem.what} {problem.error}'
            keys.add(key)
            if key not in self._told:
                self._warn(problem.line)
        self._told = keys

    def _tell_failure(self, result: object) -> None:
        text = str(result)
        if not isinstance(result, KafkaError | OSError | OutOfTime):    # a fault of the exporter: the log needs more
            import traceback
            assert isinstance(result, BaseException)
            text = 'a collection failed: ' + ''.join(traceback.format_exception(result)).strip().replace('\n', ' | ')
        if text != self._failure:
            self._warn(f'{text}; trying again at each scrape')
        self._failure = text
