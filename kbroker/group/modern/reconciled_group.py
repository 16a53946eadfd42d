"""The state that consumer and streams groups have in common. Their members are reconciled, and their offset commits are
checked by member epochs."""
from __future__ import annotations

from abc import abstractmethod

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.commits import TXN_VERSION_WITH_CODES_OF_GROUPS, Commit
from kbroker.group.modern.group import M, ModernGroup, T

VERSION_WITH_MEMBER_EPOCHS = 9
"""The first version of OffsetCommit in which a member can send its member epoch."""


class ReconciledGroup(ModernGroup[M, T]):
    """A group in which a member gives up a partition or task before another member gets it."""

    def derive_state(self) -> str:
        if not self.members:
            return 'Empty'
        if self.epoch > self.assignment_epoch:
            return 'Assigning'
        if all([member.held.is_reconciled_to(self.assignment_epoch) for member in self.members.values()]):
            return 'Stable'
        return 'Reconciling'

    def member(self, member_id: str | None) -> M:
        """Return the member with this id. Raise UNKNOWN_MEMBER_ID if the group does not have it."""
        member = self.members.get(member_id or '')
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f'group {self.group_id} has no member {member_id!r}')
        return member

    # Offsets

    def speaks_classic(self, _member: M) -> bool:
        """Return whether a member speaks the classic protocol, which has generations instead of member epochs."""
        return False

    @abstractmethod
    def has_had_since(self, member: M, commit: Commit, epoch: int) -> bool:
        """Return whether the member got all partitions of the commit in this epoch or a lower one, and has had them
        ever since."""

    def check_commit(self, commit: Commit, version: int) -> None:
        """Raise KafkaError unless the OffsetCommit may be stored.

        The errors are UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION and STALE_MEMBER_EPOCH. For a classic member,
        ILLEGAL_GENERATION replaces STALE_MEMBER_EPOCH.
        """
        if commit.generation < 0 and not self.members:
            return
        member = self.member(commit.member_id)
        if version < VERSION_WITH_MEMBER_EPOCHS and not self.speaks_classic(member):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION,
                             f'member {member.member_id} commits with version {version} of OffsetCommit, expected '
                             f'{VERSION_WITH_MEMBER_EPOCHS} or later')
        self._check_commit_epoch(member, commit, self._code_of_wrong_epoch(member))

    def check_transactional_commit(self, commit: Commit, version: int) -> None:
        """Raise KafkaError unless the commit, a TxnOffsetCommit request, may be stored.

        The errors are UNKNOWN_MEMBER_ID and STALE_MEMBER_EPOCH. In versions below 6, and for a classic member,
        ILLEGAL_GENERATION replaces STALE_MEMBER_EPOCH.
        """
        if commit.names_member() and (commit.generation >= 0 or self.members):
            member = self.member(commit.member_id)
            has_codes = version >= TXN_VERSION_WITH_CODES_OF_GROUPS
            self._check_commit_epoch(
                member, commit, self._code_of_wrong_epoch(member) if has_codes else ErrorCode.ILLEGAL_GENERATION)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Raise KafkaError unless the member that sent an OffsetFetch is in the group and has this epoch. The errors
        are UNKNOWN_MEMBER_ID and STALE_MEMBER_EPOCH. For a classic member, ILLEGAL_GENERATION replaces
        STALE_MEMBER_EPOCH.
        """
        if member_id is None and member_epoch < 0:
            return
        member = self.member(member_id)
        if member_epoch != member.epoch:
            raise KafkaError(self._code_of_wrong_epoch(member),
                             f'found member epoch {member_epoch}, expected {member.epoch}')

    def _code_of_wrong_epoch(self, member: M) -> ErrorCode:
        return ErrorCode.ILLEGAL_GENERATION if self.speaks_classic(member) else ErrorCode.STALE_MEMBER_EPOCH

    def _check_commit_epoch(self, member: M, commit: Commit, code: ErrorCode) -> None:
        """Raise KafkaError with `code` unless the member may commit with the epoch in the commit. An epoch before the
        member's current one is accepted if the member has had all partitions of the commit since that epoch (KIP-1251).
        """
        epoch = commit.generation
        if epoch == member.epoch or (epoch < member.epoch and self.has_had_since(member, commit, epoch)):
            return
        raise KafkaError(code, f'found member epoch {epoch}, expected {member.epoch}')
