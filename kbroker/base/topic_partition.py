"""The type of a partition's name."""

TopicPartition = tuple[str, int]
"""(topic, partition)"""
