"""The topics that the sink creates, with the option createTopics."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kbroker.base.errors import ErrorCode
from kbroker.client import Admin
from kbroker.client.admin import NewTopic
from kbroker.client.cluster import Cluster
from kbroker_tools.spark.sink.values import SinkError

CONFIG_PREFIX = 'topic.config.'
CHOSEN_BY_BROKER = -1
DENIED = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


@dataclass(frozen=True)
class NewTopics:
    """The form of the topics that the sink creates."""

    partitions: int = CHOSEN_BY_BROKER
    replication_factor: int = CHOSEN_BY_BROKER
    configs: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        found = {'topicPartitions': self.partitions, 'topicReplicationFactor': self.replication_factor}
        words = [f'{name}={number}' for name, number in found.items() if number != CHOSEN_BY_BROKER]
        words += [f'{CONFIG_PREFIX}{name}={text}' for name, text in self.configs.items()]
        return ', '.join(words) or 'the defaults of the broker'


def create_topics(cluster: Cluster, names: Sequence[str], form: NewTopics) -> None:
    """Create topics that were not found, and wait until the broker serves them. A topic that another program has
    created in the meantime is not changed. Raise SinkError if the broker refuses to create a topic."""
    with_form = [NewTopic(name, form.partitions, form.replication_factor, configs=form.configs) for name in names]
    for name, error in Admin(cluster).create_topics(with_form).items():
        if error is None or error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            continue
        if error.code in DENIED:
            raise SinkError(f'found no topic {name!r}, and the user of this write may not create it: give the user the '
                            'right Create on the topic, or create the topic first') from error
        raise SinkError(f'topic {name!r} cannot be created with {form}: {error}') from error
    cluster.retrying(lambda: cluster.topics(names), f'the new topics {", ".join(names)}',
                     also=(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,))
