"""A topic as the hot paths of the broker use it, from C."""


cdef class Topic:
    """A topic and its partitions, by index.

    `encoded_name` is the name in UTF-8, as requests carry it. `overrides` are the configs set on the topic itself.
    `produce_rules` caches the ProduceRules of `config`: the first Produce makes them, and a change of the config
    discards them. `metadata` caches the topic's part of Metadata answers: the first answer makes it, and new partitions
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
