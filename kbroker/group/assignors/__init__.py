"""The assignors: each computes the partitions or tasks that every member is to have.

They are pure: they use no clock, log or setting. Because their work is long with many members and partitions, they are
generators that yield after each part. Kafka iterates members and topics in the order of a hash table. Here members are
in the order of their ids and topics in that of the input, so the same input always has the same result.
"""
