"""Puts the ACLs of the metadata log into force. An authorizer applies each change of the log.

A change of many ACLs takes effect in parts. ACLs that deny are added first and removed last. So between two parts, no
client has a right that it lacks both before and after the change, and no client lacks a right that it has both before
and after.
"""
from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.ledger import Line
from kbroker.base.long_work import LongWork, Pace
from kbroker.metadata.batches import MAX_RECORDS
from kbroker.metadata.changes import Steps
from kbroker.metadata.controller import MetadataController
from kbroker.metadata.features import CIDR_HOSTS_SINCE
from kbroker.protocol.messages import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from kbroker.security.acl_codes import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from kbroker.security.acl_validation import reason_to_refuse, reason_to_refuse_range
from kbroker.security.authorizer import Authorizer

logger = logging.getLogger(__name__)


def check_new_acl(entry: AccessControlEntryRecord, metadata_version: int) -> None:
    """Check an ACL before it is written. `metadata_version` is the level of the feature metadata.version.

    Raise KafkaError INVALID_REQUEST if the ACL is invalid, UNSUPPORTED_VERSION if its host is a range of addresses and
    the level is too low for ranges.
    """
    reason = reason_to_refuse(entry)
    if reason is None and '/' in entry.host:
        if metadata_version < CIDR_HOSTS_SINCE:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                'CIDR-based ACL host patterns require metadata version 4.4-IV1 or higher. '
                f'Found metadata.version {metadata_version}, expected at least {CIDR_HOSTS_SINCE}')
        reason = reason_to_refuse_range(entry.host)
    if reason is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, reason)


class AclFollower:
    """Applies the ACL changes of the metadata log to an authorizer."""

    def __init__(self, authorizer: Authorizer, metadata: MetadataController, long_work: LongWork):
        self._authorizer = authorizer
        self._long_work = long_work
        self._pending: deque[Any] = deque()
        for entry in metadata.image.access_control_entries.values():
            authorizer.put(entry)
        self._warn_of_early_ranges(metadata.image.metadata_version)
        metadata.commits.on_change.append(self._adopt)

    def _warn_of_early_ranges(self, metadata_version: int) -> None:
        """Log a warning if ACLs have ranges that an earlier version stored as texts without a meaning."""
        count = self._authorizer.index.ranges_count
        if count and metadata_version < CIDR_HOSTS_SINCE:
            logger.warning('found ranges of addresses as hosts of ACLs: %d, expected 0 at metadata.version %d. An '
                           'earlier version has stored them as texts that match no client. They are in force now. To '
                           'see them, run: kbroker-acls --list', count, metadata_version)

    def __len__(self) -> int:
        """Return the number of records that are not in force yet."""
        return len(self._pending)

    def ledger(self) -> list[Line]:
        return [Line('changes of ACLs that are not in force yet', '', lambda: len(self), lambda: MAX_RECORDS,
                     'one request at a time')]

    def _adopt(self, records: Sequence[Any]) -> None:
        ordered = self._in_order(records)
        if ordered:
            self._pending += ordered
            self._long_work.start(self.settle())

    def _in_order(self, records: Iterable[Any]) -> list[Any]:
        """Return the ACL records among `records`, in an order that keeps the promise of this module.

        Added ACLs that deny come first, removed ACLs that deny come last.
        """
        find, deny = self._authorizer.index.entries.get, Permission.DENY
        added: dict[bool, list[Any]] = {True: [], False: []}
        removed: dict[bool, list[Any]] = {True: [], False: []}
        for record in records:
            kind = type(record)
            if kind is AccessControlEntryRecord:
                added[record.permission_type == deny].append(record)
            elif kind is RemoveAccessControlEntryRecord:
                found = find(record.id)
                removed[found is not None and found.permission_type == deny].append(record)
        return [*added[True], *added[False], *removed[False], *removed[True]]

    def settle(self) -> Steps[None]:
        """Put all changes that are not in force yet into force, as long work."""
        pace = Pace()
        while self._pending:
            record = self._pending.popleft()
            if isinstance(record, AccessControlEntryRecord):
                self._authorizer.put(record)
            else:
                self._authorizer.remove(record.id)
            if pace.spend() and self._pending:
                yield


def may_be_administered(authorizer: Authorizer) -> bool:
    """Return whether some principal may create ACLs: a super user, a principal with an ACL for it, or everybody.

    ACLs that deny are ignored. Everybody may create ACLs if the authorizer allows access to resources without ACLs.
    """
    if authorizer.super_users or authorizer.allow_if_no_acl:
        return True
    return any(
        entry.resource_type == ResourceType.CLUSTER and entry.permission_type == Permission.ALLOW
        and entry.operation in (Operation.ALL, Operation.ALTER)
        and (entry.resource_name in (CLUSTER_NAME, '*') if entry.pattern_type == PatternType.LITERAL
             else CLUSTER_NAME.startswith(entry.resource_name))
        for entry in authorizer.index.entries.values())
