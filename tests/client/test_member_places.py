"""Members that lose their place in a group: the positions that they keep, and the generation under which they
commit."""
from collections import deque

import pytest

from kbroker.base.clock import ManualClock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.assignor import decode_member, encode_assignment
from kbroker.client.classic_member import ClassicMember
from kbroker.client.consumer_member import ConsumerMember
from kbroker.client.errors import ClientError
from kbroker.client.membership import RETRY_MS
from kbroker.client.stream_settings import ConsumerSettings
from kbroker.client.transaction_manager import GroupMetadata
from kbroker.protocol import messages

TOPIC_ID = bytes(range(16))
PARTITIONS = [('t', 0), ('t', 1)]


class Coordinator:
    """A cluster with one coordinator. At first, the coordinator assigns both partitions of `t`. Its next answers have
    the errors in `codes`."""

    def __init__(self):
        self.assigned = [0, 1]
        self.codes = deque()
        self.requests = []

    def call(self, request, *_, **__):
        self.requests.append(request)
        code = self.codes.popleft() if self.codes else ErrorCode.NONE
        if isinstance(code, ClientError):
            raise code
        return getattr(self, type(request).__name__)(request, code)

    def ConsumerGroupHeartbeatRequest(self, request, code):
        response = messages.ConsumerGroupHeartbeatResponse
        assigned = [response.TopicPartitions(topic_id=TOPIC_ID, partitions=self.assigned)]
        return response(error_code=code, member_id=request.member_id, member_epoch=max(request.member_epoch, 0) + 1,
                        assignment=response.Assignment(topic_partitions=assigned))

    def JoinGroupRequest(self, request, code):
        return messages.JoinGroupResponse(error_code=code, generation_id=7, leader='another', member_id='m',
                                          protocol_name=request.protocols[0].name)

    def SyncGroupRequest(self, _, code):
        return messages.SyncGroupResponse(error_code=code, assignment=encode_assignment(PARTITIONS))

    def LeaveGroupRequest(self, _, code):
        response = messages.LeaveGroupResponse
        return response(members=[response.MemberResponse(member_id='m', error_code=code)])

    def version_of(self, _):
        return 5

    # ---- the cluster

    def coordinator(self, *_):
        return self

    def forget(self):
        pass

    def retrying(self, operation, *_):
        return operation()

    def names_of(self, topic_ids):
        return dict.fromkeys(topic_ids, 't')


def epoch_member(coordinator):
    return ConsumerMember(coordinator, 'g', ConsumerSettings(group_protocol='consumer'), ManualClock())


def classic_member(coordinator):
    return ClassicMember(coordinator, 'g', ConsumerSettings(assignors=('cooperative-sticky',)), ManualClock())


@pytest.mark.parametrize('make', [epoch_member, classic_member])
def test_a_member_that_left_keeps_no_position_when_it_joins_again(make):
    """Before the member joins again, another member may have read the partitions and committed offsets."""
    member = make(Coordinator())
    assert member.join(['t']) == PARTITIONS
    assert member.join(['t'], PARTITIONS) == PARTITIONS
    assert member.keeps_positions
    member.give_up()
    assert (member.must_join, member.keeps_positions, member.sends_heartbeats) == (True, False, False)
    assert member.join(['t'], PARTITIONS) == PARTITIONS
    assert not member.keeps_positions
    assert member.join(['t'], PARTITIONS) == PARTITIONS
    assert member.keeps_positions


def test_a_member_that_the_group_has_fenced_keeps_no_position():
    coordinator = Coordinator()
    member = epoch_member(coordinator)
    member.join(['t'])
    coordinator.codes.append(ErrorCode.FENCED_MEMBER_EPOCH)
    member.heartbeat_if_due()
    assert member.must_join
    assert member.join(['t'], PARTITIONS) == PARTITIONS
    assert not member.keeps_positions


def test_a_cooperative_member_that_the_group_has_removed_claims_no_partition():
    coordinator = Coordinator()
    member = classic_member(coordinator)
    member.join(['t'])
    coordinator.codes.append(ErrorCode.UNKNOWN_MEMBER_ID)
    assert member.join(['t'], PARTITIONS) == PARTITIONS
    assert not member.keeps_positions
    joins = [request for request in coordinator.requests if isinstance(request, messages.JoinGroupRequest)]
    claims = [decode_member('m', None, join.protocols[0].metadata) for join in joins]
    assert [sorted(claim.owned) for claim in claims] == [[], PARTITIONS, []]
    assert [claim.generation for claim in claims] == [-1, 7, -1]


@pytest.mark.parametrize(('make', 'generation'), [(epoch_member, 1), (classic_member, 7)])
def test_a_member_that_left_commits_in_the_name_of_its_former_place(make, generation):
    """If a commit in a transaction has no generation, the group accepts it from every client."""
    member = make(Coordinator())
    assert member.metadata == GroupMetadata('g')
    member.join(['t'])
    place = GroupMetadata('g', generation, member.member_id)
    assert member.metadata == place
    member.give_up()
    assert member.metadata == place
    member.give_up()
    assert member.metadata == place


def test_a_member_that_is_interrupted_while_it_joins_leaves_its_group():
    """The coordinator has already added the member. If the member did not leave, the next member would wait until its
    session times out."""
    coordinator = Coordinator()
    member = classic_member(coordinator)
    member.leave()
    assert coordinator.requests == []
    coordinator.codes.append(ErrorCode.MEMBER_ID_REQUIRED)
    answer = coordinator.JoinGroupRequest

    def interrupted(request, code):
        if request.member_id:
            raise KeyboardInterrupt
        return answer(request, code)

    coordinator.JoinGroupRequest = interrupted
    with pytest.raises(KeyboardInterrupt):
        member.join(['t'])
    member.leave_quietly()
    farewell = coordinator.requests[-1]
    assert isinstance(farewell, messages.LeaveGroupRequest)
    assert [left.member_id for left in farewell.members] == ['m']


def test_a_member_whose_farewell_is_refused_joins_again():
    coordinator = Coordinator()
    member = classic_member(coordinator)
    member.join(['t'])

    def load(*_):
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 'it loads')

    coordinator.coordinator = load
    member.give_up()
    assert (member.must_join, member.keeps_positions) == (True, False)


def test_partitions_that_go_while_others_are_given_up_go_with_the_next_join():
    """The consumer has not committed its positions in the partitions that the join removes, so no heartbeat may report
    these partitions as released."""
    coordinator = Coordinator()
    member = epoch_member(coordinator)
    member.join(['t'])
    coordinator.assigned = [0]
    member.heartbeat_if_due()
    assert member.surrendered(['t'], PARTITIONS) == {('t', 1)}
    coordinator.assigned = []
    member.heartbeat_if_due()       # by the thread, while a listener handles the first partition
    assert (member.join(['t'], PARTITIONS), member.must_join) == ([('t', 0)], True)
    member.heartbeat_if_due()
    assert coordinator.requests[-1].topic_partitions[0].partitions == [0]
    assert member.surrendered(['t'], [('t', 0)]) == {('t', 0)}
    assert (member.join(['t'], [('t', 0)]), member.must_join) == ([], False)


@pytest.mark.parametrize('code', [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_AUTHORIZATION_FAILED])
def test_a_refused_goodbye_is_reported_unless_the_group_has_removed_the_member(code):
    coordinator = Coordinator()
    member = classic_member(coordinator)
    member.join(['t'])
    coordinator.codes.append(code)
    if code is ErrorCode.UNKNOWN_MEMBER_ID:
        member.leave()
    else:
        with pytest.raises(KafkaError, match="LeaveGroup of group 'g': GROUP_AUTHORIZATION_FAILED"):
            member.leave()
    assert (member.generation_id, member.member_id, member.sends_heartbeats) == (-1, '', False)


def test_after_a_lost_answer_a_heartbeat_is_full_since_only_then_the_group_repeats_the_assignment():
    coordinator = Coordinator()
    coordinator.assigned = [0]
    member = epoch_member(coordinator)
    member.join(['t'])
    coordinator.codes.append(ClientError('the connection was cut'))
    fields = []
    for _ in range(3):
        member.heartbeat_if_due()
        request = coordinator.requests[-1]
        fields.append((request.subscribed_topic_names, request.rebalance_timeout_ms, request.topic_partitions is None))
        member._clock.advance(RETRY_MS)
    assert fields == [(None, -1, False), (['t'], 300_000, False), (None, -1, True)]
