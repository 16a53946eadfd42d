"""A topic in the form that the hot paths of the broker use, with access from C."""


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

    def __repr__(self):
        return f'<Topic {self.name} of {len(self.partitions)} partitions>'
