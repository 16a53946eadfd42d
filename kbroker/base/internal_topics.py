"""The names of the internal topics, in which the coordinators keep their state."""

CONSUMER_OFFSETS = '__consumer_offsets'
TRANSACTION_STATE = '__transaction_state'
SHARE_GROUP_STATE = '__share_group_state'

INTERNAL_TOPICS = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE})
