"""The assignors that the members of a classic group offer."""
from kbroker.group.classic.member cimport Member

from kbroker.base.errors import ErrorCode, KafkaError


cdef class Assignors:
    """The assignors of a group, each with the number of members that offer it.

    The counts replace loops over the members, so a join into a large group costs no more than one into a small group.
    """

    def __init__(self, str group_id not None, dict members not None):
        self._group_id = group_id
        self._members = members
        self._counts = {}

    cdef int count(self, Member member, int sign) except -1:
        """Count the assignors of a member that joins (1) or leaves (-1)."""
        cdef int number
        for name in {name for name, _ in member.protocols}:
            number = self._counts.get(name, 0) + sign
            if number:
                self._counts[name] = number
            else:
                del self._counts[name]
        return 0

    def is_common(self, name):
        """Return whether all members offer the assignor."""
        return self._counts.get(name, 0) == len(self._members)

    def common(self):
        """Return the assignors that all members offer, in the order of the first member."""
        if not self._members:
            return []
        return [name for name, _ in next(iter(self._members.values())).protocols if self.is_common(name)]

    def elect(self):
        """Return the assignor with the most votes. Raise INCONSISTENT_GROUP_PROTOCOL if the members share none.

        Each member votes for the first of its assignors that all members offer. In a tie, the assignor that got its
        first vote earlier wins.
        """
        cdef Member member
        cdef list common = self.common()
        cdef dict votes = {}
        if not common:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f'members of {self._group_id} share no assignor')
        if len(common) == 1:
            return common[0]
        for member in self._members.values():
            for name, _ in member.protocols:
                if name in common:
                    votes[name] = votes.get(name, 0) + 1
                    break
        return max(votes, key=votes.get)
