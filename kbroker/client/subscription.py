"""The subscription of a consumer: the topics that it shares with the other members of its group."""
from __future__ import annotations

import re

from kbroker.client.cluster import Cluster


class Subscription:
    """The subscribed topics: names, a pattern that the consumer evaluates, or an expression that the broker evaluates.

    An empty subscription has the truth value False.
    """

    def __init__(self, topics: frozenset[str]):
        self.topics = topics
        """The names of the topics, or the names that the pattern has matched."""
        self.pattern: re.Pattern[str] | None = None
        self.regex: str | None = None
        self._partition_counts: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self.topics) or self.pattern is not None or self.regex is not None

    def replace(self, topics: frozenset[str], pattern: re.Pattern[str] | None, regex: str | None) -> None:
        self.topics, self.pattern, self.regex = topics, pattern, regex

    def clear(self) -> None:
        self.replace(frozenset(), None, None)
        self._partition_counts = {}

    def look_up(self, cluster: Cluster) -> bool:
        """Fetch the metadata. Return whether the set of matching topics, or the number of partitions of one, has
        changed.
        """
        if self.pattern is not None:
            pattern = self.pattern
            self.topics = frozenset(name for name, topic in cluster.topics().items()
                                    if pattern.fullmatch(name) and not topic.is_internal)
        answer = cluster.refresh(self.topics)
        counts = {topic.name: len(topic.partitions) for topic in answer.topics if not topic.error_code}
        if counts == self._partition_counts:
            return False
        self._partition_counts = counts
        return True
