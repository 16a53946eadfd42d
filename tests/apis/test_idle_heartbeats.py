"""Heartbeats that change nothing have a short code path. Its answers equal those of the complete code path."""
import itertools
from functools import partial

import pytest
from api_client import ApiClient
from hypothesis import given, settings
from hypothesis import strategies as st
from support.brokers.in_process_broker import InProcessBroker, frame_of
from support.messages.message_builder import build

from kbroker.apis import consumer_group_heartbeat, share_group_heartbeat, streams_group_heartbeat
from kbroker.apis.serving.dispatch import Dispatcher
from kbroker.apis.serving.heartbeat_calls import serve
from kbroker.apis.serving.request import Api
from kbroker.apis.serving.served import served_apis
from kbroker.base.errors import ErrorCode
from kbroker.group.turns import Turns
from kbroker.protocol.api_keys import ApiKey

SETTINGS = {'offsets.topic.num.partitions': '1', 'group.consumer.assignment.interval.ms': '0',
            'share.coordinator.state.topic.num.partitions': '1', 'group.share.assignment.interval.ms': '0',
            'group.streams.assignment.interval.ms': '0', 'group.streams.min.assignment.interval.ms': '0',
            'group.streams.initial.rebalance.delay.ms': '0'}
WHOLE = {
    key: Api(key, first, last, partial(serve, api.KIND)) for key, first, last, api in (
        (ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, consumer_group_heartbeat),
        (ApiKey.SHARE_GROUP_HEARTBEAT, 1, 1, share_group_heartbeat),
        (ApiKey.STREAMS_GROUP_HEARTBEAT, 0, 1, streams_group_heartbeat))
}
"""The APIs of heartbeats by their key. None of them has the short code path."""
REQUESTS = {'consumer': 'ConsumerGroupHeartbeatRequest', 'share': 'ShareGroupHeartbeatRequest',
            'streams': 'StreamsGroupHeartbeatRequest'}
VERSIONS = [('consumer', 1), ('share', 1), ('streams', 0), ('streams', 1)]
"""The kinds of groups, with versions of their heartbeats whose fields differ."""
NUMBERS = itertools.count(1)


class WithoutShortWay(InProcessBroker):

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._dispatcher = Dispatcher(self, [WHOLE.get(api.key, api) for api in served_apis()], self.tick)


class Side:
    """A broker with one group. The tests compare two such brokers, so numbers replace the names and ids of topics."""

    def __init__(self, broker):
        self.client = ApiClient(broker)
        self.client.ask('FindCoordinator', coordinator_keys=['g'])

    def begin(self, kind, version, prefix):
        self.kind, self.version, self.prefix = kind, version, prefix
        self.epochs, self.owned, self.names = {}, {}, {}
        self.static, self.endpoint_epochs = set(), {}
        self.create(0)

    def create(self, number):
        self.names[self.client.create_topic(f'{self.prefix}-{number}', 2)] = number

    def act(self, action, member, number):
        """Do one action. Return its result as the client sees it, such as an answer or an error code."""
        if action == 'wait':
            return self.client.broker.clock.advance([1, 400, 5_000, 44_000, 46_000][number])
        if action == 'create':
            return self.create(number + 1) if number + 1 not in self.names.values() else None
        if action == 'configure':
            value = str(5_000 + 1_000 * number)
            name = f'{self.kind}.heartbeat.interval.ms'
            if self.kind == 'streams' and number % 2:
                name, value = 'streams.num.standby.replicas', str(number // 2)
            return self.client.ask('IncrementalAlterConfigs', resources=[{
                'resource_type': 32, 'resource_name': self.prefix, 'configs': [
                    {'name': name, 'value': value}]}]).responses[0].error_code
        client_id = 'other' if action == 'beat of another client' else 'test'
        return self.heartbeat(member, client_id, **self.fields_of(action, member, number))

    def fields_of(self, action, member, number):
        """Return the fields of a heartbeat. `number` selects among its variants; with 3 and 4, it has additional
        fields."""
        epoch = self.epochs.get(member, 0)
        names = [f'{self.prefix}-{topic}' for topic in range(number % 3)] or ['none']
        fields = {'member_epoch': {'join': 0, 'leave': -1, 'beat of an old epoch': epoch - 1}.get(action, epoch)}
        if action == 'join' and self.kind != 'share' and number > 2:
            self.static.add(member)
        if member in self.static and (action == 'join' or number > 2):
            fields['instance_id'] = f'instance-{member if number < 4 or action == "join" else 0}'
        if self.kind == 'streams':
            return fields | self.streams_fields_of(action, member, number, names)
        if action == 'join':
            fields['subscribed_topic_names'] = names
            if self.kind == 'consumer':
                fields |= {'rebalance_timeout_ms': 300_000, 'topic_partitions': []}
        if action == 'report' and self.kind == 'consumer':
            fields['topic_partitions'] = self.owned.get(member, [])
        return fields

    def streams_fields_of(self, action, member, number, names):
        fields = {'endpoint_information_epoch': self.endpoint_epochs.get(member, 0) if number < 4 else 99,
                  'shutdown_application': action == 'shut down'}
        if action == 'join':
            topology = {'epoch': 0, 'subtopologies': [
                {'subtopology_id': '0', 'source_topics': names, 'source_topic_regex': [], 'copartition_groups': [],
                 'repartition_sink_topics': [], 'repartition_source_topics': [], 'state_changelog_topics': []}]}
            endpoint = {'host': 'host', 'port': 1} if number > 2 else None
            fields |= {'rebalance_timeout_ms': 300_000, 'process_id': f'process-{member}', 'topology': topology,
                       'user_endpoint': endpoint, 'active_tasks': [], 'standby_tasks': [], 'warmup_tasks': []}
        if action == 'report':
            fields |= {'active_tasks': self.owned.get(member, []), 'standby_tasks': [], 'warmup_tasks': []}
        return fields

    def heartbeat(self, member, client_id, **fields):
        request = build(REQUESTS[self.kind], group_id=self.prefix, member_id=f'member-{member}', **fields)
        broker, version = self.client.broker, self.version
        connection = broker.begin(request, version, client_id=client_id)
        while not connection.replies:
            broker.turn()
        answer = broker.answer_to(connection, request, version)
        if answer.error_code == ErrorCode.NONE:
            self.epochs[member] = answer.member_epoch
            self.adopt(member, answer)
        return self.plain(answer)

    def adopt(self, member, answer):
        """Keep the assignment and the epochs in the answer for later heartbeats."""
        if self.kind == 'streams':
            self.endpoint_epochs[member] = answer.endpoint_information_epoch
            if answer.active_tasks is not None:
                self.owned[member] = [{'subtopology_id': tasks.subtopology_id, 'partitions': list(tasks.partitions)}
                                      for tasks in answer.active_tasks]
        elif answer.assignment is not None:
            self.owned[member] = [{'topic_id': topic.topic_id, 'partitions': sorted(topic.partitions)}
                                  for topic in answer.assignment.topic_partitions]

    def plain(self, value):
        """Return a message as plain values, in which numbers replace the names and ids of topics."""
        if isinstance(value, list):
            return sorted(map(self.plain, value), key=repr)
        if hasattr(value, '_layout'):
            return {name: self.plain(getattr(value, name)) for name in value._layout.names}
        return self.names.get(value, value)

    def state(self):
        """Return the broker's state of the group, and the end offset of its log."""
        broker = self.client.broker
        group = next((each for each in broker.groups.list_groups() if each.group_id == self.prefix), None)
        stored = broker.topics.get('__consumer_offsets', 0).log_end_offset
        return stored, None if group is None else (
            group.state_name, group.epoch, group.assignment_epoch,
            {name: (each.epoch, each.client_id) for name, each in group.members.items()})


@pytest.fixture(scope='module')
def sides(tmp_path_factory):
    with (InProcessBroker(tmp_path_factory.mktemp('short'), SETTINGS) as short,
          WithoutShortWay(tmp_path_factory.mktemp('whole'), SETTINGS) as whole):
        yield Side(short), Side(whole)


ACTIONS = st.tuples(
    st.sampled_from(['join', 'beat', 'beat', 'beat', 'beat', 'report', 'report', 'leave', 'wait', 'wait', 'create',
                     'configure', 'shut down', 'beat of another client', 'beat of an old epoch']),
    st.integers(0, 2), st.integers(0, 4))


@settings(max_examples=40)
@given(st.sampled_from(VERSIONS), st.lists(ACTIONS, max_size=40))
def test_the_short_way_answers_what_the_whole_way_would_have_answered(sides, kind_and_version, actions):
    prefix = f'group-{next(NUMBERS)}'
    for side in sides:
        side.begin(*kind_and_version, prefix)
        side.act('join', 0, 1)
    for action in [('beat', 0, 0), *actions, ('wait', 0, 4), ('beat', 0, 0)]:
        first, second = [side.act(*action) for side in sides]
        assert first == second, action
        assert sides[0].state() == sides[1].state(), action


@pytest.fixture(params=VERSIONS, ids='{0[0]} {0[1]}'.format)
def idle(request, tmp_path):
    """Yield a Side on a new broker. Its member 0 has joined the group, and needs no further change."""
    with InProcessBroker(tmp_path, SETTINGS) as broker:
        side = Side(broker)
        side.begin(*request.param, 'g')
        side.act('join', 0, 1)
        for _ in range(3):
            side.act('beat', 0, 0)
        yield side


def refuse(*_):
    raise AssertionError('an operation was submitted')


def test_an_idle_heartbeat_is_no_operation(idle, monkeypatch):
    monkeypatch.setattr(Turns, 'submit', refuse)
    assert idle.act('beat', 0, 0)['error_code'] == ErrorCode.NONE


@pytest.mark.parametrize('change', ['join', 'beat of another client', 'leave'])
def test_another_heartbeat_is_an_operation(idle, monkeypatch, change):
    submitted = []
    monkeypatch.setattr(Turns, 'submit', lambda _self, group_id, *_: submitted.append(group_id))
    request = build(REQUESTS[idle.kind], group_id='g', member_id='member-0', **idle.fields_of(change, 0, 1))
    client_id = 'other' if change == 'beat of another client' else 'test'
    idle.client.broker.begin(request, idle.version, client_id=client_id)
    assert submitted == ['g']


def test_a_new_topic_makes_the_next_heartbeat_an_operation(idle, monkeypatch):
    idle.create(1)
    assert idle.act('beat', 0, 0)['error_code'] == ErrorCode.NONE
    monkeypatch.setattr(Turns, 'submit', refuse)
    assert idle.act('beat', 0, 0)['error_code'] == ErrorCode.NONE


def test_an_idle_heartbeat_prolongs_the_session(idle):
    for _ in range(3):
        idle.act('wait', 0, 3)
        assert idle.act('beat', 0, 0)['error_code'] == ErrorCode.NONE
    idle.act('wait', 0, 4)
    idle.client.broker.turn()
    assert idle.act('beat', 0, 0)['error_code'] == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize('kind', ['consumer', 'streams'])
def test_a_static_member_that_names_its_instance_is_idle_and_one_that_names_another_is_not(tmp_path, monkeypatch, kind):
    with InProcessBroker(tmp_path, SETTINGS) as broker:
        side = Side(broker)
        side.begin(kind, 1, 'g')
        side.act('join', 0, 4)
        side.act('join', 1, 4)
        for _ in range(3):
            side.act('report', 0, 1)
            side.act('report', 1, 1)
        assert side.act('beat', 1, 4)['error_code'] == ErrorCode.FENCED_INSTANCE_ID
        monkeypatch.setattr(Turns, 'submit', refuse)
        assert side.act('beat', 1, 3)['error_code'] == ErrorCode.NONE


@pytest.mark.parametrize('cut', [1, 5, 9])
def test_a_heartbeat_that_is_cut_off_closes_the_connection(idle, cut):
    request = build(REQUESTS[idle.kind], group_id='g', member_id='member-0', **idle.fields_of('beat', 0, 0))
    connection = idle.client.broker.connect()
    idle.client.broker.send(connection, frame_of(request, idle.version)[:-cut])
    assert connection.closed is not None


def test_bytes_behind_a_heartbeat_do_not_matter(idle):
    request = build(REQUESTS[idle.kind], group_id='g', member_id='member-0', **idle.fields_of('beat', 0, 0))
    broker = idle.client.broker
    connection = broker.connect()
    broker.send(connection, frame_of(request, idle.version) + b'123')
    assert broker.answer_to(connection, request, idle.version).error_code == ErrorCode.NONE


@pytest.mark.parametrize('text', [b'member', b'\x02g'])
def test_a_heartbeat_whose_text_is_not_utf_8_closes_the_connection(idle, text, caplog):
    request = build(REQUESTS[idle.kind], group_id='g', member_id='member-0', **idle.fields_of('beat', 0, 0))
    frame = frame_of(request, idle.version)
    assert frame.count(text) == 1
    connection = idle.client.broker.connect()
    idle.client.broker.send(connection, frame.replace(text, text[:-1] + b'\xff'))
    assert connection.closed is not None
    assert not [record for record in caplog.records if record.exc_info]
