"""Requests that reach the broker late: a commit from a client without KIP-890, and offsets from a client with KIP-890.
"""
from contextlib import ExitStack, closing

from raw_peer import NOW_MS, RawPeer
from support.messages.message_builder import batch_of

from kbroker.base.errors import ErrorCode

EXECUTED = [ErrorCode.NONE, 'CompleteCommit', ErrorCode.INVALID_TXN_STATE]
"""The effect of a late commit that is executed: it commits the half-written transaction 2, which the client can then no
longer abort.
"""
REFUSED = [ErrorCode.NOT_COORDINATOR, 'Ongoing', ErrorCode.NONE]
OLDER_OFFSETS_COUNT = [ErrorCode.NONE, 5]
NEWER_OFFSETS_COUNT = [ErrorCode.NOT_COORDINATOR, 8]
UNVERIFIED = ErrorCode.NOT_ENOUGH_REPLICAS
"""The error with which Kafka answers a batch while it cannot verify with the coordinator that the transaction is open.
"""


def code_of_addition(answer):
    return answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code


def code_of_produce(answer):
    return answer.responses[0].partition_responses[0].error_code


def effect_of_a_late_commit(address, topic):
    """Send a late commit of transaction 1. Return the answer to it, the state of transaction 2 after it, and the answer
    to the abort of transaction 2.
    """
    with ExitStack() as stack:
        old, new = (stack.enter_context(closing(RawPeer(address, topic))) for _ in range(2))
        old.create_topic()              # a peer connects with its first request
        new.prepare('FindCoordinator', 4, coordinator_keys=[topic], key_type=1)
        producer = new.ask_settled('InitProducerId', 4, transactional_id=topic, transaction_timeout_ms=60_000)
        pair = dict(producer_id=producer.producer_id, producer_epoch=producer.producer_epoch)

        def begin(peer, sequence):
            peer.prepare_until(
                lambda answer: code_of_addition(answer) != ErrorCode.CONCURRENT_TRANSACTIONS, 'AddPartitionsToTxn', 3,
                v3_and_below_transactional_id=topic, v3_and_below_topics=[dict(name=topic, partitions=[0])],
                **{f'v3_and_below_{name}': value for name, value in pair.items()})
            records = batch_of(NOW_MS, b'value', base_sequence=sequence, transactional=True, **pair)
            written = peer.ask_until(
                lambda answer: code_of_produce(answer) != UNVERIFIED, 'Produce', 11, transactional_id=topic, acks=-1,
                timeout_ms=60_000, topic_data=[dict(name=topic, partition_data=[dict(index=0, records=records)])])
            code = code_of_produce(written)
            assert code == ErrorCode.NONE, code

        def end(peer, committed):
            return peer.ask('EndTxn', 4, transactional_id=topic, committed=committed, **pair).error_code

        begin(old, 0)
        assert end(new, True) == ErrorCode.NONE     # the repetition of the commit that is late on `old`
        begin(new, 1)
        late = end(old, True)
        is_open = late == ErrorCode.NOT_COORDINATOR
        state = new.ask_until(
            lambda answer: is_open or answer.transaction_states[0].transaction_state.startswith('Complete'),
            'DescribeTransactions', 0, transactional_ids=[topic]).transaction_states[0].transaction_state
        return [late, state, end(new, False)]


def effect_of_late_offsets(address, topic):
    """Send a late TxnOffsetCommit in a transaction that already has newer offsets. Return the answer to it, and the
    offset that the group finally has.
    """
    with ExitStack() as stack:
        old, new = (stack.enter_context(closing(RawPeer(address, topic))) for _ in range(2))
        old.create_topic()              # a peer connects with its first request
        for key_type in range(2):
            new.prepare('FindCoordinator', 4, coordinator_keys=[topic], key_type=key_type)
        producer = new.ask_settled('InitProducerId', 5, transactional_id=topic, transaction_timeout_ms=60_000)
        pair = dict(producer_id=producer.producer_id, producer_epoch=producer.producer_epoch)

        def send(peer, offset, ask):
            answer = getattr(peer, ask)('TxnOffsetCommit', 5, transactional_id=topic, group_id=topic, topics=[dict(
                name=topic, partitions=[dict(partition_index=0, committed_offset=offset)])], **pair)
            return answer.topics[0].partitions[0].error_code

        assert send(old, 5, 'ask_settled') == ErrorCode.NONE
        assert [send(new, offset, 'ask') for offset in (5, 8)] == [ErrorCode.NONE] * 2
        late = send(old, 5, 'ask')
        assert new.ask('EndTxn', 5, transactional_id=topic, committed=True, **pair).error_code == ErrorCode.NONE
        fetched = new.ask_until(
            lambda answer: not answer.groups[0].topics[0].partitions[0].error_code, 'OffsetFetch', 9,
            require_stable=True, groups=[dict(group_id=topic, topics=[dict(name=topic, partition_indexes=[0])])])
        return [late, fetched.groups[0].topics[0].partitions[0].committed_offset]
