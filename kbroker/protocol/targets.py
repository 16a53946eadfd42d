"""The topics, groups and transactional ids that a request names."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

MOST_TARGETS = 1000
"""The most partitions of one request that are listed."""
TOPIC_FIELDS = ('topics', 'topic_data', 'v3_and_below_topics', 'topic_partitions', 'topic_names',
                'subscribed_topic_names')
PARTITION_FIELDS = ('partition_data', 'partitions', 'partition_indexes')
CONTAINER_FIELDS = ('transactions', 'groups', 'markers', 'dirs')
"""The arrays of structs that name topics, groups or transactional ids one level deeper."""
GROUP_FIELDS = ('group_id', 'groups', 'group_ids', 'groups_names')
TRANSACTIONAL_ID_FIELDS = ('transactional_id', 'v3_and_below_transactional_id', 'transactional_ids')
GROUP_KEY, TRANSACTION_KEY = 0, 1
"""The types of the keys of FindCoordinator."""

TopicName = Callable[[bytes], 'str | None']


def named_in(request: Any, name_of: TopicName) -> dict[str, Any]:
    """Return what a decoded request names, as facts.

    If it names one partition, the facts have `topic` and `partition`. If it names several, they have the list `targets`
    instead, with a dict of `topic` and `partition` for each. In the same way, they have `group` or the list `groups`,
    and `transactional_id` or `transactional_ids`. `name_of` returns the name of the topic with an id.
    """
    facts: dict[str, Any] = {}
    targets = [{'topic': topic} if partition is None else {'topic': topic, 'partition': partition}
               for _, (topic, partition) in zip(range(MOST_TARGETS), _partitions(request, name_of), strict=False)]
    if len(targets) == 1:
        facts |= targets[0]
    elif targets:
        facts['targets'] = targets
    for one, several, fields, key_type in (
            ('group', 'groups', GROUP_FIELDS, GROUP_KEY),
            ('transactional_id', 'transactional_ids', TRANSACTIONAL_ID_FIELDS, TRANSACTION_KEY)):
        names = list(dict.fromkeys(name for name in _names(request, fields, key_type) if name))[:MOST_TARGETS]
        if len(names) == 1:
            facts[one] = names[0]
        elif names:
            facts[several] = names
    for field in ('producer_id', 'producer_epoch'):
        value = getattr(request, field, None)
        if isinstance(value, int) and value >= 0:
            facts[field] = value
    return facts


def _partitions(struct: Any, name_of: TopicName) -> Iterator[tuple[str, int | None]]:
    """Yield (topic, partition) for each partition that the struct names; the partition is None if it names the whole
    topic.
    """
    for field in TOPIC_FIELDS:
        for topic in getattr(struct, field, None) or ():
            name = topic if isinstance(topic, str) else _topic_name(topic, name_of)
            if name:
                yield from ((name, partition) for partition in _indexes(topic))
    for field in CONTAINER_FIELDS:
        for inner in getattr(struct, field, None) or ():
            if not isinstance(inner, str):
                yield from _partitions(inner, name_of)


def _topic_name(topic: Any, name_of: TopicName) -> str | None:
    for field in ('name', 'topic', 'topic_name'):
        name = getattr(topic, field, None)
        if name:
            return str(name)
    topic_id = getattr(topic, 'topic_id', None)
    return name_of(topic_id) if topic_id else None


def _indexes(topic: Any) -> Iterator[int | None]:
    """Yield the numbers of the partitions that a topic's struct names, or None if it names none."""
    found = next(
        (values for field in PARTITION_FIELDS if isinstance(values := getattr(topic, field, None), list)), None)
    if not found:
        yield None
        return
    for each in found:
        if isinstance(each, int):
            yield each
        else:
            yield next(value for field in ('index', 'partition', 'partition_index')
                       if isinstance(value := getattr(each, field, None), int))


def _names(struct: Any, fields: tuple[str, ...], key_type: int) -> Iterator[str]:
    """Yield the values of the fields, and the keys of FindCoordinator if they have the given type."""
    for field in fields:
        value = getattr(struct, field, None)
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            yield from (each for each in value if isinstance(each, str))
    for field in CONTAINER_FIELDS:
        for inner in getattr(struct, field, None) or ():
            if not isinstance(inner, str):
                yield from _names(inner, fields, key_type)
    if getattr(struct, 'key_type', None) == key_type and hasattr(struct, 'coordinator_keys'):
        yield from (struct.key, *struct.coordinator_keys)
