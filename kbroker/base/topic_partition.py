"""The type of a partition's name, and the forms in which users write one: `payments:0`, and `payments-0` as Kafka does.
"""
from collections.abc import Container

TopicPartition = tuple[str, int]
"""(topic, partition)"""


def parse_topic_partition(text: str) -> tuple[str, int | None]:
    """Return (topic, partition) for `payments:0`, and (text, None) for a text without a colon.

    Raise ValueError for another text. The names of topics have no colons. They may end as `payments-0` does, so only
    `named_partition`, which knows the topics, can tell a partition from such a topic.
    """
    topic, colon, partition = text.partition(':')
    if not topic or (colon and not (partition.isascii() and partition.isdigit())):
        raise ValueError(f'found {text!r}, expected TOPIC:PARTITION or TOPIC, such as payments:0')
    return topic, int(partition) if colon else None


def named_partition(topic: str, partition: int | None, topics: Container[str]) -> tuple[str, int | None]:
    """Return what a result of `parse_topic_partition` names. (`payments-0`, None) is partition 0 of `payments`, unless
    there is a topic `payments-0`.
    """
    if partition is None and topic not in topics:
        start, dash, number = topic.rpartition('-')
        if dash and number.isascii() and number.isdigit() and start in topics:
            return start, int(number)
    return topic, partition
