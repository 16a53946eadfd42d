"""The assignors: an assignor computes the partitions or tasks that each member of a group should have. Assignors use no
clock, log or setting.

Their work takes long with many members and partitions, so they are generators that yield after each part of it. Kafka
iterates members and topics in the order of a hash table. kbroker's assignors sort members by their ids, and keep topics
in the order of the input, so equal inputs always have equal results.
"""
