"""A single-node broker that is Kafka to its clients and on its disk."""

__version__ = '0.1.0'
