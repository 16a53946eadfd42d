"""Migration of a group between the classic and the consumer protocol while it has members. Its members change the
protocol one after the other.

* An upgrade makes a classic group a consumer group when a member that speaks the consumer protocol joins it.
* A downgrade makes a consumer group a classic group when the last member that speaks the consumer protocol leaves it.

The group's offsets stay, because they belong to the group id.
"""
from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial

from kbroker.base.errors import ErrorCode, KafkaError, ProtocolError
from kbroker.base.lean_dataclasses import replace
from kbroker.base.long_work import Pace
from kbroker.group.classic.group import CONSUMER_PROTOCOL_TYPE, MOST_MEMBERS, ClassicGroup
from kbroker.group.classic.members import Member
from kbroker.group.classic.membership import Membership
from kbroker.group.classic.states import GroupState
from kbroker.group.consumer import rows
from kbroker.group.consumer.group import ConsumerGroup
from kbroker.group.consumer.member import NOTHING, ClassicFields, ConsumerMember, Target
from kbroker.group.kinds import Row, Steps
from kbroker.group.modern.heartbeat import MEMBERS_A_PART, NO_TIME, Place
from kbroker.group.modern.reconcile import Assigned
from kbroker.group.shard import coordinator_error
from kbroker.group.turns import Outcome
from kbroker.protocol import messages
from kbroker.protocol.consumer_protocol import decode_message, encode_message, version_of
from kbroker.security.escape import shown

log = logging.getLogger(__name__)

UPGRADE_POLICIES = frozenset(('bidirectional', 'upgrade'))
DOWNGRADE_POLICIES = frozenset(('bidirectional', 'downgrade'))
DISABLED = 'disabled'
ROWS_A_PART = 16
"""The number of rows that are made or applied between two yields."""


class Migration:
    """The migrations of the groups in a shard. `membership` serves the classic groups."""

    def __init__(self, place: Place, membership: Membership):
        self._place = place
        self._membership = membership
        self._topics = place.changes.topics
        self._config = place.config

    @property
    def policy(self) -> str:
        return str(self._config.group_consumer_migration_policy)

    # Upgrade

    def upgrade(self, classic: ClassicGroup) -> Steps[tuple[ConsumerGroup, list[Row]]]:
        """Make a consumer group from a classic group with members, and end the classic group. Return the consumer group
        and its rows.

        The members keep their assignments. Parked JoinGroup and SyncGroup requests get the error REBALANCE_IN_PROGRESS.

        Raise GROUP_ID_NOT_FOUND if the group must not be upgraded, COORDINATOR_NOT_AVAILABLE if the group changes
        before the upgrade is complete.
        """
        self._check_upgrade(classic)
        seen = classic.state, classic.generation, classic.revision
        members = yield from self._upgraded_members(classic)
        metadata_hash = yield from self._place.changes.hash_of((yield from _names_of(members)))
        found = yield from _rows_of(classic, members, metadata_hash)
        if seen != (classic.state, classic.generation, classic.revision):
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f'group {classic.group_id} rebalances')
        group = ConsumerGroup(classic.group_id)
        self._membership.end(classic)
        log.info('group %s of %d members is upgraded to the consumer protocol', shown(classic.group_id), len(members))
        for number, (key, value) in enumerate(found):
            if number and number % ROWS_A_PART == 0:
                yield
            group.apply(key, value)
        return group, [*classic.tombstones(), *found]

    def abandon_upgrade(self, group_id: str) -> None:
        """Continue the classic group, because its upgrade was not stored."""
        self._membership.revive(group_id)

    def _upgraded_members(self, classic: ClassicGroup) -> Steps[list[ConsumerMember]]:
        """Convert all members of the classic group to members of a consumer group. Raise GROUP_ID_NOT_FOUND if a
        member's metadata cannot be read."""
        pace, owned, members = Pace(), set[tuple[bytes, int]](), []
        for member in list(classic.members.values()):
            upgraded = self._upgraded(classic, member)
            held = {(topic_id, partition)
                    for topic_id, epochs in upgraded.held.assigned.items() for partition in epochs}
            if not owned.isdisjoint(held):
                raise _not_upgraded(classic, 'two members are assigned the same partition')
            owned |= held
            members.append(upgraded)
            if pace.spend(4 + len(held) // 8):
                yield
        return members

    def _check_upgrade(self, classic: ClassicGroup) -> None:
        classic.check_alive()
        if self.policy not in UPGRADE_POLICIES:
            raise _not_upgraded(classic, f'group.consumer.migration.policy is {self.policy}')
        if classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise _not_upgraded(classic, f'its members are no consumers, but {classic.protocol_type}')
        most = min(self._config.group_consumer_max_size, MOST_MEMBERS)
        if len(classic.members) > most:
            raise _not_upgraded(classic, f'it has {len(classic.members)} members, expected at most {most}')

    def _upgraded(self, classic: ClassicGroup, member: Member) -> ConsumerMember:
        """Convert a member of the classic group to a member of a consumer group. Raise GROUP_ID_NOT_FOUND if its
        metadata cannot be read.
        """
        try:
            subscription = decode_message(messages.ConsumerProtocolSubscription, member.protocols[0][1])
            assigned = self._partitions_of(classic, member.assignment)
        except ProtocolError as error:
            raise _not_upgraded(classic, f'member {member.member_id} speaks another protocol: {error}') from error
        epoch = classic.generation
        return ConsumerMember(
            member_id=member.member_id, instance_id=member.group_instance_id, rack_id=subscription.rack_id,
            client_id=member.client_id, client_host=member.client_host, names=frozenset(subscription.topics),
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            classic=ClassicFields(member.session_timeout_ms, member.protocols),
            held=Assigned(epoch=epoch, previous_epoch=epoch, assigned={
                topic_id: dict.fromkeys(sorted(partitions), epoch) for topic_id, partitions in assigned.items()}))

    def _partitions_of(self, classic: ClassicGroup, assignment: bytes) -> Target:
        """Decode an assignment, and return its partitions by topic id. Omit topics that do not exist."""
        if not assignment:
            return NOTHING
        message = decode_message(messages.ConsumerProtocolAssignment, assignment)
        if message.user_data:
            raise _not_upgraded(classic, 'an assignment has user data, which only its assignor can read')
        return self.by_id((topic.topic, topic.partitions) for topic in message.assigned_partitions)

    def by_id(self, topics: Iterable[tuple[str, Iterable[int]]]) -> dict[bytes, frozenset[int]]:
        """Return {topic id: partitions} for pairs of a topic name and partitions. Omit topics that do not exist."""
        found: dict[bytes, frozenset[int]] = {}
        for name, partitions in topics:
            topic = self._topics.topic(name)
            if topic is not None:
                found[topic.topic_id] = found.get(topic.topic_id, frozenset()).union(partitions)
        return {topic_id: partitions for topic_id, partitions in found.items() if partitions}

    # Downgrade

    def may_downgrade(self, group: ConsumerGroup, gone: list[ConsumerMember]) -> bool:
        """Return whether the group becomes a classic group when the members in `gone` leave. All remaining members must
        be classic members."""
        left = len(group.members) - len(gone)
        gone_classic = sum([member.classic is not None for member in gone])
        return (0 < left <= min(self._config.group_max_size, MOST_MEMBERS)
                and left == group.classic_count - gone_classic and self.policy in DOWNGRADE_POLICIES)

    def may_replace_last(self, group: ConsumerGroup) -> bool:
        """Return whether the group becomes a classic group when a classic member replaces a member that speaks the
        consumer protocol.

        All other members must be classic members.
        """
        return (group.classic_count == len(group.members) - 1 and self.policy in DOWNGRADE_POLICIES
                and len(group.members) <= min(self._config.group_max_size, MOST_MEMBERS))

    def downgrade_without(self, group: ConsumerGroup, gone: list[ConsumerMember],
                          reply: object) -> Steps[Outcome | None]:
        """If the group becomes a classic group when the members in `gone` leave, downgrade it and return the outcome.
        Return None if it stays a consumer group."""
        if not self.may_downgrade(group, gone):
            return None
        everyone, gone_ids = list(group.members.values()), {member.member_id for member in gone}
        left = [member for member in everyone if member.member_id not in gone_ids]
        return (yield from self.downgrade(group, left, reply, everyone, rebalances=True))

    def downgrade(self, group: ConsumerGroup, members: list[ConsumerMember], reply: object,
                  disarmed: list[ConsumerMember], *, rebalances: bool) -> Steps[Outcome]:
        """Replace the consumer group by a classic group with `members`. The classic group immediately rebalances if
        `rebalances` is true.

        Cancel the deadlines of the members in `disarmed`. Raise UNKNOWN_SERVER_ERROR if the classic group's row is too
        large.
        """
        classic, found = yield from self._downgraded_group(group, members, self._place.clock.wall_ms())
        return Outcome(found, reply, partial(self._after_downgrade, group.group_id, disarmed, rebalances), classic)

    def _after_downgrade(self, group_id: str, members: list[ConsumerMember], rebalances: bool) -> None:
        self._membership.start_downgraded(group_id, rebalances)
        self._place.long_work.start(self._disarm(group_id, members))

    def _disarm(self, group_id: str, members: list[ConsumerMember]) -> Steps[None]:
        """Cancel the deadlines of the members in parts. Skip members that have joined a new consumer group with the
        same id."""
        for number, member in enumerate(members):
            if number % MEMBERS_A_PART == MEMBERS_A_PART - 1:
                yield
            group = self._place.shard.groups.get(group_id)
            if not isinstance(group, ConsumerGroup) or member.member_id not in group.members:
                self._place.deadlines.cancel_member(group_id, member.member_id)

    def _downgraded_group(self, group: ConsumerGroup, members: Iterable[ConsumerMember],
                          now_ms: int) -> Steps[tuple[ClassicGroup, list[Row]]]:
        """Return a classic group with these members, and its rows. The members' targets become their assignments."""
        pace, found = Pace(), list[Row]()
        classic = ClassicGroup(group.group_id, state_since_ms=now_ms, state=GroupState.STABLE, generation=group.epoch)
        assignments: dict[str, bytes] = {}
        for member in members:
            assert member.classic is not None
            assignment = self.assignment_bytes(member, group.targets.get(member.member_id, NOTHING))
            assignments[member.member_id] = assignment
            classic.add(_downgraded(member, member.classic, assignment), CONSUMER_PROTOCOL_TYPE)
            if pace.spend(8):
                yield
        classic.choose_protocol()
        yield from _add_rows(found, group.each_tombstone())
        try:
            _, value = self._membership.row_of(classic, assignments)
        except KafkaError as error:
            raise coordinator_error(error) from error
        found.append((messages.GroupMetadataKey(group=group.group_id), value))
        log.info('group %s of %d members is downgraded to the classic protocol', shown(group.group_id),
                 len(assignments))
        return classic, found

    def assignment_bytes(self, member: ConsumerMember, partitions: Mapping[bytes, Iterable[int]]) -> bytes:
        """Encode an assignment in the version that the member supports. Omit topics that do not exist."""
        assert member.classic is not None
        topic_class = messages.ConsumerProtocolAssignment.TopicPartition
        topics = []
        for topic_id, numbers in partitions.items():
            topic = self._topics.topic_by_id(topic_id)
            if topic is not None:
                topics.append(topic_class(topic=topic.name, partitions=sorted(numbers)))
        version = version_of(messages.ConsumerProtocolAssignment, member.classic.protocols[0][1])
        return encode_message(messages.ConsumerProtocolAssignment(assigned_partitions=topics), version)


def _names_of(members: list[ConsumerMember]) -> Steps[set[str]]:
    """Return the names of all topics that the members subscribe to."""
    pace, names = Pace(), set[str]()
    for member in members:
        names |= member.names
        if pace.spend(1 + len(member.names) // 8):
            yield
    return names


def _rows_of(classic: ClassicGroup, members: list[ConsumerMember], metadata_hash: int) -> Steps[list[Row]]:
    """Return the rows that replace a classic group by a consumer group with these members, in the same order as
    Kafka."""
    group_id, found = classic.group_id, list[Row]()
    yield from _add_rows(found, (rows.member_row(group_id, member) for member in members))
    found.append(rows.epoch_row(group_id, classic.generation, metadata_hash))
    yield from _add_rows(found, (rows.target_row(group_id, member.member_id, {
        topic_id: frozenset(epochs) for topic_id, epochs in member.held.assigned.items()}) for member in members))
    found.append(rows.assignment_epoch_row(group_id, classic.generation, NO_TIME))
    yield from _add_rows(found, (rows.current_row(group_id, member.member_id, member.held) for member in members))
    return found


def _add_rows(found: list[Row], more: Iterable[Row]) -> Steps[None]:
    for row in more:
        found.append(row)
        if len(found) % ROWS_A_PART == 0:
            yield


def _downgraded(member: ConsumerMember, fields: ClassicFields, assignment: bytes) -> Member:
    return Member(member.member_id, member.instance_id, member.client_id, member.client_host,
                  member.rebalance_timeout_ms, fields.session_timeout_ms, fields.protocols, assignment)


def without_consumer_fields(member: ConsumerMember, fields: ClassicFields) -> ConsumerMember:
    """Return the member after its change to the classic protocol, without the fields that only the consumer protocol
    has."""
    return replace(member, classic=fields, regex='', assignor=None)


def _not_upgraded(classic: ClassicGroup, reason: str) -> KafkaError:
    log.info('group %s is not upgraded to the consumer protocol: %s', shown(classic.group_id), shown(reason))
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f'Group {classic.group_id} is not a consumer group.')
