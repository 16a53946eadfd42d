"""kbroker's client for Kafka's protocol: a producer, a consumer and an admin. They work with any broker that serves the
protocol. The names below are the public interface, and each is loaded at its first use. The modules that define these
names are private.
"""
from typing import TYPE_CHECKING

__all__ = [
    'Acl',
    'Admin',
    'ConfigEntry',
    'ConfigSynonym',
    'ConsumedBatch',
    'Consumer',
    'Delivery',
    'FatalProducerError',
    'GroupInfo',
    'GroupListing',
    'GroupMemberInfo',
    'GroupMetadata',
    'KafkaError',
    'LogDirectory',
    'NewTopic',
    'OffsetAndMetadata',
    'PreparedTransaction',
    'Producer',
    'ProducerFencedError',
    'ProducerInfo',
    'RebalanceListener',
    'Record',
    'ReplicaSize',
    'ScramCredentialInfo',
    'ScramCredentialUpsertion',
    'ShareOffset',
    'Slices',
    'StreamsGroupInfo',
    'StreamsMemberInfo',
    'SubtopologyInfo',
    'TopologyDescription',
    'TopologyNode',
    'TransactionError',
    'TransactionInfo',
    'TransactionListing',
]

if TYPE_CHECKING:
    from kbroker.base.errors import KafkaError
    from kbroker.client.acl import Acl
    from kbroker.client.admin import Admin, NewTopic, OffsetAndMetadata, ScramCredentialUpsertion
    from kbroker.client.column_kinds import Slices
    from kbroker.client.consumed import ConsumedBatch
    from kbroker.client.consumer import Consumer
    from kbroker.client.descriptions import (
        ConfigEntry,
        ConfigSynonym,
        GroupInfo,
        GroupListing,
        GroupMemberInfo,
        LogDirectory,
        ProducerInfo,
        ReplicaSize,
        ScramCredentialInfo,
        ShareOffset,
        StreamsGroupInfo,
        StreamsMemberInfo,
        SubtopologyInfo,
        TopologyDescription,
        TopologyNode,
        TransactionInfo,
        TransactionListing,
    )
    from kbroker.client.outcomes import Delivery
    from kbroker.client.producer import Producer
    from kbroker.client.rebalance_listener import RebalanceListener
    from kbroker.client.transaction_manager import GroupMetadata
    from kbroker.client.transaction_state import (
        FatalProducerError,
        PreparedTransaction,
        ProducerFencedError,
        TransactionError,
    )
    from kbroker.record.records import Record
else:
    _HOMES = {
        'Acl': 'kbroker.client.acl',
        'Admin': 'kbroker.client.admin',
        'ConfigEntry': 'kbroker.client.descriptions',
        'ConfigSynonym': 'kbroker.client.descriptions',
        'ConsumedBatch': 'kbroker.client.consumed',
        'Consumer': 'kbroker.client.consumer',
        'Delivery': 'kbroker.client.outcomes',
        'FatalProducerError': 'kbroker.client.transaction_state',
        'GroupInfo': 'kbroker.client.descriptions',
        'GroupListing': 'kbroker.client.descriptions',
        'GroupMemberInfo': 'kbroker.client.descriptions',
        'GroupMetadata': 'kbroker.client.transaction_manager',
        'KafkaError': 'kbroker.base.errors',
        'LogDirectory': 'kbroker.client.descriptions',
        'NewTopic': 'kbroker.client.admin',
        'OffsetAndMetadata': 'kbroker.client.admin',
        'PreparedTransaction': 'kbroker.client.transaction_state',
        'Producer': 'kbroker.client.producer',
        'ProducerFencedError': 'kbroker.client.transaction_state',
        'ProducerInfo': 'kbroker.client.descriptions',
        'RebalanceListener': 'kbroker.client.rebalance_listener',
        'Record': 'kbroker.record.records',
        'ReplicaSize': 'kbroker.client.descriptions',
        'ScramCredentialInfo': 'kbroker.client.descriptions',
        'ScramCredentialUpsertion': 'kbroker.client.admin',
        'ShareOffset': 'kbroker.client.descriptions',
        'Slices': 'kbroker.client.column_kinds',
        'StreamsGroupInfo': 'kbroker.client.descriptions',
        'StreamsMemberInfo': 'kbroker.client.descriptions',
        'SubtopologyInfo': 'kbroker.client.descriptions',
        'TopologyDescription': 'kbroker.client.descriptions',
        'TopologyNode': 'kbroker.client.descriptions',
        'TransactionError': 'kbroker.client.transaction_state',
        'TransactionInfo': 'kbroker.client.descriptions',
        'TransactionListing': 'kbroker.client.descriptions',
    }

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
        from importlib import import_module
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found

    def __dir__():
        return sorted({*globals(), *__all__})
