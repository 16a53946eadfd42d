"""A topic in the form that the hot paths of the broker use, with access from C."""
from libc.stdint cimport int64_t

from kbroker.topics.partition cimport Partition


cdef class Topic:
    """A topic and its partitions, in the order of their indexes.

    - `encoded_name` is the name in UTF-8, as in requests.
    - `overrides` are the configs that the topic itself sets.
    - `produce_rules` caches the ProduceRules of `config`. The first Produce creates them, and a change of `config`
      discards them.
    - `metadata` caches the topic's part of Metadata responses. The first response creates it, and new partitions
      discard it.
    """

    def __init__(self, str name not None, bytes topic_id not None, list partitions not None, dict overrides, config,
                 bint is_internal):
        self.name = name
        self.encoded_name = name.encode()
        self.topic_id = topic_id
        self.partitions = partitions
        self.overrides = overrides
        self.config = config
        self.is_internal = is_internal

    def traffic(self):
        """Return (records produced, bytes produced, records fetched, bytes fetched) since the start of the broker."""
        cdef int64_t produced_records = 0, produced_bytes = 0, fetched_records = 0, fetched_bytes = 0
        cdef Partition partition
        for partition in self.partitions:
            produced_records += partition.produced_records
            produced_bytes += partition.produced_bytes
            fetched_records += partition.fetched_records
            fetched_bytes += partition.fetched_bytes
        return produced_records, produced_bytes, fetched_records, fetched_bytes

    def unsynced_bytes(self):
        """Return the bytes of appends that no finished sync covers."""
        cdef int64_t unsynced_bytes = 0
        cdef Partition partition
        for partition in self.partitions:
            unsynced_bytes += partition.unsynced_bytes
        return unsynced_bytes

    def __repr__(self):
        return f'<Topic {self.name} of {len(self.partitions)} partitions>'
