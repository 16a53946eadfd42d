"""The places that store ACLs: a live cluster, and the directory of a stopped broker.

Both places have the same methods. The ACLs of a directory are changed under its lock, by the code that a broker uses.
An operator can therefore create the first ACL, or grant access when no user has the right to change ACLs.
"""
from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Protocol

from kbroker.security.acl_codes import AclFilter
from kbroker_tools.base.command import ToolError


class Place(Protocol):
    def describe(self, wanted: AclFilter) -> list[AclFilter]: ...
    def create(self, acls: Iterable[AclFilter]) -> None: ...
    def delete(self, filters: Iterable[AclFilter]) -> None: ...


class ClusterAcls:
    """The ACLs of a live cluster."""

    def __init__(self, admin: Any):
        self._admin = admin

    def describe(self, wanted: AclFilter) -> list[AclFilter]:
        from kbroker.client.acl import Acl, codes_of
        return [codes_of(acl) for acl in self._admin.describe_acls(Acl(*wanted))]

    def create(self, acls: Iterable[AclFilter]) -> None:
        from kbroker.client.acl import Acl
        self._admin.create_acls([Acl(*acl) for acl in acls])

    def delete(self, filters: Iterable[AclFilter]) -> None:
        from kbroker.client.acl import Acl
        self._admin.delete_acls([Acl(*wanted) for wanted in filters])


class DirectoryAcls:
    """The ACLs of a log directory. They can be described while a broker runs, but changed only while no broker runs."""

    def __init__(self, view: Any):
        self._view = view
        self._directory = os.path.abspath(view.place)

    def describe(self, wanted: AclFilter) -> list[AclFilter]:
        if self._view.metadata is None:
            raise ToolError(f'{self._directory}: found no readable metadata log (__cluster_metadata-0)')
        return [acl_of(entry) for entry in self._view.metadata.access_control_entries.values()
                if wanted.matches(entry)]

    def create(self, acls: Iterable[AclFilter]) -> None:
        from kbroker.base.errors import KafkaError
        from kbroker.metadata.access_control import check_new_acl
        from kbroker.metadata.directory import random_uuid
        from kbroker.metadata.offline import changed_directory
        from kbroker.protocol.messages import AccessControlEntryRecord
        with changed_directory(self._directory) as controller:
            existing = {acl_of(entry) for entry in controller.image.access_control_entries.values()}
            records = []
            for acl in acls:
                record = AccessControlEntryRecord(id=random_uuid(), **acl._asdict())
                try:
                    check_new_acl(record, controller.image.metadata_version)
                except KafkaError as error:
                    raise ToolError(str(error)) from None
                if acl not in existing:
                    records.append(record)
            write(controller, records)

    def delete(self, filters: Iterable[AclFilter]) -> None:
        from kbroker.metadata.offline import changed_directory
        from kbroker.protocol.messages import RemoveAccessControlEntryRecord
        with changed_directory(self._directory) as controller:
            wanted = list(filters)
            write(controller, [RemoveAccessControlEntryRecord(id=entry.id)
                               for entry in controller.image.access_control_entries.values()
                               if any(each.matches(entry) for each in wanted)])


def acl_of(entry: Any) -> AclFilter:
    """Return the ACL of a metadata record."""
    return AclFilter(entry.resource_type, entry.resource_name, entry.pattern_type, entry.principal, entry.host,
                     entry.operation, entry.permission_type)


def write(controller: Any, records: list[Any]) -> None:
    """Write metadata records as one batch and flush it."""
    controller.at_once(controller.commits.write(records))
