"""Joining, syncing, heartbeating and leaving: what moves the classic groups of a shard.

Membership itself lives in memory, as in Kafka: it is a matter of heartbeats, and after a restart whoever does not
heartbeat in time is gone. What the log keeps is a generation with its assignments: a group becomes Stable, and its
members learn their assignments, once that row is durable.

Answers are put into an outbox and leave when an operation has the group in order: an answer lets its connection's next
request in at once, which must not find a group half changed.
"""

import functools
import logging
from collections import deque

from kbroker.completion cimport Completion

from kbroker.completion import Callback
from kbroker.errors import ErrorCode, KafkaError
from kbroker.group.classic import ClassicGroup, GroupState, Member
from kbroker.group.records import group_row, group_value, topics_of_subscription
from kbroker.group.sessions import Sessions
from kbroker.group.shard import coordinator_error
from kbroker.protocol.messages import JoinGroupResponse, LeaveGroupResponse, SyncGroupResponse

log = logging.getLogger(__name__)

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60_000
"""How long a member that does not know its id may stay in an unfinished rebalance: it cannot heartbeat, and its
connection may be gone; a client that is still there joins again."""


def then_answer(operation):
    """Answers wait for the end of the operation."""

    @functools.wraps(operation)
    def wrapped(self, /, *args, **kwargs):
        try:
            return operation(self, *args, **kwargs)
        finally:
            self.send_answers()

    return wrapped


class Membership:
    """The members of the groups of one shard. Requests and responses are Kafka's messages."""

    def __init__(self, shard, config, clock, timers):
        self._shard = shard
        self._config = config
        self._clock = clock
        self._timers = timers
        self.sessions = Sessions(clock, timers, self._session_ended)
        self._outbox = deque()
        shard.on_group_row = self._assignment_is_durable

    @then_answer
    def start_sessions(self):
        """After loading: each member gets its session timeout to heartbeat; a group above group.max.size rebalances."""
        for group in list(self._shard.groups.values()):
            for member in group.members.values():
                self.sessions.restart(group, member)
            if len(group.members) > self._config.group_max_size:
                self._rebalance_or_complete(group)

    def stop_sessions(self):
        """`__consumer_offsets` is gone and its groups with it: their timers must find nothing to do."""
        for group in self._shard.groups.values():
            for member in list(group.members.values()):
                self._remove(group, member)
            for timer in (group.join_timer, group.sync_timer, *group.pending_members.values()):
                if timer is not None:
                    timer.cancel()
        self._shard.groups.clear()
        self.send_answers()

    # JoinGroup

    @then_answer
    def join(self, request, version, client_id, client_host, done):
        """JoinGroup. `done` completes with the JoinGroupResponse, maybe much later.

        INVALID_SESSION_TIMEOUT, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, INCONSISTENT_GROUP_PROTOCOL,
        GROUP_MAX_SIZE_REACHED, COORDINATOR_NOT_AVAILABLE (the group is being deleted).
        """
        low, high = self._config.group_min_session_timeout_ms, self._config.group_max_session_timeout_ms
        if not low <= request.session_timeout_ms <= high:
            raise KafkaError(
                ErrorCode.INVALID_SESSION_TIMEOUT, f'found {request.session_timeout_ms} ms, expected {low} to {high}'
            )
        group = self._shard.groups.get(request.group_id)
        if group is None:
            if request.member_id:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f'group {request.group_id} does not exist')
            group = ClassicGroup(request.group_id, state_since_ms=self._clock.wall_ms())
        group.check_alive()
        self._check_room(group, request.member_id)
        joining = self._joining(group, request, client_id, client_host)
        if not group.supports(request.protocol_type, joining.protocols):
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f'found {request.protocol_type!r} with {[name for name, _ in joining.protocols]}, '
                f'expected {group.protocol_type!r} with one of {sorted(group.common_protocols())}',
            )
        if request.member_id and (request.member_id not in group.pending_members or joining.is_static):
            self._join_again(group, group.check_member(request.member_id, request.group_instance_id), joining, done)
        elif not request.member_id and joining.group_instance_id in group.static_member_ids:
            self._replace_static_member(group, joining, version, done)
        elif not request.member_id and not joining.is_static and version >= 4:
            self._hand_out_member_id(group, joining, done)
        else:
            self._add_member(group, joining, request.protocol_type, done)

    def _joining(self, group, request, client_id, client_host):
        # Version 0 has no rebalance timeout: the session timeout stands for both.
        known = request.rebalance_timeout_ms >= 0
        return Member(
            member_id=request.member_id or group.new_member_id(client_id, request.group_instance_id),
            group_instance_id=request.group_instance_id,
            client_id=client_id,
            client_host=client_host,
            rebalance_timeout_ms=request.rebalance_timeout_ms if known else request.session_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=[(protocol.name, protocol.metadata) for protocol in request.protocols],
        )

    def _check_room(self, group, member_id):
        if group.has_room_for(member_id, self._config.group_max_size):
            return
        member = group.members.get(member_id)
        if member is not None:
            self._remove(group, member)
            self._after_removal(group)
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED, f'group {group.group_id} has {self._config.group_max_size} members'
        )

    def _hand_out_member_id(self, group, joining, done):
        """KIP-394: the client must show that it got its id before it counts, else each lost answer leaves a ghost."""
        self._shard.groups[group.group_id] = group
        group.pending_members[joining.member_id] = self._timers.after(
            joining.session_timeout_ms, lambda: self._expire_pending_member(group, joining.member_id)
        )
        self._outbox.append(
            (done, JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=joining.member_id))
        )

    def _add_member(self, group, joining, protocol_type, done):
        self._shard.groups[group.group_id] = group
        pending = group.pending_members.pop(joining.member_id, None)
        if pending is not None:
            pending.cancel()
        if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
            group.member_added = True
        joining.is_new = True
        joining.join_done = done
        group.add(joining, protocol_type)
        self.sessions.restart(group, joining, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance_or_complete(group)

    def _join_again(self, group, member, joining, done):
        """A member that did not get its answer, wants a rebalance or is called to one."""
        same_metadata = list(member.protocols) == list(joining.protocols)
        keeps_generation = group.state is GroupState.COMPLETING_REBALANCE or (
            group.state is GroupState.STABLE and not group.is_leader(member.member_id)
        )
        if keeps_generation and same_metadata:
            self._outbox.append((done, self._join_response(group, member)))
            return
        # Stable, and the leader joins: it saw what its metadata does not show, such as new partitions. All rebalance.
        self._update(member, joining)
        # The join of an earlier try may be parked still, on a connection that is gone.
        self._answer_join_with(member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.join_done = done
        self._rebalance_or_complete(group)

    def _replace_static_member(self, group, joining, version, done):
        """A static member came back without its id (KIP-345): it takes over, and the group goes on without a
        rebalance if it is stable and would choose the same assignor."""
        assert joining.group_instance_id is not None
        member = group.members[group.static_member_ids[joining.group_instance_id]]
        old_leader_id = group.leader_id
        before = member.as_it_is()
        self._answer_join_with(member, ErrorCode.FENCED_INSTANCE_ID)
        self._answer_sync_with(member, ErrorCode.FENCED_INSTANCE_ID)
        group.rename_static_member(member, joining.member_id)
        self._update(member, joining)
        self.sessions.restart(group, member)
        if group.state is not GroupState.STABLE or group.select_protocol() != group.protocol_name:
            member.join_done = done
            self._rebalance_or_complete(group)
            return
        generation = group.generation

        def stored(error, result):
            if group.members.get(joining.member_id) is not member:
                error = KafkaError(ErrorCode.FENCED_INSTANCE_ID)  # by yet another self
            elif error is not None:
                self._undo_replacement(group, member, before)
            elif group.state is not GroupState.STABLE or group.generation != generation:
                error = KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
            if error is not None:
                self._outbox.append((done, JoinGroupResponse(error_code=coordinator_error(error).code)))
            else:
                self._outbox.append((done, self._replaced_response(group, member, version, old_leader_id)))
            self.send_answers()

        assignments = {each.member_id: each.assignment for each in group.members.values()}
        self._shard.append([group_row(group.group_id, group_value(group, assignments))], Callback(stored))

    def _replaced_response(self, group, member, version, old_leader_id):
        response = self._join_response(group, member)
        if group.is_leader(member.member_id):
            if version >= 9:
                response.skip_assignment = True
            else:
                # Without skip_assignment (KIP-814) a leader would assign again. The reply names its old id as leader.
                response.leader, response.members = old_leader_id or '', []
        return response

    def _undo_replacement(self, group, member, before):
        group.rename_static_member(member, before.member_id)
        self._update(member, before)
        self.sessions.restart(group, member)

    def _update(self, member, joining):
        member.protocols = joining.protocols
        member.rebalance_timeout_ms = joining.rebalance_timeout_ms
        member.session_timeout_ms = joining.session_timeout_ms
        member.client_id = joining.client_id
        member.client_host = joining.client_host

    # The rebalance

    def _rebalance_or_complete(self, group):
        if group.state is not GroupState.PREPARING_REBALANCE:
            self._prepare_rebalance(group)
        else:
            self._complete_if_everyone_joined(group)

    def _prepare_rebalance(self, group):
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._fail_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS)
        if group.sync_timer is not None:
            group.sync_timer.cancel()
        initial = group.state is GroupState.EMPTY
        group.transition_to(GroupState.PREPARING_REBALANCE, self._clock.wall_ms())
        if initial:
            delay_ms = self._config.group_initial_rebalance_delay_ms
            self._delay_initial_rebalance(group, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
        elif group.everyone_joined():
            self._complete_join(group)
        else:
            self._await_joins(group)

    def _await_joins(self, group):
        group.join_timer = self._timers.after(group.rebalance_timeout_ms, lambda: self._end_join(group))

    def _delay_initial_rebalance(self, group, delay_ms, remaining_ms):
        """A new group gives its members time to arrive: again and again while more come, no longer than the
        rebalance timeout."""

        def due():
            if group.member_added and remaining_ms > 0:
                next_delay_ms = min(self._config.group_initial_rebalance_delay_ms, remaining_ms)
                self._delay_initial_rebalance(group, next_delay_ms, max(remaining_ms - next_delay_ms, 0))
            else:
                self._end_join(group)

        group.member_added = False
        group.join_timer = self._timers.after(delay_ms, due)

    def _complete_if_everyone_joined(self, group):
        delayed = group.previous_state is GroupState.EMPTY  # the initial delay decides, not who is there
        if group.state is GroupState.PREPARING_REBALANCE and not delayed and group.everyone_joined():
            self._complete_join(group)

    @then_answer
    def _end_join(self, group):
        """The time to join is over."""
        self._complete_join(group)

    def _complete_join(self, group):
        """Start the next generation with the members that joined, and the static ones, which are given their
        session's time."""
        if group.join_timer is not None:
            group.join_timer.cancel()
        for member in list(group.members.values()):
            if member.join_done is None and not member.is_static:
                group.remove(member)
        if group.members and not group.elect_joined_leader():
            self._await_joins(group)  # static members only, none of them here: one comes, or their sessions end
            return
        group.start_generation(self._clock.wall_ms(), topics_of_subscription)
        if group.state is GroupState.EMPTY:
            self._shard.append(
                [group_row(group.group_id, group_value(group, {}))], Callback(functools.partial(_log_failure, group))
            )
            return
        for member in group.members.values():
            done, member.join_done, member.is_new = member.join_done, None, False
            if done is not None:
                self._outbox.append((done, self._join_response(group, member)))
            self.sessions.restart(group, member)
        generation = group.generation
        group.sync_timer = self._timers.after(group.rebalance_timeout_ms, lambda: self._expire_syncs(group, generation))

    def _join_response(self, group, member):
        """The current generation; the leader also gets the members, to assign for."""
        members = group.members.values() if group.is_leader(member.member_id) else ()
        return JoinGroupResponse(
            generation_id=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            leader=group.leader_id or '',
            member_id=member.member_id,
            members=[
                JoinGroupResponse.JoinGroupResponseMember(
                    member_id=each.member_id,
                    group_instance_id=each.group_instance_id,
                    metadata=each.metadata(group.protocol_name),
                )
                for each in members
            ],
        )

    # SyncGroup

    @then_answer
    def sync(self, request, done):
        """SyncGroup. `done` completes with the SyncGroupResponse once the leader's assignment is durable.

        UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL, REBALANCE_IN_PROGRESS,
        COORDINATOR_NOT_AVAILABLE.
        """
        group = self.group(request.group_id)
        member = group.check_member(request.member_id, request.group_instance_id)
        group.check_generation(request.generation_id)
        for found, expected in (
            (request.protocol_type, group.protocol_type),
            (request.protocol_name, group.protocol_name),
        ):
            if found is not None and expected is not None and found != expected:
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f'found {found!r}, expected {expected!r}')
        if group.state is GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        group.unsynced_member_ids.discard(member.member_id)
        if not group.unsynced_member_ids and group.sync_timer is not None:
            group.sync_timer.cancel()
        if group.state is GroupState.STABLE:
            self.sessions.restart(group, member)
            self._outbox.append((done, self._sync_response(group, member)))
            return
        self._answer_sync_with(member, ErrorCode.REBALANCE_IN_PROGRESS)  # an earlier try
        member.sync_done = done
        if group.is_leader(member.member_id) and group.stored_generation != group.generation:
            self._store_assignments(group, {each.member_id: each.assignment for each in request.assignments})

    def _store_assignments(self, group, assignments):
        generation = group.stored_generation = group.generation

        @then_answer
        def stored(self, error, result):
            # Without an error the replay of the row has done everything.
            if error is not None and group.generation == generation and group.state is GroupState.COMPLETING_REBALANCE:
                log.error(
                    'assignments of group %r, generation %d, were not stored: %s', group.group_id, generation, error
                )
                group.stored_generation = -1
                self._fail_syncs(group, coordinator_error(error).code)
                self._prepare_rebalance(group)

        self._shard.append(
            [group_row(group.group_id, group_value(group, assignments))], Callback(functools.partial(stored, self))
        )

    @then_answer
    def _assignment_is_durable(self, group, value):
        """Replay of a group's row. One of a generation that a rebalance has left behind says nothing any more."""
        if group.state is not GroupState.COMPLETING_REBALANCE or value.generation != group.generation:
            return
        assignments = {row.member_id: row.assignment for row in value.members}
        group.transition_to(GroupState.STABLE, self._clock.wall_ms())
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b'')
            done, member.sync_done = member.sync_done, None
            if done is not None:
                self.sessions.restart(group, member)
                self._outbox.append((done, self._sync_response(group, member)))

    def _sync_response(self, group, member):
        return SyncGroupResponse(
            protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
        )

    def _fail_syncs(self, group, code):
        for member in group.members.values():
            member.assignment = b''
            if member.sync_done is not None:
                self._answer_sync_with(member, code)
                self.sessions.restart(group, member)

    @then_answer
    def _expire_syncs(self, group, generation):
        """Remove members that joined but did not sync in time, so that the others rebalance (KAFKA-13435)."""
        if group.generation != generation or not group.is_in(GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return
        if not group.unsynced_member_ids:
            return
        for member_id in list(group.unsynced_member_ids):
            self._remove(group, group.members[member_id])
        self._prepare_rebalance(group)

    # Heartbeat, sessions, LeaveGroup

    def heartbeat(self, request):
        """Heartbeat. UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, COORDINATOR_NOT_AVAILABLE, and
        REBALANCE_IN_PROGRESS, which keeps the session alive all the same."""
        group = self.group(request.group_id)
        member = group.check_member(request.member_id, request.group_instance_id)
        group.check_generation(request.generation_id)
        self.sessions.restart(group, member)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)

    @then_answer
    def leave(self, request):
        """LeaveGroup of versions 3 and later, one error code a member. A member id of '' with a group.instance.id is an
        administrator's removal of a static member (KIP-345). COORDINATOR_NOT_AVAILABLE."""
        group = self._shard.groups.get(request.group_id)
        if group is not None:
            group.check_alive()
        answers, left = [], False
        for identity in request.members:
            code = ErrorCode.NONE
            try:
                if group is None:
                    raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
                left |= self._leave_one(group, identity)
            except KafkaError as error:
                code = error.code
            answers.append(
                LeaveGroupResponse.MemberResponse(
                    member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=code
                )
            )
        if group is not None and left:
            self._after_removal(group)
        return LeaveGroupResponse(members=answers)

    def _leave_one(self, group, identity):
        member_id = identity.member_id
        if not member_id and identity.group_instance_id is not None:
            member_id = group.static_member_ids.get(identity.group_instance_id, '')
        if member_id in group.pending_members:
            group.pending_members.pop(member_id).cancel()
        else:
            member = group.check_member(member_id, identity.group_instance_id)
            log.info('member %r leaves group %r: %r', member_id, group.group_id, identity.reason or 'no reason given')
            self._remove(group, member)
        return True

    @then_answer
    def _session_ended(self, group, member):
        if group.members.get(member.member_id) is member and not member.is_waiting:
            log.info('member %r of group %r did not heartbeat in time', member.member_id, group.group_id)
            self._remove(group, member)
            self._after_removal(group)

    @then_answer
    def _expire_pending_member(self, group, member_id):
        if group.pending_members.pop(member_id, None) is not None:
            self._after_removal(group)

    def _remove(self, group, member):
        """Remove the member. Its parked requests get UNKNOWN_MEMBER_ID: if it is still alive, it joins again."""
        self._answer_join_with(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._answer_sync_with(member, ErrorCode.UNKNOWN_MEMBER_ID)
        group.remove(member)

    def _after_removal(self, group):
        if group.is_in(GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._prepare_rebalance(group)
        elif group.state is GroupState.PREPARING_REBALANCE:
            self._complete_if_everyone_joined(group)
        elif group.is_blank and not self._shard.offsets.keys_to_forget(group.group_id):
            self._shard.groups.pop(group.group_id, None)  # no member ever joined: nothing to remember

    # Answers

    def group(self, group_id):
        """The group of a member's request. UNKNOWN_MEMBER_ID when there is none, COORDINATOR_NOT_AVAILABLE."""
        group = self._shard.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f'group {group_id} does not exist')
        group.check_alive()
        return group

    def send_answers(self):
        while self._outbox:
            done, response = self._outbox.popleft()
            (<Completion?>done).complete(None, 0, response)

    def _answer_join_with(self, member, code):
        done, member.join_done = member.join_done, None
        if done is not None:
            member_id = '' if code is ErrorCode.UNKNOWN_MEMBER_ID else member.member_id
            self._outbox.append((done, JoinGroupResponse(error_code=code, member_id=member_id)))

    def _answer_sync_with(self, member, code):
        done, member.sync_done = member.sync_done, None
        if done is not None:
            self._outbox.append((done, SyncGroupResponse(error_code=code)))


def _log_failure(group, error, result):
    if error is not None:
        log.error('that group %r is empty was not stored: %s', group.group_id, error)
