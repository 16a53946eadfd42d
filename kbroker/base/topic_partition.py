"""The name of a partition."""

TopicPartition = tuple[str, int]
"""(topic, partition)"""
