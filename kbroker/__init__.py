"""A single-node broker with Kafka's wire protocol and log format."""

__version__ = '1.0.0rc1'
