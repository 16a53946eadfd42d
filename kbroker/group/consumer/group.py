"""The state of a consumer group (KIP-848): members, assignments and regular expressions. Only rows change it."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, ClassVar, Self

from kbroker.base.long_work import run_to_end
from kbroker.group.commits import Commit
from kbroker.group.consumer import rows
from kbroker.group.consumer.member import NOTHING, ConsumerMember, Resolved, Target
from kbroker.group.group import Group
from kbroker.group.kinds import Row, Steps
from kbroker.group.modern.group import ModernGroup, RowHandler, RowModule, subscription_bytes
from kbroker.group.modern.reconcile import FREE
from kbroker.group.modern.reconciled_group import ReconciledGroup

MEMBERS_A_PART = 64
NAMES_A_PART = 1_000
NO_TOPICS: frozenset[str] = frozenset()


class ConsumerGroup(ReconciledGroup[ConsumerMember, Target]):
    """A consumer group. Its rows can be applied in any order, because compaction may reorder them."""

    group_type = 'consumer'
    member_class = ConsumerMember
    rows: ClassVar[RowModule] = rows

    def __init__(self, group_id: str):
        super().__init__(group_id)
        self.has_partition_metadata = False
        """True if the group has a row of the obsolete type that brokers before Kafka 4.1 wrote."""
        self.regexes: dict[str, int] = {}
        """Maps each regular expression to the number of members that subscribe to it."""
        self.resolved: dict[str, Resolved] = {}
        self.classic_count = 0
        """The number of members that speak the classic protocol."""
        self.protocol_counts: dict[str, int] = {}
        """Maps the name of each assignor to the number of classic members that offer it."""
        self.assignor_votes: dict[str, int] = {}
        """Maps the name of each assignor to the number of members that prefer it."""
        self._owners: dict[bytes, dict[int, int]] | None = None
        """The index of owners: maps topic id -> partition -> epoch of the member that holds the partition. None until
        `index_owners` has run."""
        self._own_topics: set[bytes] = set()
        """The ids of the topics whose entries in `_owners` are not shared with another copy of the group."""

    def copy(self) -> Self:
        twin = super().copy()
        twin.has_partition_metadata = self.has_partition_metadata
        twin.regexes = self.regexes.copy()
        twin.resolved = self.resolved.copy()
        twin.classic_count = self.classic_count
        twin.protocol_counts = self.protocol_counts.copy()
        twin.assignor_votes = self.assignor_votes.copy()
        twin._owners = None if self._owners is None else self._owners.copy()
        return twin

    # Subscriptions

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """Return the names of the topics that the member subscribes to. A regular expression whose topics are not known
        yet adds none."""
        resolved = self.resolved.get(member.regex)
        if resolved is None or not resolved.topics:
            return member.names
        return member.names | resolved.topics if member.names else resolved.topics

    def names_with(self, before: ConsumerMember | None, after: ConsumerMember | None) -> Iterable[str]:
        names = super().names_with(before, after)
        resolved = self.resolved.get(self.dropped_regex(before, after) or '')
        if resolved is None or before is None:
            return names
        is_alone = self.subscriptions[before.names] == 1

        def is_kept(name: str) -> bool:
            others = self.names.get(name, 0) - 1 - (is_alone and name in before.names)
            return name not in resolved.topics or others > 0 or (after is not None and name in after.names)

        return filter(is_kept, names)

    def dropped_regex(self, before: ConsumerMember | None, after: ConsumerMember | None) -> str | None:
        """Return the regular expression that has no subscriber any more when the member `after` replaces `before`.
        Return None if no expression loses its last subscriber."""
        if before is None or not before.regex or (after is not None and after.regex == before.regex):
            return None
        return before.regex if self.regexes[before.regex] == 1 else None

    # Owners of partitions

    def index_owners(self) -> Steps[None]:
        """Build the index of owners in parts, if it is not built yet. `owner` reads the index."""
        if self._owners is not None:
            return
        owners: dict[bytes, dict[int, int]] = {}
        for number, member in enumerate(self.members.values()):
            if number and number % MEMBERS_A_PART == 0:
                yield
            for partitions in (member.held.assigned, member.held.pending):
                for topic_id, epochs in partitions.items():
                    owners.setdefault(topic_id, {}).update(dict.fromkeys(epochs, member.epoch))
        self._owners = owners
        self._own_topics = set(owners)

    def owner(self, topic_id: bytes, partition: int) -> int:
        """Return the epoch of the member that holds a partition: it is assigned to the member, or the member has not
        confirmed its revocation. Return FREE if no member holds the partition.
        """
        assert self._owners is not None
        partitions = self._owners.get(topic_id)
        return FREE if partitions is None else partitions.get(partition, FREE)

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Return whether another member still holds a partition of this member's target. Return False if the index of
        owners is not built."""
        if self._owners is None:
            return False
        return any(self.owner(topic_id, partition) != FREE
                   for topic_id, partitions in self.targets.get(member.member_id, NOTHING).items()
                   for partition in partitions.difference(member.held.assigned.get(topic_id, ())))

    def _own(self, topic_id: bytes) -> dict[int, int]:
        """Return the topic's entry in the index of owners for a change. Copy the entry first if another copy of the
        group shares it."""
        assert self._owners is not None
        if topic_id in self._own_topics:
            return self._owners[topic_id]
        self._own_topics.add(topic_id)
        own = self._owners[topic_id] = self._owners.get(topic_id, {}).copy()
        return own

    def _move_partitions(self, before: ConsumerMember | None, after: ConsumerMember | None) -> None:
        """Update the index of owners when the member `after` replaces `before`. None means that there is no such
        member."""
        assert self._owners is not None
        if before is not None:
            for partitions in (before.held.assigned, before.held.pending):
                for topic_id, epochs in partitions.items():
                    owners = self._own(topic_id)
                    for partition in epochs:
                        if owners.get(partition) == before.epoch:
                            del owners[partition]
        if after is not None:
            all_owners, epoch = self._owners, after.epoch
            for partitions in (after.held.assigned, after.held.pending):
                for topic_id, epochs in partitions.items():
                    if topic_id in all_owners:
                        self._own(topic_id).update(dict.fromkeys(epochs, epoch))
                    else:
                        all_owners[topic_id] = dict.fromkeys(epochs, epoch)
                        self._own_topics.add(topic_id)

    # Offsets

    def speaks_classic(self, member: ConsumerMember) -> bool:
        return member.classic is not None

    def has_had_since(self, member: ConsumerMember, commit: Commit, epoch: int) -> bool:
        return all([since_epoch(member, new.topic_id, partition) <= epoch
                    for (_, partition), new in commit.offsets.items()])

    # Rows

    def apply_partition_metadata(self, _key: Any, value: Any) -> Group | None:
        self.has_partition_metadata = value is not None
        return self

    def apply_regex(self, key: Any, value: Any) -> Group | None:
        run_to_end(self.resolve(key.regular_expression, None if value is None else rows.read_regex(value)))
        return self

    def resolve(self, regex: str, resolved: Resolved | None) -> Steps[None]:
        """Set the topics that match a regular expression. If `resolved` is None, remove the expression's topics. Work
        in parts."""
        known = self.resolved.pop(regex, None)
        before = NO_TOPICS if known is None else known.topics
        after = NO_TOPICS if resolved is None else resolved.topics
        if resolved is not None:
            self.resolved[regex] = resolved
        for names, sign in ((after - before, 1), (before - after, -1)):
            rest = iter(names)
            while part := tuple(islice(rest, NAMES_A_PART)):
                yield
                self.count_names(part, sign)
                self.hold(sign * subscription_bytes(part))

    def index_member(self, before: ConsumerMember | None, after: ConsumerMember | None) -> None:
        regex_before, regex_after = '' if before is None else before.regex, '' if after is None else after.regex
        if regex_before != regex_after:
            self._count_regex(regex_after, 1)
            self._count_regex(regex_before, -1)
        self.assignor_votes = self.votes_with(before, after)
        if (None if before is None else before.classic) is not (None if after is None else after.classic):
            self._count_classic(before, -1)
            self._count_classic(after, 1)
        if self._owners is not None and (before is None or after is None or before.held is not after.held):
            self._move_partitions(before, after)

    def votes_with(self, before: ConsumerMember | None, after: ConsumerMember | None) -> dict[str, int]:
        """Return the votes for assignors when the member `after` replaces `before`. If `before` is None, the member is
        new; if `after` is None, it is removed."""
        lost, won = None if before is None else before.assignor, None if after is None else after.assignor
        if lost == won:
            return self.assignor_votes
        votes = self.assignor_votes.copy()
        for name, change in (lost, -1), (won, 1):
            if name is not None:
                votes[name] = votes.get(name, 0) + change
        return {name: count for name, count in votes.items() if count}

    def _count_classic(self, member: ConsumerMember | None, sign: int) -> None:
        if member is None or member.classic is None:
            return
        self.classic_count += sign
        for name in {name for name, _ in member.classic.protocols}:
            count = self.protocol_counts.get(name, 0) + sign
            if count:
                self.protocol_counts[name] = count
            else:
                del self.protocol_counts[name]

    def _count_regex(self, regex: str, sign: int) -> None:
        if not regex:
            return
        count = self.regexes.get(regex, 0) + sign
        if count:
            self.regexes[regex] = count
        else:
            del self.regexes[regex]

    def epoch_rows(self, epoch: int, metadata_hash: int) -> list[Row]:
        found = [rows.epoch_row(self.group_id, epoch, metadata_hash)]
        if self.has_partition_metadata:
            found.append(rows.partition_metadata_tombstone(self.group_id))
        return found

    def subscription_tombstones(self, gone: list[ConsumerMember]) -> list[Row]:
        """Return the tombstones of the regular expressions to which only the members in `gone` subscribe."""
        counts = Counter(member.regex for member in gone)
        return [rows.regex_tombstone(self.group_id, regex)
                for regex, count in counts.items() if regex and self.regexes[regex] == count]

    def group_tombstones(self) -> Iterator[Row]:
        for regex in self.regexes:
            yield rows.regex_tombstone(self.group_id, regex)
        yield rows.partition_metadata_tombstone(self.group_id)
        yield rows.epoch_tombstone(self.group_id)

    row_handlers: ClassVar[Mapping[str, RowHandler]] = {
        'ConsumerGroupMetadataKey': ModernGroup.apply_epoch,
        'ConsumerGroupPartitionMetadataKey': apply_partition_metadata,
        'ConsumerGroupMemberMetadataKey': ModernGroup.apply_member,
        'ConsumerGroupTargetAssignmentMetadataKey': ModernGroup.apply_assignment_epoch,
        'ConsumerGroupTargetAssignmentMemberKey': ModernGroup.apply_target,
        'ConsumerGroupCurrentMemberAssignmentKey': ModernGroup.apply_current,
        'ConsumerGroupRegularExpressionKey': apply_regex,
    }


NEVER = 2**31
"""A number that is higher than every epoch."""


def since_epoch(member: ConsumerMember, topic_id: bytes, partition: int) -> int:
    """Return the assignment epoch of a member's partition: the epoch in which the member got it. Return NEVER if the
    member does not have the partition."""
    for partitions in (member.held.assigned, member.held.pending):
        epochs: Mapping[int, int] | None = partitions.get(topic_id)
        if epochs is not None and partition in epochs:
            return epochs[partition]
    return NEVER
