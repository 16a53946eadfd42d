"""The assignors: each computes the partitions or tasks that every member should have. They use no clock, log or
setting.

Their work is long with many members and partitions, so they are generators that yield after each part. Kafka iterates
members and topics in the order of a hash table. Here members are in the order of their ids and topics in that of the
input, so the same input always has the same result.
"""
