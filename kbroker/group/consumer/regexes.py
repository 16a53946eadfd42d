"""The resolution of regular expressions in the subscriptions of consumer groups: its times, and the search for the
matching topics.

All expressions of a group are resolved together, in parts, against the names of all topics. The expressions of only one
group are resolved at a time. An operation in the group's next turn stores the result.
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from kbroker.base.clock import Clock, is_over
from kbroker.base.completion import Callback
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work import LongWork, Pace
from kbroker.group.consumer import rows as consumer_rows
from kbroker.group.consumer.group import ConsumerGroup
from kbroker.group.consumer.member import Resolved
from kbroker.group.group import Group
from kbroker.group.kinds import Row, Steps
from kbroker.group.modern.heartbeat import Place
from kbroker.group.modern.sorted_names import sorted_in_parts
from kbroker.group.modern.topic_changes import TopicChanges
from kbroker.group.turns import Outcome, Turns
from kbroker.security.escape import shown
from kbroker.settings.config import Config

if TYPE_CHECKING:
    from kbroker.base.linear_pattern import LinearPattern

log = logging.getLogger(__name__)

SHORTEST_PAUSE_MS = 10_001
"""The shortest time between two resolutions for a group, in ms. As in Kafka, it is more than 10 s."""
MOST_ATTEMPTS = 1_000
"""The number of remembered attempts at which attempts older than the shortest pause are forgotten."""

MayDescribe = Callable[[str], bool]


def compiled(regex: str) -> LinearPattern:
    """Return the compiled regular expression. Raise INVALID_REGULAR_EXPRESSION if it cannot be compiled."""
    from kbroker.base.linear_pattern import LinearPattern, PatternError  # not imported at the start of the broker
    try:
        return LinearPattern(regex)
    except PatternError as error:
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION,
                         f'regular expression {regex!r}: {error}') from error


class Regexes:
    """The resolutions of regular expressions for all consumer groups."""

    def __init__(self, changes: TopicChanges, clock: Clock, config: Config, long_work: LongWork):
        self._changes = changes
        self._clock = clock
        self._config = config
        self._long_work = long_work
        self._wanted: dict[str, Callable[[], Steps[None]]] = {}
        """Maps each group id to its requested resolution. The first resolution is in progress; the others wait until it
        has ended."""
        self._attempts: dict[str, int] = {}
        """Maps a group id to the wall time of its last attempt if the attempt's rows are not stored yet."""

    def __len__(self) -> int:
        return len(self._wanted)

    def look_after(self, place: Place, group_id: str, may_describe: MayDescribe) -> None:
        """Request a resolution of a group's regular expressions, if it is time for it. Topics for which `may_describe`
        returns False do not match.
        """
        group = place.shard.groups.get(group_id)
        if not isinstance(group, ConsumerGroup) or not group.regexes or not self._is_due(group):
            return
        group_id = group.group_id       # all tables share one string
        self._forget_attempts()
        self._attempts[group_id] = self._clock.wall_ms()
        self._wanted[group_id] = partial(self._resolve, group, place.turns, may_describe)
        if len(self._wanted) == 1:
            self._long_work.start(self._work_off())

    def _is_due(self, group: ConsumerGroup) -> bool:
        now_ms = self._clock.wall_ms()
        last_ms = max([resolved.at_ms for resolved in group.resolved.values()], default=0)
        if group.group_id in self._wanted or not all(
                is_over(SHORTEST_PAUSE_MS, at_ms, now_ms)
                for at_ms in (last_ms, self._attempts.get(group.group_id, 0))):
            return False
        return (group.regexes.keys() != group.resolved.keys()
                or max([resolved.version for resolved in group.resolved.values()]) < self._changes.created_version
                or is_over(self._config.group_consumer_regex_refresh_interval_ms, last_ms, now_ms))

    def _forget_attempts(self) -> None:
        if len(self._attempts) >= MOST_ATTEMPTS:
            now_ms = self._clock.wall_ms()
            self._attempts = {group_id: at_ms for group_id, at_ms in self._attempts.items()
                              if not is_over(SHORTEST_PAUSE_MS, at_ms, now_ms)}

    def _work_off(self) -> Steps[None]:
        while self._wanted:
            group_id, resolve = next(iter(self._wanted.items()))
            yield from resolve()
            del self._wanted[group_id]

    def _resolve(self, group: ConsumerGroup, turns: Turns, may_describe: MayDescribe) -> Steps[None]:
        version, at_ms = self._changes.created_version, self._clock.wall_ms()
        names = [topic.name for topic in self._changes.topics.topics()]
        found: dict[str, Resolved] = {}
        for regex in list(group.regexes):
            topics = yield from matching(regex, names, may_describe)
            found[regex] = Resolved(topics, version, at_ms)
        turns.submit(group.group_id, partial(self._store, found), Callback(partial(self._stored, group.group_id)))

    def _store(self, found: Mapping[str, Resolved], group: Group | None) -> Steps[Outcome]:
        """Store the topics that match the expressions of a group. This is an operation of a turn. The members' next
        heartbeats take these topics into account."""
        if not isinstance(group, ConsumerGroup):
            return Outcome()
        rows: list[Row] = []
        made = group.copy()
        bumps = False
        for regex, resolved in found.items():
            if regex not in group.regexes:
                continue
            topics = yield from sorted_in_parts(resolved.topics)
            rows.append(consumer_rows.regex_row(group.group_id, regex, resolved, topics))
            before = group.resolved.get(regex)
            bumps = bumps or (frozenset() if before is None else before.topics) != resolved.topics
            yield
            yield from made.resolve(regex, resolved)
        new_hash = yield from self._hash_with(found, group)
        if bumps or new_hash != group.metadata_hash:
            epoch_row = consumer_rows.epoch_row(group.group_id, group.epoch + 1, new_hash)
            made.apply(*epoch_row)
            rows.append(epoch_row)
        return Outcome(rows, group=made)

    def _stored(self, group_id: str, error: KafkaError | None, _result: object) -> None:
        """Forget the time of the group's attempt if its rows are stored, because the rows also have this time. Log the
        error if they are not."""
        if error is None:
            self._attempts.pop(group_id, None)
        else:
            log.error('the topics that match the expressions of group %s were not stored: %s', shown(group_id), error)

    def _hash_with(self, found: Mapping[str, Resolved], group: ConsumerGroup) -> Steps[int]:
        names: set[str] = set()
        for subscription in group.subscriptions:
            names |= subscription
            yield
        for regex in group.regexes:
            resolved = found.get(regex) or group.resolved.get(regex)
            if resolved is not None:
                names |= resolved.topics
                yield
        return (yield from self._changes.hash_of(names))


def matching(regex: str, names: list[str], may_describe: MayDescribe) -> Steps[frozenset[str]]:
    """Return the topics whose whole names match the expression. Return no topics if the expression, which was valid
    when the member subscribed, cannot be compiled any more."""
    pace, found = Pace(), set()
    try:
        pattern = compiled(regex)
    except KafkaError as error:
        log.warning('%s', shown(str(error)))
        return frozenset()
    for name in names:
        if (yield from pattern.match_in_parts(name)) and may_describe(name):
            found.add(name)
        if pace.spend(8):
            yield
    return frozenset(found)
