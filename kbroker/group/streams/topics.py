"""The creation of internal topics of streams groups. The broker creates missing topics in the background after a
heartbeat."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kbroker.base.clock import Clock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work import LongWork
from kbroker.metadata.topic_operations import NewTopic
from kbroker.topics.registry import TopicRegistry

MOST_NOTED = 1_000
"""The largest number of topics whose creation is in progress, and the largest number of errors that are kept."""


class StreamsTopics:
    """The topics whose creation is in progress, and the errors of failed creations. Responses to heartbeats include an
    error until it is forgotten."""

    def __init__(self, topics: TopicRegistry, clock: Clock, long_work: LongWork):
        self._topics = topics
        self._clock = clock
        self._long_work = long_work
        self._in_progress: set[str] = set()
        self._errors: dict[str, tuple[int, str]] = {}
        """Maps the name of a topic to its error: the monotonic time at which the error is forgotten, and the error's
        text."""

    def create(self, wanted: Iterable[NewTopic], remember_ms: int, charge: Callable[[int], None]) -> None:
        """Start to create the topics whose creation is not in progress yet. If a creation fails, remember its error for
        `remember_ms`; the next heartbeat tries again."""
        new_topics = [new for new in wanted if new.name not in self._in_progress]
        new_topics = new_topics[:MOST_NOTED - len(self._in_progress)]
        if not new_topics:
            return
        self._in_progress.update(new.name for new in new_topics)

        def done(error: Exception | None, results: Any) -> None:
            self._in_progress.difference_update(new.name for new in new_topics)
            for number, new in enumerate(new_topics):
                result = results[number] if error is None else error
                if isinstance(result, Exception):
                    self.note_error(new.name, result, remember_ms)

        self._long_work.start(self._topics.create_many(new_topics, charge=charge), done)

    def note_error(self, name: str, error: Exception, remember_ms: int) -> None:
        """Keep the error of a failed creation for `remember_ms`, unless the error is that the topic already exists."""
        if isinstance(error, KafkaError) and error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            return
        if len(self._errors) >= MOST_NOTED:
            del self._errors[next(iter(self._errors))]
        self._errors[name] = self._clock.monotonic_ms() + remember_ms, str(error)

    def errors(self, names: Iterable[str]) -> dict[str, str]:
        """Return {topic name: error} for those of the given topics whose error is not forgotten yet."""
        now_ms, found = self._clock.monotonic_ms(), {}
        for name in names:
            until_ms, text = self._errors.get(name, (0, ''))
            if until_ms > now_ms:
                found[name] = text
            else:
                self._errors.pop(name, None)
        return found
