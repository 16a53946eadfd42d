"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup of classic groups, and their deadlines.

As in Kafka, the state of a rebalance is only in memory. A member that does not heartbeat in time is removed. After a
restart of the broker, each member gets its full session timeout.

For each generation, the broker appends a row with the generation's assignments. Once this row is durable, the group
becomes Stable and its members get their assignments. `answers` queues the replies of an operation until the operation
has ended.
"""

import functools
import logging

from kbroker.base.completion cimport Completion
from kbroker.group.classic.group cimport ClassicGroup
from kbroker.group.classic.members cimport Member

from kbroker.base.completion import Callback
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.classic.answers import ClassicAnswers
from kbroker.group.classic.encoder import group_row
from kbroker.group.classic.group import MOST_MEMBERS, MOST_PROTOCOLS
from kbroker.group.classic.states import GroupState
from kbroker.group.classic.members import new_member_id
from kbroker.group.classic.pending_members import PENDING_MEMBER_BYTES
from kbroker.group.classic.sessions import Sessions
from kbroker.group.shard import coordinator_error
from kbroker.protocol.messages import JoinGroupResponse, LeaveGroupResponse
from kbroker.security.escape import shown

log = logging.getLogger(__name__)

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60_000
"""The longest time in ms for which the first JoinGroup of a new member is parked in a rebalance. Its client cannot
heartbeat, and may have closed its connection. A client that still waits gets an error and joins again."""

cdef enum:
    MEMBERS_AT_ONCE = 1_000     # the most members whose row is encoded and appended without a yield
    MEMBERS_A_PART = 64         # the number of members that are removed between two yields

cdef object EMPTY = GroupState.EMPTY
cdef object STABLE = GroupState.STABLE
cdef object COMPLETING_REBALANCE = GroupState.COMPLETING_REBALANCE
cdef object PREPARING_REBALANCE = GroupState.PREPARING_REBALANCE


def then_answer(operation):
    """Decorate an operation of Membership so that the replies that it queues are sent when it ends."""

    @functools.wraps(operation)
    def wrapped(self, /, *args, **kwargs):
        try:
            return operation(self, *args, **kwargs)
        finally:
            self.answers.send()

    return wrapped


class Membership:
    """The operations on the classic groups of one shard. Their requests and responses are objects of Kafka's messages.

    All shards share `pending_members`. `steps` holds rebalances at their point, if a test controls the broker.
    """

    def __init__(self, shard, config, clock, timers, long_work, pending_members, steps=None):
        self._shard = shard
        self._config = config
        self._clock = clock
        self._timers = timers
        self._long_work = long_work
        self._pending_members = pending_members
        self._steps = steps
        self._held_rebalances = set()
        self.sessions = Sessions(clock, timers, self._session_ended)
        self.answers = ClassicAnswers(self.sessions, clock, long_work)

    @then_answer
    def start_sessions(self):
        """Start the sessions of all members after the shard was loaded. Begin a rebalance of each group that has more
        members than group.max.size.
        """
        for group in self._classic_groups():
            for member in group.members.values():
                self.sessions.restart(group, member)
            if len(group.members) > self._config.group_max_size:
                self._rebalance_or_complete(group)

    def stop_sessions(self):
        """Stop the timers of the classic groups, and remove all groups of the shard from memory, because
        `__consumer_offsets` is closed or deleted. Answer parked requests with UNKNOWN_MEMBER_ID."""
        for group in self._classic_groups():
            for member in list(group.members.values()):
                self._remove(group, member)
            for timer in (group.join_timer, group.sync_timer):
                if timer is not None:
                    timer.cancel()
            self._pending_members.forget_all_of(group)
        self._shard.clear()
        self.answers.send()

    # Migration between classic groups and consumer groups

    @then_answer
    def end(self, group):
        """End a classic group, because a consumer group is about to replace it. Answer its parked requests with
        REBALANCE_IN_PROGRESS.
        """
        group.bury(self._clock.wall_ms())
        for timer in (group.join_timer, group.sync_timer):
            if timer is not None:
                timer.cancel()
        self._pending_members.forget_all_of(group)
        self.answers.refuse_all(group, ErrorCode.REBALANCE_IN_PROGRESS)

    @then_answer
    def revive(self, group_id):
        """Continue a group that `end` has ended, and begin a rebalance of it. Do nothing if another group has replaced
        it."""
        ended = self._classic_group(group_id)
        if ended is None or not ended.is_dead:
            return
        group = ClassicGroup(group_id, state_since_ms=self._clock.wall_ms(), state=STABLE,
                             generation=ended.generation, protocol_name=ended.protocol_name)
        for member in ended.members.values():
            group.add(member.copy(), ended.protocol_type)
        group.leader_id = ended.leader_id
        self._shard.add_group(group)
        for member in group.members.values():
            self.sessions.restart(group, member)
        self._prepare_rebalance(group)

    @then_answer
    def start_downgraded(self, group_id, rebalances):
        """Start the members' sessions of a classic group that has just replaced a consumer group. Begin a rebalance if
        `rebalances` is true.
        """
        group = self._classic_group(group_id)
        if group is None:
            return
        if rebalances:
            self._prepare_rebalance(group)
        self.answers.then(self._start_members(group))

    def _start_members(self, group):
        cdef Member member
        for index, member in enumerate(list(group.members.values())):
            if index and index % MEMBERS_A_PART == 0:
                yield
            if group.members.get(member.member_id) is member and member.session_timer is None:
                self.sessions.restart(group, member)

    def _classic_groups(self):
        return [group for group in self._shard.groups.values() if isinstance(group, ClassicGroup)]

    def _classic_group(self, group_id):
        """Return the group with this id if it is a classic group. Otherwise, return None."""
        group = self._shard.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def row_of(self, group, assignments):
        """Return the row that stores the group's current generation. `assignments` maps member ids to assignments.

        Raise MESSAGE_TOO_LARGE if the row exceeds `max.message.bytes`.
        """
        return group_row(group, assignments, self._shard.partition.max_message_bytes)

    def _append(self, group, row, assignments, done):
        """Append a row that `row_of` made. `done` completes when the row is durable, or with the error of a failed
        append."""
        self._shard.append_rows([row], functools.partial(
            self._generation_is_durable, group, group.generation, assignments), done)

    # JoinGroup

    @then_answer
    def join(self, request, version, client_id, client_host, done):
        """Serve a JoinGroup. `done` completes with the response, possibly only when the other members have joined.

        Errors: INVALID_SESSION_TIMEOUT, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, INCONSISTENT_GROUP_PROTOCOL,
        INVALID_REQUEST (too many assignors), GROUP_MAX_SIZE_REACHED, COORDINATOR_NOT_AVAILABLE (the group is being
        deleted), COORDINATOR_LOAD_IN_PROGRESS (no memory is left).
        """
        self.check_join(request)
        group = self._classic_group(request.group_id)
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
                f'expected {group.protocol_type!r} with one of {sorted(group.assignors.common())}',
            )
        self._check_memory(group, joining)
        if request.member_id and (request.member_id not in group.pending_members or joining.is_static):
            self._join_again(group, group.check_member(request.member_id, request.group_instance_id), joining, done)
        elif not request.member_id and joining.group_instance_id in group.static_member_ids:
            self._replace_static_member(group, joining, version, done)
        elif not request.member_id and not joining.is_static and version >= 4:
            self._hand_out_member_id(group, joining, done)
        else:
            self._add_member(group, joining, request.protocol_type, done)

    def check_join(self, request):
        """Raise INVALID_SESSION_TIMEOUT or INVALID_REQUEST if no group could accept the JoinGroup."""
        low, high = self._config.group_min_session_timeout_ms, self._config.group_max_session_timeout_ms
        if not low <= request.session_timeout_ms <= high:
            raise KafkaError(
                ErrorCode.INVALID_SESSION_TIMEOUT, f'found {request.session_timeout_ms} ms, expected {low} to {high}'
            )
        check_protocols(request.protocols)

    def _joining(self, group, request, client_id, client_host):
        # JoinGroup version 0 has no rebalance timeout. The session timeout is used instead.
        known = request.rebalance_timeout_ms >= 0
        return Member(
            member_id=request.member_id or new_member_id(client_id, request.group_instance_id),
            group_instance_id=request.group_instance_id,
            client_id=client_id,
            client_host=client_host,
            rebalance_timeout_ms=request.rebalance_timeout_ms if known else request.session_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=[(protocol.name, protocol.metadata) for protocol in request.protocols],
        )

    def _check_room(self, group, member_id):
        """Raise GROUP_MAX_SIZE_REACHED if the group is full. If the sender is a member of the group, remove it."""
        most = min(self._config.group_max_size, MOST_MEMBERS)
        if group.has_room_for(member_id, most):
            return
        member = group.members.get(member_id)
        if member is not None:
            self._remove(group, member)
            self._after_removal(group)
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED, f'group {group.group_id} has {most} members'
        )

    def _check_memory(self, group, joining):
        """Raise GROUP_MAX_SIZE_REACHED if the group's row would be too large with the member's metadata.

        If there is no memory for the member, let the oldest pending members of all groups expire. Raise
        COORDINATOR_LOAD_IN_PROGRESS if there is still no memory.
        """
        cdef Member known = group.members.get(joining.member_id)
        cdef Py_ssize_t more_bytes = joining.held_bytes + PENDING_MEMBER_BYTES
        cdef Py_ssize_t metadata_bytes = group.metadata_bytes + joining.metadata_bytes
        if known is not None:
            more_bytes -= known.held_bytes + PENDING_MEMBER_BYTES
            metadata_bytes -= known.metadata_bytes
        if metadata_bytes > self._shard.partition.max_message_bytes:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f'group {group.group_id}: metadata of {metadata_bytes} bytes for {len(group.members)} members and one '
                f'more, max.message.bytes allows a row of {self._shard.partition.max_message_bytes}'
            )
        if group.group_id not in self._shard.groups:
            more_bytes += group.held_bytes
        if more_bytes <= 0:
            return
        while len(self._pending_members) and not self._shard.memory.has_room_for(more_bytes):
            self._pending_members.expire_oldest()
        self._shard.memory.check(more_bytes)

    def _hand_out_member_id(self, group, joining, done):
        """Answer a client's first JoinGroup with a new member id. The client becomes a member when it joins with this
        id (KIP-394).

        If the client does not get this answer, the group therefore has no member whose id no client knows.
        """
        member_id = joining.member_id
        self._pending_members.add(
            group, member_id, joining.session_timeout_ms, functools.partial(self._pending_member_ended, group)
        )
        self._shard.add_group(group)        # the expiry of an older pending member may have removed the group
        self.answers.add(
            done, JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=joining.member_id)
        )

    def _add_member(self, group, Member joining, protocol_type, done):
        self._shard.add_group(group)
        self._pending_members.forget(group, joining.member_id)
        if group.state is PREPARING_REBALANCE and group.previous_state is EMPTY:
            group.member_added = True
        group.add(joining, protocol_type)
        joining.is_new = True
        group.parked.park_join(joining, done)
        self.sessions.restart(group, joining, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance_or_complete(group)

    def _join_again(self, group, member, joining, done):
        """Serve the JoinGroup of an existing member. Either it did not get the response to its previous JoinGroup, or
        it wants a rebalance, or it joins the rebalance in progress."""
        same_metadata = member.protocols == joining.protocols
        keeps_generation = group.state is COMPLETING_REBALANCE or (
            group.state is STABLE and not group.is_leader(member.member_id)
        )
        if keeps_generation and same_metadata:
            self.answers.joined(group, member, done)
            return
        # When the leader of a stable group joins again, the group rebalances even if the leader's metadata is
        # unchanged. The leader may have a reason that its metadata does not show, such as new partitions.
        group.update(member, joining)
        # A previous JoinGroup of the member may still be parked, because the member sent it on a connection that was
        # closed since.
        self.answers.refuse_join(group, member, ErrorCode.REBALANCE_IN_PROGRESS)
        group.parked.park_join(member, done)
        self._rebalance_or_complete(group)

    def _replace_static_member(self, group, joining, version, done):
        """Serve the JoinGroup of a static member that joins without its member id: it replaces its old self under a new
        member id (KIP-345).

        No rebalance begins if the group is stable and would elect the same assignor.
        """
        assert joining.group_instance_id is not None
        member = group.members[group.static_member_ids[joining.group_instance_id]]
        old_leader_id = group.leader_id
        before = member.copy()
        self.answers.refuse_join(group, member, ErrorCode.FENCED_INSTANCE_ID)
        self.answers.refuse_sync(group, member, ErrorCode.FENCED_INSTANCE_ID)
        group.rename_static_member(member, joining.member_id)
        group.update(member, joining)
        self.sessions.restart(group, member)
        if group.state is not STABLE or group.assignors.elect() != group.protocol_name:
            group.parked.park_join(member, done)
            self._rebalance_or_complete(group)
            return
        generation = group.generation

        def stored(error, result):
            if group.members.get(joining.member_id) is not member:
                error = KafkaError(ErrorCode.FENCED_INSTANCE_ID)  # the member has returned under another id since
            elif error is not None:
                self._undo_replacement(group, member, before)
            elif group.state is not STABLE or group.generation != generation:
                error = KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
            if error is not None:
                self.answers.add(done, JoinGroupResponse(error_code=coordinator_error(error).code))
            else:
                self.answers.replaced(group, member, version, old_leader_id, done)
            self.answers.send()

        assignments = {each.member_id: each.assignment for each in group.members.values()}
        try:
            row = self.row_of(group, assignments)
        except KafkaError as error:
            stored(error, None)
        else:
            self._append(group, row, assignments, Callback(stored))

    def _undo_replacement(self, group, member, before):
        group.rename_static_member(member, before.member_id)
        group.update(member, before)
        self.sessions.restart(group, member)

    # The rebalance

    def _rebalance_or_complete(self, group):
        if group.state is not PREPARING_REBALANCE:
            self._prepare_rebalance(group)
        else:
            self._complete_if_everyone_joined(group)

    def _prepare_rebalance(self, group):
        if group.state is COMPLETING_REBALANCE:
            self._fail_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS)
        if group.sync_timer is not None:
            group.sync_timer.cancel()
        initial = group.state is EMPTY
        group.transition_to(PREPARING_REBALANCE, self._clock.wall_ms())
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
        """Wait for more members to join a new group. Each member that joins extends the wait, up to the rebalance
        timeout.
        """

        def due():
            if group.member_added and remaining_ms > 0:
                next_delay_ms = min(self._config.group_initial_rebalance_delay_ms, remaining_ms)
                self._delay_initial_rebalance(group, next_delay_ms, max(remaining_ms - next_delay_ms, 0))
            else:
                self._end_join(group)

        group.member_added = False
        group.join_timer = self._timers.after(delay_ms, due)

    def _complete_if_everyone_joined(self, group):
        delayed = group.previous_state is EMPTY  # a new group: its initial delay ends the join
        if group.state is PREPARING_REBALANCE and not delayed and group.everyone_joined():
            self._complete_join(group)

    @then_answer
    def _end_join(self, group):
        """Complete the joining phase of a rebalance, because its timeout has passed."""
        self._complete_join(group)

    def _complete_join(self, group):
        """Complete the joining phase of a rebalance: start the next generation with the members that joined and with
        all static members. Their sessions start again.

        Before the generation starts, remove all other members, in parts if there are many.
        """
        if group.join_timer is not None:
            group.join_timer.cancel()
        if self._steps is not None and self._holds_rebalance(group):
            return
        self._long_work.start(self._remove_absent(group, group.parked.absent_members()))

    def _holds_rebalance(self, group):
        """Return whether the rebalance must wait at its point. Members can join it meanwhile."""
        if group in self._held_rebalances:
            return True
        self._held_rebalances.add(group)
        if self._steps.reach('group.rebalance', {'group': group.group_id},
                             functools.partial(self._continue_rebalance, group, group.generation)):
            return True
        self._held_rebalances.discard(group)
        return False

    @then_answer
    def _continue_rebalance(self, group, generation):
        self._held_rebalances.discard(group)
        if self._is_in(group, generation, PREPARING_REBALANCE):
            self._long_work.start(self._remove_absent(group, group.parked.absent_members()))

    def _remove_absent(self, group, absent):
        """Remove the members in `absent`, which did not join, and start the next generation. This is a generator, which
        removes them in parts."""
        generation = group.generation
        for index, member in enumerate(absent):
            if index and index % MEMBERS_A_PART == 0:
                yield
                if not self._is_in(group, generation, PREPARING_REBALANCE):
                    return
            if group.members.get(member.member_id) is member and member.join_done is None:
                group.remove(member)
        self._start_generation(group)
        if len(absent) > MEMBERS_A_PART:
            self.answers.send()

    def _is_in(self, group, generation, *states):
        """Return whether the group still exists, with this generation and in one of these states. Called after a
        generator has yielded."""
        return (
            self._shard.groups.get(group.group_id) is group and group.generation == generation
            and group.state in states
        )

    def _start_generation(self, group):
        if group.members and not group.elect_joined_leader():
            self._await_joins(group)  # only absent static members: wait until one joins, or its session ends
            return
        group.start_generation(self._clock.wall_ms())
        if group.state is EMPTY:
            row = self.row_of(group, {})
            self._append(group, row, {}, Callback(functools.partial(_log_failure, group)))
            return
        self.answers.generation_started(group)
        generation = group.generation
        group.sync_timer = self._timers.after(group.rebalance_timeout_ms, lambda: self._expire_syncs(group, generation))

    # SyncGroup

    @then_answer
    def sync(self, request, done):
        """Serve a SyncGroup. `done` completes with the response once the leader's assignments are durable.

        Errors: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL,
        REBALANCE_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.
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
        if group.state is PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        group.parked.note_synced(member)
        if not group.parked.unsynced_member_ids and group.sync_timer is not None:
            group.sync_timer.cancel()
        if group.state is STABLE:
            self.sessions.restart(group, member)
            self.answers.synced(group, member, done)
            return
        self.answers.refuse_sync(group, member, ErrorCode.REBALANCE_IN_PROGRESS)  # the sync that was parked before
        group.parked.park_sync(member, done)
        if group.is_leader(member.member_id) and group.stored_generation != group.generation:
            group.stored_generation = group.generation
            self._long_work.start(self._store_assignments(group, request.assignments))

    def _store_assignments(self, group, given):
        """Append the group's row with the leader's assignments. This is a generator, which works in parts if the group
        is large."""
        generation = group.generation
        is_large = len(given) + len(group.members) > MEMBERS_AT_ONCE

        done = Callback(functools.partial(self._assignments_stored, group, generation))
        assignments = {each.member_id: each.assignment for each in given}
        if is_large:
            yield
        try:
            self._shard.memory.check(sum([len(assignment) for assignment in assignments.values()]))
            row = self.row_of(group, assignments)
        except KafkaError as error:
            (<Completion>done).complete(error, 0, None)
            return
        if is_large:
            yield
        if self._is_in(group, generation, COMPLETING_REBALANCE):
            self._append(group, row, assignments, done)

    @then_answer
    def _assignments_stored(self, group, generation, error, result):
        """Begin a rebalance if the row with the assignments was not stored. If it was stored, `_generation_is_durable`
        has already answered the SyncGroup requests."""
        if error is not None and group.generation == generation and group.state is COMPLETING_REBALANCE:
            log.error('assignments of group %s, generation %d, were not stored: %s', shown(group.group_id), generation,
                      error)
            group.stored_generation = -1
            self._fail_syncs(group, coordinator_error(error).code)
            self._prepare_rebalance(group)

    @then_answer
    def _generation_is_durable(self, group, generation, assignments):
        """Send the members their assignments, which are durable, unless a rebalance has already ended this
        generation."""
        if self._shard.groups.get(group.group_id) is not group or generation != group.generation or (
                group.state is not COMPLETING_REBALANCE):
            return
        group.transition_to(STABLE, self._clock.wall_ms())
        group.assign(assignments)
        self.answers.assigned(group, assignments)

    def _fail_syncs(self, group, code):
        group.assign({})
        self.answers.refuse_syncs(group, code)

    @then_answer
    def _expire_syncs(self, group, generation):
        """Remove members that joined the generation but did not send a SyncGroup in time. Begin a rebalance of the
        remaining members (KAFKA-13435)."""
        self._long_work.start(self._remove_unsynced(group, generation))

    def _remove_unsynced(self, group, generation):
        """Remove the members that did not send a SyncGroup. This is a generator, which removes them in parts. The group
        is consistent after each part."""
        states = [COMPLETING_REBALANCE, STABLE]
        if not self._is_in(group, generation, *states):
            return
        unsynced = [group.members[member_id] for member_id in group.parked.unsynced_member_ids]
        for index, member in enumerate(unsynced):
            if index and index % MEMBERS_A_PART == 0:
                self._after_removal(group)
                self.answers.send()
                yield
                if not self._is_in(group, generation, PREPARING_REBALANCE):
                    return
            if group.members.get(member.member_id) is member and member.join_done is None:
                self._remove(group, member)
        if unsynced:
            self._after_removal(group)
            self.answers.send()

    # Heartbeat, sessions, LeaveGroup

    def heartbeat(self, request):
        """Serve a Heartbeat.

        Raise REBALANCE_IN_PROGRESS if the member has to join again; its session is restarted even then. Other errors:
        UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, COORDINATOR_NOT_AVAILABLE.
        """
        group = self.group(request.group_id)
        member = group.check_member(request.member_id, request.group_instance_id)
        group.check_generation(request.generation_id)
        self.sessions.restart(group, member)
        if group.state is PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)

    def leave(self, request):
        """Serve a LeaveGroup of version 3 or later, in parts. Return the response, which has an error code for each
        member that the request names.

        An administrator names a static member by its group.instance.id, with an empty member id (KIP-345). Raise
        COORDINATOR_NOT_AVAILABLE if the group is being deleted.
        """
        answers, left = [], False
        group = self._classic_group(request.group_id)
        if group is not None:
            group.check_alive()
        for index, identity in enumerate(request.members):
            if index and index % MEMBERS_A_PART == 0:
                self._end_leave(group, left)
                yield
                group, left = self._classic_group(request.group_id), False
            code = ErrorCode.NONE
            try:
                if group is None:
                    raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
                self._leave_one(group, identity)
                left = True
            except KafkaError as error:
                code = error.code
            answers.append(
                LeaveGroupResponse.MemberResponse(
                    member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=code
                )
            )
        self._end_leave(group, left)
        return LeaveGroupResponse(members=answers)

    def _end_leave(self, group, left):
        if left:
            self._after_removal(group)
        self.answers.send()

    def _leave_one(self, group, identity):
        member_id = identity.member_id
        if not member_id and identity.group_instance_id is not None:
            member_id = group.static_member_ids.get(identity.group_instance_id, '')
        if not self._pending_members.forget(group, member_id):
            member = group.check_member(member_id, identity.group_instance_id)
            log.info('member %s leaves group %s: %s', shown(member_id), shown(group.group_id),
                     shown(identity.reason or 'no reason given'))
            self._remove(group, member)

    @then_answer
    def _session_ended(self, group, member):
        if group.members.get(member.member_id) is member and not member.is_waiting and not group.is_dead:
            log.info('member %s of group %s did not heartbeat in time', shown(member.member_id), shown(group.group_id))
            self._remove(group, member)
            self._after_removal(group)

    @then_answer
    def _pending_member_ended(self, group):
        self._after_removal(group)

    def _remove(self, group, member):
        """Remove the member. Answer its parked requests with UNKNOWN_MEMBER_ID, so that a client that still waits joins
        again."""
        self.answers.refuse_join(group, member, ErrorCode.UNKNOWN_MEMBER_ID)
        self.answers.refuse_sync(group, member, ErrorCode.UNKNOWN_MEMBER_ID)
        group.remove(member)

    def _after_removal(self, group):
        if group.state is STABLE or group.state is COMPLETING_REBALANCE:
            self._prepare_rebalance(group)
        elif group.state is PREPARING_REBALANCE:
            self._complete_if_everyone_joined(group)
        elif (
            group.state is EMPTY and group.is_blank and not self._shard.offsets.has_any(group.group_id)
            and self._shard.groups.get(group.group_id) is group
        ):
            self._shard.remove_group(group.group_id)  # the group never had members, so it has no row

    def group(self, group_id):
        """Return the classic group that a member's request names. Raise UNKNOWN_MEMBER_ID if there is no classic group
        with this id, COORDINATOR_NOT_AVAILABLE if it is being deleted.
        """
        group = self._classic_group(group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f'group {group_id} does not exist')
        group.check_alive()
        return group


def _log_failure(group, error, result):
    """Log the error if the row of an empty group was not stored."""
    if error is not None:
        log.error('that group %s is empty was not stored: %s', shown(group.group_id), error)


def check_protocols(protocols):
    """Raise INVALID_REQUEST if a JoinGroup offers more than MOST_PROTOCOLS assignors."""
    if len(protocols) > MOST_PROTOCOLS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f'found {len(protocols)} assignors, expected at most {MOST_PROTOCOLS}'
        )
