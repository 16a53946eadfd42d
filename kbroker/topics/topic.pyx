"""A topic for the hot paths of the broker: found by its name or id, read from C."""


cdef class Topic:
    """A topic and its partitions, by index.

    `encoded_name` is the name in UTF-8, as requests carry it. `overrides` are the configs set on the topic itself.
    `produce_rules` are the ProduceRules of `config`, made by the first Produce and dropped when the config changes;
    `metadata` is the topic's part of Metadata answers, made by the first that names it and dropped when partitions are
    added.
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
