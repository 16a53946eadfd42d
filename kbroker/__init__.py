"""A single-node broker with Kafka's wire protocol and log format."""

__version__ = '0.1.0'
