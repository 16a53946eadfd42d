"""Cases for requests to the transaction coordinator, from producers and administrators."""

from __future__ import annotations

from typing import Any

from cases_groups import GROUP, TRANSACTION, commit, find, member
from cases_records import case, fetch, list_offsets, produce
from raw_peer import RawPeer, batch


def init(peer: RawPeer, transactional_id: str | None, version: int = 5, *, timeout_ms: int = 60000,
         producer_id: int = -1, producer_epoch: int = -1) -> Any:
    more = dict(producer_id=producer_id, producer_epoch=producer_epoch) if version >= 3 else {}
    return peer.ask_settled(
        'InitProducerId', version, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, **more)


class Producer:
    """A transactional producer that sends exactly the requests that a case wants, valid or not."""

    def __init__(self, peer: RawPeer, transactional_id: str, *, two: bool = True, timeout_ms: int = 60000):
        self.peer = peer
        self.id = transactional_id
        self.two = two
        find(peer, transactional_id, TRANSACTION)
        answer = init(peer, transactional_id, timeout_ms=timeout_ms)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequence = 0

    @property
    def who(self) -> dict[str, Any]:
        return dict(transactional_id=self.id, producer_id=self.producer_id, producer_epoch=self.epoch)

    def records(self, *values: bytes, **options: Any) -> bytes:
        return batch(
            *values, **dict(
                producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=self.sequence,
                transactional=True) | options)

    def produce(self, *values: bytes, version: int | None = None, partition: int = 0, topic: str | None = None,
                **options: Any) -> Any:
        """Send a Produce request with these values. Repeat it while the coordinator completes an earlier request."""
        records = self.records(*values or (b'value',), **options)
        answer = self.peer.ask_settled(
            'Produce', version or (12 if self.two else 11), transactional_id=self.id, acks=-1, timeout_ms=30000,
            topic_data=[dict(name=topic or self.peer.topic, partition_data=[dict(index=partition, records=records)])])
        if not answer.responses[0].partition_responses[0].error_code:
            self.sequence += len(values or (b'value',))
        return answer

    def add(self, *partitions: int, topic: str | None = None, version: int = 3, **options: Any) -> Any:
        transaction = dict(
            topics=[dict(name=topic or self.peer.topic, partitions=list(partitions))], **self.who | options)
        if version < 4:
            renamed = {'topics': 'v3_and_below_topics', **{name: f'v3_and_below_{name}' for name in self.who}}
            return self.peer.ask_settled(
                'AddPartitionsToTxn', version, **{renamed.get(name, name): value for name, value in transaction.items()}
            )
        return self.peer.ask_settled('AddPartitionsToTxn', version, transactions=[transaction])

    def end(self, committed: bool = True, version: int | None = None, **options: Any) -> Any:
        answer = self.peer.ask_settled(
            'EndTxn', version if version is not None else (5 if self.two else 4), committed=committed,
            **self.who | options)
        if not isinstance(answer, str) and not answer.error_code and answer.producer_id >= 0:
            self.epoch = answer.producer_epoch
            self.producer_id = answer.producer_id
            self.sequence = 0
        return answer

    def settle(self) -> None:
        """End the transaction and wait until the markers are written."""
        self.peer.ask_until(
            lambda answer: answer.transaction_states[0].transaction_state not in ('PrepareCommit', 'PrepareAbort'),
            'DescribeTransactions', transactional_ids=[self.id])


@case
def init_producer_id(peer: RawPeer) -> None:
    find(peer, peer.topic, TRANSACTION)
    for version in range(6):
        init(peer, None, version)
        init(peer, f'{peer.topic}_{version}', version)
        init(peer, f'{peer.topic}_{version}', version)
        init(peer, '', version)
        for timeout_ms in (0, -1, 900000, 900001, 2**31 - 1):
            init(peer, f'{peer.topic}_{version}', version, timeout_ms=timeout_ms)
        init(peer, None, version, timeout_ms=-5)
    for version in (3, 4, 5):
        name = f'{peer.topic}_given_{version}'
        first = init(peer, name, version)
        for producer_id, producer_epoch in (
            (first.producer_id, 0),
            (first.producer_id, 0),
            (first.producer_id, 5),
            (first.producer_id, 1),
            (first.producer_id, -1),
            (-1, 0),
            (77777777, 0),
            (-1, -1),
            (first.producer_id, 0),
        ):
            init(peer, name, version, producer_id=producer_id, producer_epoch=producer_epoch)
        init(peer, name + '_new', version, producer_id=first.producer_id, producer_epoch=0)
        init(peer, None, version, producer_id=first.producer_id, producer_epoch=0)


@case
def transactions_of_version_two(peer: RawPeer) -> None:
    peer.create_topic(partitions=2)
    producer = Producer(peer, peer.topic)
    producer.end()
    producer.end(committed=False)
    for committed in (True, False):
        producer.produce(b'one', b'two')
        producer.produce(b'three', partition=1)
        peer.ask('DescribeTransactions', transactional_ids=[peer.topic])
        list_offsets(peer, -1, isolation_level=1)
        list_offsets(peer, -1)
        fetch(peer, isolation_level=1)
        peer.ask('DescribeProducers', topics=[dict(name=peer.topic, partition_indexes=[0, 1])])
        producer.end(committed)
        producer.settle()
        peer.ask('DescribeTransactions', transactional_ids=[peer.topic])
        peer.ask('DescribeProducers', topics=[dict(name=peer.topic, partition_indexes=[0, 1])])
        before = producer.epoch
        producer.epoch -= 1
        producer.end(committed)
        producer.end(not committed)
        producer.epoch = before - 1
        producer.produce(b'late', base_sequence=9)
        producer.epoch = before
    for version in (4, 11):
        fetch(peer, version, isolation_level=1)
        fetch(peer, version, isolation_level=0)
    fetch(peer, 12, isolation_level=1, offset=5)
    list_offsets(peer, -3)
    list_offsets(peer, -1, isolation_level=1)


@case
def transactions_of_older_versions(peer: RawPeer) -> None:
    peer.create_topic(partitions=2)
    producer = Producer(peer, peer.topic, two=False)
    producer.produce(b'unadded')
    producer.produce(b'unadded', version=10)
    for version in range(4):
        producer.add(0, 1, version=version)
        producer.add(0, version=version)
        producer.produce(b'one', version=9)
        producer.produce(b'two', partition=1)
        for wrong in (
            dict(producer_epoch=producer.epoch + 1),
            dict(producer_epoch=producer.epoch - 1),
            dict(producer_id=producer.producer_id + 1000),
            dict(transactional_id='no_such_id'),
            dict(transactional_id=''),
        ):
            producer.add(0, version=version, **wrong)
            producer.end(version=version, **wrong)
        producer.add(9, version=version)
        producer.add(0, 9, version=version)
        producer.add(0, topic='no_such_topic', version=version)
        producer.add(0, topic='__consumer_offsets', version=version)
        producer.add(0, topic='bad name', version=version)
        producer.add(version=version)
        producer.end(bool(version % 2), version=version)
        producer.settle()
        producer.end(bool(version % 2), version=version)
        producer.end(not version % 2, version=version)
    fetch(peer, isolation_level=1)


@case
def partitions_added_in_batches(peer: RawPeer) -> None:
    peer.create_topic(partitions=2)
    producer = Producer(peer, peer.topic, two=False)
    for version in (4, 5):
        producer.add(0, version=version, verify_only=True)
        producer.add(0, version=version)
        producer.add(0, 1, version=version, verify_only=True)
        producer.add(0, 9, version=version)
        for wrong in (
            dict(producer_epoch=9),
            dict(producer_id=12345678),
            dict(transactional_id='no_such_id'),
            dict(transactional_id=''),
        ):
            for verify_only in (False, True):
                producer.add(0, version=version, verify_only=verify_only, **wrong)
        transaction = dict(topics=[dict(name=peer.topic, partitions=[1])], **producer.who)
        peer.ask('AddPartitionsToTxn', version, transactions=[transaction, transaction])
    producer.end(False, 4)


@case
def ends_of_transactions(peer: RawPeer) -> None:
    peer.create_topic()
    producer = Producer(peer, peer.topic)
    for version in range(6):
        for wrong in (
            dict(producer_epoch=producer.epoch + 1),
            dict(producer_epoch=-1),
            dict(producer_id=producer.producer_id + 1000),
            dict(producer_id=-1),
            dict(transactional_id='no_such_id'),
            dict(transactional_id=''),
        ):
            producer.end(version=version, **wrong)
    old = Producer(peer, peer.topic + '_old', two=False)
    old.end(True, 4)
    old.end(False, 4)
    old.add(0)
    old.end(True, 5)
    old.settle()
    old.end(True, 5)


@case
def offsets_in_transactions(peer: RawPeer) -> None:
    peer.create_topic(partitions=2)
    find(peer, peer.topic, GROUP)
    producer = Producer(peer, peer.topic, two=False)

    def offsets(version: int, *, group: str | None = None, partition: int = 0, offset: int = 5,
                topic: str | None = None, metadata: str | None = '', **options: Any) -> Any:
        more = dict(member_id='', generation_id_or_member_epoch=-1) if version >= 3 else {}
        return peer.ask_settled(
            'TxnOffsetCommit', version, group_id=peer.topic if group is None else group,
            **producer.who | more | options, topics=[dict(
                name=topic or peer.topic,
                partitions=[dict(partition_index=partition, committed_offset=offset, committed_metadata=metadata)])])

    offsets(0)
    offsets(4)
    for version in range(5):
        add = producer.who | dict(group_id=peer.topic)
        peer.ask_settled('AddOffsetsToTxn', version, **add)
        for wrong in (
            dict(group_id=''),
            dict(producer_epoch=50),
            dict(producer_id=123456),
            dict(transactional_id='no_such_id'),
            dict(transactional_id=''),
        ):
            peer.ask('AddOffsetsToTxn', version, **add | wrong)
        offsets(version)
        offsets(version, partition=9)
        offsets(version, topic='no_such_topic')
        offsets(version, topic='bad name')
        offsets(version, metadata='x' * 5000)
        offsets(version, offset=-1, partition=1)
        offsets(version, producer_epoch=50)
        offsets(version, producer_id=123456)
        offsets(version, group='')
        offsets(version, transactional_id='')
        if version >= 3:
            for wrong in (
                dict(member_id='nobody', generation_id_or_member_epoch=1),
                dict(member_id='nobody'),
                dict(generation_id_or_member_epoch=1),
                dict(group_instance_id='none', member_id='nobody', generation_id_or_member_epoch=3),
            ):
                offsets(version, **wrong)
        for stable in (True, False):
            peer.ask(
                'OffsetFetch', 7, group_id=peer.topic, require_stable=stable,
                topics=[dict(name=peer.topic, partition_indexes=[0, 1])])
        producer.end(version % 2 == 1, version)
        producer.settle()
        peer.ask_until(
            lambda answer: all(not partition.error_code for partition in answer.topics[0].partitions), 'OffsetFetch', 7,
            group_id=peer.topic, require_stable=True, topics=[dict(name=peer.topic, partition_indexes=[0, 1])])
    two = producer = Producer(peer, peer.topic + '_two')
    offsets(5)
    offsets(5, producer_epoch=two.epoch + 5)
    two.end()
    two.settle()
    member_id, generation = member(peer, peer.topic + '_members')
    offsets(5, group=peer.topic + '_members')
    offsets(5, group=peer.topic + '_members', member_id=member_id, generation_id_or_member_epoch=generation)
    offsets(5, group=peer.topic + '_members', member_id=member_id, generation_id_or_member_epoch=generation + 1)
    commit(peer, peer.topic + '_members', member_id=member_id, generation=generation, partition=1)
    two.end(False)
    two.settle()


@case
def offsets_in_transactions_by_name_and_by_id(peer: RawPeer) -> None:
    """Version 6 has topic ids, and more errors of groups than version 5."""
    ids = {peer.topic: peer.create_topic(partitions=2), 'no_such_topic': b'\7' * 16, '': bytes(16)}
    consumers, streamers, sharers, classic = (
        f'{peer.topic}_{kind}' for kind in ('consumers', 'streamers', 'sharers', 'classic'))
    for group in (peer.topic, consumers, streamers, classic):
        find(peer, group, GROUP)
    epoch = peer.prepare(
        'ConsumerGroupHeartbeat', 1, group_id=consumers, member_id='m', member_epoch=0, rebalance_timeout_ms=60000,
        topic_partitions=[], subscribed_topic_names=[peer.topic]).member_epoch
    streams_epoch = peer.prepare(
        'StreamsGroupHeartbeat', 0, group_id=streamers, member_id='m', member_epoch=0, endpoint_information_epoch=0,
        rebalance_timeout_ms=60000, active_tasks=[], standby_tasks=[], warmup_tasks=[], process_id='p',
        topology=dict(epoch=0, subtopologies=[dict(
            subtopology_id='0', source_topics=[peer.topic], source_topic_regex=[], state_changelog_topics=[],
            repartition_sink_topics=[], repartition_source_topics=[], copartition_groups=[])]),
        shutdown_application=False).member_epoch
    peer.prepare('ShareGroupHeartbeat', 1, group_id=sharers, member_id='m', member_epoch=0, rack_id=None,
                 subscribed_topic_names=[peer.topic])
    member_id, generation = member(peer, classic)
    producer = Producer(peer, peer.topic)

    def offsets(version: int, *topics: str, group: str = peer.topic, partitions: tuple[int, ...] = (0,),
                metadata: str | None = 'note', member: str = '', generation: int = -1, **options: Any) -> None:
        peer.ask_settled(
            'TxnOffsetCommit', version, **producer.who | options, group_id=group, member_id=member,
            generation_id_or_member_epoch=generation, topics=[dict(
                **(dict(topic_id=ids[topic]) if version >= 6 else dict(name=topic)),
                partitions=[dict(partition_index=index, committed_offset=5, committed_metadata=metadata)
                            for index in partitions]) for topic in topics or (peer.topic,)])

    for version in (5, 6):
        for group, known in ((peer.topic, 1), (consumers, epoch), (streamers, streams_epoch), (sharers, 1), ('', 1)):
            for who in (dict(), dict(member='m'), dict(member='m', generation=known), dict(generation=known),
                        dict(member='m', generation=known + 5), dict(member='other', generation=known)):
                peer.note = f'{group} {sorted(who)}'
                offsets(version, group=group, **who)
        peer.note = ''
        offsets(version, group=peer.topic + '_absent', generation=0)
        offsets(version, group=f'{peer.topic}_absent_{version}', member='m')
        offsets(version, group=classic, member=member_id, generation=generation)
        offsets(version, group=classic, member=member_id, generation=generation + 1)
        offsets(version, peer.topic, 'no_such_topic', '', partitions=(0, 9))
        offsets(version, 'no_such_topic', '')
        offsets(version, partitions=(9,))
        offsets(version, metadata='x' * 5000)
        offsets(version, producer_epoch=producer.epoch + 5)
        offsets(version, producer_id=producer.producer_id + 1000)
        offsets(version, transactional_id='no_such_id')
        for stable in (True, False):
            peer.ask('OffsetFetch', 7, group_id=peer.topic, require_stable=stable, topics=[
                dict(name=peer.topic, partition_indexes=[0, 1])])
        producer.end(version == 5)
        producer.settle()
    peer.prepare('ConsumerGroupHeartbeat', 1, group_id=consumers, member_id='m', member_epoch=-1)
    peer.prepare('StreamsGroupHeartbeat', 0, group_id=streamers, member_id='m', member_epoch=-1)
    peer.prepare('ShareGroupHeartbeat', 1, group_id=sharers, member_id='m', member_epoch=-1, rack_id=None,
                 subscribed_topic_names=[])


@case
def fenced_producers(peer: RawPeer) -> None:
    peer.create_topic()
    first = Producer(peer, peer.topic)
    first.produce(b'one')
    second = Producer(peer, peer.topic)
    first.produce(b'late')
    first.end()
    first.end(False)
    first.add(0)
    init(peer, peer.topic, producer_id=first.producer_id, producer_epoch=first.epoch)
    second.produce(b'two')
    second.end()
    second.settle()
    fetch(peer, isolation_level=1)
    fetch(peer, isolation_level=0)


@case
def transactions_that_take_too_long(peer: RawPeer) -> None:
    peer.create_topic()
    producer = Producer(peer, peer.topic, timeout_ms=300)
    producer.produce(b'one')
    peer.ask_until(
        lambda answer: answer.transaction_states[0].transaction_state == 'CompleteAbort', 'DescribeTransactions',
        transactional_ids=[peer.topic])
    producer.produce(b'two')
    producer.end()
    producer.end(False)
    fetch(peer, isolation_level=1)
    init(peer, peer.topic, producer_id=producer.producer_id, producer_epoch=producer.epoch)


@case
def write_txn_markers(peer: RawPeer) -> None:
    peer.create_topic(partitions=2)
    producer = Producer(peer, peer.topic)
    producer.produce(b'one')

    def mark(version: int = 1, *, epoch: int = 0, topic: str | None = None, partitions: tuple[int, ...] = (0,),
             coordinator_epoch: int = 0, commit: bool = False, producer_id: int | None = None, **options: Any) -> None:
        peer.ask(
            'WriteTxnMarkers', version, markers=[dict(
                producer_id=producer.producer_id if producer_id is None else producer_id, producer_epoch=epoch,
                transaction_result=commit, coordinator_epoch=coordinator_epoch,
                topics=[dict(name=topic or peer.topic, partition_indexes=list(partitions))], **options)])

    mark(topic='no_such_topic')
    mark(partitions=(7,))
    mark(epoch=-1)
    mark(coordinator_epoch=-1)
    mark(version=2, transaction_version=2)
    mark(version=2, transaction_version=2, epoch=1)
    peer.ask('DescribeProducers', topics=[dict(name=peer.topic, partition_indexes=[0, 1])])
    mark(version=2, transaction_version=2, epoch=1)
    mark(epoch=0)
    mark(epoch=1)
    mark(epoch=5, partitions=(0, 1))
    mark(epoch=2)
    mark(producer_id=123456789, commit=True)
    mark(producer_id=-1)
    mark(coordinator_epoch=5, epoch=6)
    mark(coordinator_epoch=2, epoch=7)
    mark(topic='__consumer_offsets')
    peer.ask('WriteTxnMarkers', markers=[])
    fetch(peer, isolation_level=1)
    peer.ask('DescribeProducers', topics=[dict(name=peer.topic, partition_indexes=[0, 1])])


@case
def describe_and_list_transactions(peer: RawPeer) -> None:
    peer.create_topic()
    producer = Producer(peer, peer.topic)
    peer.ask('DescribeTransactions', transactional_ids=[peer.topic, 'no_such_id', '', peer.topic])
    peer.ask('DescribeTransactions', transactional_ids=[])

    def listed(version: int = 2, **filters: Any) -> None:
        answer = peer.ask('ListTransactions', version, **filters)
        if not isinstance(answer, str):
            answer.transaction_states = [
                state for state in answer.transaction_states if state.transactional_id == peer.topic]

    for state in ('Empty', 'Ongoing'):
        for version in range(3):
            listed(version)
            for states in (
                ['Empty'],
                ['Ongoing'],
                ['NoSuchState', 'Empty'],
                ['empty'],
                ['NoSuchState'],
                ['Dead'],
                [''],
            ):
                listed(version, state_filters=states)
            listed(version, producer_id_filters=[producer.producer_id])
            listed(version, producer_id_filters=[123456])
            listed(version, producer_id_filters=[-1], state_filters=['Empty'])
            for duration in (0, 1000000, -1, -2) if version else ():
                listed(version, duration_filter=duration)
        for pattern in (
            None,
            '',
            '.*',
            peer.topic,
            'no',
            peer.topic[:4],
            peer.topic[:4] + '.*',
            '(',
            '[',
            '*',
            r'\w+',
            '(?<n>x)|.*',
            r'\Q',
            'a++|.*',
            r'\p{L}.*',
            '(?P<n>x)',
        ):
            listed(transactional_id_pattern=pattern)
        if state == 'Empty':
            producer.produce(b'one')
    producer.end()
    producer.settle()
    for name in ('no_such_topic', 'bad name', ''):
        peer.ask('DescribeProducers', topics=[dict(name=name, partition_indexes=[0])])
    peer.ask(
        'DescribeProducers',
        topics=[dict(name=peer.topic, partition_indexes=[0, 5]), dict(name=peer.topic, partition_indexes=[])])


@case
def several_partitions_of_one_produce(peer: RawPeer) -> None:
    peer.create_topic(partitions=3)
    producer = Producer(peer, peer.topic)
    for version in (11, 12):
        answer = peer.ask(
            'Produce', version, transactional_id=peer.topic, acks=-1, timeout_ms=1000, topic_data=[
                dict(
                    name=peer.topic,
                    partition_data=[dict(index=index, records=producer.records(b'x')) for index in (0, 1, 9)]),
                dict(name='no_such_topic', partition_data=[dict(index=0, records=producer.records(b'x'))])])
        del answer
    for transactional_id in ('no_such_id', None, ''):
        produce(peer, producer.records(b'x', base_sequence=1), transactional_id=transactional_id, partition=2)
    produce(peer, producer.records(b'x', producer_epoch=7), transactional_id=peer.topic, partition=2)
    produce(peer, producer.records(b'x', producer_id=123456), transactional_id=peer.topic, partition=2)
    produce(
        peer, batch(b'x', producer_id=producer.producer_id, producer_epoch=producer.epoch, base_sequence=0),
        transactional_id=peer.topic, partition=2)
    peer.ask(
        'Produce', 12, transactional_id=peer.topic, acks=-1, timeout_ms=1000, topic_data=[dict(
            name=peer.topic, partition_data=[
                dict(index=0, records=producer.records(b'x', base_sequence=1)),
                dict(index=1, records=producer.records(b'x', producer_id=999999))])])
    producer.end()
