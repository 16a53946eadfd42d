"""The last changes of topics, so that groups find out whether their topics have changed, and the hash of topics."""
from __future__ import annotations

from collections import deque
from collections.abc import Container, Generator, Iterable

from kbroker.base.long_work import Pace
from kbroker.group.modern.metadata_hash import HashedTopic, metadata_hash
from kbroker.topics.registry import TopicRegistry
from kbroker.topics.topic import Topic

MOST_CHANGES = 1_000
"""The number of changes that are remembered. If there were more changes since a group last checked its topics, it has
to check all of them."""


class TopicChanges:
    """The last changes of topics. A change is a topic that was created or deleted or got more partitions. `version`
    counts the changes.

    `created_version` grows with each creation. It is an offset of the metadata log, so that it also grows over
    restarts.
    """

    def __init__(self, topics: TopicRegistry):
        self.topics = topics
        self.version = 0
        self.created_version: int = topics.metadata_offset
        self._names: deque[str] = deque(maxlen=MOST_CHANGES)

    def note_created(self, topic: Topic) -> None:
        self.note_changed(topic)
        self.created_version = max(self.created_version + 1, self.topics.metadata_offset)

    def note_changed(self, topic: Topic) -> None:
        self.version += 1
        self._names.append(topic.name)

    def concern(self, names: Container[str], since_version: int) -> bool:
        """Return whether one of the topics with these names may have changed after the version `since_version`."""
        missed = self.version - since_version
        if not missed:
            return False
        if missed > len(self._names):
            return True
        return any(self._names[-number] in names for number in range(1, missed + 1))

    def hash_of(self, names: Iterable[str]) -> Generator[None, None, int]:
        """Return the hash of the topics with these names, without topics that do not exist. This is a generator, which
        works in parts."""
        pace, found = Pace(), []
        for name in names:
            topic = self.topics.topic(name)
            if topic is not None:
                found.append(HashedTopic(topic.topic_id, topic.name, len(topic.partitions)))
            if pace.spend():
                yield
        # Each topic object is freed as soon as it is hashed, because freeing all objects together would take
        # milliseconds.
        return (yield from metadata_hash(found.pop() for _ in range(len(found))))
